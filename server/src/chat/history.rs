//! What protocols have in common when they tell of former turns: calls as templates know them, and turns that are one.

use std::collections::HashMap;

use serde_json::{Value, json};
use taper_text::ChatMessage;

use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// A former call.
pub(crate) fn call_of(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// Takes the function of a former call: its name and its arguments, which may be an object or its text, and whose usual type is
/// `wanted`.
///
/// # Errors
/// 400 where there is none, where it has no name, and for arguments of another type.
pub(crate) fn take_function(call: &mut Fields, wanted: &str) -> Result<(String, Value), ApiError> {
    let missing = |name: String| ApiError::missing(&name, format!("{name} is missing"));
    let mut function = call.object("function")?.ok_or_else(|| missing(call.name_of("function")))?;
    let name = function.string("name")?.ok_or_else(|| missing(function.name_of("name")))?;
    let arguments = match function.take("arguments") {
        None => json!({}),
        Some(object @ Value::Object(_)) => object,
        Some(Value::String(text)) => arguments_of(text),
        Some(other) => {
            let name = function.name_of("arguments");
            let message = format!("{name} must be {wanted}, got {}", show(&other));
            return Err(ApiError::invalid(name, message));
        }
    };
    Ok((name, arguments))
}

/// The arguments of a former call as templates want them: an object, where the text is one.
pub(crate) fn arguments_of(text: String) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => object,
        // The model's own mistake, which it shall see as it was.
        _ => Value::String(text),
    }
}

/// The tools of former calls by the ids of these: some templates ask for the name beside the result.
#[derive(Debug, Default)]
pub(crate) struct CallNames(HashMap<String, String>);

impl CallNames {
    /// Notes calls as [`call_of`] makes them. Of two with one id the later counts.
    pub(crate) fn note(&mut self, calls: &[Value]) {
        for call in calls {
            if let (Some(id), Some(name)) = (call["id"].as_str(), call["function"]["name"].as_str()) {
                self.0.insert(id.to_owned(), name.to_owned());
            }
        }
    }

    /// The tool that was called under an id.
    pub(crate) fn of(&self, id: &str) -> Option<String> {
        self.0.get(id).cloned()
    }
}

/// Makes one message of several of a role that follow each other, since many templates want turns to alternate. Results of
/// tools stay apart, and so do later system messages.
pub(crate) fn merge_turns(messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    let mut merged: Vec<ChatMessage> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_first_system = message.role == "system" && merged.len() == 1;
        let may_merge = is_first_system || message.role == "user" || message.role == "assistant";
        match merged.last_mut().filter(|last| may_merge && last.role == message.role) {
            Some(last) => append(last, message),
            None => merged.push(message),
        }
    }
    merged
}

fn append(last: &mut ChatMessage, next: ChatMessage) {
    join(&mut last.content, &next.content);
    if let Some(thoughts) = next.reasoning_content {
        join(last.reasoning_content.get_or_insert_default(), &thoughts);
    }
    last.tool_calls.extend(next.tool_calls);
}

/// Two texts that are one, with an empty line between them.
fn join(first: &mut String, second: &str) {
    if !first.is_empty() && !second.is_empty() {
        first.push_str("\n\n");
    }
    first.push_str(second);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_one_speaker_become_one_and_others_stay() {
        let message = |role: &str, content: &str| ChatMessage::new(role, content);
        let calling = ChatMessage { tool_calls: vec![call_of("1", "f", &json!({}))], ..message("assistant", "") };
        let merged = merge_turns(vec![
            message("system", "a"),
            message("system", "b"),
            message("user", "c"),
            message("user", "d"),
            message("assistant", "e"),
            calling.clone(),
            message("tool", "g"),
            message("tool", "h"),
            message("system", "i"),
            message("system", "j"),
        ]);
        let expected = [
            message("system", "a\n\nb"),
            message("user", "c\n\nd"),
            ChatMessage { content: "e".to_owned(), ..calling },
            message("tool", "g"),
            message("tool", "h"),
            message("system", "i"),
            message("system", "j"),
        ];
        assert_eq!(merged, expected);
    }

    #[test]
    fn a_call_is_known_by_its_id_from_then_on() {
        let mut names = CallNames::default();
        assert_eq!(names.of("1"), None);
        names.note(&[call_of("1", "f", &json!({})), call_of("2", "g", &json!({}))]);
        names.note(&[call_of("1", "h", &json!({}))]);
        assert_eq!((names.of("1").as_deref(), names.of("2").as_deref()), (Some("h"), Some("g")));
    }

    #[test]
    fn arguments_are_objects_where_they_can_be() {
        assert_eq!(arguments_of(" ".to_owned()), json!({}));
        assert_eq!(arguments_of("{\"a\": 1}".to_owned()), json!({ "a": 1 }));
        assert_eq!(arguments_of("[1]".to_owned()), json!("[1]"));
    }
}
