//! What is told of a request when it is over, to whoever in this process listens: a line in the log (`access_log`) says most of it
//! as well. There is nothing in it of prompts and answers but how long they are.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::generation::Totals;

/// A request whose answer is complete, or whose client has left. Those that the log does not mention are not told of either:
/// answered questions for health, metrics and pages.
#[derive(Debug, Clone)]
pub struct RequestReport {
    /// `x-request-id`, the client's or the one that it was given.
    pub id: String,
    /// The method.
    pub method: String,
    /// The path as the table of routes has it, such as `/v1/models/{*id}`; none for one that is not there.
    pub route: Option<String>,
    /// The header of this name, as it came: where the request belongs, in the words of W3C's Trace Context.
    pub traceparent: Option<String>,
    /// As `traceparent`.
    pub tracestate: Option<String>,
    /// When its headers were read.
    pub begun: SystemTime,
    /// From there until the last byte of the answer was taken, or the client had left.
    pub took: Duration,
    /// Of the answer; none if the client left before there was one.
    pub status: Option<u16>,
    /// Whether the client took all of the answer.
    pub is_complete: bool,
    /// The model's part, if it had one.
    pub answer: Option<AnswerReport>,
}

/// What a model had to do with a request.
#[derive(Debug, Clone)]
pub struct AnswerReport {
    /// The model's id.
    pub model: String,
    /// From the beginning of the request until the engine was asked.
    pub submitted: Duration,
    /// What it cost; none where it was not finished.
    pub totals: Option<Totals>,
    /// Why each choice ended: `stop`, `length` or `tool_calls`; none for embeddings, or where it was not finished.
    pub finish_reasons: Vec<&'static str>,
}

/// Whoever listens. It is called on a thread that has other requests to serve, and must not wait for anything.
#[derive(Clone)]
pub struct RequestListener(Arc<dyn Fn(RequestReport) + Send + Sync>);

impl RequestListener {
    /// Has `listener` called at the end of each request.
    pub fn new(listener: impl Fn(RequestReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn tell(&self, report: RequestReport) {
        (self.0)(report);
    }
}

impl std::fmt::Debug for RequestListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestListener")
    }
}
