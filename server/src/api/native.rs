//! POST /completion and /completions: llama-server's own way of continuing prompts, with its names, its defaults and its answer.
//!
//! A prompt is a text, token ids, or a mix of both; several of them are answered by an array. What llama-server has and this
//! server has not is refused by name unless it is off. Samplers apply in this server's order unless `samplers` says another.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::api;
use crate::errors::ApiError;
use crate::generation::Generation;
use crate::reply::{self, Reply};
use crate::sampler_fields::default_names;
use crate::sampling_defaults::SamplingDefaults;
use crate::slots::SlotRequest;
use crate::state::ServerState;

mod indent;
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
    let generation =
        Generation::start(&served, request.prompts, &request.parameters, "prompt", (active, time_limit)).await?;
    let running = Running::new(native, generation);
    if request.parameters.stream {
        let mut response = stream::respond(running, state.timeouts().keep_alive).await?;
        reply::report_ignored(&mut response, &request.ignored);
        return Ok(response);
    }
    let native = running.collect().await?;
    let is_large = native.num_choices() > 1 || request.parameters.sampling.logprobs.is_some();
    let text = if is_large { state.work().write(move || native.write()).await? } else { native.write() };
    Ok(Reply { text, ignored: request.ignored }.into_response())
}

/// Most biases of a request that `/slots` tells, which is asked by others than the request's client.
const MAX_TOLD_BIASES: usize = 64;

/// What `generation_settings` are where a request says nothing, and server and model say `said`; `/props` tells.
pub(crate) fn default_settings(said: SamplingDefaults) -> Value {
    shape::settings(&said.or(request::DEFAULTS).sampling(), &default_names(), false, usize::MAX)
}

/// The same of a request of any endpoint; `/slots` tells.
pub(crate) fn settings_of(request: &SlotRequest) -> Value {
    shape::settings(&request.sampling, &request.samplers, request.stream, MAX_TOLD_BIASES)
}
