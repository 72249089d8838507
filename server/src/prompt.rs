//! From a request's text to tokens. Runs on a blocking thread: long prompts take milliseconds.

use serde_json::{Map, Value};
use taper_text::{ChatMessage, EncodeOptions, Prompt, RenderContext, TemplateError};

use crate::errors::ApiError;
use crate::state::Served;

/// Tokenizes `text`, which came in the field `param`. Special tokens may be written out, as in the peers' servers.
pub(crate) fn encode(served: &Served, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    encode_with(served, text, param, EncodeOptions { parse_special: true, add_bos: true })
}

/// [`encode`] in another way.
pub(crate) fn encode_with(
    served: &Served,
    text: &str,
    param: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>, ApiError> {
    check_fits(served, text, param)?;
    served.model.tokenizer.encode(text, options).map_err(|error| cannot_be_tokenized(param, &error))
}

fn cannot_be_tokenized(param: &str, error: &taper_text::Error) -> ApiError {
    ApiError::invalid(param, format!("{param} cannot be tokenized: {error}"))
}

/// Refuses a text that cannot fit, whatever its tokens are.
fn check_fits(served: &Served, text: &str, param: &str) -> Result<(), ApiError> {
    let context_len = served.model.context_len;
    // Megabytes that cannot fit are not worth tokenizing. Twice, since normalization may shorten a text.
    let shortest = text.len() / served.longest_token_bytes.max(1) / 2;
    if shortest > context_len {
        return Err(ApiError::context_overflow(param, shortest, context_len, false));
    }
    Ok(())
}

/// Renders a conversation with the model's template and tokenizes it; control tokens come from the template alone. `extra` are
/// variables for the template.
pub(crate) fn encode_chat(
    served: &Served,
    messages: &[ChatMessage],
    extra: Map<String, Value>,
) -> Result<Vec<u32>, ApiError> {
    encode_rendered(served, &render_chat(served, messages, extra, true)?, true)
}

/// The first half of [`encode_chat`]: the conversation as the model sees it, with or without the beginning of an answer.
pub(crate) fn render_chat(
    served: &Served,
    messages: &[ChatMessage],
    extra: Map<String, Value>,
    add_generation_prompt: bool,
) -> Result<Prompt, ApiError> {
    let model = &served.model;
    let Some(template) = &model.template else {
        let message = "this model has no chat template; use /v1/completions, or start the server with --chat-template";
        return Err(ApiError::invalid("messages", message));
    };
    let context = RenderContext {
        bos_text: model.tokenizer.bos_text().to_owned(),
        eos_text: model.tokenizer.eos_text().to_owned(),
        add_generation_prompt,
        tools: None,
        extra,
    };
    template.prompt(&model.tokenizer, messages, &context).map_err(|error| match error {
        TemplateError::Raised(message) => {
            ApiError::invalid("messages", format!("the model's chat template refuses these messages: {message}"))
        }
        other => ApiError::invalid("messages", format!("the model's chat template failed on these messages: {other}")),
    })
}

/// The second half of [`encode_chat`].
pub(crate) fn encode_rendered(served: &Served, prompt: &Prompt, add_bos: bool) -> Result<Vec<u32>, ApiError> {
    check_fits(served, &prompt.text(), "messages")?;
    let tokens = served.model.tokenizer.encode_prompt(prompt, add_bos);
    tokens.map_err(|error| cannot_be_tokenized("messages", &error))
}
