//! From a request's text to tokens. Runs on a blocking thread: long prompts take milliseconds.

use serde_json::{Map, Value};
use taper_text::{ChatMessage, EncodeOptions, RenderContext, TemplateError};

use crate::errors::ApiError;
use crate::state::Served;

/// Tokenizes `text`, which came in the field `param`. Special tokens may be written out, as in the peers' servers.
pub(crate) fn encode(served: &Served, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    check_fits(served, text, param)?;
    let options = EncodeOptions { parse_special: true, add_bos: true };
    served.model.tokenizer.encode(text, options).map_err(|error| cannot_be_tokenized(param, &error))
}

pub(crate) fn cannot_be_tokenized(param: &str, error: &taper_text::Error) -> ApiError {
    ApiError::invalid(param, format!("{param} cannot be tokenized: {error}"))
}

/// Tokens that a text has at least, without a look at it: megabytes that cannot fit are not worth tokenizing.
pub(crate) fn least_tokens(served: &Served, text: &str) -> usize {
    // Twice, since normalization may shorten a text.
    text.len() / served.longest_token_bytes.max(1) / 2
}

/// The end of a text, of no more bytes than a text that may fit can have.
pub(crate) fn end_that_may_fit<'a>(served: &Served, text: &'a str) -> &'a str {
    let most = served.model.context_len.saturating_mul(2 * served.longest_token_bytes.max(1));
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// Refuses a text that cannot fit, whatever its tokens are.
fn check_fits(served: &Served, text: &str, param: &str) -> Result<(), ApiError> {
    let context_len = served.model.context_len;
    let shortest = least_tokens(served, text);
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
    let model = &served.model;
    let Some(template) = &model.template else {
        let message = "this model has no chat template; use /v1/completions, or start the server with --chat-template";
        return Err(ApiError::invalid("messages", message));
    };
    let context = RenderContext {
        bos_text: model.tokenizer.bos_text().to_owned(),
        eos_text: model.tokenizer.eos_text().to_owned(),
        add_generation_prompt: true,
        tools: None,
        extra,
    };
    let prompt = template.prompt(&model.tokenizer, messages, &context).map_err(|error| match error {
        TemplateError::Raised(message) => {
            ApiError::invalid("messages", format!("the model's chat template refuses these messages: {message}"))
        }
        other => ApiError::invalid("messages", format!("the model's chat template failed on these messages: {other}")),
    })?;
    check_fits(served, &prompt.text(), "messages")?;
    model.tokenizer.encode_prompt(&prompt, true).map_err(|error| cannot_be_tokenized("messages", &error))
}
