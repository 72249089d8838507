//! One line in the log per request, when its answer is complete or its client has left: what was asked, what came of it, how
//! much was sent, how long it took, and what the model spent on it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};
use tracing::{Instrument, Span};

use crate::generation::Totals;

/// Characters of a path that the log repeats: any client may send long ones.
const MAX_PATH_CHARS: usize = 256;

tokio::task_local! {
    static COST: Arc<Cost>;
}

/// What the model spent on a request, once that is known.
#[derive(Debug, Default)]
pub(crate) struct Cost(OnceLock<Totals>);

impl Cost {
    /// Of the request that is being handled here.
    pub(crate) fn current() -> Arc<Self> {
        COST.try_with(Arc::clone).unwrap_or_default()
    }

    /// Notes it; only the first time counts.
    pub(crate) fn set(&self, totals: Totals) {
        let _ = self.0.set(totals);
    }
}

/// Handles a request within `span`, and logs it there when it is over.
pub(crate) async fn handle(request: Request, next: Next, span: Span) -> Response {
    let cost = Arc::new(Cost::default());
    let mut entry = Entry {
        method: request.method().clone(),
        path: request.uri().path().chars().take(MAX_PATH_CHARS).collect(),
        begun: Instant::now(),
        status: None,
        bytes: 0,
        is_complete: false,
        cost: Arc::clone(&cost),
        span: span.clone(),
    };
    let response = COST.scope(cost, next.run(request)).instrument(span).await;
    entry.status = Some(response.status().as_u16());
    response.map(|body| Body::new(Logged { body, entry }))
}

/// Writes its line when it is dropped.
#[derive(Debug)]
struct Entry {
    method: Method,
    path: String,
    begun: Instant,
    /// None if the client left before there was one.
    status: Option<u16>,
    bytes: usize,
    is_complete: bool,
    cost: Arc<Cost>,
    span: Span,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _in_span = self.span.enter();
        let totals = self.cost.0.get();
        let timings = totals.and_then(|totals| totals.timings);
        let (status, bytes, complete) = (self.status, self.bytes, self.is_complete);
        // What pages, scrapers and load balancers ask for every second would bury the rest.
        let is_plain = self.method == Method::GET && !self.path.starts_with("/v1/");
        if is_plain && complete && status.is_some_and(|status| status < 400) {
            let seconds = self.begun.elapsed().as_secs_f64();
            tracing::debug!(method = %self.method, path = self.path, status, bytes, seconds, complete, "request");
            return;
        }
        tracing::info!(
            method = %self.method,
            path = self.path,
            status,
            bytes,
            seconds = self.begun.elapsed().as_secs_f64(),
            complete,
            prompt_tokens = totals.map(|totals| totals.prompt_tokens),
            cached_tokens = totals.map(|totals| totals.cached_tokens),
            completion_tokens = totals.map(|totals| totals.completion_tokens),
            drafted_tokens = totals.map(|totals| totals.guessed_tokens),
            accepted_tokens = totals.map(|totals| totals.right_guesses),
            recomputed_rows = totals.and_then(|totals| totals.recomputed_rows),
            ttft_s = timings.map(|timings| timings.queue_s + timings.prefill_s),
            queue_s = timings.map(|timings| timings.queue_s),
            prefill_s = timings.map(|timings| timings.prefill_s),
            decode_s = timings.map(|timings| timings.decode_s),
            sample_s = timings.map(|timings| timings.sample_s),
            detokenize_s = timings.map(|timings| timings.detokenize_s),
            "request"
        );
    }
}

/// A body that counts what is taken of it.
struct Logged {
    body: Body,
    entry: Entry,
}

impl hyper::body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.entry.bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        self.entry.is_complete = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // Of a body that knows its end, nobody asks for more.
        self.entry.is_complete |= self.body.is_end_stream();
    }
}
