//! POST /v1/messages and /v1/messages/count_tokens: conversations in Anthropic's words.
//!
//! Content is a string or blocks: text, thinking, `tool_use`, `tool_result`. The model's thoughts come as thinking blocks with
//! an empty signature, unless `thinking` is disabled, and keep to their budget. Sampling parameters that Anthropic's interface
//! does not have go by the names of the chat endpoint.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;

use crate::answer::Answering;
use crate::api;
use crate::chat::{self, ChatStream};
use crate::errors::ApiError;
use crate::generation::Generation;
use crate::reply::Reply;
use crate::state::{Served, ServerState};

mod errors;
mod history;
mod request;
mod shape;

pub(crate) use errors::errors_in_own_words;
pub(crate) use request::prepare;

pub(crate) async fn messages(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut admitted = api::admit(&state, &headers, body).await?;
    let mut request = admitted.read(&state, prepare).await?;
    admitted.compile(&state, &mut request.parameters, std::slice::from_ref(&request.prompt)).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let shape = shape::Message::new(&served.model.id, request.prompt.len(), request.parameters.timings == Some(true));
    let prompts = vec![request.prompt];
    let generation = Generation::start(&served, prompts, &request.parameters, "messages", (active, time_limit)).await?;
    let answers = ChatStream::new(generation, &request.reading);
    let context = Answering { model: &served.model, ignored: &request.ignored, state: &state };
    chat::send(shape, answers, &request.parameters, &context).await
}

pub(crate) async fn count_tokens(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_count_tokens).await
}

/// A request that is not answered needs no `max_tokens`.
pub(crate) fn read_count_tokens(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let request::Asked { conversation, ignored, .. } = request::read(body, state, served)?;
    let num_tokens = chat::count(served, &conversation)?;
    Ok(Reply { text: json!({ "input_tokens": num_tokens }).to_string(), ignored })
}
