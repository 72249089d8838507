//! What the requests ask for that are at an engine, for who asks about its slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taper_engine::SamplingParams;

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct SlotRequest {
    pub(crate) sampling: SamplingParams,
    /// The names of its samplers in the order in which they apply.
    pub(crate) samplers: Vec<&'static str>,
    pub(crate) stream: bool,
}

/// Those of one engine, by their numbers there.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<HashMap<u64, Arc<SlotRequest>>>);

/// A request is known for as long as this lives.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    slots: Arc<Slots>,
    id: u64,
}

impl Slots {
    /// Makes a request known.
    pub(crate) fn enter(self: &Arc<Self>, id: u64, request: &Arc<SlotRequest>) -> SlotGuard {
        self.requests().insert(id, Arc::clone(request));
        SlotGuard { slots: Arc::clone(self), id }
    }

    /// What a request asks for, if it is known.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<SlotRequest>> {
        self.requests().get(&id).cloned()
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<u64, Arc<SlotRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slots.requests().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_until_their_guards_are_dropped() {
        let slots = Arc::new(Slots::default());
        let request = Arc::new(SlotRequest { sampling: SamplingParams::greedy(), samplers: Vec::new(), stream: true });
        let (one, two) = (slots.enter(1, &request), slots.enter(2, &request));
        assert!(slots.get(1).is_some_and(|request| request.stream) && slots.get(3).is_none());
        drop(one);
        assert!(slots.get(1).is_none() && slots.get(2).is_some());
        drop(two);
        assert!(slots.requests().is_empty());
    }
}
