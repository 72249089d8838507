//! Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}, "request_id"}`, whoever refused.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::middleware::RequestId;

const PATH: &str = "/v1/messages";
/// Where Anthropic's clients look for it.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Rewrites refusals of these endpoints, and names the request as their clients know it.
pub(crate) async fn errors_in_own_words(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !is_ours {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().cloned();
    let (mut parts, body) = next.run(request).await.into_parts();
    let id = id.as_ref().map(|RequestId(id)| id.as_ref());
    if let Some(value) = id.and_then(|id| HeaderValue::from_str(id).ok()) {
        parts.headers.insert(REQUEST_ID, value);
    }
    let body = match parts.extensions.get::<ApiError>() {
        None => body,
        Some(error) => {
            let mut told = to_json(error);
            told["request_id"] = id.into();
            parts.headers.remove(header::CONTENT_LENGTH);
            Body::from(told.to_string())
        }
    };
    Response::from_parts(parts, body)
}

/// The body, without the request's id.
pub(super) fn to_json(error: &ApiError) -> Value {
    // Clients look for these words to know that they must shorten the conversation.
    let message = match error.overflow() {
        Some(overflow) => {
            let (prompt, context) = (overflow.shown(), overflow.context_len);
            format!("prompt is too long: {prompt} tokens > {context} maximum; {}", error.message())
        }
        None => error.message().to_owned(),
    };
    json!({ "type": "error", "error": { "type": kind(error), "message": message } })
}

fn kind(error: &ApiError) -> &'static str {
    match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE if error.may_pass() => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: &ApiError, kind: &str) {
        assert_eq!(to_json(error)["error"]["type"], kind, "{error}");
    }

    #[test]
    fn every_status_has_a_type_of_anthropics() {
        check(&ApiError::invalid("x", "y"), "invalid_request_error");
        check(&ApiError::no_api_key(), "authentication_error");
        check(&ApiError::host_not_allowed("x"), "permission_error");
        check(&ApiError::no_such_path("/x"), "not_found_error");
        check(&ApiError::method_not_allowed("GET", "/x", None), "invalid_request_error");
        check(&ApiError::body_timeout(), "timeout_error");
        check(&ApiError::body_too_large(1), "request_too_large");
        check(&ApiError::busy("x"), "overloaded_error");
        check(&ApiError::loading("x"), "overloaded_error");
        check(&ApiError::failed("x"), "api_error");
        check(&ApiError::internal("x"), "api_error");
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() {
        let told = to_json(&ApiError::context_overflow("messages", 600, 512, true));
        let message = told["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: 600 tokens > 512 maximum"), "{message}");
        let told = to_json(&ApiError::context_overflow("messages", 600, 512, false));
        let message = told["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: at least 600 tokens > 512 maximum"), "{message}");
    }
}
