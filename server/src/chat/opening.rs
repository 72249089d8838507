//! Where an answer begins: in a turn of its own, or behind what the last message says.

use crate::errors::ApiError;
use crate::fields::Fields;

use super::Conversation;

const ADDS: &str = "add_generation_prompt";
const CONTINUES: &str = "continue_final_message";

/// Where a client wants the answer to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Behind the last message if that is the assistant's, in a turn of its own otherwise: where nothing is said.
    Usual,
    /// In a turn of its own.
    NewTurn,
    /// Behind the last message, which is the assistant's.
    Continued,
    /// Behind the conversation as the template writes it, without the beginning of a turn.
    Bare,
}

/// Where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    NewTurn,
    Bare,
    /// Behind the text of the last message, or its thoughts.
    Last,
    /// In a new turn in the place of the last message, which says nothing.
    InsteadOfLast,
}

impl Opening {
    /// Takes vLLM's two fields.
    pub(crate) fn take(fields: &mut Fields) -> Result<Opening, ApiError> {
        let (adds, continues) = (fields.boolean(ADDS)?, fields.boolean(CONTINUES)?);
        match (continues, adds) {
            (Some(true), Some(true)) => {
                let message = format!("{CONTINUES} and {ADDS} cannot both be true; leave one of them out");
                Err(ApiError::invalid(CONTINUES, message))
            }
            (Some(true), _) => Ok(Opening::Continued),
            (_, Some(false)) => Ok(Opening::Bare),
            (None, None) => Ok(Opening::Usual),
            (Some(false), _) | (None, Some(true)) => Ok(Opening::NewTurn),
        }
    }
}

impl Conversation {
    /// Whether the answer goes on with a last message of the assistant.
    pub(crate) fn is_continued(&self) -> bool {
        matches!(self.opening, Opening::Usual | Opening::Continued)
            && self.messages.last().is_some_and(|last| last.role == "assistant")
    }

    /// Where the answer begins.
    pub(super) fn place(&self) -> Result<Place, ApiError> {
        let field = self.messages_field;
        match (self.opening, self.messages.last()) {
            (Opening::Bare, _) => Ok(Place::Bare),
            (_, Some(last)) if self.is_continued() => {
                if !last.tool_calls.is_empty() {
                    let message = format!(
                        "{field} ends with calls of the assistant, which cannot be continued; add their results"
                    );
                    return Err(ApiError::invalid(field, message));
                }
                let thoughts = last.reasoning_content.as_deref().unwrap_or_default();
                let says_nothing = last.content.trim().is_empty() && thoughts.trim().is_empty();
                Ok(if says_nothing { Place::InsteadOfLast } else { Place::Last })
            }
            (Opening::Continued, last) => {
                let got = last.map_or("none", |last| last.role.as_str());
                let message = format!("{CONTINUES} needs a last message of the role assistant, got {got}");
                Err(ApiError::invalid(CONTINUES, message))
            }
            (Opening::Usual | Opening::NewTurn, _) => Ok(Place::NewTurn),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use taper_text::ChatMessage;

    use super::*;
    use crate::chat::{Thoughts, ToolChoice};

    fn taken(body: &Value) -> Result<Opening, ApiError> {
        let Value::Object(object) = body.clone() else { unreachable!() };
        Opening::take(&mut Fields::new(object))
    }

    fn place(opening: Opening, last: ChatMessage) -> Result<Place, ApiError> {
        let conversation = Conversation {
            messages: vec![ChatMessage::new("user", "U"), last],
            messages_field: "messages",
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            thoughts: Thoughts::Apart,
            thinking_budget: None,
            variables: Map::new(),
            opening,
        };
        conversation.place()
    }

    #[test]
    fn the_two_fields_say_where_an_answer_begins() {
        use Opening::{Bare, Continued, NewTurn, Usual};
        for (continues, adds, expected) in [
            (None, None, Usual),
            (None, Some(true), NewTurn),
            (None, Some(false), Bare),
            (Some(false), None, NewTurn),
            (Some(false), Some(true), NewTurn),
            (Some(false), Some(false), Bare),
            (Some(true), None, Continued),
            (Some(true), Some(false), Continued),
        ] {
            let body = json!({ CONTINUES: continues, ADDS: adds });
            assert_eq!(taken(&body).unwrap(), expected, "{body}");
        }
        for (body, param) in [
            (json!({ CONTINUES: true, ADDS: true }), CONTINUES),
            (json!({ CONTINUES: 1 }), CONTINUES),
            (json!({ ADDS: "no" }), ADDS),
        ] {
            let error = taken(&body).expect_err("should be refused");
            assert_eq!((error.status().as_u16(), &error.to_json()["error"]["param"]), (400, &json!(param)));
        }
    }

    #[test]
    fn only_what_the_assistant_said_or_thought_is_continued() {
        let message = |role: &str, content: &str| ChatMessage::new(role, content);
        let thinks = |text: &str| ChatMessage { reasoning_content: Some("hm".into()), ..message("assistant", text) };
        let calls = ChatMessage { tool_calls: vec![json!({})], ..message("assistant", "A") };
        for (last, usual, continued) in [
            (message("user", "V"), Some(Place::NewTurn), None),
            (message("tool", "V"), Some(Place::NewTurn), None),
            (message("assistant", "A"), Some(Place::Last), Some(Place::Last)),
            (thinks("A"), Some(Place::Last), Some(Place::Last)),
            (thinks(" "), Some(Place::Last), Some(Place::Last)),
            (message("assistant", "\n"), Some(Place::InsteadOfLast), Some(Place::InsteadOfLast)),
            (calls, None, None),
        ] {
            assert_eq!(place(Opening::Usual, last.clone()).ok(), usual, "{last:?}");
            assert_eq!(place(Opening::Continued, last.clone()).ok(), continued, "{last:?}");
            assert_eq!(place(Opening::NewTurn, last.clone()).ok(), Some(Place::NewTurn));
            assert_eq!(place(Opening::Bare, last).ok(), Some(Place::Bare));
        }
    }
}
