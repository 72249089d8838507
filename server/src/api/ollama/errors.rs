//! Errors as Ollama's clients read them: `{"error": "text"}`, whoever refused; and the endpoints that are refused as a whole.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::errors::ApiError;

/// Where all of Ollama's interface lies.
const PATHS: &str = "/api/";
/// Endpoints that manage models, and what is below them.
const MANAGEMENT: &[&str] = &["pull", "push", "create", "copy", "delete", "blobs"];

/// Whether a path is of an endpoint that manages models.
pub(crate) fn is_management(path: &str) -> bool {
    let first = path.strip_prefix(PATHS).and_then(|rest| rest.split('/').next());
    first.is_some_and(|first| MANAGEMENT.contains(&first))
}

/// What it is answered.
pub(crate) fn no_management(path: &str) -> ApiError {
    let message = format!(
        "{path} is not supported: models are not managed over HTTP; `taper pull` fetches one, and `taper serve --model` serves it"
    );
    ApiError::unsupported("path", message)
}

/// Rewrites refusals of these endpoints.
pub(crate) async fn errors_in_own_words(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with(PATHS);
    let response = next.run(request).await;
    if !is_ours {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = match parts.extensions.get::<ApiError>() {
        None => body,
        Some(error) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            Body::from(to_json(error).to_string())
        }
    };
    Response::from_parts(parts, body)
}

/// The body, and the line that ends a stream.
pub(super) fn to_json(error: &ApiError) -> Value {
    json!({ "error": error.message() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_manage_models_are_known() {
        for path in ["/api/pull", "/api/blobs/sha256:00", "/api/delete"] {
            assert!(is_management(path), "{path}");
        }
        for path in ["/api/chat", "/api", "/api/", "/api/pulls", "/pull", "/v1/api/pull"] {
            assert!(!is_management(path), "{path}");
        }
    }
}
