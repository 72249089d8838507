//! Ollama's interface: POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show; GET /api/tags, /api/ps and
//! /api/version. Streams, which are the default, are lines of JSON.
//!
//! Options have Ollama's names and its defaults; besides, `options` takes the parameters of the other endpoints. What says how a
//! model is loaded (`num_gpu`, `num_thread`, ...) changes nothing here and is told among the ignored fields. The model stays
//! loaded whatever `keep_alive` says. A prompt is never cut: one that the context does not hold is refused.
//!
//! Models are managed by other means, so pulling, creating, copying and deleting are refused ([`is_management`]).

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::answer::Answering;
use crate::api;
use crate::chat::{self, ChatStream};
use crate::errors::ApiError;
use crate::generation::Generation;
use crate::state::{Served, ServerState};

mod embed;
mod errors;
mod history;
mod keep_alive;
mod models;
mod names;
mod options;
mod request;
mod shape;
mod time;

pub(crate) use embed::{embed, embeddings};
#[cfg(test)]
pub(crate) use embed::{prepare_embed, prepare_embeddings};
pub(crate) use errors::{errors_in_own_words, is_management, no_management};
#[cfg(test)]
pub(crate) use models::read_show;
pub(crate) use models::{ps, show, tags, version};
pub(crate) use options::{HARMLESS, LOADING, REFUSED};
pub(crate) use request::{LEVELS, prepare_chat, prepare_generate};

pub(crate) async fn chat(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(&state, &headers, body, prepare_chat).await
}

pub(crate) async fn generate(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(&state, &headers, body, prepare_generate).await
}

async fn answer(
    state: &ServerState,
    headers: &HeaderMap,
    body: Body,
    prepare: fn(&[u8], &ServerState, &Served) -> Result<request::Asked, ApiError>,
) -> Result<Response, ApiError> {
    let mut admitted = api::admit(state, headers, body).await?;
    let mut request = match admitted.read(state, prepare).await? {
        request::Asked::Nothing(reply) => return Ok(reply.into_response()),
        request::Asked::Answer(request) => *request,
    };
    admitted.compile(state, &mut request.parameters, std::slice::from_ref(&request.prompt)).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let prompts = vec![request.prompt];
    let started = (active, time_limit);
    let generation = Generation::start(&served, prompts, &request.parameters, request.prompt_field, started)?;
    let answers = ChatStream::new(generation, &request.reading);
    let context = Answering { model: &served.model, ignored: &request.ignored, state };
    chat::send(request.shape, answers, &request.parameters, &context).await
}
