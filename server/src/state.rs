//! What the handlers share with the program around them: which model is served, and whether requests are taken.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use taper_engine::EngineHandle;
use taper_text::{ChatTemplate, GrammarCompiler, Tokenizer};
use tokio::sync::watch;

use crate::chat::Dialect;
use crate::config::ServerConfig;
use crate::errors::ApiError;
use crate::facts::{ServerFacts, Throughput};
use crate::rate_limit::RateLimiter;
use crate::timeouts::Timeouts;
use crate::work::Work;

/// Field names that are remembered as already logged; a client that invents names cannot grow the set beyond this.
const MAX_LOGGED_NAMES: usize = 256;

/// The model that answers.
pub struct ServedModel {
    /// The name that `/v1/models` lists and responses carry.
    pub id: String,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template; without one the chat endpoint refuses.
    pub template: Option<ChatTemplate>,
    /// The engine that computes.
    pub engine: EngineHandle,
    /// Tokens of prompt and answer together.
    pub context_len: usize,
    /// When it was made or loaded, in seconds since 1970.
    pub created_unix: u64,
    /// What answers carry as `system_fingerprint`: which build computed them, with which class of arithmetic.
    pub fingerprint: String,
    /// Whether a request has the same answer whatever else is computed with it; `/health` says so.
    pub deterministic: bool,
}

/// A served model and what is derived from it once.
pub(crate) struct Served {
    pub(crate) model: ServedModel,
    /// Bytes of the longest token: no text of more than `context_len` times this can fit.
    pub(crate) longest_token_bytes: usize,
    /// Compiles the forms that requests ask for.
    pub(crate) grammars: Arc<GrammarCompiler>,
    /// How it writes thoughts and calls of tools.
    pub(crate) dialect: Dialect,
}

impl Served {
    /// Ids that a request may name are below it.
    pub(crate) fn vocab_size(&self) -> usize {
        self.model.tokenizer.vocab_size().min(self.model.engine.limits().vocab_size)
    }
}

enum Phase {
    Loading(String),
    Ready(Arc<Served>),
    Failed(String),
}

struct Shared {
    phase: RwLock<Phase>,
    /// `/health` says that the server stops, so that no more requests are sent to it.
    stopping: AtomicBool,
    /// Those that come nevertheless are refused.
    draining: AtomicBool,
    aliases: RwLock<Vec<String>>,
    facts: RwLock<Arc<ServerFacts>>,
    throughput: Mutex<Throughput>,
    active: watch::Sender<usize>,
    logged: Mutex<BTreeSet<String>>,
    config: ServerConfig,
    rate_limiter: Option<RateLimiter>,
    work: Work,
}

/// The state of a server. Clones share it.
#[derive(Clone)]
pub struct ServerState(Arc<Shared>);

impl Default for ServerState {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerState {
    /// A server whose model is still loading.
    pub fn new() -> Self {
        Self::with_timeouts(Timeouts::default())
    }

    /// [`ServerState::new`] with other waits.
    pub fn with_timeouts(timeouts: Timeouts) -> Self {
        Self::with_config(ServerConfig { timeouts, ..ServerConfig::default() })
    }

    /// [`ServerState::new`] with other settings.
    pub fn with_config(config: ServerConfig) -> Self {
        Self(Arc::new(Shared {
            phase: RwLock::new(Phase::Loading("starting".to_owned())),
            stopping: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            aliases: RwLock::new(Vec::new()),
            facts: RwLock::default(),
            throughput: Mutex::new(Throughput::new()),
            active: watch::Sender::new(0),
            logged: Mutex::new(BTreeSet::new()),
            rate_limiter: config.rate_limit.map(RateLimiter::new),
            work: Work::new(config.max_body_bytes),
            config,
        }))
    }

    /// Says what the loading is at, for `/health` and for refused requests.
    pub fn set_loading_reason(&self, reason: impl Into<String>) {
        let mut phase = self.0.phase.write().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Loading(current) = &mut *phase {
            *current = reason.into();
        }
    }

    /// Begins to serve `model`.
    pub fn set_ready(&self, model: ServedModel) {
        let vocab_size = u32::try_from(model.tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let longest_token_bytes =
            (0..vocab_size).filter_map(|id| model.tokenizer.token_text(id)).map(str::len).max().unwrap_or(1);
        let grammars = Arc::new(GrammarCompiler::new(Arc::clone(&model.tokenizer)));
        let prepared = Arc::clone(&grammars);
        // The first request with a form should not wait for the vocabulary; if no thread can be had, it does.
        let _ =
            std::thread::Builder::new().name("taper-grammar-vocabulary".to_owned()).spawn(move || prepared.prepare());
        let dialect = Dialect::of(model.template.as_ref(), &model.tokenizer);
        self.set_phase(Phase::Ready(Arc::new(Served { model, longest_token_bytes, grammars, dialect })));
    }

    /// Other names of the served model that requests may use, besides its id and "default".
    pub fn set_aliases(&self, aliases: Vec<String>) {
        *self.0.aliases.write().unwrap_or_else(PoisonError::into_inner) = aliases;
    }

    /// What `/server_info`, `/props` and `/v1/models` tell besides what the served model says of itself.
    pub fn set_facts(&self, facts: ServerFacts) {
        *self.0.facts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    /// The model could not be loaded, or has broken; requests are refused with the reason.
    pub fn set_failed(&self, reason: impl Into<String>) {
        self.set_phase(Phase::Failed(reason.into()));
    }

    /// Reads the files again that may change while the server runs: API keys, certificate and key. What cannot be used is
    /// logged and changes nothing.
    pub fn reload(&self) {
        let ServerConfig { api_keys, tls, .. } = self.config();
        if api_keys.has_file() {
            match api_keys.reload() {
                Ok(num) => tracing::info!(num, "the API keys were read again"),
                Err(error) => tracing::error!(%error, "the API keys stay as they were"),
            }
        }
        if let Some(tls) = tls {
            match tls.reload() {
                Ok(()) => tracing::info!("the certificate was read again; new connections get it"),
                Err(error) => tracing::error!(%error, "the certificate stays as it was"),
            }
        }
        if !api_keys.has_file() && tls.is_none() {
            tracing::info!("there is no file to read again: neither one of API keys nor a certificate");
        }
    }

    /// Has `/health` say that the server stops, so that load balancers turn to others; requests are still taken.
    pub fn set_stopping(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
    }

    /// Takes no more requests; those that run go on.
    pub fn set_draining(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
    }

    /// How many generation requests are being worked on, from the reading of the body to the last byte of the answer.
    pub fn active_requests(&self) -> usize {
        *self.0.active.borrow()
    }

    /// Waits until no generation request is being worked on.
    pub async fn idle(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let _ = self.0.active.subscribe().wait_for(|count| *count == 0).await;
    }

    fn set_phase(&self, phase: Phase) {
        *self.0.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    pub(crate) fn timeouts(&self) -> &Timeouts {
        &self.0.config.timeouts
    }

    pub(crate) fn rate_limiter(&self) -> Option<&RateLimiter> {
        self.0.rate_limiter.as_ref()
    }

    pub(crate) fn work(&self) -> &Work {
        &self.0.work
    }

    /// The engine, once there is one.
    pub(crate) fn engine(&self) -> Option<EngineHandle> {
        match &*self.0.phase.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Ready(served) => Some(served.model.engine.clone()),
            Phase::Loading(_) | Phase::Failed(_) => None,
        }
    }

    /// The served model, or why there is none.
    pub(crate) fn served(&self) -> Result<Arc<Served>, ApiError> {
        let phase = self.0.phase.read().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Ready(served) => Ok(served.clone()),
            Phase::Loading(reason) => Err(ApiError::loading(reason)),
            Phase::Failed(reason) => Err(ApiError::failed(reason)),
        }
    }

    /// The served model if a new request may be sent to it.
    pub(crate) fn admit(&self) -> Result<Arc<Served>, ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        self.served()
    }

    /// The model that `/health` speaks of, if it is well. An engine that is not healthy still gets requests, since a step that succeeds makes it healthy
    /// again; a thread that has ended refuses them itself.
    pub(crate) fn health(&self) -> Result<Arc<Served>, ApiError> {
        if self.0.stopping.load(Ordering::SeqCst) {
            return Err(ApiError::draining());
        }
        let served = self.admit()?;
        if served.model.engine.is_healthy() {
            Ok(served)
        } else {
            Err(ApiError::failed("its last steps failed; the log has the reason"))
        }
    }

    /// Whether the server is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::SeqCst)
    }

    /// Whether `name` is one of the names of the model `id`.
    pub(crate) fn answers_to(&self, id: &str, name: &str) -> bool {
        let aliases = self.0.aliases.read().unwrap_or_else(PoisonError::into_inner);
        name == id || name == "default" || aliases.iter().any(|alias| alias == name)
    }

    /// What [`ServerState::set_facts`] said.
    pub(crate) fn facts(&self) -> Arc<ServerFacts> {
        Arc::clone(&self.0.facts.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tokens generated per second since this was asked before, where that was at least a second ago.
    pub(crate) fn throughput(&self, num_generated: u64) -> f64 {
        let mut throughput = self.0.throughput.lock().unwrap_or_else(PoisonError::into_inner);
        throughput.read(std::time::Instant::now(), num_generated)
    }

    /// Counts a generation request until the guard is dropped.
    pub(crate) fn begin(&self) -> ActiveGuard {
        self.0.active.send_modify(|count| *count += 1);
        ActiveGuard(self.clone())
    }

    /// True the first time it is asked about `name`.
    pub(crate) fn first_sight(&self, name: &str) -> bool {
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED_NAMES && !logged.contains(name) && logged.insert(name.to_owned())
    }
}

/// A generation request being worked on.
pub(crate) struct ActiveGuard(ServerState);

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.0.active.send_modify(|count| *count -= 1);
    }
}
