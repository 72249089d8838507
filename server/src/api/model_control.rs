//! POST /models/load and /models/unload, as llama.cpp's router has them, and /v1/models/reload and /v1/models/unload, as mistral.rs
//! does: a model is loaded before a request needs it, or gives its memory back until one does. Both are answered when it is done.
//! What is so already is no error: requests, and the limits of memory, load and unload as well.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::fields::Fields;
use crate::reply::Reply;
use crate::state::ServerState;
use crate::{api, body, unsupported};

/// llama.cpp's name of the field that names the model, and mistral.rs's.
pub(crate) const MODEL: &str = "model";
pub(crate) const MODEL_ID: &str = "model_id";

/// What is asked for.
#[derive(Clone, Copy)]
enum Action {
    Load,
    Unload,
}

pub(crate) async fn load(State(state): State<ServerState>, headers: HeaderMap, body: Body) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, read_model, Action::Load, |_| json!({ "success": true })).await
}

pub(crate) async fn unload(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, read_model, Action::Unload, |_| json!({ "success": true })).await
}

pub(crate) async fn reload_by_id(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    let loaded = |id| json!({ "model_id": id, "status": "loaded" });
    answer(&state, &headers, body, read_model_id, Action::Load, loaded).await
}

pub(crate) async fn unload_by_id(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    let unloaded = |id| json!({ "model_id": id, "status": "unloaded" });
    answer(&state, &headers, body, read_model_id, Action::Unload, unloaded).await
}

/// A model by its name.
pub(crate) struct Named {
    field: &'static str,
    name: String,
    ignored: Vec<String>,
}

pub(crate) fn read_model(body: &[u8], state: &ServerState) -> Result<Named, ApiError> {
    read(body, state, MODEL)
}

pub(crate) fn read_model_id(body: &[u8], state: &ServerState) -> Result<Named, ApiError> {
    read(body, state, MODEL_ID)
}

fn read(body: &[u8], state: &ServerState, field: &'static str) -> Result<Named, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let Some(name) = fields.string(field)? else {
        return Err(ApiError::missing(field, format!("{field} is missing: it names a model that /v1/models lists")));
    };
    let ignored = unsupported::check_rest(fields, state)?;
    Ok(Named { field, name, ignored })
}

async fn answer(
    state: &ServerState,
    headers: &HeaderMap,
    body: Body,
    read: fn(&[u8], &ServerState) -> Result<Named, ApiError>,
    action: Action,
    tell: impl Fn(String) -> Value,
) -> Result<Reply, ApiError> {
    let received = api::receive(state, headers, body).await?;
    let time_limit = received.time_limit(state);
    // The request is under way until it is answered.
    let api::Received { body, held, active: _active, .. } = received;
    let (len, for_thread) = (body.len(), state.clone());
    let work = move || {
        let named = read(&body, &for_thread);
        drop((body, held));
        named
    };
    let Named { field, name, ignored } = time_limit.bound(state.work().read(len, work)).await?;
    let models = state.models();
    let index = models.find(Some(&name))?;
    match action {
        Action::Load => drop(time_limit.bound(models.lease(index)).await?),
        Action::Unload if time_limit.bound(models.unload(index)).await? => {}
        Action::Unload => {
            let message = format!("{field} stays loaded: this server has nobody who could load it again");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(Reply { text: tell(name).to_string(), ignored })
}
