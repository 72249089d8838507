//! Answers as server-sent events: `data: {chunk}\n\n` for each piece, `: keep-alive\n\n` in pauses, `data: [DONE]\n\n` last.
//!
//! The 200 waits for the first event (but no longer than the keep-alive interval, so that proxies see life while a request
//! queues): a failure before it is a real status. A failure after it is a frame `data: {"error": ...}`, and the end.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use crate::answer::{AnswerPiece, Envelope, Next, Shape, Source, prompt_progress, timings_of, usage, usage_so_far};
use crate::errors::ApiError;
use crate::generation::{Output, Totals};
use crate::open_object::OpenObject;
use crate::parameters::Parameters;

/// The headers of every stream.
pub(crate) const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    // Asks buffering proxies to pass each event on.
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
];

/// An event with this data, which is JSON or `[DONE]`.
pub(crate) fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {}\n\n", one_line(data)))
}

/// An event of this name.
pub(crate) fn named_event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {}\n\n", one_line(&data.to_string())))
}

/// JSON that nobody takes for several lines.
///
/// Clients that split lines as Unicode does, such as Python's `splitlines`, would cut it at U+0085, U+2028 and U+2029, which JSON
/// leaves as they are, in strings only; so these are escaped.
pub(crate) fn one_line(json: &str) -> Cow<'_, str> {
    const ENDS_OF_LINES: [(char, &str); 3] = [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let mut line = Cow::Borrowed(json);
    for (end, escape) in ENDS_OF_LINES {
        if line.contains(end) {
            line = Cow::Owned(line.replace(end, escape));
        }
    }
    line
}

/// Begins a streamed answer.
pub(crate) async fn respond<S: Shape>(
    shape: S,
    envelope: Envelope,
    mut generation: S::Source,
    parameters: &Parameters,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let first = match tokio::time::timeout(keep_alive, generation.next()).await {
        Ok(Some(Err(error))) => return Err(error),
        Ok(first) => first,
        Err(_) => None,
    };
    let mut frames = Frames {
        shape,
        opened: envelope.open(S::CHUNK_OBJECT),
        is_first: true,
        unopened: (0..generation.num_choices()).collect(),
        unfinished: generation.num_choices(),
        generation,
        include_usage: parameters.include_usage,
        continuous_usage: parameters.continuous_usage,
        num_generated: 0,
        timings: parameters.timings,
        ready: VecDeque::new(),
        held: None,
        interval: keep_alive,
        keep_alive: Box::pin(tokio::time::sleep(keep_alive)),
        ended: false,
    };
    // Those of a batch begin when they have something to say: all at once, they would repeat all prompts in memory.
    if !frames.shape.awaits_prompt() && frames.generation.num_prompts() == 1 {
        frames.open(0..frames.unfinished);
    }
    if let Some(first) = first {
        frames.push(first);
    }
    Ok((HEADERS, Body::from_stream(frames)).into_response())
}

/// The frames of one answer. Owns the generation, so dropping the body cancels it.
struct Frames<S: Shape> {
    shape: S,
    /// What each chunk begins with.
    opened: OpenObject,
    generation: S::Source,
    include_usage: bool,
    /// Whether every chunk tells of the usage so far.
    continuous_usage: bool,
    /// Tokens of all choices so far.
    num_generated: usize,
    /// Whether timings are asked for.
    timings: Option<bool>,
    is_first: bool,
    /// Choices whose first chunk is not made yet.
    unopened: BTreeSet<usize>,
    unfinished: usize,
    ready: VecDeque<Bytes>,
    /// The last choice's last chunk, which waits for the timings that it carries.
    held: Option<OpenObject>,
    interval: Duration,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

impl<S: Shape> Frames<S> {
    fn open(&mut self, choices: Range<usize>) {
        for choice in choices {
            if self.unopened.remove(&choice)
                && let Some(opening) = self.shape.opening(choice)
            {
                self.chunk(opening);
            }
        }
    }

    fn push(&mut self, output: Next<S::Source>) {
        match output {
            Ok(Output::PromptLogprobs { prompt, logprobs }) => {
                self.shape.prompt_logprobs(prompt, logprobs);
                self.open(self.generation.choices_of(prompt));
            }
            Ok(Output::Progress { prompt, progress }) => {
                let mut progress = prompt_progress(&progress);
                progress["prompt"] = prompt.into();
                let mut chunk = self.make([]);
                chunk.add("prompt_progress", &progress);
                self.frame(&chunk.close());
            }
            Ok(Output::Text { choice, piece }) => {
                self.open(choice..choice + 1);
                self.num_generated += piece.num_tokens();
                self.delta(choice, &piece);
            }
            Ok(Output::Finished { choice, reason, mut piece }) => {
                self.open(choice..choice + 1);
                self.num_generated += piece.num_tokens();
                // Tokens without text, such as the one that ends the text, go with the last chunk.
                if !piece.is_blank() {
                    self.delta(choice, &std::mem::take(&mut piece));
                }
                let ending = self.shape.ending(choice, reason, &piece);
                let ending = self.make([ending]);
                self.unfinished = self.unfinished.saturating_sub(1);
                if self.unfinished == 0 {
                    self.held = Some(ending);
                } else {
                    self.frame(&ending.close());
                }
            }
            Ok(Output::Totals(totals)) => self.finish(&totals),
            Err(error) => {
                if let Some(held) = self.held.take() {
                    self.frame(&held.close());
                }
                self.frame(&error.to_json().to_string());
                self.ended = true;
            }
        }
    }

    fn finish(&mut self, totals: &Totals) {
        let timings = timings_of(&self.generation, totals, self.timings);
        if let Some(mut held) = self.held.take() {
            if let Some(timings) = &timings {
                held.add("timings", timings);
            }
            self.frame(&held.close());
        }
        if self.include_usage {
            let mut chunk = self.opened.clone();
            chunk.add_array("choices", []);
            chunk.add("usage", &usage(totals));
            if let Some(timings) = timings {
                chunk.add("timings", &timings);
            }
            self.frame(&chunk.close());
        }
        self.frame("[DONE]");
        self.ended = true;
    }

    fn delta(&mut self, choice: usize, piece: &<S::Source as Source>::Piece) {
        for delta in self.shape.deltas(choice, piece) {
            self.chunk(delta);
        }
    }

    fn make(&mut self, choices: impl IntoIterator<Item = Value>) -> OpenObject {
        let mut chunk = self.opened.clone();
        chunk.add_array("choices", choices);
        if std::mem::take(&mut self.is_first) {
            let mut beside = json!({});
            self.shape.complete(&mut beside);
            chunk.add_all(&beside);
        }
        if self.continuous_usage {
            chunk.add("usage", &usage_so_far(self.generation.prompt_tokens(), self.num_generated));
        } else if self.include_usage {
            // OpenAI's streams hold a null here in all chunks but the one of usage.
            chunk.add("usage", &Value::Null);
        }
        chunk
    }

    fn chunk(&mut self, choice: Value) {
        let chunk = self.make([choice]);
        self.frame(&chunk.close());
    }

    fn frame(&mut self, data: &str) {
        self.ready.push_back(event(data));
    }
}

impl<S: Shape> Stream for Frames<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frames = &mut *self;
        loop {
            if let Some(frame) = frames.ready.pop_front() {
                frames.keep_alive.as_mut().reset(Instant::now() + frames.interval);
                return Poll::Ready(Some(Ok(frame)));
            }
            if frames.ended {
                return Poll::Ready(None);
            }
            match frames.generation.poll_next(context) {
                Poll::Ready(Some(output)) => frames.push(output),
                Poll::Ready(None) => frames.ended = true,
                Poll::Pending => {
                    if frames.keep_alive.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    frames.ready.push_back(Bytes::from_static(b": keep-alive\n\n"));
                }
            }
        }
    }
}
