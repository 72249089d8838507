//! `instructions` and `input`, as the messages that templates know.

use serde_json::Value;
use taper_text::ChatMessage;

use crate::chat::{CallNames, arguments_of, call_of, merge_turns};
use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// Takes both.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(ChatMessage::new("system", instructions));
    }
    let has_instructions = !messages.is_empty();
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(ChatMessage::new("user", text)),
        Some(Value::Array(items)) if !items.is_empty() => {
            let mut names = CallNames::default();
            for (index, item) in items.into_iter().enumerate() {
                let message = read_item(Fields::nested(&format!("input[{index}]"), item)?, &names)?;
                names.note(&message.tool_calls);
                messages.push(message);
            }
            let first = usize::from(has_instructions);
            if messages[first..].iter().all(says_nothing) {
                let message = "input says nothing: its items have no text, no call and no result of one";
                return Err(ApiError::invalid("input", message));
            }
        }
        Some(Value::Array(_)) => return Err(ApiError::invalid("input", "input must hold at least one item")),
        Some(other) => {
            let message = format!("input must be a string or an array of items, got {}", show(&other));
            return Err(ApiError::invalid("input", message));
        }
        None => return Err(ApiError::missing("input", "input is missing; it is a text or an array of items")),
    }
    Ok(merge_turns(messages))
}

/// Whether there is nothing in a message; a result of a tool may be empty.
fn says_nothing(message: &ChatMessage) -> bool {
    message.content.is_empty()
        && message.tool_calls.is_empty()
        && message.reasoning_content.is_none()
        && message.role != "tool"
}

fn missing(name: &str) -> ApiError {
    ApiError::missing(name, format!("{name} is missing"))
}

fn needed(fields: &mut Fields, field: &str) -> Result<String, ApiError> {
    fields.string(field)?.ok_or_else(|| missing(&fields.name_of(field)))
}

fn read_item(mut item: Fields, names: &CallNames) -> Result<ChatMessage, ApiError> {
    let kind_name = item.name_of("type");
    match item.string("type")?.as_deref() {
        None | Some("message") => read_message(item),
        Some("function_call") => {
            let (id, name) = (needed(&mut item, "call_id")?, needed(&mut item, "name")?);
            let arguments = item.string("arguments")?.map_or_else(|| Value::Object(Default::default()), arguments_of);
            Ok(ChatMessage { tool_calls: vec![call_of(&id, &name, &arguments)], ..ChatMessage::new("assistant", "") })
        }
        Some("function_call_output") => {
            let id = needed(&mut item, "call_id")?;
            let name = names.of(&id);
            let path = item.name_of("output");
            let output = item.take("output").ok_or_else(|| missing(&path))?;
            Ok(ChatMessage { name, tool_call_id: Some(id), ..ChatMessage::new("tool", read_content(&path, output)?) })
        }
        Some("reasoning") => {
            Ok(ChatMessage { reasoning_content: read_thoughts(item)?, ..ChatMessage::new("assistant", "") })
        }
        Some("item_reference") => {
            let message =
                format!("{kind_name} item_reference is not supported: this server stores no responses; send the item");
            Err(ApiError::unsupported(kind_name, message))
        }
        Some(other) => {
            let got = show(&Value::from(other));
            let message =
                format!("{kind_name} must be message, function_call, function_call_output or reasoning, got {got}");
            Err(ApiError::unsupported(kind_name, message))
        }
    }
}

fn read_message(mut item: Fields) -> Result<ChatMessage, ApiError> {
    let role_name = item.name_of("role");
    let role = match needed(&mut item, "role")?.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => {
            let got = show(&Value::from(other));
            let message = format!("{role_name} must be system, developer, user or assistant, got {got}");
            return Err(ApiError::invalid(role_name, message));
        }
    };
    let path = item.name_of("content");
    let content = item.take("content").ok_or_else(|| missing(&path))?;
    Ok(ChatMessage::new(role, read_content(&path, content)?))
}

/// A text, or parts of text.
fn read_content(path: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let message = format!("{path} must be a string or an array of text parts, got {}", show(&other));
            return Err(ApiError::invalid(path, message));
        }
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::nested(&format!("{path}[{index}]"), part)?;
        let kind_name = part.name_of("type");
        texts.push(match needed(&mut part, "type")?.as_str() {
            "input_text" | "output_text" => needed(&mut part, "text")?,
            "refusal" => needed(&mut part, "refusal")?,
            other => {
                let got = show(&Value::from(other));
                let message = format!(
                    "{kind_name} must be input_text, output_text or refusal, got {got}; this model reads text only"
                );
                return Err(ApiError::unsupported(kind_name, message));
            }
        });
    }
    Ok(texts.join("\n"))
}

/// The text of former thoughts. A summary is not what the model thought, and what is encrypted nobody here can read.
fn read_thoughts(mut item: Fields) -> Result<Option<String>, ApiError> {
    item.array("summary")?;
    item.string("encrypted_content")?;
    let path = item.name_of("content");
    let mut texts = Vec::new();
    for (index, part) in item.array("content")?.unwrap_or_default().into_iter().enumerate() {
        let mut part = Fields::nested(&format!("{path}[{index}]"), part)?;
        let kind_name = part.name_of("type");
        let kind = needed(&mut part, "type")?;
        if kind != "reasoning_text" {
            let message = format!("{kind_name} must be reasoning_text, got {}", show(&Value::from(kind)));
            return Err(ApiError::invalid(kind_name, message));
        }
        texts.push(needed(&mut part, "text")?);
    }
    Ok((!texts.is_empty()).then(|| texts.join("\n")))
}
