//! Which models are loaded, who uses them and who waits, and what is done next. Plain data: threads, engines and clocks stay
//! with the caller.
//!
//! The rules:
//! - One model is loaded or unloaded at a time; those that are waited for have their turn in the order of their first requests.
//! - A load begins where the models that take memory, itself included, keep to the limits; alone a model may always have it.
//! - Otherwise the least recently used models that nobody uses make room, if they are enough; if not, another one that is waited
//!   for and fits may go first.
//! - Who found all others busy for `patience`, counted from the latest load on, is overtaken by nobody any more, and the models that
//!   were loaded first take no new requests until theirs have ended and they have made room. So nobody waits for ever, and a
//!   model that is used is not unloaded sooner than that.
//! - A model that somebody dismisses takes no new requests either, and is unloaded before anything else is done once its own have
//!   ended. Those who wait for it meanwhile have it loaded again.

use std::time::{Duration, Instant};

/// Where a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unloaded,
    Loading,
    Loaded,
    /// It takes memory still.
    Unloading,
}

/// What is to be done; the book has noted that it has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Until [`Book::loaded`] or [`Book::failed`].
    Load(usize),
    /// Until [`Book::unloaded`].
    Unload(usize),
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// As far as known: before the first load the most that it may take.
    bytes: u64,
    /// Whether somebody asked that it be unloaded.
    is_dismissed: bool,
    /// Requests that it must not be unloaded under.
    users: usize,
    /// Requests that wait for it.
    waiting: usize,
    /// Number and time of the first of them.
    wanted: Option<(u64, Instant)>,
    /// Number of the latest beginning or end of a use.
    used: u64,
    /// Number of its latest load.
    loaded: u64,
}

/// The state of all models, by their places.
#[derive(Debug)]
pub(super) struct Book {
    max_loaded: usize,
    max_bytes: u64,
    patience: Duration,
    entries: Vec<Entry>,
    num_events: u64,
    latest_load: Option<Instant>,
}

impl Book {
    /// Of no models.
    pub(super) fn new(max_loaded: usize, max_bytes: u64, patience: Duration) -> Self {
        Self {
            max_loaded: max_loaded.max(1),
            max_bytes,
            patience,
            entries: Vec::new(),
            num_events: 0,
            latest_load: None,
        }
    }

    /// Adds a model that will take so many bytes, at most; it has the next place.
    pub(super) fn add(&mut self, bytes: u64) {
        self.entries.push(Entry {
            stage: Stage::Unloaded,
            bytes,
            is_dismissed: false,
            users: 0,
            waiting: 0,
            wanted: None,
            used: 0,
            loaded: 0,
        });
    }

    /// Somebody loads a model without having been asked to.
    pub(super) fn begin(&mut self, model: usize) {
        self.entries[model].stage = Stage::Loading;
    }

    /// A request comes: true where it uses the model from now on, false where it waits.
    pub(super) fn arrive(&mut self, model: usize, now: Instant) -> bool {
        let event = self.next_event();
        let is_open = self.entries[model].stage == Stage::Loaded && !self.is_closed(model, now);
        let entry = &mut self.entries[model];
        if is_open {
            entry.users += 1;
            entry.used = event;
        } else {
            entry.waiting += 1;
            entry.wanted.get_or_insert((event, now));
        }
        is_open
    }

    /// A request that waited is gone.
    pub(super) fn give_up(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        entry.waiting -= 1;
        if entry.waiting == 0 {
            entry.wanted = None;
        }
    }

    /// A use ends.
    pub(super) fn release(&mut self, model: usize) {
        let event = self.next_event();
        let entry = &mut self.entries[model];
        entry.users -= 1;
        entry.used = event;
    }

    /// Somebody asks that a model be unloaded. False where there is nothing to wait for: it takes no memory.
    pub(super) fn dismiss(&mut self, model: usize) -> bool {
        let entry = &mut self.entries[model];
        entry.is_dismissed |= matches!(entry.stage, Stage::Loading | Stage::Loaded);
        entry.stage != Stage::Unloaded
    }

    /// Somebody asks that a model be unloaded if nobody uses it and nobody waits for it.
    pub(super) fn dismiss_idle(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        entry.is_dismissed |= entry.stage == Stage::Loaded && entry.users + entry.waiting == 0;
    }

    /// Whether somebody asked that it be unloaded, and it is not yet.
    pub(super) fn is_dismissed(&self, model: usize) -> bool {
        self.entries[model].is_dismissed
    }

    /// A load is over, and the model takes so many bytes. Those who waited use it now.
    pub(super) fn loaded(&mut self, model: usize, bytes: u64, now: Instant) {
        let event = self.next_event();
        self.latest_load = Some(now);
        let entry = &mut self.entries[model];
        (entry.stage, entry.bytes, entry.loaded) = (Stage::Loaded, bytes, event);
        self.let_in(model);
    }

    /// A load has failed. Nobody waits for the model any more.
    pub(super) fn failed(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        (entry.stage, entry.is_dismissed, entry.waiting, entry.wanted) = (Stage::Unloaded, false, 0, None);
    }

    /// The model takes no memory any more.
    pub(super) fn unloaded(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        (entry.stage, entry.is_dismissed) = (Stage::Unloaded, false);
    }

    /// Those who wait for a model that is loaded use it, unless it is to go; whether there are any.
    pub(super) fn readmit(&mut self, model: usize, now: Instant) -> bool {
        let entry = &self.entries[model];
        let may_enter = entry.stage == Stage::Loaded && entry.waiting > 0 && !self.is_closed(model, now);
        if may_enter {
            self.let_in(model);
        }
        may_enter
    }

    /// The one that was used last of those that are loaded.
    pub(super) fn latest(&self) -> Option<usize> {
        let loaded = |&model: &usize| self.entries[model].stage == Stage::Loaded;
        (0..self.entries.len()).filter(loaded).max_by_key(|&model| self.entries[model].used)
    }

    /// What to do next, if anything can be done.
    pub(super) fn next(&mut self, now: Instant) -> Option<Action> {
        if self.entries.iter().any(|entry| matches!(entry.stage, Stage::Loading | Stage::Unloading)) {
            return None;
        }
        if let Some(model) = self.entries.iter().position(|entry| entry.is_dismissed && entry.users == 0) {
            self.entries[model].stage = Stage::Unloading;
            return Some(Action::Unload(model));
        }
        for (place, model) in self.wanted().into_iter().enumerate() {
            if self.fits(model, &[]) {
                self.entries[model].stage = Stage::Loading;
                return Some(Action::Load(model));
            }
            let is_impatient = place == 0 && self.is_impatient(model, now);
            let victims = self.victims(model, is_impatient);
            if let Some(&victim) = victims.iter().find(|&&victim| self.entries[victim].users == 0) {
                self.entries[victim].stage = Stage::Unloading;
                return Some(Action::Unload(victim));
            }
            if is_impatient {
                return None;
            }
        }
        None
    }

    fn next_event(&mut self) -> u64 {
        self.num_events += 1;
        self.num_events
    }

    fn let_in(&mut self, model: usize) {
        let event = self.next_event();
        let entry = &mut self.entries[model];
        if entry.waiting > 0 {
            entry.users += entry.waiting;
            entry.used = event;
        }
        (entry.waiting, entry.wanted) = (0, None);
    }

    /// Models to load, in the order of their first requests.
    fn wanted(&self) -> Vec<usize> {
        let is_wanted = |&model: &usize| {
            let entry = &self.entries[model];
            entry.stage == Stage::Unloaded && entry.waiting > 0
        };
        let mut wanted: Vec<usize> = (0..self.entries.len()).filter(is_wanted).collect();
        wanted.sort_by_key(|&model| self.entries[model].wanted);
        wanted
    }

    /// Whether a model may be loaded beside those that are loaded, but for the ones that are `gone`.
    fn fits(&self, model: usize, gone: &[usize]) -> bool {
        // What is being unloaded is gone before the next load begins.
        let is_there = |other: usize| matches!(self.entries[other].stage, Stage::Loading | Stage::Loaded);
        let stays = |&other: &usize| other != model && is_there(other) && !gone.contains(&other);
        let others: Vec<usize> = (0..self.entries.len()).filter(stays).collect();
        let bytes = others.iter().map(|&other| self.entries[other].bytes);
        let bytes = bytes.fold(self.entries[model].bytes, u64::saturating_add);
        others.is_empty() || (others.len() < self.max_loaded && bytes <= self.max_bytes)
    }

    /// The models that are to make room for `model`: none where all of them are not enough. With `even_busy` those that are used are
    /// among them, the longest loaded first.
    fn victims(&self, model: usize, even_busy: bool) -> Vec<usize> {
        let is_idle = |other: usize| self.entries[other].users + self.entries[other].waiting == 0;
        let may_go = |&other: &usize| self.entries[other].stage == Stage::Loaded && (even_busy || is_idle(other));
        let mut candidates: Vec<usize> = (0..self.entries.len()).filter(may_go).collect();
        candidates.sort_by_key(|&other| {
            let Entry { used, loaded, .. } = self.entries[other];
            if is_idle(other) { (false, used) } else { (true, loaded) }
        });
        let enough = (1..=candidates.len()).find(|&num| self.fits(model, &candidates[..num]));
        candidates.truncate(enough.unwrap_or(0));
        candidates
    }

    /// Whether a model that is waited for has found all others busy for long enough.
    fn is_impatient(&self, model: usize, now: Instant) -> bool {
        let wanted = self.entries[model].wanted.map(|(_, since)| since);
        let since = wanted.max(self.latest_load).unwrap_or(now);
        now.saturating_duration_since(since) >= self.patience
    }

    /// Whether a model that is loaded takes no new requests, because it is to go.
    fn is_closed(&self, model: usize, now: Instant) -> bool {
        let makes_room = |&first: &usize| {
            self.is_impatient(first, now) && !self.fits(first, &[]) && self.victims(first, true).contains(&model)
        };
        self.entries[model].is_dismissed || self.wanted().first().is_some_and(makes_room)
    }
}

#[cfg(test)]
mod tests;
