//! From a conversation to the prompt: the template's text and its tokens.

use serde_json::Value;
use taper_text::{
    ChatMessage, ContinuedPrompt, Prompt, RenderContext, TemplateError, ToolFormat, Unshown, with_tools_in_text,
};

use super::opening::Place;
use super::{Conversation, Tool};
use crate::errors::ApiError;
use crate::limits::MAX_COUNTED_BYTES;
use crate::prompt::{cannot_be_tokenized, check_fits};
use crate::state::Served;

/// Letters of an id of a call in Mistral's templates, which take no others.
const MISTRAL_ID_LEN: usize = 9;

/// A rendered conversation.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) prompt: Prompt,
    /// Which part of the last message the answer goes on with.
    pub(super) continued: Option<Part>,
}

/// A part of a message of the assistant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Text,
    Thoughts,
}

/// Renders with the model's template, up to where the answer begins; control tokens come from the template alone.
pub(crate) fn render(served: &Served, conversation: &Conversation) -> Result<Rendered, ApiError> {
    let (model, dialect, field) = (&served.model, &served.dialect, conversation.messages_field);
    let place = conversation.place()?;
    let offered = conversation.offered();
    let tools: Vec<Value> = offered.iter().map(Tool::for_template).collect();
    let mut messages = conversation.messages.clone();
    if place == Place::InsteadOfLast {
        messages.pop();
    }
    if !dialect.knows_tools {
        messages = with_tools_in_text(&messages, &tools);
    } else if matches!(dialect.format, ToolFormat::Mistral | ToolFormat::MistralArgs) {
        messages.iter_mut().for_each(shorten_ids);
    }
    let context = RenderContext {
        bos_text: model.tokenizer.bos_text().to_owned(),
        eos_text: model.tokenizer.eos_text().to_owned(),
        add_generation_prompt: matches!(place, Place::NewTurn | Place::InsteadOfLast),
        tools: (dialect.knows_tools && !tools.is_empty()).then(|| tools.clone().into()),
        extra: conversation.variables.clone(),
    };
    let rendered = match from_template(served, &messages, &context, (place, field))? {
        Err(TemplateError::Raised(_)) if !dialect.knows_tools && !tools.is_empty() => {
            // Some templates take no system message, and this one may be ours.
            into_first_user(&mut messages);
            from_template(served, &messages, &context, (place, field))?
        }
        first => first,
    };
    rendered.map_err(|error| match error {
        TemplateError::Raised(message) => {
            ApiError::invalid(field, format!("the model's chat template refuses these messages: {message}"))
        }
        TemplateError::Unshown(part) => {
            let (what, it) = match part {
                Unshown::Text => ("a text", "it"),
                Unshown::Thoughts => ("thoughts", "them"),
            };
            let message = format!(
                "{field} ends with {what} of the assistant, and the model's chat template does not show {it} as such, so that no answer \
                 can go on with {it}; end with a message of the user"
            );
            ApiError::invalid(field, message)
        }
        other @ TemplateError::Failed(_) => {
            ApiError::invalid(field, format!("the model's chat template failed on these messages: {other}"))
        }
    })
}

/// The tokens of a rendered conversation; `field` is the one that it came in.
pub(crate) fn encode(served: &Served, prompt: &Prompt, field: &str, add_bos: bool) -> Result<Vec<u32>, ApiError> {
    check_fits(served, &prompt.text(), field)?;
    let tokens = served.model.tokenizer.encode_prompt(prompt, add_bos);
    tokens.map_err(|error| cannot_be_tokenized(field, &error))
}

/// How many tokens a conversation has up to where the answer begins, however few the context holds.
///
/// # Errors
/// 400 beyond [`MAX_COUNTED_BYTES`], and what [`render`] and the tokenizer refuse.
pub(crate) fn count(served: &Served, conversation: &Conversation) -> Result<usize, ApiError> {
    let field = conversation.messages_field;
    let prompt = render(served, conversation)?.prompt;
    let num_bytes = prompt.text().len();
    if num_bytes > MAX_COUNTED_BYTES {
        let message = format!(
            "{field} has {num_bytes} bytes as the model reads it, and the tokens of at most {MAX_COUNTED_BYTES} are counted; ask about \
             less of it at a time"
        );
        return Err(ApiError::invalid(field, message));
    }
    let tokens = served.model.tokenizer.encode_prompt(&prompt, true);
    Ok(tokens.map_err(|error| cannot_be_tokenized(field, &error))?.len())
}

/// What the template makes of the messages; refuses where there is no template.
fn from_template(
    served: &Served,
    messages: &[ChatMessage],
    context: &RenderContext,
    (place, field): (Place, &str),
) -> Result<Result<Rendered, TemplateError>, ApiError> {
    let Some(template) = &served.model.template else {
        let message = "this model has no chat template; use /v1/completions, or start the server with --chat-template";
        return Err(ApiError::invalid(field, message));
    };
    let tokenizer = &served.model.tokenizer;
    if place != Place::Last {
        let prompt = template.prompt(tokenizer, messages, context);
        return Ok(prompt.map(|prompt| Rendered { prompt, continued: None }));
    }
    let continued = template.continued(tokenizer, messages, context, served.dialect.reasoning);
    Ok(continued.map(|ContinuedPrompt { prompt, in_thoughts }| {
        let part = if in_thoughts { Part::Thoughts } else { Part::Text };
        Rendered { prompt, continued: Some(part) }
    }))
}

/// Puts the system message before the first message of the user.
fn into_first_user(messages: &mut Vec<ChatMessage>) {
    if messages.first().is_some_and(|first| first.role == "system") {
        let system = messages.remove(0);
        if let Some(user) = messages.iter_mut().find(|message| message.role == "user") {
            user.content = format!("{}\n\n{}", system.content, user.content);
        }
    }
}

fn shorten_ids(message: &mut ChatMessage) {
    if let Some(id) = &mut message.tool_call_id {
        *id = mistral_id(id);
    }
    for call in &mut message.tool_calls {
        if let Some(Value::String(id)) = call.get_mut("id") {
            *id = mistral_id(id);
        }
    }
}

/// The last letters of an id, filled up to the length that Mistral's templates ask for.
fn mistral_id(id: &str) -> String {
    let letters: Vec<char> = id.chars().filter(char::is_ascii_alphanumeric).collect();
    let last = letters[letters.len().saturating_sub(MISTRAL_ID_LEN)..].iter().collect::<String>();
    format!("{last:0>MISTRAL_ID_LEN$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_length_that_mistral_asks_for() {
        assert_eq!(mistral_id("call_0123456789abcdef"), "789abcdef");
        assert_eq!(mistral_id("a-1"), "0000000a1");
        assert_eq!(mistral_id(""), "000000000");
    }

    #[test]
    fn a_system_message_goes_before_the_users() {
        let mut messages = vec![ChatMessage::new("system", "S"), ChatMessage::new("user", "U")];
        into_first_user(&mut messages);
        assert_eq!(messages, [ChatMessage::new("user", "S\n\nU")]);
    }
}
