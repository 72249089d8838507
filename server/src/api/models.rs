//! GET /v1/models and /v1/models/{id}: what is served. `meta` and `status` are llama.cpp's; what the program does not know is left
//! out, of a model that is not loaded the sizes that a load decides.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::models::{Told, ToldState};
use crate::sampling_defaults::{SamplingDefaults, told as told_defaults};
use crate::state::ServerState;

/// The list.
pub(crate) async fn list(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    state.models().check_open()?;
    Ok(Json(json!({ "object": "list", "data": cards(&state) })))
}

/// One model, by its id or an alias.
pub(crate) async fn get(
    State(state): State<ServerState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    state.models().check_open()?;
    let index = state.models().find(Some(&id))?;
    Ok(Json(cards(&state).swap_remove(index)))
}

fn cards(state: &ServerState) -> Vec<Value> {
    state.models().each(|told| card(told, &state.config().sampling))
}

fn card(told: &Told<'_>, settings: &SamplingDefaults) -> Value {
    let Told { id, aliases, facts, .. } = told;
    let served = match &told.state {
        ToldState::Loaded(served) => Some(&served.model),
        _ => None,
    };
    let mut meta = json!({});
    let known = [
        ("n_ctx", served.map(|model| model.context_len as u64)),
        ("n_vocab", served.map(|model| model.tokenizer.vocab_size() as u64)),
        ("n_ctx_train", facts.trained_context_len.map(|len| len as u64)),
        ("n_params", facts.num_params),
        ("size", facts.model_bytes),
    ];
    for (name, number) in known {
        if let Some(number) = number {
            meta[name] = number.into();
        }
    }
    let status = match &told.state {
        ToldState::Loaded(_) if told.is_leaving => {
            json!({ "value": "loaded", "reason": "it is unloaded once its requests have ended" })
        }
        ToldState::Loaded(_) => json!({ "value": "loaded" }),
        ToldState::Unloaded => json!({ "value": "unloaded" }),
        ToldState::Loading(reason) => json!({ "value": "loading", "reason": reason }),
        ToldState::Failed(reason) => json!({ "value": "unloaded", "failed": true, "reason": reason }),
    };
    let mut card = json!({
        "id": id,
        "object": "model",
        "created": served.map_or(told.created_unix, |model| model.created_unix),
        "owned_by": "taper",
        "root": id,
        "aliases": aliases,
        "meta": meta,
        "status": status,
        "sampling_defaults": told_defaults(settings, &facts.sampling),
    });
    if let Some(model) = served {
        card["max_model_len"] = model.context_len.into();
    }
    card
}
