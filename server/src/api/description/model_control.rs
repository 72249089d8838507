//! What loads and unloads models.

use serde_json::{Value, json};

use super::Operation;
use super::schema::{Named, all, reference, string};
use crate::api::model_control::{MODEL, MODEL_ID};

const TAG: &str = "models";

/// POST /models/load.
pub(crate) fn load() -> Operation {
    Operation::post(TAG, "Load a model before a request needs it", reference("ModelName"), done())
}

/// POST /models/unload.
pub(crate) fn unload() -> Operation {
    let summary = "Unload a model once its requests have ended; its next request loads it again";
    Operation::post(TAG, summary, reference("ModelName"), done())
}

/// POST /v1/models/reload.
pub(crate) fn reload_by_id() -> Operation {
    Operation::post(TAG, "The same as /models/load, in mistral.rs's words", reference("ModelId"), status("loaded"))
}

/// POST /v1/models/unload.
pub(crate) fn unload_by_id() -> Operation {
    Operation::post(TAG, "The same as /models/unload, in mistral.rs's words", reference("ModelId"), status("unloaded"))
}

fn done() -> Value {
    all(vec![("success", json!({ "const": true }))])
}

fn status(value: &str) -> Value {
    all(vec![("model_id", string("As it was asked for.")), ("status", json!({ "const": value }))])
}

pub(super) fn components() -> Vec<Named> {
    let name = || string("The model's id or an alias of it.");
    vec![("ModelName", all(vec![(MODEL, name())])), ("ModelId", all(vec![(MODEL_ID, name())]))]
}
