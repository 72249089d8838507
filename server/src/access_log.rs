//! One line in the log per request, when its answer is complete or its client has left: what was asked, what came of it, how
//! much was sent, how long it took, and what the model spent on it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};
use tracing::{Instrument, Span};

use crate::errors::ApiError;
use crate::generation::Totals;
use crate::http_metrics::{Endpoint, HttpMetrics};
use crate::report::{AnswerReport, RequestListener, RequestReport};

/// Characters of a path that the log repeats: any client may send long ones.
const MAX_PATH_CHARS: usize = 256;
/// Bytes of a header of trace context, and of a method, that who listens is told: reports may have to wait for long.
const MAX_TRACE_BYTES: usize = 512;
const MAX_METHOD_BYTES: usize = 16;

tokio::task_local! {
    static COST: Arc<Cost>;
}

/// What the model has to do with a request, as far as that is known.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// Which model was asked, and when.
    submitted: OnceLock<(String, Instant)>,
    /// What it spent, and why each choice ended.
    spent: OnceLock<(Totals, Vec<&'static str>)>,
}

impl Cost {
    /// Of the request that is being handled here.
    pub(crate) fn current() -> Arc<Self> {
        COST.try_with(Arc::clone).unwrap_or_default()
    }

    /// Notes that a model is asked now; only the first time counts.
    pub(crate) fn submit(&self, model: &str) {
        let _ = self.submitted.set((model.to_owned(), Instant::now()));
    }

    /// Notes what it spent, and why each choice ended; only the first time counts.
    pub(crate) fn set(&self, totals: Totals, finish_reasons: Vec<&'static str>) {
        let _ = self.spent.set((totals, finish_reasons));
    }

    fn totals(&self) -> Option<&Totals> {
        self.spent.get().map(|(totals, _)| totals)
    }

    /// Of a request that began at `begun`.
    fn report(&self, begun: Instant) -> Option<AnswerReport> {
        let (model, submitted) = self.submitted.get()?;
        let spent = self.spent.get();
        Some(AnswerReport {
            model: model.clone(),
            submitted: submitted.duration_since(begun),
            totals: spent.map(|(totals, _)| *totals),
            finish_reasons: spent.map(|(_, reasons)| reasons.clone()).unwrap_or_default(),
        })
    }
}

/// Who hears of a request when it is over, and what is known of it from the beginning.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: RequestListener,
    id: String,
    route: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    begun: SystemTime,
}

impl Listening {
    /// Notes what `listener` will want to know of a request that begins.
    pub(crate) fn to(request: &Request, id: &str, listener: &RequestListener) -> Self {
        // Several headers are one with commas; of `traceparent` that is none.
        let header = |name: &str| {
            let values: Vec<&str> = request.headers().get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
            Some(values.join(",")).filter(|value| !value.is_empty() && value.len() <= MAX_TRACE_BYTES)
        };
        Self {
            listener: listener.clone(),
            id: id.to_owned(),
            route: request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()),
            traceparent: header("traceparent"),
            tracestate: header("tracestate"),
            begun: SystemTime::now(),
        }
    }
}

/// Handles a request within `span`, and logs and counts it when it is over.
pub(crate) async fn handle(
    request: Request,
    next: Next,
    span: Span,
    (listening, http): (Option<Listening>, &Arc<HttpMetrics>),
) -> Response {
    let cost = Arc::new(Cost::default());
    let mut entry = Entry {
        method: request.method().clone(),
        path: request.uri().path().chars().take(MAX_PATH_CHARS).collect(),
        begun: Instant::now(),
        status: None,
        bytes: 0,
        is_complete: false,
        cost: Arc::clone(&cost),
        listening,
        endpoint: Endpoint::of(&request),
        http: Arc::clone(http),
        span: span.clone(),
    };
    let response = COST.scope(cost, next.run(request)).instrument(span).await;
    entry.status = Some(response.status().as_u16());
    if let Some(error) = response.extensions().get::<ApiError>() {
        http.note_refused(error.reason());
    }
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
    listening: Option<Listening>,
    endpoint: Endpoint,
    http: Arc<HttpMetrics>,
    span: Span,
}

impl Entry {
    /// Tells who listens.
    fn tell(&self, Listening { listener, id, route, traceparent, tracestate, begun }: Listening) {
        listener.tell(RequestReport {
            id,
            method: self.method.as_str().chars().take(MAX_METHOD_BYTES).collect(),
            route,
            traceparent,
            tracestate,
            begun,
            took: self.begun.elapsed(),
            status: self.status,
            is_complete: self.is_complete,
            answer: self.cost.report(self.begun),
        });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let listening = self.listening.take();
        self.http.note_over(&self.endpoint, self.status, self.begun.elapsed());
        let _in_span = self.span.enter();
        let totals = self.cost.totals();
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
            model = self.cost.submitted.get().map(|(model, _)| model),
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
        if let Some(listening) = listening {
            self.tell(listening);
        }
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
