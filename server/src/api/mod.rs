//! The endpoints, one file each, and what the generating ones have in common.

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use std::sync::Arc;

use crate::body;
use crate::errors::ApiError;
use crate::parameters::Parameters;
use crate::state::{ActiveGuard, Served, ServerState};
use crate::time_limit::TimeLimit;
use crate::work::HeldBytes;

pub(crate) mod chat_completions;
pub(crate) mod completions;
pub(crate) mod description;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod loads;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod responses;
pub(crate) mod server_info;
pub(crate) mod tokens;

/// A request that has been read and admitted.
struct Admitted {
    body: Bytes,
    held: HeldBytes,
    served: Arc<Served>,
    active: ActiveGuard,
    time_limit: TimeLimit,
}

/// Reads the body of a generation request and asks whether it may be sent to the model. While the server loads or stops
/// the body is read and dropped, so that the client hears the reason instead of a reset connection.
async fn admit(state: &ServerState, headers: &HeaderMap, body: Body) -> Result<Admitted, ApiError> {
    if let Err(refused) = state.admit() {
        body::discard(body, state.timeouts()).await;
        return Err(refused);
    }
    let mut held = state.work().hold();
    let body = body::read(headers, body, state.timeouts(), &mut held).await?;
    // Counted first and asked again second: a request that is admitted here is waited for when the server stops.
    let active = state.begin();
    let served = state.admit()?;
    let time_limit = TimeLimit::start(served.model.engine.request_timeout());
    Ok(Admitted { body, held, served, active, time_limit })
}

impl Admitted {
    /// Reads the body with `prepare`, off the asynchronous threads.
    async fn read<T: Send + 'static>(
        &mut self,
        state: &ServerState,
        prepare: fn(&[u8], &ServerState, &Served) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let len = self.body.len();
        let (body, served, for_thread) = (std::mem::take(&mut self.body), Arc::clone(&self.served), state.clone());
        let held = std::mem::replace(&mut self.held, state.work().hold());
        let work = move || {
            let outcome = prepare(&body, &for_thread, &served);
            drop((body, held));
            outcome
        };
        self.time_limit.bound(state.work().read(len, work)).await
    }

    /// Compiles the form that answers to `prompts` must have, if there is one.
    async fn compile(
        &self,
        state: &ServerState,
        parameters: &mut Parameters,
        prompts: &[Vec<u32>],
    ) -> Result<(), ApiError> {
        if let Some(compile) = parameters.compiler(&self.served, prompts) {
            parameters.grammars = self.time_limit.bound(state.work().compile(compile)).await?;
        }
        Ok(())
    }
}
