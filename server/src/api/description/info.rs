//! What the server says of itself.

use serde_json::{Value, json};

use super::Operation;
use super::schema::{all, array, boolean, integer, map, nullable, number, object, one_of, optional, string, strings};
use crate::sampling_defaults::SamplingDefaults;

const TAG: &str = "server";

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn maybe(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn card() -> Value {
    let meta = object(
        vec![
            ("n_ctx", count()),
            ("n_vocab", count()),
            ("n_ctx_train", integer("Tokens of context that the model was made for.")),
            ("n_params", integer("Numbers in its tensors.")),
            ("size", integer("Bytes of its file.")),
        ],
        &[],
    );
    let status = object(
        vec![
            ("value", one_of(&["loaded", "loading", "unloaded"], "Whether requests wait for it.")),
            ("failed", boolean("Whether its latest load has failed.")),
            ("reason", string("Why, how far a load is, or that it is to be unloaded.")),
        ],
        &["value"],
    );
    let card = vec![
        ("id", string("The model's name.")),
        ("object", json!({ "const": "model" })),
        ("created", integer("Seconds since 1970.")),
        ("owned_by", string("taper")),
        ("root", string("The same as the id.")),
        ("aliases", strings("Other names of it that requests may use.")),
        ("meta", meta),
        ("status", status),
        ("sampling_defaults", sampling_defaults()),
        ("max_model_len", integer("Tokens of prompt and answer together, where it is loaded.")),
    ];
    object(card, &["id", "object", "created", "owned_by", "root", "aliases", "meta", "status", "sampling_defaults"])
}

/// What requests get that do not say it, by the names of their fields.
fn sampling_defaults() -> Value {
    let from = || one_of(&["setting", "model"], "Who says so: a setting of the server, or the model's file.");
    let default = || all(vec![("value", number("As a request would give it.")), ("from", from())]);
    let mut schema = optional(SamplingDefaults::NONE.fields().into_iter().map(|(name, _)| (name, default())).collect());
    schema["description"] = "What requests get that do not say it; of the others each protocol has its own.".into();
    schema
}

/// The query of what tells of one model.
pub(super) fn asked() -> (&'static str, Value) {
    ("model", string("The model, which must be loaded; the first one where nothing is said."))
}

/// GET /v1/models.
pub(crate) fn models() -> Operation {
    let answer =
        all(vec![("object", json!({ "const": "list" })), ("data", array(card(), "The first is the default."))]);
    Operation::get(TAG, "What is served", answer)
}

/// GET /v1/models/{id}.
pub(crate) fn model() -> Operation {
    Operation::get(TAG, "One model, by its id or an alias; another is a 404", card())
}

/// GET /live.
pub(crate) fn live() -> Operation {
    let answer = all(vec![("status", json!({ "const": "alive" }))]);
    Operation::get(TAG, "Whether the process answers, whatever the model does", answer)
}

/// GET /health.
pub(crate) fn health() -> Operation {
    let deterministic = boolean("Whether an answer is the same in any company.");
    let answer = all(vec![("status", json!({ "const": "ok" })), ("deterministic", deterministic)]);
    let error = all(vec![
        ("error", json!({ "$ref": "#/components/schemas/Error/properties/error" })),
        ("status", string("The error's code.")),
        ("reason", string("Its message.")),
    ]);
    Operation {
        error,
        ..Operation::get(TAG, "Whether a request would be taken; a 503 with the reason otherwise", answer)
    }
}

/// GET /version.
pub(crate) fn version() -> Operation {
    let fingerprint = nullable(string("The build and its class of arithmetic; null while the model loads."));
    Operation::get(TAG, "Which build this is", all(vec![("version", string("")), ("fingerprint", fingerprint)]))
}

/// GET /server_info.
pub(crate) fn server_info() -> Operation {
    let model = all(vec![
        ("id", string("")),
        ("path", maybe("string")),
        ("architecture", maybe("string")),
        ("n_params", maybe("integer")),
        ("size", maybe("integer")),
        ("n_vocab", count()),
        ("n_ctx_train", maybe("integer")),
        ("n_ctx", count()),
        ("has_chat_template", boolean("")),
    ]);
    let engine = all(vec![
        ("max_batch", count()),
        ("max_queued", count()),
        ("max_queued_tokens", count()),
        ("token_budget", maybe("integer")),
        ("request_timeout_s", maybe("number")),
        ("speculation", one_of(&["off", "lookup", "draft", "all"], "Where guesses of next tokens come from.")),
        ("block_size", count()),
        ("num_blocks", count()),
        ("kv_cache_bytes", count()),
    ]);
    let limits = all(vec![
        ("max_body_bytes", count()),
        ("max_json_values", count()),
        ("max_prompts", count()),
        ("max_choices", count()),
        ("max_stops", count()),
        ("max_logprobs", count()),
    ]);
    let status = all(vec![
        ("running", count()),
        ("waiting", count()),
        ("used_tokens", count()),
        ("max_tokens", count()),
        ("kv_cache_usage", number("0 to 1.")),
        ("steps", count()),
        ("is_healthy", boolean("")),
        ("is_draining", boolean("")),
    ]);
    let answer = all(vec![
        ("version", string("")),
        ("fingerprint", string("")),
        ("deterministic", boolean("")),
        ("device", maybe("string")),
        ("model", model),
        ("engine", engine),
        ("limits", limits),
        ("status", status),
        ("sampling_defaults", sampling_defaults()),
        ("options", map("What the server was started with; no secrets.")),
    ]);
    Operation::get(TAG, "A model, the limits, and what the server was started with", answer).with_query(vec![asked()])
}

/// GET /v1/loads.
pub(crate) fn loads() -> Operation {
    let core = vec![
        ("dp_rank", json!({ "const": 0 })),
        ("timestamp", number("Seconds since 1970.")),
        ("num_running_reqs", integer("Choices being computed.")),
        ("num_waiting_reqs", integer("Choices waiting for room.")),
        ("num_used_tokens", integer("Tokens of blocks that running choices hold.")),
        ("num_total_tokens", integer("And of prompts that wait.")),
        ("max_total_num_tokens", integer("Tokens of all blocks.")),
        ("token_usage", number("The share of blocks that are held, 0 to 1.")),
        ("gen_throughput", number("Tokens generated per second since this was asked before, at least a second ago.")),
        ("cache_hit_rate", number("The share of prompts' tokens that were not computed again, since the start.")),
        ("utilization", number("The share of places of the batch that are taken.")),
        ("max_running_requests", integer("Places of the batch.")),
    ];
    let required: Vec<&str> = core.iter().map(|(name, _)| *name).collect();
    let mut fields = core;
    fields.extend([
        ("memory", all(vec![("kv_cache_gb", number("")), ("token_capacity", count())])),
        (
            "speculative",
            all(vec![
                ("accept_length", number("Tokens per verification.")),
                ("accept_rate", number("Right guesses of all.")),
            ]),
        ),
        ("queues", all(vec![("waiting", count()), ("grammar", count()), ("paused", count()), ("retracted", count())])),
    ]);
    let answer = all(vec![
        ("timestamp", string("ISO 8601, in UTC.")),
        ("version", string("")),
        ("accelerator", maybe("string")),
        ("num_accelerators", count()),
        ("loads", array(object(fields, &required), "One engine.")),
    ]);
    Operation::get(TAG, "How busy a model's engine is, in SGLang's shape", answer).with_query(vec![
        asked(),
        ("include", string("A list of core, memory, spec, queues; all where nothing is said.")),
        ("dp_rank", json!({ "const": "0" })),
        ("format", one_of(&["json"], "")),
    ])
}

/// GET /metrics.
pub(crate) fn metrics() -> Operation {
    let answers = vec![("text/plain", string("Prometheus' text format."))];
    Operation {
        answers,
        ..Operation::get(TAG, "What the server and its engines count and time, for Prometheus", Value::Null)
    }
}

/// GET /openapi.json.
pub(crate) fn openapi() -> Operation {
    let answer = object(
        vec![("openapi", string("3.1.0")), ("info", map("")), ("paths", map("")), ("components", map(""))],
        &["openapi", "info", "paths", "components"],
    );
    Operation::get(TAG, "This description", answer)
}

/// GET /docs.
pub(crate) fn docs() -> Operation {
    let answers = vec![("text/html", string("A page without scripts."))];
    Operation { answers, ..Operation::get(TAG, "This description, for people", Value::Null) }
}
