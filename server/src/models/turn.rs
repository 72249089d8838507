//! Loading and unloading, when it is their turn: each on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use taper_engine::EngineHandle;

use super::book::Action;
use super::lease::Answers;
use super::{Inner, LoadedModel, Models, Phase, Tell};
use crate::errors::ApiError;
use crate::state::Served;

/// What has begun.
enum Begun {
    Load(usize),
    Unload(usize, EngineHandle),
}

impl Models {
    /// Loads the first model on this thread. A failure is for good.
    pub(crate) fn load_first(&self) -> Result<(), String> {
        match self.load(0) {
            Ok(loaded) => {
                self.end_load(0, Ok(loaded));
                Ok(())
            }
            Err(reason) => {
                self.fail_first(reason.clone());
                Err(reason)
            }
        }
    }

    /// Does what can be done now.
    pub(super) fn advance(&self) {
        let (mut begun, mut answers) = (None, Answers::default());
        {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if inner.is_closed || inner.loader.is_none() {
                return;
            }
            let now = Instant::now();
            if let Some(action) = inner.book.next(now) {
                begun = inner.begin(action);
            }
            for index in 0..inner.slots.len() {
                if inner.book.readmit(index, now) {
                    answers.extend(self.admit_waiters(inner, index));
                }
            }
        }
        answers.send();
        match begun {
            None => {}
            Some(Begun::Load(index)) => {
                let models = self.clone();
                let load = move || models.end_load(index, models.load(index));
                if let Err(error) = std::thread::Builder::new().name("taper-load".to_owned()).spawn(load) {
                    self.end_load(index, Err(format!("no thread can be had to load it: {error}")));
                }
            }
            Some(Begun::Unload(index, engine)) => {
                engine.drain();
                let (models, last) = (self.clone(), engine.clone());
                let end = move || {
                    last.join();
                    models.end_unload(index);
                };
                if std::thread::Builder::new().name("taper-unload".to_owned()).spawn(end).is_err() {
                    // Nobody uses it, so it ends soon.
                    engine.join();
                    self.end_unload(index);
                }
            }
        }
    }

    /// Has the program load a model.
    fn load(&self, index: usize) -> Result<LoadedModel, String> {
        let Some(loader) = self.lock().loader.clone() else { return Err("nobody loads models here".to_owned()) };
        let models = self.clone();
        let tell: Tell = Box::new(move |text| models.tell(index, text.to_owned()));
        catch_unwind(AssertUnwindSafe(|| loader.load(index, tell))).unwrap_or_else(|panic| {
            // Dropping what was thrown may throw again.
            std::mem::forget(panic);
            Err("loading it crashed; the log says where".to_owned())
        })
    }

    /// A load is over: those who wait hear how.
    pub(super) fn end_load(&self, index: usize, outcome: Result<LoadedModel, String>) {
        let outcome = outcome.map(|LoadedModel { model, facts }| (Arc::new(Served::new(model)), facts));
        let mut guard = self.lock();
        let inner = &mut *guard;
        let (now, slot) = (Instant::now(), &mut inner.slots[index]);
        let answers = match outcome {
            Ok((served, facts)) => {
                let engine = served.model.engine.clone();
                let bytes = facts.model_bytes.unwrap_or(0).saturating_add(engine.kv_cache_bytes() as u64);
                slot.id = Some(served.model.id.clone());
                slot.was_deterministic = Some(served.model.deterministic);
                slot.facts = Arc::new(facts);
                slot.phase = Phase::Ready(served);
                inner.book.loaded(index, bytes, now);
                inner.num_loads.send_modify(|num| *num += 1);
                if inner.is_closed {
                    engine.drain();
                }
                self.admit_waiters(inner, index)
            }
            Err(reason) => {
                let retry_after = inner.limits.retry_after;
                tracing::error!(model = slot.id(), reason, "the model cannot be loaded; a later request tries again");
                let refusal = ApiError::load_failed(slot.id(), &reason, retry_after);
                slot.phase = Phase::Failed(reason, now.checked_add(retry_after));
                slot.tell_leavers(&Ok(()));
                inner.book.failed(index);
                Answers::refusing(&mut inner.slots[index].waiters, &refusal)
            }
        };
        drop(guard);
        answers.send();
        self.advance();
    }

    fn end_unload(&self, index: usize) {
        let mut inner = self.lock();
        inner.book.unloaded(index);
        inner.slots[index].phase = Phase::Unloaded;
        inner.slots[index].tell_leavers(&Ok(()));
        drop(inner);
        self.advance();
    }
}

impl Inner {
    /// Notes what begins.
    fn begin(&mut self, action: Action) -> Option<Begun> {
        match action {
            Action::Load(index) => {
                let slot = &mut self.slots[index];
                tracing::info!(model = slot.id(), "loading: a request asks for it");
                slot.phase = Phase::Loading("it has begun".to_owned());
                Some(Begun::Load(index))
            }
            Action::Unload(index) => {
                let slot = &mut self.slots[index];
                let Some(served) = slot.served().cloned() else {
                    // It has failed for good, and stays so.
                    slot.tell_leavers(&Ok(()));
                    self.book.unloaded(index);
                    return None;
                };
                let is_dismissed = self.book.is_dismissed(index);
                let reason = if is_dismissed { "a request asks for it" } else { "another model needs the room" };
                tracing::info!(model = slot.id(), "unloading: {reason}");
                let engine = served.model.engine.clone();
                slot.phase = Phase::Unloading(served);
                Some(Begun::Unload(index, engine))
            }
        }
    }
}
