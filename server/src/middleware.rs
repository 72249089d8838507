//! What happens around every request: its id, its log line, and a panic turned into a 500.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access_log::{self, Listening};
use crate::errors::ApiError;
use crate::peer;
use crate::state::ServerState;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request's id, for those who handle it.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

/// A longer id from a client is replaced.
const MAX_ID_BYTES: usize = 128;

/// Gives each request an id (the client's `x-request-id`, or a new one), a span for its logs, and a log line.
pub(crate) async fn identify(State(state): State<ServerState>, mut request: Request, next: Next) -> Response {
    peer::turn().await;
    let id = client_id(&request).unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    request.extensions_mut().insert(RequestId(id.as_str().into()));
    let span = tracing::info_span!("request", %id);
    let listener = state.config().on_request.as_ref().map(|listener| Listening::to(&request, &id, listener));
    let mut response = access_log::handle(request, next, span, (listener, state.http())).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn client_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| id.to_owned())
}

/// The answer after a panic in a handler.
#[allow(clippy::needless_pass_by_value, reason = "the layer calls it with the box")]
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let what = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = what.unwrap_or("of unknown kind"), "a handler panicked; this is a fault of the server");
    ApiError::internal("the server failed on this request; this is a fault of the server").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    #[tokio::test]
    async fn a_panic_is_a_500_with_an_openai_error_and_an_id() {
        async fn panics() {
            panic!("the private reason");
        }
        let app = Router::new()
            .route("/", get(panics))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(axum::middleware::from_fn_with_state(ServerState::new(), identify));
        let response = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key(REQUEST_ID));
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "server_error");
        assert!(!body.to_string().contains("private"), "what the panic said stays in the log");
    }
}
