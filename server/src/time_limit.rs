//! The time that a request has (`--request-timeout`), from when its body was read: reading it, compiling its grammar, waiting
//! and generating are all part of it, and so are all prompts of a batch.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::errors::ApiError;

/// A bound on one request, if there is any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TimeLimit(Option<(Duration, Instant)>);

impl TimeLimit {
    /// It began then.
    pub(crate) fn since(begin: Instant, limit: Option<Duration>) -> Self {
        Self(limit.and_then(|limit| Some((limit, begin.checked_add(limit)?))))
    }

    /// What is left of it; zero when it is over.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|(_, end)| end.saturating_duration_since(Instant::now()))
    }

    /// What a client hears when it is over.
    pub(crate) fn error(self) -> ApiError {
        let seconds = self.0.map_or(0.0, |(limit, _)| limit.as_secs_f64());
        ApiError::timed_out(format!("the request was not done {seconds} s after it arrived, which is its time limit"))
    }

    /// Waits no longer than this for `work`.
    pub(crate) async fn bound<T>(self, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        match self.0 {
            None => work.await,
            Some((_, end)) => timeout_at(end, work).await.unwrap_or_else(|_| Err(self.error())),
        }
    }
}
