//! The parameters that both generating endpoints read.
//!
//! `max_completion_tokens` is OpenAI's newer name of `max_tokens`; when both are given and differ, the newer name counts.

use serde_json::Value;
use taper_engine::SamplingParams;

use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::limits::{MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS};
use crate::state::{Served, ServerState};

/// What a request asks for, whatever its prompt looks like.
pub(crate) struct Parameters {
    pub(crate) sampling: SamplingParams,
    pub(crate) stream: bool,
    /// Whether a stream ends with a chunk of usage.
    pub(crate) include_usage: bool,
}

impl Parameters {
    /// Takes the shared fields; the model's name is checked too.
    pub(crate) fn take(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<Self, ApiError> {
        if let Some(name) = fields.string("model")?
            && !state.answers_to(&served.model.id, &name)
        {
            return Err(ApiError::model_not_found(&show(&Value::String(name)), &served.model.id));
        }
        let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
        let older = fields.integer("max_tokens", 1..=i64::MAX)?;
        let sampling = SamplingParams {
            temperature: fields.number("temperature", 0.0..=2.0)?.map_or(1.0, |t| t as f32),
            top_p: fields.number("top_p", 0.0..=1.0)?.map_or(1.0, |p| p as f32),
            // -1 is how vLLM writes "all", which is 0 here.
            top_k: fields.integer("top_k", -1..=i64::from(i32::MAX))?.map_or(0, |k| u32::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?.map_or(0.0, |p| p as f32),
            seed: seed(fields)?,
            max_tokens: newer.or(older).map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            stop: stop(fields)?,
            n: fields.integer("n", 1..=MAX_CHOICES as i64)?.map_or(1, |n| n as usize),
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        };
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = match fields.object("stream_options")? {
            Some(mut options) => options.boolean("include_usage")?.unwrap_or(false),
            None => false,
        };
        sampling.validate().map_err(|error| ApiError::invalid(error.param, error.message))?;
        Ok(Self { sampling, stream, include_usage })
    }
}

/// Any 64-bit integer, signed or not: only equality of seeds matters.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    match fields.take("seed") {
        None => Ok(None),
        Some(value) => match value.as_u64().or_else(|| crate::fields::integer_of(&value).map(i64::cast_unsigned)) {
            Some(seed) => Ok(Some(seed)),
            None => Err(ApiError::invalid("seed", format!("seed must be an integer of 64 bits, got {}", show(&value)))),
        },
    }
}

/// One stop string or several.
fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MAX_STOPS => items,
        Some(Value::Array(items)) => {
            let message = format!("stop has {} strings; at most {MAX_STOPS} are taken", items.len());
            return Err(ApiError::invalid("stop", message));
        }
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => {
            let message = format!("stop must be a string or an array of strings, got {}", show(&other));
            return Err(ApiError::invalid("stop", message));
        }
    };
    let check = |item: Value| match item {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_STOP_BYTES => Ok(text),
        other => {
            let message = format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes, got {}", show(&other));
            Err(ApiError::invalid("stop", message))
        }
    };
    items.into_iter().map(check).collect()
}
