//! Anthropic's `system` and `messages`, as the messages that templates know.

use serde_json::{Value, json};
use taper_text::ChatMessage;

use crate::chat::{CallNames, Conversation, call_of, merge_turns};
use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// The field of the conversation.
pub(super) const FIELD: &str = "messages";

/// Takes both.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let mut messages = Vec::new();
    let says_something = |system: &Value| system.as_array().is_none_or(|blocks| !blocks.is_empty());
    if let Some(system) = fields.take("system").filter(says_something) {
        messages.push(ChatMessage::new("system", texts("system", system)?));
    }
    let Some(items) = fields.array("messages")? else {
        let message = "messages is missing; it is an array of {\"role\", \"content\"}";
        return Err(ApiError::missing("messages", message));
    };
    if items.is_empty() {
        return Err(ApiError::invalid("messages", "messages must hold at least one message"));
    }
    let mut names = CallNames::default();
    for (index, item) in items.into_iter().enumerate() {
        read_message(Fields::nested(&format!("messages[{index}]"), item)?, &mut messages, &mut names)?;
    }
    Ok(merge_turns(messages))
}

/// Refuses to go on behind a blank, as Anthropic does: models write blanks with the words that follow.
pub(super) fn check_continued(conversation: &Conversation) -> Result<(), ApiError> {
    let last = conversation.messages.last().filter(|_| conversation.is_continued());
    if last.is_some_and(|last| last.content.ends_with(char::is_whitespace)) {
        let message = "messages ends with a text of the assistant that the answer goes on with, and that text ends with a blank; leave \
                       out the blanks at its end";
        return Err(ApiError::invalid(FIELD, message));
    }
    Ok(())
}

fn missing(name: &str) -> ApiError {
    ApiError::missing(name, format!("{name} is missing"))
}

fn read_message(mut fields: Fields, messages: &mut Vec<ChatMessage>, names: &mut CallNames) -> Result<(), ApiError> {
    let role_name = fields.name_of("role");
    let content_name = fields.name_of("content");
    let role = fields.string("role")?.ok_or_else(|| missing(&role_name))?;
    let content = fields.take("content").ok_or_else(|| missing(&content_name))?;
    match role.as_str() {
        "user" => read_user(&content_name, content, messages, names),
        "assistant" => {
            let message = read_assistant(&content_name, content)?;
            names.note(&message.tool_calls);
            messages.push(message);
            Ok(())
        }
        other => {
            let hint = if other == "system" { "; what the system says goes into the field system" } else { "" };
            let got = show(&Value::from(other));
            let message = format!("{role_name} must be user or assistant, got {got}{hint}");
            Err(ApiError::invalid(role_name, message))
        }
    }
}

/// The blocks of a content; a string is one of text.
fn blocks(path: &str, content: Value) -> Result<Vec<Fields>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![Fields::nested(path, json!({ "type": "text", "text": text }))?]),
        Value::Array(blocks) => {
            let block = |(index, block)| Fields::nested(&format!("{path}[{index}]"), block);
            blocks.into_iter().enumerate().map(block).collect()
        }
        other => {
            let message = format!("{path} must be a string or an array of blocks, got {}", show(&other));
            Err(ApiError::invalid(path, message))
        }
    }
}

fn kind_of(block: &mut Fields) -> Result<String, ApiError> {
    let name = block.name_of("type");
    block.string("type")?.ok_or_else(|| missing(&name))
}

fn needed(block: &mut Fields, field: &str) -> Result<String, ApiError> {
    let name = block.name_of(field);
    block.string(field)?.ok_or_else(|| missing(&name))
}

fn refused(block: &Fields, kind: &str, known: &str) -> ApiError {
    let name = block.name_of("type");
    let why = match kind {
        "image" | "document" | "search_result" => "this model reads text only",
        _ => "this server has no such blocks",
    };
    let message = format!("{name} must be {known}, got {}; {why}", show(&Value::from(kind)));
    ApiError::unsupported(name, message)
}

/// A content that may only have text.
fn texts(path: &str, content: Value) -> Result<String, ApiError> {
    let mut texts = Vec::new();
    for mut block in blocks(path, content)? {
        match kind_of(&mut block)?.as_str() {
            "text" => texts.push(needed(&mut block, "text")?),
            other => return Err(refused(&block, other, "text")),
        }
    }
    Ok(texts.join("\n"))
}

/// Makes a message of what the user said so far.
fn flush(said: &mut Vec<String>, messages: &mut Vec<ChatMessage>) {
    if !said.is_empty() {
        messages.push(ChatMessage::new("user", std::mem::take(said).join("\n")));
    }
}

/// Texts are a message of the user; each result of a tool is a message of its own.
fn read_user(path: &str, content: Value, messages: &mut Vec<ChatMessage>, names: &CallNames) -> Result<(), ApiError> {
    let mut said: Vec<String> = Vec::new();
    let blocks = blocks(path, content)?;
    if blocks.is_empty() {
        return Err(ApiError::invalid(path, format!("{path} must hold at least one block")));
    }
    for mut block in blocks {
        match kind_of(&mut block)?.as_str() {
            "text" => said.push(needed(&mut block, "text")?),
            "tool_result" => {
                flush(&mut said, messages);
                messages.push(read_result(block, names)?);
            }
            other => return Err(refused(&block, other, "text or tool_result")),
        }
    }
    flush(&mut said, messages);
    Ok(())
}

fn read_result(mut block: Fields, names: &CallNames) -> Result<ChatMessage, ApiError> {
    let id = needed(&mut block, "tool_use_id")?;
    let is_error = block.boolean("is_error")?.unwrap_or(false);
    let path = block.name_of("content");
    let mut content = block.take("content").map_or(Ok(String::new()), |content| texts(&path, content))?;
    // Templates have no other place for it.
    if is_error && !content.to_ascii_lowercase().starts_with("error") {
        content.insert_str(0, "Error: ");
    }
    Ok(ChatMessage { name: names.of(&id), tool_call_id: Some(id), ..ChatMessage::new("tool", content) })
}

fn read_assistant(path: &str, content: Value) -> Result<ChatMessage, ApiError> {
    let mut said: Vec<String> = Vec::new();
    let mut thought: Vec<String> = Vec::new();
    let mut message = ChatMessage::new("assistant", "");
    for mut block in blocks(path, content)? {
        match kind_of(&mut block)?.as_str() {
            "text" => said.push(needed(&mut block, "text")?),
            "thinking" => {
                block.string("signature")?;
                thought.push(needed(&mut block, "thinking")?);
            }
            // Nobody but who wrote it can read it.
            "redacted_thinking" => {
                block.string("data")?;
            }
            "tool_use" => {
                let (id, name) = (needed(&mut block, "id")?, needed(&mut block, "name")?);
                let input = block.object("input")?.map_or_else(|| json!({}), |input| Value::Object(input.into_rest()));
                message.tool_calls.push(call_of(&id, &name, &input));
            }
            other => return Err(refused(&block, other, "text, thinking, redacted_thinking or tool_use")),
        }
    }
    message.content = said.join("\n");
    message.reasoning_content = (!thought.is_empty()).then(|| thought.join("\n"));
    Ok(message)
}
