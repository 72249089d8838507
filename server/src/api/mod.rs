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
pub(crate) mod model_control;
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

/// A request whose body has been read.
struct Received {
    body: Bytes,
    held: HeldBytes,
    active: ActiveGuard,
    begin: Instant,
}

/// Reads the body of a request that is about a model. While the server loads or stops it is forgotten.
async fn receive(state: &ServerState, headers: &HeaderMap, body: Body) -> Result<Received, ApiError> {
    if let Err(refused) = state.check_open() {
        body::linger(headers, body, state.work(), state.timeouts().body_pause);
        return Err(refused);
    }
    let mut held = state.work().hold();
    let body = body::read(headers, body, state.timeouts(), state.work(), &mut held).await?;
    let begin = Instant::now();
    // Counted first and asked again second: a request that is admitted here is waited for when the server stops.
    let active = state.begin();
    state.check_open()?;
    Ok(Received { body, held, active, begin })
}

/// Reads the body of a generation request and asks whether it may be sent to the model that it names, which is waited for while it
/// is loaded.
async fn admit(state: &ServerState, headers: &HeaderMap, body: Body) -> Result<Admitted, ApiError> {
    receive(state, headers, body).await?.admit(state).await
}

impl Received {
    /// The time that it has before a model says how much.
    fn time_limit(&self, state: &ServerState) -> TimeLimit {
        TimeLimit::since(self.begin, state.models().limits().request_timeout)
    }

    /// Asks whether it may be sent to the model that it names.
    async fn admit(mut self, state: &ServerState) -> Result<Admitted, ApiError> {
        let (served, lease) = self.lease(state).await?;
        self.active.hold(lease);
        let Received { body, held, active, begin } = self;
        let time_limit = TimeLimit::since(begin, served.model.engine.request_timeout());
        Ok(Admitted { body, held, served, active, time_limit })
    }

    /// The model that the body names. One that cannot be understood is the first's to refuse.
    async fn lease(&self, state: &ServerState) -> Admission {
        let (models, time_limit) = (state.models(), self.time_limit(state));
        if !models.are_several() {
            return time_limit.bound(models.lease(0)).await;
        }
        let name = if self.body.len() <= SMALL_BODY_BYTES {
            body::model_of(&self.body)
        } else {
            let body = self.body.clone();
            time_limit.bound(state.work().read(body.len(), move || Ok(body::model_of(&body)))).await?
        };
        time_limit.bound(models.lease(models.find(name.as_deref())?)).await
    }
}

impl Admitted {
    /// Reads the body with `prepare`, off the asynchronous threads unless it is brief.
    async fn read<T: Send + 'static>(
        &mut self,
        state: &ServerState,
        prepare: fn(&[u8], &ServerState, &Served) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let len = self.body.len();
        let (body, served, for_thread) = (std::mem::take(&mut self.body), Arc::clone(&self.served), state.clone());
        let held = std::mem::replace(&mut self.held, state.work().hold());
        let is_brief = body::is_brief(&body);
        let work = move || {
            let outcome = prepare(&body, &for_thread, &served);
            drop((body, held));
            outcome
        };
        if is_brief {
            return work();
        }
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
