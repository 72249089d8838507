//! The endpoints, one file each, and what the generating ones have in common.

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use std::sync::Arc;

use crate::body;
use crate::errors::ApiError;
use crate::state::{ActiveGuard, Served, ServerState};

pub(crate) mod chat_completions;
pub(crate) mod completions;
pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod models;

/// A request that has been read and admitted.
struct Admitted {
    body: Bytes,
    served: Arc<Served>,
    active: ActiveGuard,
}

/// Reads the body of a generation request and asks whether it may be sent to the model. While the server loads or stops
/// the body is read and dropped, so that the client hears the reason instead of a reset connection.
async fn admit(state: &ServerState, headers: &HeaderMap, body: Body) -> Result<Admitted, ApiError> {
    if let Err(refused) = state.admit() {
        body::discard(body, state.timeouts()).await;
        return Err(refused);
    }
    let body = body::read(headers, body, state.timeouts()).await?;
    // Counted first and asked again second: a request that is admitted here is waited for when the server stops.
    let active = state.begin();
    let served = state.admit()?;
    Ok(Admitted { body, served, active })
}

/// Runs `work` off the asynchronous threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "reading a request panicked");
            Err(ApiError::internal("the server failed while reading this request; this is a fault of the server"))
        }
    }
}
