//! Anthropic's `message` and the events of its stream: blocks begin, grow and end, one after another.

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use super::errors;
use crate::answer;
use crate::chat::{ChatPart, ChatPiece, End, Ending, Events, Protocol};
use crate::errors::ApiError;
use crate::generation::Totals;

/// A block of the answer.
enum Block {
    Thinking(String),
    Text(String),
    ToolUse { id: String, name: String, input: String },
}

/// Writes a message.
pub(super) struct Message {
    id: String,
    model: String,
    prompt_tokens: usize,
    blocks: Vec<Block>,
    end: Option<(End, Totals)>,
    /// Whether it tells where the time went.
    tells_timings: bool,
}

impl Message {
    /// An answer to a prompt of so many tokens.
    pub(super) fn new(model: &str, prompt_tokens: usize, tells_timings: bool) -> Message {
        let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
        Message { id, model: model.to_owned(), prompt_tokens, blocks: Vec::new(), end: None, tells_timings }
    }

    /// The message with no content yet.
    fn to_json(&self) -> Value {
        let (reason, stop) = self.end.as_ref().map(|(end, _)| stop_reason(end)).unzip();
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": reason,
            "stop_sequence": stop.flatten(),
            "stop_details": null,
            "container": null,
            "usage": self.usage(),
        });
        if let Some(timings) = self.timings() {
            message["timings"] = timings;
        }
        message
    }

    /// Where the time went, at the end and if it is asked for.
    fn timings(&self) -> Option<Value> {
        let (_, totals) = self.end.as_ref().filter(|_| self.tells_timings)?;
        answer::timings(totals)
    }

    /// What the prefix cache spared is known at the end. What belongs to tiers, regions and tools of Anthropic's is null.
    fn usage(&self) -> Value {
        let totals = self.end.as_ref().map(|(_, totals)| *totals).unwrap_or_default();
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(totals.cached_tokens),
            "cache_creation": null,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": totals.cached_tokens,
            "output_tokens": totals.completion_tokens,
            "output_tokens_details": { "thinking_tokens": totals.reasoning_tokens },
            "inference_geo": null,
            "server_tool_use": null,
            "service_tier": null,
        })
    }

    fn begin_block(&mut self, block: Block, events: &mut Events) {
        self.end_block(events);
        let index = self.blocks.len();
        events.send(|| json!({ "type": "content_block_start", "index": index, "content_block": block.to_json() }));
        self.blocks.push(block);
    }

    fn end_block(&self, events: &mut Events) {
        if let Some(index) = self.blocks.len().checked_sub(1) {
            events.send(|| json!({ "type": "content_block_stop", "index": index }));
        }
    }

    fn delta(&self, delta: &Value, events: &mut Events) {
        let index = self.blocks.len().saturating_sub(1);
        events.send(|| json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }
}

impl Block {
    /// The block as it begins: a call has no input yet.
    fn to_json(&self) -> Value {
        match self {
            // Nobody needs to prove who thought it.
            Block::Thinking(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            Block::Text(text) => json!({ "type": "text", "text": text, "citations": null }),
            Block::ToolUse { id, name, .. } => {
                json!({ "type": "tool_use", "id": id, "name": name, "caller": { "type": "direct" }, "input": {} })
            }
        }
    }

    /// The whole block as JSON. The input is the model's own text, whose numbers a value would round.
    fn to_text(&self) -> String {
        match self {
            Block::ToolUse { id, name, input } => {
                let (id, name) = (Value::from(id.as_str()), Value::from(name.as_str()));
                let input = input.trim();
                format!(
                    "{{\"type\":\"tool_use\",\"id\":{id},\"name\":{name},\"caller\":{{\"type\":\"direct\"}},\"input\":{input}}}"
                )
            }
            _ => self.to_json().to_string(),
        }
    }

    /// Whether it is a call that a limit or a stop string cut short: there is nothing to call it with.
    fn is_cut(&self) -> bool {
        let Block::ToolUse { input, .. } = self else { return false };
        !serde_json::from_str::<Value>(input).is_ok_and(|input| input.is_object())
    }
}

/// Anthropic's name of it, and the stop string.
fn stop_reason(end: &End) -> (&'static str, Option<&str>) {
    match (end.ending, &end.stop) {
        (Ending::Length, _) => ("max_tokens", None),
        (Ending::ToolCalls, _) => ("tool_use", None),
        (Ending::Stop | Ending::StopInCall, Some(stop)) => ("stop_sequence", Some(stop)),
        (Ending::Stop | Ending::StopInCall, None) => ("end_turn", None),
    }
}

impl Protocol for Message {
    fn begin(&mut self, events: &mut Events) {
        events.send(|| json!({ "type": "message_start", "message": self.to_json() }));
        events.send(|| json!({ "type": "ping" }));
    }

    fn piece(&mut self, piece: ChatPiece, events: &mut Events) {
        for part in piece.parts {
            match part {
                ChatPart::Reasoning(text) => {
                    if !matches!(self.blocks.last(), Some(Block::Thinking(_))) {
                        self.begin_block(Block::Thinking(String::new()), events);
                    }
                    self.delta(&json!({ "type": "thinking_delta", "thinking": text }), events);
                    if let Some(Block::Thinking(all)) = self.blocks.last_mut() {
                        all.push_str(&text);
                    }
                }
                ChatPart::Text(text) => {
                    if !matches!(self.blocks.last(), Some(Block::Text(_))) {
                        self.begin_block(Block::Text(String::new()), events);
                    }
                    self.delta(&json!({ "type": "text_delta", "text": text }), events);
                    if let Some(Block::Text(all)) = self.blocks.last_mut() {
                        all.push_str(&text);
                    }
                }
                ChatPart::CallBegun { id, name, .. } => {
                    let id = id.replacen("call_", "toolu_", 1);
                    self.begin_block(Block::ToolUse { id, name, input: String::new() }, events);
                }
                // They follow the beginning of their call.
                ChatPart::CallArguments { text, .. } => {
                    self.delta(&json!({ "type": "input_json_delta", "partial_json": text }), events);
                    if let Some(Block::ToolUse { input, .. }) = self.blocks.last_mut() {
                        input.push_str(&text);
                    }
                }
            }
        }
    }

    fn end(&mut self, end: End, totals: &Totals, events: &mut Events) {
        self.end_block(events);
        self.end = Some((end, *totals));
        events.send(|| {
            let message = self.to_json();
            let fields = ["stop_reason", "stop_sequence", "stop_details", "container"];
            let delta: Map<String, Value> =
                fields.into_iter().map(|field| (field.to_owned(), message[field].clone())).collect();
            let mut event = json!({ "type": "message_delta", "delta": delta, "usage": message["usage"] });
            if let Some(timings) = self.timings() {
                event["timings"] = timings;
            }
            event
        });
        events.send(|| json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.send(|| errors::to_json(error));
    }

    fn pause(&self) -> Bytes {
        Self::frame(&json!({ "type": "ping" }))
    }

    fn whole(self) -> String {
        // In a stream a client sees by itself that the input of a block does not end.
        let content: Vec<String> = self.blocks.iter().filter(|block| !block.is_cut()).map(Block::to_text).collect();
        let mut message = self.to_json();
        if let Value::Object(fields) = &mut message {
            fields.remove("content");
        }
        let mut text = message.to_string();
        // Its closing brace.
        text.pop();
        format!("{text},\"content\":[{}]}}", content.join(","))
    }
}
