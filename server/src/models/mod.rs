//! The models of one server: which there are, which are loaded, and who may use them. The first is loaded at the start, others
//! by their first request, which waits for it together with those that come meanwhile. Where the limits leave no room, a model
//! that nobody uses goes, and a request may have one go: [`book`] decides, [`turn`] loads and unloads, and [`lease`] has those who
//! use a model or wait for it.
//!
//! How a model is loaded is the program's business ([`ModelLoader`]). A server whose program declares none has one model, which
//! [`crate::ServerState::set_ready`] brings.

mod asked;
mod book;
mod declared;
mod lease;
mod turn;

pub(crate) use asked::Asked;
pub use declared::{DeclaredModel, LoadedModel, ModelLimits, ModelLoader, Tell};
pub(crate) use lease::{Admission, Lease};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use book::Book;
use lease::{Leaver, Waiter};
use serde_json::Value;
use taper_engine::EngineHandle;
use tokio::sync::watch;

use crate::errors::ApiError;
use crate::facts::ServerFacts;
use crate::fields::show;
use crate::state::{Served, ServedModel};

/// The name of the first model, beside its own ones.
const DEFAULT: &str = "default";
/// The tag of a name without a tag.
pub(crate) const LATEST: &str = ":latest";

/// The models of a server. Clones share them.
#[derive(Clone)]
pub(crate) struct Models(Arc<Mutex<Inner>>);

struct Inner {
    /// At least one.
    slots: Vec<Slot>,
    book: Book,
    limits: ModelLimits,
    loader: Option<Arc<dyn ModelLoader>>,
    num_waiters: u64,
    /// Loads that gave a model.
    num_loads: watch::Sender<u64>,
    /// Nothing is loaded any more, and nobody waits.
    is_closed: bool,
}

/// One model.
struct Slot {
    /// Unknown until a model comes that nobody declared.
    id: Option<String>,
    aliases: Vec<String>,
    created_unix: u64,
    facts: Arc<ServerFacts>,
    phase: Phase,
    /// Whether its answers are the same in any company, as of its latest load.
    was_deterministic: Option<bool>,
    waiters: Vec<Waiter>,
    leavers: Vec<Leaver>,
}

/// Where a model is.
enum Phase {
    Unloaded,
    /// How far it is.
    Loading(String),
    Ready(Arc<Served>),
    Unloading(Arc<Served>),
    /// Why, and when it may be tried again: never, without a time.
    Failed(String, Option<Instant>),
}

/// What `/v1/models` tells of a model.
pub(crate) struct Told<'a> {
    pub(crate) id: &'a str,
    pub(crate) aliases: &'a [String],
    pub(crate) created_unix: u64,
    pub(crate) facts: &'a ServerFacts,
    pub(crate) state: ToldState<'a>,
    /// Whether it is unloaded once its requests have ended.
    pub(crate) is_leaving: bool,
}

/// Where it is.
pub(crate) enum ToldState<'a> {
    Unloaded,
    Loading(&'a str),
    Loaded(&'a Served),
    Failed(&'a str),
}

impl Models {
    /// One model, which somebody is loading.
    pub(crate) fn new() -> Self {
        let limits = ModelLimits::default();
        let mut book = Book::new(limits.max_loaded, limits.max_bytes, limits.patience);
        book.add(0);
        book.begin(0);
        let slots = vec![Slot { phase: Phase::Loading("starting".to_owned()), ..Slot::default() }];
        let num_loads = watch::Sender::new(0);
        let inner = Inner { slots, book, limits, loader: None, num_waiters: 0, num_loads, is_closed: false };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Says which models there are. The first is still being loaded, and [`Models::load_first`] does it.
    ///
    /// # Panics
    /// When there are none.
    pub(crate) fn declare(&self, models: Vec<DeclaredModel>, limits: ModelLimits, loader: Arc<dyn ModelLoader>) {
        assert!(!models.is_empty(), "a server has at least one model");
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.book = Book::new(limits.max_loaded, limits.max_bytes, limits.patience);
        let mut slots: Vec<Slot> = Vec::new();
        for DeclaredModel { id, aliases, created_unix, max_bytes, facts } in models {
            inner.book.add(max_bytes);
            let (id, facts) = (Some(id), Arc::new(facts));
            slots.push(Slot { id, aliases, created_unix, facts, ..Slot::default() });
        }
        inner.book.begin(0);
        std::mem::swap(&mut slots[0].phase, &mut inner.slots[0].phase);
        inner.slots = slots;
        inner.limits = limits;
        inner.loader = Some(loader);
    }

    /// Serves this as the first model.
    pub(crate) fn set_first(&self, model: ServedModel) {
        let facts = ServerFacts::clone(&self.first_facts());
        self.end_load(0, Ok(LoadedModel { model, facts }));
    }

    /// The first model is not there, and will not be.
    pub(crate) fn fail_first(&self, reason: String) {
        let mut inner = self.lock();
        if matches!(inner.slots[0].phase, Phase::Loading(_)) {
            inner.book.failed(0);
        }
        inner.slots[0].phase = Phase::Failed(reason, None);
        inner.slots[0].tell_leavers(&Ok(()));
    }

    /// How far a model is, while it is loaded.
    pub(crate) fn tell(&self, index: usize, text: String) {
        if let Phase::Loading(current) = &mut self.lock().slots[index].phase {
            *current = text;
        }
    }

    pub(crate) fn set_first_aliases(&self, aliases: Vec<String>) {
        self.lock().slots[0].aliases = aliases;
    }

    pub(crate) fn set_first_facts(&self, facts: ServerFacts) {
        self.lock().slots[0].facts = Arc::new(facts);
    }

    /// What is known of the first model.
    pub(crate) fn first_facts(&self) -> Arc<ServerFacts> {
        Arc::clone(&self.lock().slots[0].facts)
    }

    /// What is known of the model `id`; of the first, where there is none of that name.
    pub(crate) fn facts(&self, id: &str) -> Arc<ServerFacts> {
        let inner = self.lock();
        let slot = inner.slots.iter().find(|slot| slot.id() == id).unwrap_or(&inner.slots[0]);
        Arc::clone(&slot.facts)
    }

    /// Refuses while the first model was never loaded, and when it cannot be.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        self.lock().check_open()
    }

    /// Whether a request of the first model would be taken and its engine is well; then whether its answers are the same in any
    /// company.
    pub(crate) fn first_is_well(&self) -> Result<bool, ApiError> {
        let inner = self.lock();
        inner.check_open()?;
        let first = &inner.slots[0];
        first.check_failed()?;
        match first.served() {
            Some(served) if !served.model.engine.is_healthy() && !inner.may_replace(served) => {
                Err(ApiError::failed("its last steps failed; the log has the reason"))
            }
            _ => Ok(first.was_deterministic.unwrap_or(true)),
        }
    }

    /// Whether it matters which model a request names.
    pub(crate) fn are_several(&self) -> bool {
        self.lock().slots.len() > 1
    }

    /// The limits that were declared.
    pub(crate) fn limits(&self) -> ModelLimits {
        self.lock().limits.clone()
    }

    /// The place of the model of this name; without one, of the first.
    ///
    /// # Errors
    /// 404 where no model has the name.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        self.lock().find(name)
    }

    /// Whether `name` is one of the names of the model `id`.
    pub(crate) fn answers_to(&self, id: &str, name: &str) -> bool {
        let inner = self.lock();
        inner.find(Some(name)).is_ok_and(|index| inner.slots[index].id() == id)
    }

    /// The model of this name, if it is loaded. Without a name it is the first one, or while that is not loaded the one that was
    /// used last.
    ///
    /// # Errors
    /// 404 where no model has the name, 503 where the model is not loaded.
    pub(crate) fn served(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let inner = self.lock();
        inner.check_open()?;
        let slot = &inner.slots[inner.find(name)?];
        let latest = || inner.book.latest().filter(|_| name.is_none()).and_then(|latest| inner.slots[latest].served());
        match slot.served().or_else(latest) {
            Some(served) => Ok(Arc::clone(served)),
            None => Err(slot.check_failed().err().unwrap_or_else(|| ApiError::not_loaded(slot.id()))),
        }
    }

    /// All that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<Served>> {
        self.lock().slots.iter().filter_map(Slot::served).cloned().collect()
    }

    /// What `tell` makes of each model.
    pub(crate) fn each<T>(&self, tell: impl Fn(&Told<'_>) -> T) -> Vec<T> {
        let inner = self.lock();
        let told = |(index, slot): (usize, &Slot)| tell(&slot.told(inner.book.is_dismissed(index)));
        inner.slots.iter().enumerate().map(told).collect()
    }

    /// Waits until the engine of the only model has crashed. Of several models a crashed one is loaded anew: then there is nothing to wait
    /// for, and the wait has no end.
    pub(crate) async fn crashed(&self) {
        let mut loads = self.lock().num_loads.subscribe();
        loop {
            let Some(engine) = self.only_engine() else {
                // The sender is here as long as this is.
                let _ = loads.changed().await;
                continue;
            };
            engine.drained().await;
            // One that is unloaded was noted before its engine was told to end.
            if self.only_engine().is_some_and(|engine| engine.has_ended()) {
                return;
            }
        }
    }

    /// The engine of the only model, while it is loaded.
    fn only_engine(&self) -> Option<EngineHandle> {
        match &self.lock().slots[..] {
            [slot] => slot.served().map(|served| served.model.engine.clone()),
            _ => None,
        }
    }

    /// Ends all engines once their requests are done, and waits for that.
    pub(crate) async fn end(&self) {
        let engine = |slot: &Slot| match &slot.phase {
            Phase::Ready(served) | Phase::Unloading(served) => Some(served.model.engine.clone()),
            _ => None,
        };
        let engines: Vec<EngineHandle> = self.lock().slots.iter().filter_map(engine).collect();
        engines.iter().for_each(EngineHandle::drain);
        for engine in engines {
            engine.drained().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn check_open(&self) -> Result<(), ApiError> {
        match &self.slots[0].phase {
            Phase::Loading(reason) if self.slots[0].was_deterministic.is_none() => Err(ApiError::loading(reason)),
            Phase::Failed(reason, None) => Err(ApiError::failed(reason)),
            _ => Ok(()),
        }
    }

    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name.filter(|name| *name != DEFAULT) else { return Ok(0) };
        let place = |answers: fn(&Slot, &str) -> bool| self.slots.iter().position(|slot| answers(slot, name));
        place(Slot::answers_to).or_else(|| place(Slot::answers_to_tagged)).ok_or_else(|| {
            let ids: Vec<&str> = self.slots.iter().map(Slot::id).collect();
            ApiError::model_not_found(&show(&Value::from(name)), &ids)
        })
    }

    /// Whether a model whose engine has crashed can be loaded anew. A server of one model is started anew instead.
    fn may_replace(&self, served: &Served) -> bool {
        self.slots.len() > 1 && served.model.engine.has_ended()
    }

    /// A model whose engine has crashed is not loaded any more.
    fn forget_crashed(&mut self, index: usize) {
        if self.slots[index].served().is_some_and(|served| self.may_replace(served)) {
            tracing::error!(model = self.slots[index].id(), "its engine has crashed; the model is loaded anew");
            self.slots[index].phase = Phase::Unloaded;
            self.slots[index].tell_leavers(&Ok(()));
            self.book.unloaded(index);
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            id: None,
            aliases: Vec::new(),
            created_unix: 0,
            facts: Arc::default(),
            phase: Phase::Unloaded,
            was_deterministic: None,
            waiters: Vec::new(),
            leavers: Vec::new(),
        }
    }
}

impl Slot {
    fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    fn answers_to(&self, name: &str) -> bool {
        self.id.as_deref() == Some(name) || self.aliases.iter().any(|alias| alias == name)
    }

    /// As Ollama's clients name models, for which no tag and the tag `latest` are the same.
    fn answers_to_tagged(&self, name: &str) -> bool {
        let bare = name.strip_suffix(LATEST);
        bare.is_some_and(|bare| self.answers_to(bare)) || self.answers_to(&format!("{name}{LATEST}"))
    }

    fn served(&self) -> Option<&Arc<Served>> {
        match &self.phase {
            Phase::Ready(served) => Some(served),
            _ => None,
        }
    }

    /// Tells those who wait for the model to be unloaded.
    fn tell_leavers(&mut self, outcome: &Result<(), ApiError>) {
        for leaver in self.leavers.drain(..) {
            // Who is gone need not hear it.
            let _ = leaver.send(outcome.clone());
        }
    }

    /// Refuses while a load that failed is not tried again.
    fn check_failed(&self) -> Result<(), ApiError> {
        let Phase::Failed(reason, retry) = &self.phase else { return Ok(()) };
        let left = retry.map(|retry| retry.saturating_duration_since(Instant::now()));
        match left {
            None => Err(ApiError::failed(reason)),
            Some(left) if left.is_zero() => Ok(()),
            Some(left) => Err(ApiError::load_failed(self.id(), reason, left)),
        }
    }

    fn told(&self, is_leaving: bool) -> Told<'_> {
        let state = match &self.phase {
            Phase::Ready(served) => ToldState::Loaded(served),
            Phase::Loading(reason) => ToldState::Loading(reason),
            Phase::Failed(reason, _) => ToldState::Failed(reason),
            Phase::Unloaded | Phase::Unloading(_) => ToldState::Unloaded,
        };
        Told {
            id: self.id(),
            aliases: &self.aliases,
            created_unix: self.created_unix,
            facts: &self.facts,
            state,
            is_leaving,
        }
    }
}
