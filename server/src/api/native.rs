//! POST /completion and /completions: llama-server's own way of continuing prompts, with its names, its defaults and its answer.
//!
//! A prompt is a text, token ids, or a mix of both; several of them are answered by an array. What llama-server has and this
//! server has not (mirostat, DRY, XTC, dynamic temperature, probabilities after sampling) is refused by name unless it is off.
//! Samplers apply in this server's order, so `samplers` must name them in that order; those it leaves out are off.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use taper_engine::SamplingParams;

use crate::api;
use crate::errors::ApiError;
use crate::generation::Generation;
use crate::reply;
use crate::state::ServerState;

mod request;
mod running;
mod shape;
mod stream;

pub(crate) use request::{HARMLESS, REFUSED, prepare};
use running::Running;
use shape::Native;

pub(crate) async fn completion(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut admitted = api::admit(&state, &headers, body).await?;
    let mut request = admitted.read(&state, prepare).await?;
    admitted.compile(&state, &mut request.parameters, &request.prompts).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let native = Native::new(&served, &request);
    let generation = Generation::start(&served, request.prompts, &request.parameters, "prompt", (active, time_limit))?;
    let running = Running::new(native, generation, request.predict_limit);
    let mut response = if request.parameters.stream {
        stream::respond(running, state.timeouts().keep_alive).await?
    } else {
        let native = running.collect().await?;
        let mut answers = state.work().write(move || native.finals()).await?;
        let answer = if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) };
        Json(answer).into_response()
    };
    reply::report_ignored(&mut response, &request.ignored);
    Ok(response)
}

/// What `generation_settings` are where a request says nothing; `/props` tells.
pub(crate) fn default_settings() -> Value {
    let sampling = SamplingParams {
        temperature: request::TEMPERATURE as f32,
        top_k: request::TOP_K,
        top_p: request::TOP_P as f32,
        min_p: request::MIN_P as f32,
        ..SamplingParams::default()
    };
    shape::settings(&sampling, false)
}
