//! The HTTP client below OpenTelemetry's exporter: ureq, which blocks. The thread that sends has nothing else to do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// Bytes of a collector's answer; it is empty, or says which spans it refuses.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Why the last attempt failed; OpenTelemetry's exporter says no more than that the network did.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    fn set(&self, error: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    last_error: LastError,
}

impl Client {
    /// One that gives up after `timeout`, and says in `last_error` why it failed.
    pub(crate) fn new(timeout: Duration, last_error: LastError) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // A collector that has moved is a setting to be corrected: spans would not be sent along.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(timeout))
            .build();
        Self { agent: agent.into(), last_error }
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let response = self.agent.run(request.map(|body| body.to_vec()))?;
        let (parts, mut body) = response.into_parts();
        let body = body.with_config().limit(MAX_ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let outcome = self.post(request);
        self.last_error.set(outcome.as_ref().err().map(ToString::to_string));
        Ok(outcome?)
    }
}
