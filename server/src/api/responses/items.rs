//! The items of a response.

use serde_json::{Value, json};

/// What an item is.
pub(super) enum Kind {
    Reasoning,
    Message { logprobs: Vec<Value> },
    FunctionCall { call_id: String, name: String },
}

/// An item, which grows.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
    /// Its thoughts, its text or its arguments.
    pub(super) text: String,
}

impl Item {
    /// One without text.
    pub(super) fn new(kind: Kind) -> Item {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message { .. } => "msg",
            Kind::FunctionCall { .. } => "fc",
        };
        Item { id: format!("{prefix}_{}", uuid::Uuid::new_v4().simple()), kind, text: String::new() }
    }

    /// The item; one that only begins has no parts yet.
    pub(super) fn to_json(&self, status: &str, has_parts: bool) -> Value {
        let parts: Vec<Value> = self.part().into_iter().filter(|_| has_parts).collect();
        match &self.kind {
            Kind::Reasoning => {
                json!({ "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts })
            }
            Kind::Message { .. } => {
                json!({ "id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts })
            }
            Kind::FunctionCall { call_id, name } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": self.text,
            }),
        }
    }

    /// Its part; a call has none.
    pub(super) fn part(&self) -> Option<Value> {
        match &self.kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Message { logprobs } => {
                Some(json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs }))
            }
            Kind::FunctionCall { .. } => None,
        }
    }
}
