//! Ollama's `messages`, as the messages that templates know. Calls have objects as arguments and need no ids, so a result is
//! told apart by the name of its tool, or by its place.

use serde_json::Value;
use taper_text::ChatMessage;

use crate::chat::{CallNames, call_of, take_function};
use crate::errors::ApiError;
use crate::fields::{Fields, show};

const FIELD: &str = "messages";
const IMAGES: &str = "images";

/// Takes the messages; there may be none.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let items = fields.array(FIELD)?.unwrap_or_default();
    let mut history = History::default();
    for (index, item) in items.into_iter().enumerate() {
        history.read(Fields::nested(&format!("{FIELD}[{index}]"), item)?)?;
    }
    Ok(history.messages)
}

/// Refuses images.
pub(super) fn refuse_images(fields: &mut Fields) -> Result<(), ApiError> {
    let images = fields.array(IMAGES)?.unwrap_or_default();
    if images.is_empty() {
        return Ok(());
    }
    let name = fields.name_of(IMAGES);
    let message = format!("{name} is not supported: this model reads text only; leave it out (got {})", images.len());
    Err(ApiError::unsupported(name, message))
}

/// What was read so far.
#[derive(Default)]
struct History {
    messages: Vec<ChatMessage>,
    /// Ids and names of calls whose results have not come.
    open_calls: Vec<(String, String)>,
    num_calls: usize,
    names: CallNames,
}

impl History {
    fn read(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let role = read_role(&mut fields)?;
        refuse_images(&mut fields)?;
        let content = fields.string("content")?.unwrap_or_default();
        let thinking = fields.string("thinking")?;
        let mut message = ChatMessage::new(role, content);
        let calls_name = fields.name_of("tool_calls");
        let calls = fields.array("tool_calls")?.unwrap_or_default();
        let (tool_name, name) = (fields.string("tool_name")?, fields.string("name")?);
        let call_id = fields.string("tool_call_id")?;
        match role {
            "assistant" => {
                message.reasoning_content = thinking.filter(|thoughts| !thoughts.is_empty());
                for (index, call) in calls.into_iter().enumerate() {
                    let call = self.read_call(Fields::nested(&format!("{calls_name}[{index}]"), call)?)?;
                    message.tool_calls.push(call);
                }
            }
            _ if !calls.is_empty() => {
                let message = format!("{calls_name} belongs to the role assistant, got it with {role}");
                return Err(ApiError::invalid(calls_name, message));
            }
            "tool" => {
                // The older examples call it name.
                let asked = tool_name.or(name).filter(|name| !name.is_empty());
                message.tool_call_id = self.answered_call(call_id, asked.as_deref());
                let called = message.tool_call_id.as_deref().and_then(|id| self.names.of(id));
                message.name = asked.or(called);
            }
            _ => {}
        }
        self.names.note(&message.tool_calls);
        self.messages.push(message);
        Ok(())
    }

    fn read_call(&mut self, mut call: Fields) -> Result<Value, ApiError> {
        let id = call.string("id")?.filter(|id| !id.is_empty());
        // A text of arguments is OpenAI's way.
        let (name, arguments) = take_function(&mut call, "an object")?;
        self.num_calls += 1;
        let id = id.unwrap_or_else(|| format!("call_{}", self.num_calls));
        self.open_calls.push((id.clone(), name.clone()));
        Ok(call_of(&id, &name, &arguments))
    }

    /// The id of the call that a result answers: the one that it names; otherwise the first open call of its tool, or of any if
    /// it names none.
    fn answered_call(&mut self, id: Option<String>, tool: Option<&str>) -> Option<String> {
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            self.open_calls.retain(|(open, _)| *open != id);
            return Some(id);
        }
        let place = self.open_calls.iter().position(|(_, name)| tool.is_none_or(|tool| tool == name))?;
        Some(self.open_calls.remove(place).0)
    }
}

fn read_role(fields: &mut Fields) -> Result<&'static str, ApiError> {
    let name = fields.name_of("role");
    let role = fields.string("role")?.ok_or_else(|| ApiError::missing(&name, format!("{name} is missing")))?;
    match role.to_ascii_lowercase().as_str() {
        "system" => Ok("system"),
        "user" => Ok("user"),
        "assistant" => Ok("assistant"),
        "tool" => Ok("tool"),
        _ => {
            let got = show(&Value::from(role));
            Err(ApiError::invalid(name.clone(), format!("{name} must be system, user, assistant or tool, got {got}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: &Value) -> Result<Vec<ChatMessage>, ApiError> {
        let Value::Object(object) = json!({ "messages": messages }) else { unreachable!() };
        take(&mut Fields::new(object))
    }

    fn call(name: &str, arguments: &Value) -> Value {
        json!({ "function": { "name": name, "arguments": arguments } })
    }

    #[test]
    fn results_find_their_calls_by_name_and_by_place() {
        let messages = read(&json!([
            { "role": "USER", "content": "hi" },
            { "role": "assistant", "thinking": "hm", "tool_calls": [call("f", &json!({ "a": 1 })), call("g", &json!({})), call("g", &json!({}))] },
            { "role": "tool", "tool_name": "g", "content": "1" },
            { "role": "tool", "content": "2" },
            { "role": "tool", "name": "g", "content": "3" },
            { "role": "tool", "tool_name": "g", "content": "4" },
        ]))
        .unwrap();
        let called: Vec<&Value> = messages[1].tool_calls.iter().map(|call| &call["id"]).collect();
        assert_eq!(called, ["call_1", "call_2", "call_3"]);
        assert_eq!(messages[1].tool_calls[0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("hm"));
        let results = messages[2..].iter().map(|message| (message.tool_call_id.as_deref(), message.name.as_deref()));
        let expected =
            [(Some("call_2"), Some("g")), (Some("call_1"), Some("f")), (Some("call_3"), Some("g")), (None, Some("g"))];
        assert_eq!(results.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn ids_that_are_given_are_kept() {
        let mut given = call("f", &json!("{\"a\": 1}"));
        given["id"] = "x".into();
        let messages = read(&json!([
            { "role": "assistant", "content": null, "tool_calls": [given] },
            { "role": "tool", "tool_call_id": "x", "content": "1" },
        ]))
        .unwrap();
        assert_eq!(messages[0].tool_calls[0]["id"], "x");
        assert_eq!(messages[0].tool_calls[0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!((messages[1].tool_call_id.as_deref(), messages[1].name.as_deref()), (Some("x"), Some("f")));
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_place() {
        for (messages, part) in [
            (json!("hi"), "messages must be an array"),
            (json!(["hi"]), "messages[0] must be an object"),
            (json!([{}]), "messages[0].role is missing"),
            (json!([{ "role": "developer" }]), "messages[0].role must be"),
            (json!([{ "role": "user", "content": ["a"] }]), "messages[0].content must be a string"),
            (json!([{ "role": "user", "images": ["aGk="] }]), "messages[0].images is not supported"),
            (json!([{ "role": "user", "tool_calls": [{}] }]), "messages[0].tool_calls belongs"),
            (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls[0].function is missing"),
            (json!([{ "role": "assistant", "tool_calls": [{ "function": {} }] }]), "tool_calls[0].function.name"),
            (json!([{ "role": "assistant", "tool_calls": [call("f", &json!(5))] }]), "arguments must be an object"),
        ] {
            let error = read(&messages).expect_err("should be refused");
            assert_eq!(error.status(), 400);
            assert!(error.message().contains(part), "{messages}: {}", error.message());
        }
        assert_eq!(read(&Value::Null).unwrap(), []);
        assert_eq!(read(&json!([{ "role": "user", "images": [] }])).unwrap().len(), 1);
    }
}
