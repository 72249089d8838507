//! Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}` and a status.
//!
//! The clients retry 408, 409, 429 and every 5xx, so a mistake that repeats itself must be a 4xx, and a refusal that time
//! cures carries `Retry-After`.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use taper_engine::{EngineHandle, SubmitError};

use crate::rate_limit::Rate;

/// One refusal: a status and the fields of the error body.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// For a prompt that does not fit.
    overflow: Option<Overflow>,
    retry_after_s: Option<u64>,
    closes: bool,
}

/// A prompt that does not fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overflow {
    pub(crate) num_tokens: usize,
    /// Whether there are no more than that.
    pub(crate) is_exact: bool,
    pub(crate) context_len: usize,
}

impl Overflow {
    /// The number of tokens, in words.
    pub(crate) fn shown(&self) -> String {
        format!("{}{}", if self.is_exact { "" } else { "at least " }, self.num_tokens)
    }
}

/// Seconds after which to ask again while a model loads.
const LOADING_RETRY_S: u64 = 2;
/// Seconds after which to ask again (another server, then) while this one stops.
const DRAINING_RETRY_S: u64 = 5;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: String) -> Self {
        Self(Box::new(Inner {
            status,
            kind,
            message,
            param: None,
            code: None,
            overflow: None,
            retry_after_s: None,
            closes: false,
        }))
    }

    fn code(mut self, code: &'static str) -> Self {
        self.0.code = Some(code);
        self
    }

    fn param(mut self, param: impl Into<String>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds.max(1));
        self
    }

    /// Ends the connection after the answer: what follows on it cannot be read as a request.
    pub(crate) fn closing(mut self) -> Self {
        self.0.closes = true;
        self
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message.into())
    }

    /// 400: the value of `param` is of the wrong type or out of range.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(param).code("invalid_value")
    }

    /// 400: `param` must be given.
    pub fn missing(param: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(param).code("missing_required_parameter")
    }

    /// 400: `param` is a known parameter that this server does not have.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(param).code("unsupported_parameter")
    }

    /// 400: the body is not the JSON it should be.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::bad_request(message).code("invalid_json")
    }

    /// 400: the prompt has no room in the context. `exactly` is false where the prompt was too long to be worth counting.
    pub fn context_overflow(param: &str, prompt_tokens: usize, context_len: usize, exactly: bool) -> Self {
        let overflow = Overflow { num_tokens: prompt_tokens, is_exact: exactly, context_len };
        let shown = overflow.shown();
        let mut error = Self::bad_request(format!(
            "the prompt has {shown} tokens and the context of this model holds {context_len}, of which at \
             least one is for the answer; shorten the prompt or start the server with a larger --ctx"
        ))
        .param(param)
        .code("context_length_exceeded");
        error.0.overflow = Some(overflow);
        error
    }

    /// 400: an input to be embedded is longer than the context. `exactly` as in [`ApiError::context_overflow`].
    pub fn input_too_long(param: &str, input_tokens: usize, context_len: usize, exactly: bool) -> Self {
        let overflow = Overflow { num_tokens: input_tokens, is_exact: exactly, context_len };
        let shown = overflow.shown();
        let mut error = Self::bad_request(format!(
            "{param} has {shown} tokens and the context of this model holds {context_len}; shorten it, have its end \
             alone embedded with truncate_prompt_tokens, or start the server with a larger --ctx"
        ))
        .param(param)
        .code("context_length_exceeded");
        error.0.overflow = Some(overflow);
        error
    }

    /// 401: the request carries no API key, and this server asks for one.
    pub fn no_api_key() -> Self {
        let message = "this server asks for an API key, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"";
        Self::unauthorized(message)
    }

    /// 401: the request carries a key that is none of this server's.
    pub fn wrong_api_key() -> Self {
        Self::unauthorized("the API key of this request is none of this server's")
    }

    fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message.to_owned()).code("invalid_api_key")
    }

    /// 403: the request calls this server by a name that it does not answer to.
    pub fn host_not_allowed(host: &str) -> Self {
        let message = format!(
            "this server does not answer to the host {host:?}, which a web page of another site could have point here; if \
             the name is this server's own, --allowed-host allows it"
        );
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code("host_not_allowed")
    }

    /// 403: the request is of a web page that is not this server's.
    pub fn origin_not_allowed(origin: &str) -> Self {
        let message =
            format!("this server does nothing for web pages of {origin:?}; if they may ask, --cors-origin allows them");
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code("origin_not_allowed")
    }

    /// 429: the caller's requests come faster than `rate`; one is taken after `wait`.
    pub fn too_many_requests(rate: Rate, wait: Duration) -> Self {
        let message = format!("requests come faster than {rate}; ask again after the time in Retry-After");
        let seconds = wait.as_millis().div_ceil(1000) as u64;
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .code("rate_limit_exceeded")
            .retry_after(seconds)
    }

    /// 404: no model of that name here, but these, of which the first is the default.
    pub fn model_not_found(asked: &str, served: &[&str]) -> Self {
        let (first, others) = served.split_first().unwrap_or((&"none", &[]));
        let others: String = others.iter().map(|other| format!(", \"{other}\"")).collect();
        let message =
            format!("model {asked} is not served here; this server has \"{first}\" (also as \"default\"){others}");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).param("model").code("model_not_found")
    }

    /// 404: no model of that name here, in Ollama's words, which its clients look for.
    pub(crate) fn no_such_model(asked: &str) -> Self {
        let message = format!("model '{asked}' not found");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).param("model").code("model_not_found")
    }

    /// 404: no such path.
    pub fn no_such_path(path: &str) -> Self {
        let message = format!("there is nothing at {path}; GET /openapi.json and /docs say what this server has");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("unknown_url")
    }

    /// 404: an answer of the past, and there are none.
    pub fn nothing_stored(path: &str) -> Self {
        let message = format!(
            "there is nothing at {path}: this server stores no responses; send the whole conversation as input"
        );
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    /// 405: the path exists, the method does not; why, if clients of other servers would expect it.
    pub fn method_not_allowed(method: &str, path: &str, why: Option<&str>) -> Self {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!("{path} does not take {method}{why}; the Allow header says what it takes");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).code("method_not_allowed")
    }

    /// 408: the request's body did not arrive in time.
    pub fn body_timeout() -> Self {
        let message = "the request body did not arrive in time".to_owned();
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message).code("request_timeout").closing()
    }

    /// 413: the request's body is larger than `limit` bytes.
    pub fn body_too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).code("request_too_large").closing()
    }

    /// 503: the model is not ready yet.
    pub fn loading(reason: &str) -> Self {
        Self::unavailable(format!("the model is loading: {reason}"), "model_loading").retry_after(LOADING_RETRY_S)
    }

    /// 503: the server finishes what it has and takes no more.
    pub fn draining() -> Self {
        let message = "the server is stopping and takes no new requests".to_owned();
        Self::unavailable(message, "server_draining").retry_after(DRAINING_RETRY_S).closing()
    }

    /// 503: too much of one kind of work is under way.
    pub fn busy(reason: &str) -> Self {
        Self::unavailable(reason.to_owned(), "busy").retry_after(1)
    }

    /// 408: the request had its time, and the machine is too busy for it.
    pub fn timed_out(message: String) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message).code("request_timeout")
    }

    /// 503: the model did not load or its engine has stopped; only a restart helps, so there is no Retry-After.
    pub fn failed(reason: &str) -> Self {
        Self::unavailable(format!("the model is not available: {reason}"), "model_failed")
    }

    /// 503: the model `id` could not be loaded; after `left` the next request has it tried again.
    pub fn load_failed(id: &str, reason: &str, left: Duration) -> Self {
        let seconds = left.as_millis().div_ceil(1000) as u64;
        let message = format!("the model \"{id}\" cannot be loaded: {reason}; it is tried again after {seconds} s");
        Self::unavailable(message, "model_failed").retry_after(seconds)
    }

    /// 503: the model `id` is asked about, and it is not loaded.
    pub fn not_loaded(id: &str) -> Self {
        let message =
            format!("the model \"{id}\" is not loaded, so there is nothing to tell; its next request loads it");
        Self::unavailable(message, "model_not_loaded")
    }

    fn unavailable(message: String, code: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message).code(code)
    }

    /// 500: a fault of this server.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message.into()).code("internal_error")
    }

    /// [`ApiError::from_submit`] of a request that this engine has refused, counted there.
    pub(crate) fn of_engine(engine: &EngineHandle, error: SubmitError, prompt_param: &str) -> Self {
        if let SubmitError::QueueFull { limit, .. } = error {
            engine.metrics().note_refused(limit);
        }
        Self::from_submit(error, prompt_param)
    }

    /// The engine's refusal of a request whose prompt came in the field `prompt_param`.
    pub(crate) fn from_submit(error: SubmitError, prompt_param: &str) -> Self {
        match error {
            SubmitError::QueueFull { retry_after_s, .. } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "the queue is full; ask again after the time in Retry-After".to_owned(),
            )
            .code("queue_full")
            .retry_after(retry_after_s),
            SubmitError::Draining => Self::draining(),
            SubmitError::Failed(reason) => Self::failed(&reason),
            SubmitError::PromptTooLong { prompt_tokens, context_len } => {
                Self::context_overflow(prompt_param, prompt_tokens, context_len, true)
            }
            SubmitError::EmptyPrompt => Self::invalid(prompt_param, format!("{prompt_param} has no tokens")),
            SubmitError::InvalidParam { param, message } => Self::invalid(param, message),
            other => Self::invalid(prompt_param, other.to_string()),
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The name of the reason, as clients and metrics have it.
    pub(crate) fn reason(&self) -> &'static str {
        self.0.code.unwrap_or("other")
    }

    /// What does not fit, for a prompt that does not.
    pub(crate) fn overflow(&self) -> Option<Overflow> {
        self.0.overflow
    }

    /// Whether the same request may be answered later.
    pub(crate) fn may_pass(&self) -> bool {
        self.0.retry_after_s.is_some()
    }

    /// The response with another body than [`ApiError::to_json`].
    pub(crate) fn respond_with(&self, body: Value) -> Response {
        let mut response = (self.0.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.0.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"taper\""));
        }
        if self.0.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // For protocols that write errors in another way.
        response.extensions_mut().insert(self.clone());
        response
    }

    /// The body: `{"error": {...}}`.
    pub fn to_json(&self) -> Value {
        let inner = &self.0;
        let mut error = json!({
            "message": inner.message, "type": inner.kind, "param": inner.param, "code": inner.code,
        });
        if let Some(overflow) = inner.overflow {
            error["n_prompt_tokens"] = overflow.num_tokens.into();
            error["n_ctx"] = overflow.context_len.into();
        }
        json!({ "error": error })
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.0.status, self.0.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond_with(self.to_json())
    }
}
