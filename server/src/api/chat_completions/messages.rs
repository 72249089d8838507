//! OpenAI's `messages`.

use serde_json::Value;
use taper_text::ChatMessage;

use crate::chat::{CallNames, call_of, take_function};
use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// Takes the messages.
pub(super) fn take(fields: &mut Fields, field: &str) -> Result<Vec<ChatMessage>, ApiError> {
    let Some(items) = fields.array(field)? else {
        return Err(ApiError::missing(
            field,
            format!("{field} is missing; it is an array of {{\"role\", \"content\"}}"),
        ));
    };
    if items.is_empty() {
        return Err(ApiError::invalid(field, format!("{field} must hold at least one message")));
    }
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(items.len());
    let mut names = CallNames::default();
    for (index, item) in items.into_iter().enumerate() {
        let mut message = read_message(Fields::nested(&format!("{field}[{index}]"), item)?)?;
        if message.role == "tool" && message.name.is_none() {
            message.name = message.tool_call_id.as_deref().and_then(|id| names.of(id));
        }
        names.note(&message.tool_calls);
        messages.push(message);
    }
    Ok(messages)
}

fn read_message(mut fields: Fields) -> Result<ChatMessage, ApiError> {
    let role = read_role(&mut fields)?;
    let tool_calls = read_tool_calls(&mut fields)?;
    if role != "assistant" && !tool_calls.is_empty() {
        let name = fields.name_of("tool_calls");
        return Err(ApiError::invalid(
            name.clone(),
            format!("{name} belongs to the role assistant, got it with {role}"),
        ));
    }
    if let Some(value) = fields.take("function_call") {
        let name = fields.name_of("function_call");
        let message = format!("{name} is not supported by this server; use tool_calls (got {})", show(&value));
        return Err(ApiError::unsupported(name, message));
    }
    let id_name = fields.name_of("tool_call_id");
    let tool_call_id = fields.string("tool_call_id")?.filter(|_| role == "tool");
    if role == "tool" && tool_call_id.is_none() {
        return Err(ApiError::missing(&id_name, format!("{id_name} is missing; it says which call this answers")));
    }
    // vLLM's newer name, and the older one of all others.
    let (newer, older) = (fields.string("reasoning")?, fields.string("reasoning_content")?);
    let name = fields.string("name")?;
    let content_name = fields.name_of("content");
    let reasoning_content = older.or(newer).filter(|_| role == "assistant");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => read_parts(parts, &content_name)?,
        Some(other) => {
            let message = format!("{content_name} must be a string or an array of text parts, got {}", show(&other));
            return Err(ApiError::invalid(content_name, message));
        }
        None if !tool_calls.is_empty() || reasoning_content.is_some() => String::new(),
        None => return Err(ApiError::missing(&content_name, format!("{content_name} is missing"))),
    };
    Ok(ChatMessage { role: role.to_owned(), content, name, tool_calls, tool_call_id, reasoning_content })
}

fn read_role(fields: &mut Fields) -> Result<&'static str, ApiError> {
    let role_name = fields.name_of("role");
    match fields.string("role")?.as_deref() {
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool") => Ok("tool"),
        Some("function") => {
            let message = format!("{role_name} function is not supported by this server; use tool");
            Err(ApiError::unsupported(role_name, message))
        }
        Some(other) => {
            let got = show(&Value::String(other.to_owned()));
            let message = format!("{role_name} must be system, developer, user, assistant or tool, got {got}");
            Err(ApiError::invalid(role_name, message))
        }
        None => Err(ApiError::missing(&role_name, format!("{role_name} is missing"))),
    }
}

/// Former calls, with their arguments as templates want them: an object, where the text is one.
fn read_tool_calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let path = fields.name_of("tool_calls");
    let calls = fields.array("tool_calls")?.unwrap_or_default();
    calls.into_iter().enumerate().map(|(index, call)| read_tool_call(&format!("{path}[{index}]"), call)).collect()
}

fn read_tool_call(path: &str, call: Value) -> Result<Value, ApiError> {
    let mut call = Fields::nested(path, call)?;
    if let Some(kind) = call.string("type")?
        && kind != "function"
    {
        let name = call.name_of("type");
        let message = format!("{name} must be \"function\", got {}", show(&Value::from(kind)));
        return Err(ApiError::unsupported(name, message));
    }
    let Some(id) = call.string("id")? else {
        let name = call.name_of("id");
        return Err(ApiError::missing(&name, format!("{name} is missing")));
    };
    let (name, arguments) = take_function(&mut call, "a string of JSON")?;
    Ok(call_of(&id, &name, &arguments))
}

fn read_parts(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(&format!("{path}[{index}]"), part)?;
        let (kind_name, text_name) = (fields.name_of("type"), fields.name_of("text"));
        match fields.string("type")?.as_deref() {
            Some("text") => {}
            Some(other) => {
                let got = show(&Value::String(other.to_owned()));
                let message = format!("{kind_name} must be \"text\", got {got}; this model reads text only");
                return Err(ApiError::unsupported(kind_name, message));
            }
            None => return Err(ApiError::missing(&kind_name, format!("{kind_name} is missing"))),
        }
        let text = fields.string("text")?;
        texts.push(text.ok_or_else(|| ApiError::missing(&text_name, format!("{text_name} is missing")))?);
    }
    Ok(texts.join("\n"))
}
