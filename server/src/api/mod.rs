//! The endpoints, one file each, and what the generating ones have in common.

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use std::sync::Arc;
use tokio::time::Instant;

use crate::body;
use crate::errors::ApiError;
use crate::limits::SMALL_BODY_BYTES;
use crate::models::Admission;
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

/// Reads the body of a generation request and asks whether it may be sent to the model that it names, which is waited for while it
/// is loaded. While the server loads or stops the body is forgotten.
async fn admit(state: &ServerState, headers: &HeaderMap, body: Body) -> Result<Admitted, ApiError> {
    if let Err(refused) = state.check_open() {
        body::linger(headers, body, state.timeouts().body_pause);
        return Err(refused);
    }
    let mut held = state.work().hold();
    let body = body::read(headers, body, state.timeouts(), &mut held).await?;
    let begin = Instant::now();
    // Counted first and asked again second: a request that is admitted here is waited for when the server stops.
    let mut active = state.begin();
    state.check_open()?;
    let (served, lease) = lease(state, &body, begin).await?;
    active.hold(lease);
    let time_limit = TimeLimit::since(begin, served.model.engine.request_timeout());
    Ok(Admitted { body, held, served, active, time_limit })
}

/// The model that a body names. One that cannot be understood is the first's to refuse.
async fn lease(state: &ServerState, body: &Bytes, begin: Instant) -> Admission {
    let models = state.models();
    if !models.are_several() {
        return models.lease(0).await;
    }
    let time_limit = TimeLimit::since(begin, models.limits().request_timeout);
    let name = if body.len() <= SMALL_BODY_BYTES {
        body::model_of(body)
    } else {
        let body = body.clone();
        time_limit.bound(state.work().read(body.len(), move || Ok(body::model_of(&body)))).await?
    };
    time_limit.bound(models.lease(models.find(name.as_deref())?)).await
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
