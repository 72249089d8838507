//! `chat.completion` objects and their chunks.

use serde_json::{Value, json};
use taper_engine::TokenLogprobs;

use crate::answer::Shape;
use crate::chat::{ChatPart, ChatPiece, ChatStream, Ending};
use crate::token_json::TokenWriter;

/// Writes the choices.
pub(super) struct Chat {
    writer: TokenWriter,
    /// The prompt's tokens, if they are asked for.
    prompt: Vec<u32>,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
}

impl Chat {
    pub(super) fn new(writer: TokenWriter, prompt: Vec<u32>) -> Chat {
        Chat { writer, prompt, prompt_logprobs: Vec::new() }
    }

    fn chunk(&self, choice: usize, delta: &Value, piece: &ChatPiece, ending: Option<Ending>) -> Value {
        let mut chunk = json!({
            "index": choice,
            "delta": delta,
            "logprobs": self.logprobs(piece),
            "finish_reason": ending.map(finish_reason),
        });
        self.add_token_ids(&mut chunk, piece);
        chunk
    }

    /// Null in chunks without tokens.
    fn logprobs(&self, piece: &ChatPiece) -> Value {
        if piece.tokens.is_empty() { Value::Null } else { self.writer.chat_logprobs(&piece.logprobs) }
    }

    fn add_token_ids(&self, choice: &mut Value, piece: &ChatPiece) {
        if self.writer.details().token_ids {
            choice["token_ids"] = json!(piece.tokens);
        }
    }
}

fn finish_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Stop | Ending::StopInCall => "stop",
        Ending::Length => "length",
        Ending::ToolCalls => "tool_calls",
    }
}

/// What a part adds to the message.
fn delta(part: &ChatPart) -> Value {
    match part {
        ChatPart::Reasoning(text) => json!({ "reasoning_content": text }),
        ChatPart::Text(text) => json!({ "content": text }),
        ChatPart::CallBegun { index, id, name } => {
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
        }
        ChatPart::CallArguments { index, text } => {
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
        }
    }
}

/// The message that the parts make.
fn message(parts: &[ChatPart]) -> Value {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::<(&str, &str, String)>::new());
    for part in parts {
        match part {
            ChatPart::Reasoning(text) => reasoning.push_str(text),
            ChatPart::Text(text) => content.push_str(text),
            ChatPart::CallBegun { id, name, .. } => calls.push((id, name, String::new())),
            ChatPart::CallArguments { text, .. } => {
                // They follow the beginning of their call.
                if let Some((_, _, arguments)) = calls.last_mut() {
                    arguments.push_str(text);
                }
            }
        }
    }
    let has_text = !content.is_empty() || calls.is_empty();
    let mut message = json!({ "role": "assistant", "content": has_text.then_some(content), "refusal": null });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        let call = |(id, name, arguments): (&str, &str, String)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        message["tool_calls"] = calls.into_iter().map(call).collect();
    }
    message
}

impl Shape for Chat {
    type Source = ChatStream;

    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";
    const ID_PREFIX: &'static str = "chatcmpl-";

    fn prompt_logprobs(&mut self, _prompt: usize, logprobs: Vec<Option<TokenLogprobs>>) {
        self.prompt_logprobs = logprobs;
    }

    fn opening(&mut self, choice: usize) -> Option<Value> {
        Some(self.chunk(choice, &json!({ "role": "assistant", "content": "" }), &ChatPiece::default(), None))
    }

    fn deltas(&mut self, choice: usize, piece: &ChatPiece) -> Vec<Value> {
        // The tokens of a piece go with its first part.
        let none = ChatPiece::default();
        let pieces = std::iter::once(piece).chain(std::iter::repeat(&none));
        piece.parts.iter().zip(pieces).map(|(part, piece)| self.chunk(choice, &delta(part), piece, None)).collect()
    }

    fn ending(&mut self, choice: usize, ending: Ending, rest: &ChatPiece) -> Value {
        self.chunk(choice, &json!({}), rest, Some(ending))
    }

    fn whole(&mut self, choice: usize, ending: Ending, piece: &ChatPiece) -> Value {
        let mut whole = json!({
            "index": choice,
            "message": message(&piece.parts),
            "logprobs": self.writer.chat_logprobs(&piece.logprobs),
            "finish_reason": finish_reason(ending),
        });
        self.add_token_ids(&mut whole, piece);
        whole
    }

    fn complete(&self, body: &mut Value) {
        let details = self.writer.details();
        if details.prompt_logprobs.is_some() {
            body["prompt_logprobs"] = self.writer.prompt_logprobs(&self.prompt_logprobs);
        }
        if details.token_ids {
            body["prompt_token_ids"] = json!(self.prompt);
        }
    }
}
