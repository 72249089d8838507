//! GET /v1/loads and /loads: how busy the engine of a model is, in SGLang's shape, for load balancers. It is `dp_rank` 0.
//!
//! `include` names the parts that are wanted (`core`, `memory`, `spec`, `queues`, `all`); `core` is always there.
//! `gen_throughput` is the mean since this was asked before, where that was at least a second ago.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde_json::{Value, json};
use taper_engine::EngineStatus;

use crate::errors::ApiError;
use crate::fields::show;
use crate::models::Asked;
use crate::state::{Served, ServerState};

/// Parts that SGLang has.
const PARTS: &[&str] = &["core", "memory", "spec", "lora", "disagg", "queues", "all"];

pub(crate) async fn loads(
    State(state): State<ServerState>,
    Asked(served): Asked,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::invalid("query", error.body_text()))?;
    let asked = |name: &str| query.get(name).map(String::as_str).filter(|value| !value.is_empty());
    if let Some(rank) = asked("dp_rank").filter(|rank| *rank != "0") {
        return Err(refused("dp_rank", "0: a model has one engine", rank));
    }
    match asked("format") {
        None | Some("json") => {}
        Some("prometheus") => {
            let message = "format prometheus is not available here; GET /metrics has that format";
            return Err(ApiError::unsupported("format", message));
        }
        Some(other) => return Err(refused("format", "json", other)),
    }
    let parts: Vec<&str> = asked("include").unwrap_or("all").split(',').map(str::trim).collect();
    if let Some(other) = parts.iter().find(|part| !PARTS.contains(*part)) {
        return Err(refused("include", &format!("a list of {}", PARTS.join(", ")), other));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = taper_text::strftime("%Y-%m-%dT%H:%M:%S+00:00", i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let mut load = load(&served, served.throughput(), &parts);
    load["timestamp"] = now.as_secs_f64().into();
    Ok(Json(json!({
        "timestamp": time,
        "version": env!("CARGO_PKG_VERSION"),
        "accelerator": state.models().facts(&served.model.id).device,
        "num_accelerators": 1,
        "loads": [load],
    })))
}

fn refused(param: &str, expected: &str, got: &str) -> ApiError {
    ApiError::invalid(param, format!("{param} must be {expected}, got {}", show(&Value::from(got))))
}

/// What the KV cache holds for running sequences: (tokens, at most, the share of it).
pub(crate) fn tokens_in_use(served: &Served, status: &EngineStatus) -> (usize, usize, f64) {
    let block_size = served.model.engine.limits().block_size;
    let held_blocks = status.num_blocks.saturating_sub(status.free_blocks);
    let share = held_blocks as f64 / status.num_blocks.max(1) as f64;
    (held_blocks * block_size, status.num_blocks * block_size, share)
}

fn load(served: &Served, throughput: f64, parts: &[&str]) -> Value {
    let engine = &served.model.engine;
    let (status, max_batch) = (engine.status(), engine.config().max_batch);
    let (used, capacity, share) = tokens_in_use(served, &status);
    let ratio = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
    let mut load = json!({
        "dp_rank": 0,
        "timestamp": 0.0,
        "num_running_reqs": status.running,
        "num_waiting_reqs": status.queued,
        // Whole blocks, which is what is taken.
        "num_used_tokens": used,
        "num_total_tokens": used + engine.queued_tokens(),
        "max_total_num_tokens": capacity,
        "token_usage": share,
        "gen_throughput": throughput,
        "cache_hit_rate": ratio(status.cached_tokens, status.prompt_tokens),
        "utilization": status.running as f64 / max_batch.max(1) as f64,
        "max_running_requests": max_batch,
    });
    let wants = |part: &str| parts.iter().any(|asked| *asked == part || *asked == "all");
    if wants("memory") {
        load["memory"] = json!({
            "kv_cache_gb": engine.kv_cache_bytes() as f64 / f64::from(1 << 30),
            "token_capacity": capacity,
        });
    }
    if wants("spec") {
        let verified = 1.0 + ratio(status.right_guesses, status.guessed_steps);
        load["speculative"] = json!({
            "accept_length": if status.guessed_steps > 0 { verified } else { 0.0 },
            "accept_rate": ratio(status.right_guesses, status.guessed_tokens),
        });
    }
    if wants("queues") {
        // The engine computes what it preempted again before it begins with new requests, so that counts as waiting.
        load["queues"] = json!({ "waiting": status.queued, "grammar": 0, "paused": 0, "retracted": 0 });
    }
    load
}
