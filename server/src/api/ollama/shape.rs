//! Ollama's answers: one object, or lines that hold a part each and a last one with what it cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde_json::{Map, Value, json};
use taper_engine::{Timings, TokenLogprobs};
use taper_text::Tokenizer;

use super::errors;
use super::time::{nanoseconds, now};
use crate::chat::{ChatPart, ChatPiece, End, Ending, Events, Protocol};
use crate::errors::ApiError;
use crate::generation::Totals;
use crate::sse;
use crate::token_json::{Details, TokenWriter};

/// Which endpoint answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `message`.
    Chat,
    /// `response`.
    Generate,
}

/// What an answer says, or a part of one.
#[derive(Debug, Default)]
struct Said {
    thinking: String,
    content: String,
    calls: Vec<Value>,
    logprobs: Vec<TokenLogprobs>,
}

impl Said {
    fn is_empty(&self) -> bool {
        self.thinking.is_empty() && self.content.is_empty() && self.calls.is_empty() && self.logprobs.is_empty()
    }

    fn append(&mut self, next: Said) {
        self.thinking.push_str(&next.thinking);
        self.content.push_str(&next.content);
        self.calls.extend(next.calls);
        self.logprobs.extend(next.logprobs);
    }
}

/// A call whose arguments are still coming.
struct OpenCall {
    id: String,
    name: String,
    arguments: String,
}

/// Writes an answer.
pub(super) struct Answer {
    kind: Kind,
    model: String,
    writer: TokenWriter,
    begun: Instant,
    said: Said,
    call: Option<OpenCall>,
    num_calls: usize,
    /// The tokens of the prompt and of the answer so far, where they are told.
    context: Option<Vec<u32>>,
    end: Option<(Ending, Totals)>,
}

/// An object that says `said`, and that more comes.
fn body(kind: Kind, model: &str, said: &Said) -> Value {
    let mut told = Map::new();
    if !said.thinking.is_empty() {
        told.insert("thinking".to_owned(), said.thinking.as_str().into());
    }
    if !said.calls.is_empty() {
        told.insert("tool_calls".to_owned(), said.calls.clone().into());
    }
    let mut body = json!({ "model": model, "created_at": now() });
    match kind {
        Kind::Chat => {
            let mut message = json!({ "role": "assistant", "content": said.content });
            if let Some(message) = message.as_object_mut() {
                message.extend(told);
            }
            body["message"] = message;
        }
        Kind::Generate => {
            body["response"] = said.content.as_str().into();
            if let Some(body) = body.as_object_mut() {
                body.extend(told);
            }
        }
    }
    body["done"] = false.into();
    body
}

/// The answer to a request that has nothing to answer.
pub(super) fn nothing_to_answer(kind: Kind, model: &str, reason: &str) -> Value {
    let mut body = body(kind, model, &Said::default());
    body["done"] = true.into();
    body["done_reason"] = reason.into();
    body
}

impl Answer {
    /// An answer that begins now. `context` has the prompt's tokens where the answer shall tell of its tokens.
    pub(super) fn new(
        kind: Kind,
        model: String,
        tokenizer: &Arc<Tokenizer>,
        details: Details,
        context: Option<Vec<u32>>,
    ) -> Answer {
        Answer {
            kind,
            model,
            writer: TokenWriter::new(tokenizer, details),
            begun: Instant::now(),
            said: Said::default(),
            call: None,
            num_calls: 0,
            context,
            end: None,
        }
    }

    /// An object with a part of the answer.
    fn part(&self, said: &Said) -> Value {
        let mut body = body(self.kind, &self.model, said);
        if !said.logprobs.is_empty() {
            body["logprobs"] = self.writer.chat_logprobs(&said.logprobs)["content"].take();
        }
        body
    }

    /// The last object, with the rest of the answer.
    fn last(&self, said: &Said) -> Value {
        let mut body = self.part(said);
        let (ending, totals) = self.end.unwrap_or((Ending::Stop, Totals::default()));
        let Timings { prefill_s, decode_s, .. } = totals.timings.unwrap_or_default();
        let of_seconds = |seconds: f64| nanoseconds(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let rest = json!({
            "done": true,
            "done_reason": if ending == Ending::Length { "length" } else { "stop" },
            "total_duration": nanoseconds(self.begun.elapsed()),
            // It was loaded when the server started.
            "load_duration": 0,
            "prompt_eval_count": totals.prompt_tokens,
            "prompt_eval_duration": of_seconds(prefill_s),
            "eval_count": totals.completion_tokens,
            // Clients divide by it.
            "eval_duration": of_seconds(decode_s).max(1),
        });
        if let (Value::Object(body), Value::Object(rest)) = (&mut body, rest) {
            body.extend(rest);
        }
        if let Some(context) = &self.context {
            body["context"] = context.as_slice().into();
        }
        body
    }

    /// Ends the call that is open. One that a limit cut short is no call: there is nothing to call it with.
    fn close_call(&mut self) -> Option<Value> {
        let OpenCall { id, name, arguments } = self.call.take()?;
        let arguments: Value = serde_json::from_str(&arguments).ok().filter(Value::is_object)?;
        let index = self.num_calls;
        self.num_calls += 1;
        Some(json!({ "id": id, "function": { "index": index, "name": name, "arguments": arguments } }))
    }

    fn tell(&mut self, said: Said, events: &mut Events) {
        if !said.is_empty() {
            events.send(|| self.part(&said));
            self.said.append(said);
        }
    }
}

impl Protocol for Answer {
    const MEDIA_TYPE: &'static str = "application/x-ndjson";

    fn frame(event: &Value) -> Bytes {
        Bytes::from(format!("{}\n", sse::one_line(&event.to_string())))
    }

    fn begin(&mut self, _events: &mut Events) {}

    fn piece(&mut self, piece: ChatPiece, events: &mut Events) {
        if let Some(context) = &mut self.context {
            context.extend(&piece.tokens);
        }
        let mut said = Said { logprobs: piece.logprobs, ..Said::default() };
        for part in piece.parts {
            // Arguments follow the beginning of their call, and nothing else of it does.
            if !matches!(part, ChatPart::CallArguments { .. }) {
                said.calls.extend(self.close_call());
            }
            match part {
                ChatPart::Reasoning(text) => said.thinking.push_str(&text),
                ChatPart::Text(text) => said.content.push_str(&text),
                ChatPart::CallBegun { id, name, .. } => {
                    self.call = Some(OpenCall { id, name, arguments: String::new() });
                }
                ChatPart::CallArguments { text, .. } => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        self.tell(said, events);
    }

    fn end(&mut self, end: End, totals: &Totals, events: &mut Events) {
        let call = self.close_call();
        self.tell(Said { calls: call.into_iter().collect(), ..Said::default() }, events);
        self.end = Some((end.ending, *totals));
        events.send(|| self.last(&Said::default()));
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.send(|| errors::to_json(error));
    }

    /// Clients read every line as JSON, so it is a part that says nothing.
    fn pause(&self) -> Bytes {
        Self::frame(&self.part(&Said::default()))
    }

    fn whole(self) -> String {
        self.last(&self.said).to_string()
    }
}
