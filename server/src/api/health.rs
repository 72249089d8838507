//! GET /health: 200 when a request would be taken, and whether its answer is the same in any company; 503 with the reason otherwise.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::state::ServerState;

pub(crate) async fn health(State(state): State<ServerState>) -> Response {
    match state.health() {
        Ok(deterministic) => Json(json!({ "status": "ok", "deterministic": deterministic })).into_response(),
        Err(refusal) => {
            let mut body = refusal.to_json();
            body["status"] = body["error"]["code"].clone();
            body["reason"] = refusal.message().into();
            refusal.respond_with(body)
        }
    }
}
