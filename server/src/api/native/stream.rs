//! llama-server's stream: `data: {"content", "stop": false, ...}` for each piece, one with `"stop": true` for each choice at the end,
//! and no `[DONE]`. As in the other streams the 200 waits for the first event, and silence is filled with comments.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use super::running::Running;
use crate::errors::ApiError;
use crate::sse;

/// Begins a streamed answer.
pub(super) async fn respond(mut running: Running, interval: Duration) -> Result<Response, ApiError> {
    let next = std::future::poll_fn(|context| running.poll_next(context));
    let first = tokio::time::timeout(interval, next).await.ok();
    let keep_alive = Box::pin(tokio::time::sleep(interval));
    let mut frames = Frames { running, ready: VecDeque::new(), interval, keep_alive, ended: false };
    match first {
        Some(Some(Err(error))) => return Err(error),
        Some(news) => frames.push(news),
        None => {}
    }
    Ok((sse::HEADERS, Body::from_stream(frames)).into_response())
}

/// The frames of one answer. Owns the generation, so dropping the body cancels it.
struct Frames {
    running: Running,
    ready: VecDeque<Bytes>,
    interval: Duration,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

impl Frames {
    fn push(&mut self, news: Option<Result<Value, ApiError>>) {
        match news {
            Some(Ok(part)) => self.frame(&part.to_string()),
            Some(Err(error)) => {
                self.frame(&error.to_json().to_string());
                self.ended = true;
            }
            None => {
                for choice in 0..self.running.native.num_choices() {
                    self.frame(&self.running.native.last_word(choice).to_string());
                }
                self.ended = true;
            }
        }
    }

    fn frame(&mut self, data: &str) {
        self.ready.push_back(sse::event(data));
    }
}

impl Stream for Frames {
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
            match frames.running.poll_next(context) {
                Poll::Ready(news) => frames.push(news),
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
