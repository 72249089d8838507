//! GET /v1/models and /v1/models/{id}: what is served. `meta` is llama.cpp's; what the program does not know is left out of it.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::facts::ServerFacts;
use crate::state::{Served, ServerState};

/// The list, of one model.
pub(crate) async fn list(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let served = state.served()?;
    Ok(Json(json!({ "object": "list", "data": [card(&served, &state.facts())] })))
}

/// One model, by its id or an alias.
pub(crate) async fn get(
    State(state): State<ServerState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    let served = state.served()?;
    if state.answers_to(&served.model.id, &id) {
        Ok(Json(card(&served, &state.facts())))
    } else {
        Err(ApiError::model_not_found(&crate::fields::show(&Value::String(id)), &served.model.id))
    }
}

fn card(served: &Served, facts: &ServerFacts) -> Value {
    let model = &served.model;
    let mut meta = json!({ "n_ctx": model.context_len, "n_vocab": model.tokenizer.vocab_size() });
    let known = [
        ("n_ctx_train", facts.trained_context_len.map(|len| len as u64)),
        ("n_params", facts.num_params),
        ("size", facts.model_bytes),
    ];
    for (name, number) in known {
        if let Some(number) = number {
            meta[name] = number.into();
        }
    }
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created_unix,
        "owned_by": "taper",
        "max_model_len": model.context_len,
        "root": model.id,
        "meta": meta,
    })
}
