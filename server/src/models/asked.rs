//! The model that a GET asks about: `?model=NAME`, else the first that is loaded.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use crate::errors::ApiError;
use crate::state::{Served, ServerState};

/// A model that is loaded.
pub(crate) struct Asked(pub(crate) Arc<Served>);

impl FromRequestParts<ServerState> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, ApiError> {
        let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| ApiError::invalid("query", error.body_text()))?;
        let name = query.get("model").map(String::as_str).filter(|name| !name.is_empty());
        state.models().served(name).map(Asked)
    }
}
