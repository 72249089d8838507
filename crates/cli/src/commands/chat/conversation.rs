//! What has been said, and how it looks in a file: the body of a request to `/v1/chat/completions`, so that a conversation that
//! was saved can be sent to any server, and one that was written for a server can be loaded.

use crate::parameters::{ENABLE_THINKING, Parameters, TABLE, TEMPLATE_VARIABLES};
use serde_json::{Map, Value, json};
use taper_text::ChatMessage;

const SYSTEM: &str = "system";
const USER: &str = "user";
const ASSISTANT: &str = "assistant";

/// Messages of a user and answers, and what the model is told before them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Conversation {
    system: Option<String>,
    /// Of `user` and `assistant` only.
    messages: Vec<ChatMessage>,
}

/// A conversation as it came out of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Loaded {
    pub(super) conversation: Conversation,
    /// None where the file says nothing of them.
    pub(super) parameters: Option<Parameters>,
    /// Fields of the file that mean nothing here.
    pub(super) left_out: Vec<String>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Conversation {
        Conversation { system, messages: Vec::new() }
    }

    pub(super) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Messages and answers.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// All that the model is given.
    pub(super) fn prompt(&self) -> Vec<ChatMessage> {
        let system = self.system.iter().map(|text| ChatMessage::new(SYSTEM, text));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Begins anew with the same system text.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Adds what the user says.
    pub(super) fn say(&mut self, text: &str) {
        self.messages.push(ChatMessage::new(USER, text));
    }

    /// Adds an answer.
    pub(super) fn answer(&mut self, text: String) {
        self.messages.push(ChatMessage::new(ASSISTANT, text));
    }

    /// The answer that the conversation ends with, if it says something.
    pub(super) fn last_answer(&self) -> Option<&str> {
        let last = self.messages.last().filter(|last| last.role == ASSISTANT)?;
        Some(last.content.as_str()).filter(|text| !text.trim().is_empty())
    }

    /// Adds to the answer that the conversation ends with.
    pub(super) fn go_on(&mut self, text: &str) {
        if let Some(last) = self.messages.last_mut().filter(|last| last.role == ASSISTANT) {
            last.content.push_str(text);
        }
    }

    /// The same without the answers to its last message; `None` where nothing was said that could be answered anew.
    pub(super) fn unanswered(&self) -> Option<Conversation> {
        let last = self.messages.iter().rposition(|message| message.role == USER)?;
        Some(Conversation { system: self.system.clone(), messages: self.messages[..=last].to_vec() })
    }

    /// What a file holds.
    pub(super) fn to_json(&self, model: &str, parameters: &Parameters) -> Value {
        let mut file = json!({ "model": model, "messages": self.prompt() });
        if let (Value::Object(file), Ok(Value::Object(parameters))) = (&mut file, serde_json::to_value(parameters)) {
            file.extend(parameters);
        }
        file
    }

    /// Reads what [`Conversation::to_json`] wrote, or another request, or a bare array of messages.
    ///
    /// # Errors
    /// In words, with the place and what was expected there.
    pub(super) fn from_json(text: &str) -> Result<Loaded, String> {
        let file: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let (messages, mut fields) = match file {
            Value::Array(messages) => (Value::Array(messages), Map::new()),
            Value::Object(mut fields) => {
                let messages = fields.shift_remove("messages").ok_or("it has no field `messages`")?;
                (messages, fields)
            }
            other => return Err(format!("it is {}, not an object with `messages`", kind(&other))),
        };
        let Value::Array(messages) = messages else {
            return Err(format!("`messages` is {}, not an array", kind(&messages)));
        };
        let (mut conversation, mut left_out) = (Conversation::default(), Vec::new());
        for (index, message) in messages.into_iter().enumerate() {
            let rest = conversation.take(message).map_err(|problem| format!("messages[{index}] {problem}"))?;
            left_out.extend(rest.keys().map(|name| format!("messages[{index}].{name}")));
        }
        fields.shift_remove("model");
        let (known, rest): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| is_parameter(name));
        left_out.extend(rest.into_iter().map(|(name, _)| name));
        let parameters = (!known.is_empty()).then(|| parameters(known, &mut left_out)).transpose()?;
        Ok(Loaded { conversation, parameters, left_out })
    }

    /// Adds a message of a file; the fields of it that mean nothing here.
    fn take(&mut self, message: Value) -> Result<Map<String, Value>, String> {
        let Value::Object(mut fields) = message else { return Err(format!("is {}, not an object", kind(&message))) };
        let mut text = |name: &str| match fields.shift_remove(name) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(format!("has {} as `{name}`, not a text", kind(&other))),
            None => Err(format!("has no `{name}`")),
        };
        let (role, content) = (text("role")?, text("content")?);
        match role.as_str() {
            SYSTEM | "developer" if self.system.is_some() || !self.messages.is_empty() => {
                return Err("is of the system, which is the first or none".to_owned());
            }
            SYSTEM | "developer" => self.system = Some(content),
            USER => self.say(&content),
            ASSISTANT => self.answer(content),
            other => return Err(format!("has the role {other:?}, not system, user or assistant")),
        }
        Ok(fields)
    }
}

fn is_parameter(field: &str) -> bool {
    TABLE.iter().any(|row| row.field() == field)
}

fn parameters(fields: Vec<(String, Value)>, left_out: &mut Vec<String>) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    for (name, value) in fields {
        let text = match value {
            Value::Object(variables) if name == TEMPLATE_VARIABLES => {
                parameters.think = thinking(variables, left_out)?;
                continue;
            }
            other if name == TEMPLATE_VARIABLES && !other.is_null() => {
                return Err(format!("`{name}` is {}, not an object", kind(&other)));
            }
            // As OpenAI's clients write what they do not ask for.
            Value::Null => continue,
            Value::String(text) if name == "stop" => Value::from(text).to_string(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        parameters.set(&name, &text)?;
    }
    Ok(parameters)
}

/// Whether to think, of the variables for a template; the others mean nothing here.
fn thinking(mut variables: Map<String, Value>, left_out: &mut Vec<String>) -> Result<Option<bool>, String> {
    let thinks = match variables.shift_remove(ENABLE_THINKING) {
        None | Some(Value::Null) => None,
        Some(Value::Bool(thinks)) => Some(thinks),
        Some(other) => {
            return Err(format!("`{TEMPLATE_VARIABLES}.{ENABLE_THINKING}` is {}, not a boolean", kind(&other)));
        }
    };
    left_out.extend(variables.keys().map(|name| format!("{TEMPLATE_VARIABLES}.{name}")));
    Ok(thinks)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn talk(system: Option<&str>, said: &[(&str, &str)]) -> Conversation {
        let mut conversation = Conversation::new(system.map(str::to_owned));
        for (message, answer) in said {
            conversation.say(message);
            conversation.answer((*answer).to_owned());
        }
        conversation
    }

    #[test]
    fn a_cleared_conversation_keeps_its_system_text() {
        let mut conversation = talk(Some("be brief"), &[("hello", "hi")]);
        conversation.clear();
        assert_eq!(conversation.prompt(), [ChatMessage::new("system", "be brief")]);
        assert!(Conversation::new(None).prompt().is_empty());
    }

    #[test]
    fn an_answer_is_taken_back_to_be_given_anew() {
        let conversation = talk(None, &[("a", "b"), ("c", "d")]);
        let texts: Vec<_> = conversation.unanswered().unwrap().prompt().into_iter().map(|m| m.content).collect();
        assert_eq!(texts, ["a", "b", "c"]);
        assert_eq!(conversation.len(), 4, "until there is a new one, the old one stays");
        assert_eq!(talk(Some("x"), &[]).unanswered(), None);
    }

    #[test]
    fn what_is_added_to_an_answer_is_part_of_it() {
        let mut conversation = talk(None, &[("a", "b")]);
        assert_eq!(conversation.last_answer(), Some("b"));
        conversation.go_on(" c");
        assert_eq!((conversation.last_answer(), conversation.len()), (Some("b c"), 2));
        conversation.say("d");
        conversation.go_on("e");
        assert_eq!((conversation.last_answer(), conversation.len()), (None, 3), "nothing is answered yet");
        conversation.answer("\n".into());
        assert_eq!(conversation.last_answer(), None);
    }

    #[test]
    fn a_file_is_the_body_of_a_request() {
        let mut parameters = Parameters::default();
        parameters.set("temperature", "0.5").unwrap();
        parameters.set("stop", "x").unwrap();
        let file = talk(Some("s"), &[("a", "b")]).to_json("m", &parameters);
        let messages = json!([
            { "role": "system", "content": "s" },
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "b" },
        ]);
        assert_eq!(file, json!({ "model": "m", "messages": messages, "temperature": 0.5, "stop": ["x"] }));
    }

    proptest! {
        #[test]
        fn what_was_saved_is_what_is_loaded(system in proptest::option::of(".*"), said in proptest::collection::vec((".*", ".*"), 0..4), warm in 0..200u32) {
            let said: Vec<(&str, &str)> = said.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let conversation = talk(system.as_deref(), &said);
            let warm = Some(f64::from(warm) / 100.0);
            let stop = vec!["\n[".into()];
            let parameters = Parameters { temperature: warm, stop, think: Some(false), ..Parameters::default() };
            let text = serde_json::to_string_pretty(&conversation.to_json("m", &parameters)).unwrap();
            let loaded = Conversation::from_json(&text).unwrap();
            prop_assert_eq!(loaded, Loaded { conversation, parameters: Some(parameters), left_out: vec![] });
        }

        #[test]
        fn no_text_makes_a_file_that_panics(text in ".*") {
            let _ = Conversation::from_json(&text);
        }
    }

    #[test]
    fn other_files_are_read_as_far_as_they_mean_something() {
        let loaded = Conversation::from_json(
            r#"{"messages":[{"role":"developer","content":"s"},{"role":"user","content":"a","name":"x"}],"stream":true,"seed":null,"stop":"[x"}"#,
        );
        let loaded = loaded.unwrap();
        assert_eq!(loaded.conversation.system(), Some("s"));
        assert_eq!(loaded.parameters.unwrap().stop, ["[x"]);
        assert_eq!(loaded.left_out, ["messages[1].name", "stream"]);
        let variables = r#"{"messages":[],"chat_template_kwargs":{"enable_thinking":false,"mood":1},"think":true}"#;
        let loaded = Conversation::from_json(variables).unwrap();
        assert_eq!(loaded.parameters.unwrap().think, Some(false));
        assert_eq!(loaded.left_out, ["think", "chat_template_kwargs.mood"], "our own name is no field of a request");
        let bare = Conversation::from_json(r#"[{"role":"user","content":"a"}]"#).unwrap();
        assert_eq!((bare.conversation.len(), bare.parameters), (1, None));
    }

    #[test]
    fn a_file_that_is_no_conversation_is_refused_with_the_place() {
        for (file, words) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("7", "it is a number"),
            ("{}", "no field `messages`"),
            (r#"{"messages":{}}"#, "`messages` is an object, not an array"),
            (r#"["hi"]"#, "messages[0] is a text, not an object"),
            (r#"[{"role":"user"}]"#, "messages[0] has no `content`"),
            (r#"[{"role":"user","content":null}]"#, "messages[0] has null as `content`"),
            (r#"[{"role":"tool","content":"x"}]"#, "the role \"tool\""),
            (r#"[{"role":"user","content":"a"},{"role":"system","content":"x"}]"#, "messages[1] is of the system"),
            (r#"{"messages":[],"temperature":"hot"}"#, "temperature is a number, not \"hot\""),
            (r#"{"messages":[],"top_p":3}"#, "top_p"),
            (r#"{"messages":[],"chat_template_kwargs":[]}"#, "`chat_template_kwargs` is an array, not an object"),
            (
                r#"{"messages":[],"chat_template_kwargs":{"enable_thinking":"no"}}"#,
                "enable_thinking` is a text, not a boolean",
            ),
        ] {
            let refused = Conversation::from_json(file).unwrap_err();
            assert!(refused.contains(words), "{file}: {refused}");
        }
    }
}
