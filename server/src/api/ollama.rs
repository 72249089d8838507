//! Ollama's interface: POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show; GET /api/tags, /api/ps and
//! /api/version. Streams, which are the default, are lines of JSON.
//!
//! Options have Ollama's names and its defaults; besides, `options` takes the parameters of the other endpoints. What says how a
//! model is loaded (`num_gpu`, `num_thread`, ...) changes nothing here and is told among the ignored fields. A `keep_alive` of 0
//! has the model unloaded, and any other leaves it loaded. A prompt is never cut: one that the context does not hold is refused.
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
use shape::Kind;

pub(crate) async fn chat(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(&state, &headers, body, Kind::Chat, prepare_chat).await
}

pub(crate) async fn generate(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(&state, &headers, body, Kind::Generate, prepare_generate).await
}

async fn answer(
    state: &ServerState,
    headers: &HeaderMap,
    body: Body,
    kind: Kind,
    prepare: fn(&[u8], &ServerState, &Served) -> Result<request::Asked, ApiError>,
) -> Result<Response, ApiError> {
    let received = api::receive(state, headers, body).await?;
    // A model that is not there should not be loaded to be unloaded.
    if let Some(nothing) = request::only_unloads(&received.body, kind)
        && let Ok(index) = state.models().find(Some(&nothing.model))
    {
        let is_unloaded = received.time_limit(state).bound(state.models().unload(index)).await?;
        return Ok(nothing.reply(is_unloaded).into_response());
    }
    let mut admitted = received.admit(state).await?;
    let mut request = match admitted.read(state, prepare).await? {
        request::Asked::Nothing(nothing) => {
            let index = admitted.active.release().filter(|_| nothing.unloads);
            let is_unloaded = match index {
                Some(index) => admitted.time_limit.bound(state.models().unload(index)).await?,
                None => false,
            };
            return Ok(nothing.reply(is_unloaded).into_response());
        }
        request::Asked::Answer(request) => *request,
    };
    if request.unloads {
        admitted.active.unload_after();
    }
    admitted.compile(state, &mut request.parameters, std::slice::from_ref(&request.prompt)).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let prompts = vec![request.prompt];
    let started = (active, time_limit);
    let generation = Generation::start(&served, prompts, &request.parameters, request.prompt_field, started).await?;
    let answers = ChatStream::new(generation, &request.reading);
    let context = Answering { model: &served.model, ignored: &request.ignored, state };
    chat::send(request.shape, answers, &request.parameters, &context).await
}
