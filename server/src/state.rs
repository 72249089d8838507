//! What the handlers share with the program around them: which models are served, and whether requests are taken.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use taper_engine::EngineHandle;
use taper_text::{ChatTemplate, GrammarCompiler, Tokenizer};
use tokio::sync::watch;

use crate::chat::Dialect;
use crate::config::ServerConfig;
use crate::errors::ApiError;
use crate::facts::{ServerFacts, Throughput};
use crate::http_metrics::HttpMetrics;
use crate::models::{DeclaredModel, Lease, ModelLimits, ModelLoader, Models};
use crate::rate_limit::RateLimiter;
use crate::sampling_defaults::SamplingDefaults;
use crate::slots::Slots;
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
    /// What the requests ask for that it computes.
    pub(crate) slots: Arc<Slots>,
    throughput: Mutex<Throughput>,
}

impl Served {
    /// Derives what is to be derived.
    pub(crate) fn new(model: ServedModel) -> Self {
        let vocab_size = u32::try_from(model.tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let longest_token_bytes =
            (0..vocab_size).filter_map(|id| model.tokenizer.token_text(id)).map(str::len).max().unwrap_or(1);
        let grammars = Arc::new(GrammarCompiler::new(Arc::clone(&model.tokenizer)));
        let prepared = Arc::clone(&grammars);
        // The first request with a form should not wait for the vocabulary; if no thread can be had, it does.
        let _ =
            std::thread::Builder::new().name("taper-grammar-vocabulary".to_owned()).spawn(move || prepared.prepare());
        let dialect = Dialect::of(model.template.as_ref(), &model.tokenizer);
        let (slots, throughput) = (Arc::default(), Mutex::new(Throughput::new()));
        Self { model, longest_token_bytes, grammars, dialect, slots, throughput }
    }

    /// Ids that a request may name are below it.
    pub(crate) fn vocab_size(&self) -> usize {
        self.model.tokenizer.vocab_size().min(self.model.engine.limits().vocab_size)
    }

    /// Tokens generated per second since this was asked before, where that was at least a second ago.
    pub(crate) fn throughput(&self) -> f64 {
        let mut throughput = self.throughput.lock().unwrap_or_else(PoisonError::into_inner);
        throughput.read(std::time::Instant::now(), self.model.engine.metrics().num_generated())
    }
}

struct Shared {
    models: Models,
    /// `/health` says that the server stops, so that no more requests are sent to it.
    stopping: AtomicBool,
    /// Those that come nevertheless are refused.
    draining: AtomicBool,
    active: watch::Sender<usize>,
    logged: Mutex<BTreeSet<String>>,
    config: ServerConfig,
    rate_limiter: Option<RateLimiter>,
    work: Work,
    http: Arc<HttpMetrics>,
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
            models: Models::new(),
            stopping: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            active: watch::Sender::new(0),
            logged: Mutex::new(BTreeSet::new()),
            rate_limiter: config.rate_limit.map(RateLimiter::new),
            work: Work::new(config.max_body_bytes),
            http: HttpMetrics::new(),
            config,
        }))
    }

    /// Says what the loading of the first model is at, for `/health` and for refused requests.
    pub fn set_loading_reason(&self, reason: impl Into<String>) {
        self.0.models.tell(0, reason.into());
    }

    /// Says which models there are and how they are loaded, where the program does not bring one by
    /// [`ServerState::set_ready`]. The first is loaded by [`ServerState::load_first`], others by requests.
    ///
    /// # Panics
    /// When there are no models.
    pub fn declare(&self, models: Vec<DeclaredModel>, limits: ModelLimits, loader: Arc<dyn ModelLoader>) {
        self.0.models.declare(models, limits, loader);
    }

    /// Loads the first model that was declared and begins to serve. Blocks.
    ///
    /// # Errors
    /// What the loader says; requests are refused with it.
    pub fn load_first(&self) -> Result<(), String> {
        self.0.models.load_first()
    }

    /// Waits until the engine of the only model has crashed, for ever where there are several models: a crashed one of these is loaded
    /// anew.
    pub async fn crashed(&self) {
        self.0.models.crashed().await;
    }

    /// Begins to serve `model`, as the first one.
    pub fn set_ready(&self, model: ServedModel) {
        self.0.models.set_first(model);
    }

    /// Other names of the first model that requests may use, besides its id and "default".
    pub fn set_aliases(&self, aliases: Vec<String>) {
        self.0.models.set_first_aliases(aliases);
    }

    /// What `/server_info`, `/props` and `/v1/models` tell besides what the first model says of itself.
    pub fn set_facts(&self, facts: ServerFacts) {
        self.0.models.set_first_facts(facts);
    }

    /// The first model could not be loaded, or has broken; requests are refused with the reason.
    pub fn set_failed(&self, reason: impl Into<String>) {
        self.0.models.fail_first(reason.into());
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

    /// Takes no more requests; those that run go on. Those that wait for a model to be loaded are refused.
    pub fn set_draining(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
        self.0.models.close();
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

    /// What is counted of requests, whatever model they are for.
    pub(crate) fn http(&self) -> &Arc<HttpMetrics> {
        &self.0.http
    }

    /// The models.
    pub(crate) fn models(&self) -> &Models {
        &self.0.models
    }

    /// The first model, or while that is not loaded the one that was used last, or why there is none.
    pub(crate) fn served(&self) -> Result<Arc<Served>, ApiError> {
        self.0.models.served(None)
    }

    /// Whether a new request may come.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        self.0.models.check_open()
    }

    /// Whether the first model, which `/health` speaks of, is well; then whether its answers are the same in any company. An engine
    /// that is not healthy still gets requests, since a step that succeeds makes it healthy again; a thread that has ended
    /// refuses them itself.
    pub(crate) fn health(&self) -> Result<bool, ApiError> {
        if self.0.stopping.load(Ordering::SeqCst) {
            return Err(ApiError::draining());
        }
        self.check_open()?;
        self.0.models.first_is_well()
    }

    /// Whether the server is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::SeqCst)
    }

    /// Whether `name` is one of the names of the model `id`.
    pub(crate) fn answers_to(&self, id: &str, name: &str) -> bool {
        self.0.models.answers_to(id, name)
    }

    /// What a request of the model `id` gets that does not say it, as far as the settings or the model's file say so.
    pub(crate) fn sampling_defaults(&self, id: &str) -> SamplingDefaults {
        self.config().sampling.or(self.0.models.facts(id).sampling)
    }

    /// Counts a generation request until the guard is dropped.
    pub(crate) fn begin(&self) -> ActiveGuard {
        self.0.active.send_modify(|count| *count += 1);
        ActiveGuard { state: self.clone(), lease: None, unloads: false }
    }

    /// True the first time it is asked about `name`.
    pub(crate) fn first_sight(&self, name: &str) -> bool {
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED_NAMES && !logged.contains(name) && logged.insert(name.to_owned())
    }
}

/// A generation request being worked on.
pub(crate) struct ActiveGuard {
    state: ServerState,
    /// Its hold on its model.
    lease: Option<Lease>,
    /// Whether the model is unloaded after it, if nobody else uses it.
    unloads: bool,
}

impl ActiveGuard {
    /// Keeps the model loaded for as long as the request is worked on.
    pub(crate) fn hold(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Lets the model go before the request is over; its place.
    pub(crate) fn release(&mut self) -> Option<usize> {
        self.lease.take().map(|lease| lease.index())
    }

    /// Has the model unloaded when the request is over, unless others use it then.
    pub(crate) fn unload_after(&mut self) {
        self.unloads = true;
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        if let Some(index) = self.release()
            && self.unloads
        {
            self.state.models().unload_idle(index);
        }
        self.state.0.active.send_modify(|count| *count -= 1);
    }
}
