//! POST /v1/responses: OpenAI's newer interface, without its memory. Nothing is stored: every request brings its whole
//! conversation as `input`, answers say `store: false`, and what refers to former responses is refused by name.
//!
//! The model's thoughts are items of type `reasoning` with their text, which may be sent back. The stream is named events with
//! a `sequence_number`, and ends without `[DONE]`.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer::Answering;
use crate::api;
use crate::chat::{self, ChatStream};
use crate::errors::ApiError;
use crate::generation::Generation;
use crate::state::ServerState;
use crate::token_json::TokenWriter;

mod history;
mod items;
mod logprobs;
mod request;
mod shape;
mod tools;

pub(crate) use request::prepare;

pub(crate) async fn responses(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut admitted = api::admit(&state, &headers, body).await?;
    let mut request = admitted.read(&state, prepare).await?;
    admitted.compile(&state, &mut request.parameters, std::slice::from_ref(&request.prompt)).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let writer = TokenWriter::new(&served.model.tokenizer, request.parameters.details);
    // What the answer repeats lives as long as the answer.
    let mut held = state.work().hold();
    held.grow(request.echo_len)?;
    let shape = shape::Response::new(&served.model.id, writer, request.echo, held)
        .with_timings(request.parameters.timings == Some(true));
    let prompts = vec![request.prompt];
    let generation = Generation::start(&served, prompts, &request.parameters, "input", (active, time_limit)).await?;
    let answers = ChatStream::new(generation, &request.reading);
    let context = Answering { model: &served.model, ignored: &request.ignored, state: &state };
    chat::send(shape, answers, &request.parameters, &context).await
}
