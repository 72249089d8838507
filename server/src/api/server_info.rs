//! What the server says of itself: GET /live, /version, /server_info, and llama-server's /props and /slots.
//!
//! `/live` asks nothing of the model: it is for supervisors that end a process which no longer answers. `/health` says whether a
//! request would be taken.

use std::collections::HashMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde_json::{Value, json};
use taper_engine::Speculation;

use crate::api::loads::tokens_in_use;
use crate::api::native;
use crate::errors::ApiError;
use crate::limits;
use crate::models::Asked;
use crate::sampling_defaults::told;
use crate::state::ServerState;

pub(crate) async fn live() -> Json<Value> {
    Json(json!({ "status": "alive" }))
}

pub(crate) async fn version(State(state): State<ServerState>) -> Json<Value> {
    let fingerprint = state.served().ok().map(|served| served.model.fingerprint.clone());
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "fingerprint": fingerprint }))
}

pub(crate) async fn server_info(State(state): State<ServerState>, Asked(served): Asked) -> Json<Value> {
    let (model, facts) = (&served.model, state.models().facts(&served.model.id));
    let (config, limits, status) = (model.engine.config(), model.engine.limits(), model.engine.status());
    let (used, capacity, share) = tokens_in_use(&served, &status);
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "fingerprint": model.fingerprint,
        "deterministic": model.deterministic,
        "device": facts.device,
        "model": {
            "id": model.id,
            "path": facts.model_path,
            "architecture": facts.architecture,
            "n_params": facts.num_params,
            "size": facts.model_bytes,
            "n_vocab": model.tokenizer.vocab_size(),
            "n_ctx_train": facts.trained_context_len,
            "n_ctx": model.context_len,
            "has_chat_template": model.template.is_some(),
        },
        "engine": {
            "max_batch": config.max_batch,
            "max_queued": config.max_queued,
            "max_queued_tokens": config.max_queued_tokens,
            "token_budget": config.token_budget,
            "request_timeout_s": config.request_timeout.map(|timeout| timeout.as_secs_f64()),
            "speculation": match config.speculation {
                Speculation::Off => "off",
                Speculation::Lookup => "lookup",
                Speculation::Draft => "draft",
                Speculation::All => "all",
            },
            "block_size": limits.block_size,
            "num_blocks": limits.num_blocks,
            "kv_cache_bytes": model.engine.kv_cache_bytes(),
        },
        "limits": {
            "max_body_bytes": state.config().max_body_bytes,
            "max_json_values": limits::MAX_JSON_VALUES,
            "max_prompts": limits::MAX_PROMPTS,
            "max_choices": limits::MAX_CHOICES,
            "max_stops": limits::MAX_STOPS,
            "max_logprobs": taper_engine::MAX_LOGPROBS,
        },
        "status": {
            "running": status.running,
            "waiting": status.queued,
            "used_tokens": used,
            "max_tokens": capacity,
            "kv_cache_usage": share,
            "steps": status.steps,
            "is_healthy": model.engine.is_healthy(),
            "is_draining": state.is_draining(),
        },
        "sampling_defaults": told(&state.config().sampling, &facts.sampling),
        "options": facts.options,
    }))
}

/// GET /props of llama-server.
pub(crate) async fn props(State(state): State<ServerState>, Asked(served): Asked) -> Json<Value> {
    let (model, facts) = (&served.model, state.models().facts(&served.model.id));
    Json(json!({
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": model.context_len,
            "speculative": model.engine.config().speculation != Speculation::Off,
            "is_processing": false,
            "params": native::default_settings(state.sampling_defaults(&model.id)),
        },
        "total_slots": model.engine.config().max_batch,
        "model_alias": model.id,
        "model_path": facts.model_path.as_deref().unwrap_or_default(),
        "modalities": { "vision": false, "audio": false },
        "chat_template": model.template.as_ref().map_or("", taper_text::ChatTemplate::source),
        "bos_token": model.tokenizer.bos_text(),
        "eos_token": model.tokenizer.eos_text(),
        "build_info": model.fingerprint,
        "is_sleeping": false,
    }))
}

/// GET /lora-adapters of llama-server: there are none.
pub(crate) async fn lora_adapters() -> Json<Value> {
    Json(json!([]))
}

/// GET /slots of llama-server: a place of the batch for each. Requests have no fixed places here, so the first ones are those
/// that are taken; each tells of the choice that runs there, as of the latest step. With `fail_on_no_slot=1` it is a 503 when all are.
pub(crate) async fn slots(
    Asked(served): Asked,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::invalid("query", error.body_text()))?;
    let (status, config) = (served.model.engine.status(), served.model.engine.config());
    let must_have_one = query.get("fail_on_no_slot").is_some_and(|value| !value.is_empty() && value != "0");
    if must_have_one && status.running >= config.max_batch {
        return Err(ApiError::busy("no slot is available: every place of the batch is taken"));
    }
    let running = served.model.engine.running();
    let slot = |id: usize| {
        let mut slot = json!({
            "id": id,
            "n_ctx": served.model.context_len,
            "speculative": config.speculation != Speculation::Off,
            "is_processing": id < running.len(),
        });
        if let Some(choice) = running.get(id) {
            slot["id_task"] = choice.request.into();
            slot["n_prompt_tokens"] = choice.prompt_tokens.into();
            slot["next_token"] =
                json!({ "has_next_token": true, "n_remain": choice.room, "n_decoded": choice.generated_tokens });
            // A prompt that becomes a vector has none.
            if let Some(request) = served.slots.get(choice.request) {
                slot["params"] = native::settings_of(&request);
            }
        }
        slot
    };
    Ok(Json((0..config.max_batch).map(slot).collect()))
}
