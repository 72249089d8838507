//! The `response` object and the events of its stream.

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use super::items::{Item, Kind};
use super::logprobs::Untold;
use crate::answer;
use crate::chat::{ChatPart, ChatPiece, End, Ending, Events, Protocol};
use crate::errors::ApiError;
use crate::generation::Totals;
use crate::token_json::TokenWriter;
use crate::work::HeldBytes;

/// Where a response stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
            Status::Failed => "failed",
        }
    }
}

/// Writes a response.
pub(super) struct Response {
    id: String,
    model: String,
    created: u64,
    completed: Option<u64>,
    writer: TokenWriter,
    echo: Map<String, Value>,
    /// The bytes of `echo`, if they are many.
    held: HeldBytes,
    items: Vec<Item>,
    untold: Untold,
    status: Status,
    incomplete_because: Option<&'static str>,
    error: Value,
    usage: Value,
    /// Whether it tells where the time went.
    tells_timings: bool,
    timings: Option<Value>,
    /// Events so far.
    sequence: usize,
}

impl Response {
    /// A response that repeats `echo`, whose bytes are `held`.
    pub(super) fn new(model: &str, writer: TokenWriter, echo: Map<String, Value>, held: HeldBytes) -> Response {
        Response {
            id: format!("resp_{}", uuid::Uuid::new_v4().simple()),
            model: model.to_owned(),
            created: since_1970(),
            completed: None,
            writer,
            echo,
            held,
            items: Vec::new(),
            untold: Untold::default(),
            status: Status::InProgress,
            incomplete_because: None,
            error: Value::Null,
            usage: Value::Null,
            tells_timings: false,
            timings: None,
            sequence: 0,
        }
    }

    /// Tells where the time went as well.
    pub(super) fn with_timings(mut self, tells_timings: bool) -> Response {
        self.tells_timings = tells_timings;
        self
    }

    fn to_json(&self) -> Value {
        let details = self.incomplete_because.map(|reason| json!({ "reason": reason }));
        let last = self.items.len().saturating_sub(1);
        let status_of = |index| if index == last { self.status } else { Status::Completed };
        let output =
            self.items.iter().enumerate().map(|(index, item)| item.to_json(item_status(status_of(index)), true));
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.completed,
            "status": self.status.name(),
            "background": false,
            "conversation": null,
            "error": self.error,
            "incomplete_details": details,
            "max_tool_calls": null,
            "model": self.model,
            "output": output.collect::<Vec<Value>>(),
            "previous_response_id": null,
            "service_tier": "default",
            "store": false,
            "truncation": "disabled",
            "usage": self.usage,
        });
        if let Value::Object(fields) = &mut response {
            fields.extend(self.echo.clone());
            fields.extend(self.timings.iter().map(|timings| ("timings".to_owned(), timings.clone())));
        }
        response
    }

    /// Sends an event with its number.
    fn send(&mut self, events: &mut Events, make: impl FnOnce(&Response) -> Value) {
        let sequence = self.sequence;
        self.sequence += 1;
        let response = &*self;
        events.send(|| {
            let mut event = make(response);
            event["sequence_number"] = sequence.into();
            event
        });
    }

    /// An event of the last item: where it stands, and `fields`.
    fn send_of_item(&mut self, events: &mut Events, kind: &str, make: impl FnOnce(&Item) -> Value) {
        self.send(events, |response| {
            let index = response.items.len().saturating_sub(1);
            let Some(item) = response.items.last() else { return json!({ "type": kind }) };
            let mut event = json!({ "type": kind, "item_id": item.id, "output_index": index });
            if !matches!(item.kind, Kind::FunctionCall { .. }) {
                event["content_index"] = 0.into();
            }
            if let (Value::Object(event), Value::Object(fields)) = (&mut event, make(item)) {
                event.extend(fields);
            }
            event
        });
    }

    /// An event that has the last item itself.
    fn send_item(&mut self, events: &mut Events, kind: &str, status: &str, has_parts: bool) {
        self.send(events, |response| {
            let index = response.items.len().saturating_sub(1);
            let item = response.items.last().map(|item| item.to_json(status, has_parts));
            json!({ "type": kind, "output_index": index, "item": item })
        });
    }

    fn begin_item(&mut self, kind: Kind, events: &mut Events) {
        self.end_item("completed", events);
        self.items.push(Item::new(kind));
        self.send_item(events, "response.output_item.added", "in_progress", false);
        if self.items.last().is_some_and(|item| item.part().is_some()) {
            self.send_of_item(events, "response.content_part.added", |item| json!({ "part": item.part() }));
        }
    }

    fn end_item(&mut self, status: &str, events: &mut Events) {
        let Some(item) = self.items.last() else { return };
        match &item.kind {
            Kind::Reasoning => {
                self.send_of_item(events, "response.reasoning_text.done", |item| json!({ "text": item.text }));
            }
            Kind::Message { .. } => self.send_of_item(events, "response.output_text.done", |item| {
                let logprobs = item.part().map(|mut part| part["logprobs"].take());
                json!({ "text": item.text, "logprobs": logprobs })
            }),
            Kind::FunctionCall { .. } => {
                self.send_of_item(events, "response.function_call_arguments.done", |item| match &item.kind {
                    Kind::FunctionCall { name, .. } => json!({ "name": name, "arguments": item.text }),
                    _ => json!({}),
                });
            }
        }
        if self.items.last().is_some_and(|item| item.part().is_some()) {
            self.send_of_item(events, "response.content_part.done", |item| json!({ "part": item.part() }));
        }
        self.send_item(events, "response.output_item.done", status, true);
    }

    /// Adds to the last item.
    fn grow(&mut self, text: &str) {
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(text);
        }
    }

    fn reasoning(&mut self, text: &str, events: &mut Events) {
        if !matches!(self.items.last(), Some(Item { kind: Kind::Reasoning, .. })) {
            self.begin_item(Kind::Reasoning, events);
        }
        self.send_of_item(events, "response.reasoning_text.delta", |_| json!({ "delta": text }));
        self.grow(text);
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        let goes_on = matches!(self.items.last(), Some(Item { kind: Kind::Message { .. }, .. }));
        let logprobs = self.untold.of_text(text, goes_on || self.items.is_empty());
        if !goes_on {
            self.begin_item(Kind::Message { logprobs: Vec::new() }, events);
        }
        self.send_of_item(events, "response.output_text.delta", |_| json!({ "delta": text, "logprobs": logprobs }));
        self.grow(text);
        if let Some(Item { kind: Kind::Message { logprobs: all }, .. }) = self.items.last_mut() {
            all.extend(logprobs);
        }
    }

    fn finish(&mut self, kind: &str, events: &mut Events) {
        self.send(events, |response| json!({ "type": kind, "response": response.to_json() }));
    }
}

fn since_1970() -> u64 {
    let duration = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    duration.map_or(0, |duration| duration.as_secs())
}

/// Items have no failure of their own.
fn item_status(status: Status) -> &'static str {
    if status == Status::Failed { Status::Incomplete.name() } else { status.name() }
}

fn usage(totals: &Totals) -> Value {
    json!({
        "input_tokens": totals.prompt_tokens,
        "input_tokens_details": { "cached_tokens": totals.cached_tokens },
        "output_tokens": totals.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": totals.reasoning_tokens },
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
    })
}

impl Protocol for Response {
    fn begin(&mut self, events: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            self.finish(kind, events);
        }
    }

    fn piece(&mut self, piece: ChatPiece, events: &mut Events) {
        if let Value::Array(logprobs) = self.writer.chat_logprobs(&piece.logprobs)["content"].take() {
            self.untold.add(logprobs);
        }
        for part in piece.parts {
            match part {
                ChatPart::Reasoning(text) => self.reasoning(&text, events),
                ChatPart::Text(text) => self.text(&text, events),
                ChatPart::CallBegun { id, name, .. } => {
                    self.begin_item(Kind::FunctionCall { call_id: id, name }, events);
                }
                // They follow the beginning of their call.
                ChatPart::CallArguments { text, .. } => {
                    let kind = "response.function_call_arguments.delta";
                    self.send_of_item(events, kind, |_| json!({ "delta": text }));
                    self.grow(&text);
                }
            }
        }
        if !matches!(self.items.last(), Some(Item { kind: Kind::Message { .. }, .. })) {
            self.untold.clear();
        }
    }

    fn end(&mut self, end: End, totals: &Totals, events: &mut Events) {
        if self.items.is_empty() {
            self.begin_item(Kind::Message { logprobs: Vec::new() }, events);
        }
        // Tokens without text, such as the one that ends an answer, belong to the text before.
        let rest = self.untold.take();
        if let Some(Item { kind: Kind::Message { logprobs }, .. }) = self.items.last_mut() {
            logprobs.extend(rest);
        }
        self.incomplete_because = match end.ending {
            Ending::Length => Some("max_output_tokens"),
            // OpenAI's interface has no stop strings, and so no word for this.
            Ending::StopInCall => Some("stop"),
            Ending::Stop | Ending::ToolCalls => None,
        };
        let (status, kind) = match self.incomplete_because {
            Some(_) => (Status::Incomplete, "response.incomplete"),
            None => (Status::Completed, "response.completed"),
        };
        self.end_item(status.name(), events);
        self.completed = (status == Status::Completed).then(since_1970);
        (self.status, self.usage) = (status, usage(totals));
        self.timings = answer::timings(totals).filter(|_| self.tells_timings);
        self.finish(kind, events);
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        let told = error.to_json();
        let code = told["error"]["code"].as_str().unwrap_or("server_error");
        self.error = json!({ "code": code, "message": error.message() });
        self.status = Status::Failed;
        self.finish("response.failed", events);
    }

    fn pause(&self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }

    fn is_large(&self) -> bool {
        self.held.are_many()
    }

    fn whole(self) -> String {
        self.to_json().to_string()
    }
}
