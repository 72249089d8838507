//! Answers of one choice, for protocols that tell of them as a list of items or as one message, and in streams by named events:
//! `event: NAME\ndata: {"type": NAME, ...}\n\n`, or by lines of JSON.
//!
//! As in the other streams the 200 waits for the first event of the engine, so that a failure before it is a real status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use super::{ChatPiece, ChatStream, Ending};
use crate::answer::{Answering, Next, Source};
use crate::errors::ApiError;
use crate::generation::{Output, Totals};
use crate::parameters::Parameters;
use crate::{reply, sse};

/// How a protocol writes an answer. It gathers the answer, and tells of it as it grows.
pub(crate) trait Protocol: Send + Unpin + 'static {
    /// The media type of its streams.
    const MEDIA_TYPE: &'static str = "text/event-stream";

    /// An event as it is sent: by its name, which is its `type`, where the protocol has no other way.
    fn frame(event: &Value) -> Bytes {
        sse::named_event(event["type"].as_str().unwrap_or_default(), event)
    }
    /// Before anything of the answer.
    fn begin(&mut self, events: &mut Events);
    /// More of the answer.
    fn piece(&mut self, piece: ChatPiece, events: &mut Events);
    /// The answer is complete.
    fn end(&mut self, end: End, totals: &Totals, events: &mut Events);
    /// It will not be, after its stream began.
    fn fail(&mut self, error: &ApiError, events: &mut Events);
    /// What fills a pause in a stream.
    fn pause(&self) -> Bytes;
    /// Whether the complete answer takes long to write, whatever the model said.
    fn is_large(&self) -> bool {
        false
    }
    /// The complete answer, as JSON.
    fn whole(self) -> String;
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) ending: Ending,
    /// The stop string that was met, if somebody watches for them.
    pub(crate) stop: Option<String>,
}

/// Events on their way to a client; nobody listens to those of an answer that is sent whole.
#[derive(Debug)]
pub(crate) struct Events {
    is_heard: bool,
    frame: fn(&Value) -> Bytes,
    frames: VecDeque<Bytes>,
}

impl Events {
    /// Sends what `make` makes, an object.
    pub(crate) fn send(&mut self, make: impl FnOnce() -> Value) {
        if self.is_heard {
            self.frames.push_back((self.frame)(&make()));
        }
    }
}

/// Refuses what asks for several answers, or for what such answers have no place for.
pub(crate) fn check_single(parameters: &Parameters) -> Result<(), ApiError> {
    let refused = [
        ("n", parameters.num_choices != 1),
        ("prompt_logprobs", parameters.details.prompt_logprobs.is_some()),
        ("return_token_ids", parameters.details.token_ids),
        ("return_progress", parameters.tells_progress),
        ("stream_options.continuous_usage_stats", parameters.continuous_usage),
    ];
    match refused.iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((name, _)) => {
            let message =
                format!("{name} is not supported by this endpoint; leave it out, or use /v1/chat/completions");
            Err(ApiError::unsupported(*name, message))
        }
    }
}

/// Sends the answer that `answers` brings.
pub(crate) async fn send<P: Protocol>(
    protocol: P,
    answers: ChatStream,
    parameters: &Parameters,
    context: &Answering<'_>,
) -> Result<Response, ApiError> {
    let events = Events { is_heard: parameters.stream, frame: P::frame, frames: VecDeque::new() };
    let running = Running { protocol, answers, events, end: None, is_complete: false };
    let mut response = if parameters.stream {
        stream(running, context.state.timeouts().keep_alive).await?
    } else {
        let protocol = running.complete().await?;
        let is_large = parameters.details.logprobs.is_some() || protocol.is_large();
        let write = move || protocol.whole();
        let text = if is_large { context.state.work().write(write).await? } else { write() };
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
    };
    reply::report_ignored(&mut response, context.ignored);
    Ok(response)
}

/// An answer that grows. Owns the generation, so dropping it cancels that.
struct Running<P> {
    protocol: P,
    answers: ChatStream,
    events: Events,
    end: Option<End>,
    is_complete: bool,
}

impl<P: Protocol> Running<P> {
    fn take(&mut self, next: Next<ChatStream>) -> Result<(), ApiError> {
        match next? {
            // Nobody can ask for them.
            Output::PromptLogprobs { .. } | Output::Progress { .. } => {}
            Output::Text { piece, .. } => self.protocol.piece(piece, &mut self.events),
            Output::Finished { choice, reason, piece } => {
                self.protocol.piece(piece, &mut self.events);
                let stop = self
                    .answers
                    .met_stop(choice)
                    .filter(|_| matches!(reason, Ending::Stop | Ending::StopInCall))
                    .map(str::to_owned);
                self.end = Some(End { ending: reason, stop });
            }
            Output::Totals(totals) => {
                let end = self.end.take();
                let end = end.ok_or_else(|| ApiError::internal("the engine left an answer unfinished"))?;
                self.protocol.end(end, &totals, &mut self.events);
                self.is_complete = true;
            }
        }
        Ok(())
    }

    async fn complete(mut self) -> Result<P, ApiError> {
        self.protocol.begin(&mut self.events);
        while let Some(next) = self.answers.next().await {
            self.take(next)?;
        }
        if self.is_complete {
            Ok(self.protocol)
        } else {
            Err(ApiError::internal("the engine left an answer unfinished"))
        }
    }
}

async fn stream<P: Protocol>(mut running: Running<P>, interval: Duration) -> Result<Response, ApiError> {
    let first = match tokio::time::timeout(interval, running.answers.next()).await {
        Ok(Some(Err(error))) => return Err(error),
        Ok(first) => first,
        Err(_) => None,
    };
    running.protocol.begin(&mut running.events);
    let keep_alive = Box::pin(tokio::time::sleep(interval));
    let mut frames = Frames { running, interval, keep_alive, ended: false };
    if let Some(first) = first {
        frames.push(first);
    }
    let media_type = [(header::CONTENT_TYPE, HeaderValue::from_static(P::MEDIA_TYPE))];
    Ok((sse::HEADERS, media_type, Body::from_stream(frames)).into_response())
}

/// The frames of a streamed answer.
struct Frames<P> {
    running: Running<P>,
    interval: Duration,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

impl<P: Protocol> Frames<P> {
    fn push(&mut self, next: Next<ChatStream>) {
        if let Err(error) = self.running.take(next) {
            self.running.protocol.fail(&error, &mut self.running.events);
            self.ended = true;
        }
    }
}

impl<P: Protocol> Stream for Frames<P> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frames = &mut *self;
        loop {
            if let Some(frame) = frames.running.events.frames.pop_front() {
                frames.keep_alive.as_mut().reset(Instant::now() + frames.interval);
                return Poll::Ready(Some(Ok(frame)));
            }
            if frames.ended {
                return Poll::Ready(None);
            }
            match frames.running.answers.poll_next(context) {
                Poll::Ready(Some(next)) => frames.push(next),
                Poll::Ready(None) => frames.ended = true,
                Poll::Pending => {
                    if frames.keep_alive.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    let pause = frames.running.protocol.pause();
                    frames.running.events.frames.push_back(pause);
                }
            }
        }
    }
}
