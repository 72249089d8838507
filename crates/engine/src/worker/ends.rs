//! How sequences and requests end: complete, cancelled, too late, cut or failed.

use super::Worker;
use crate::metrics::EndReason;
use crate::scheduler::{SequenceId, Step};
use crate::sequence::Accepted;
use crate::{EngineError, Event};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Worker {
    /// Removes the requests whose streams were dropped.
    pub(super) fn cancel_abandoned(&mut self) {
        let abandoned: Vec<u64> =
            self.requests.iter().filter(|(_, request)| request.events.is_closed()).map(|(&key, _)| key).collect();
        for key in abandoned {
            tracing::debug!(request = key, "cancelled: its stream was dropped");
            self.shared.metrics.note_ended(EndReason::Abort, self.requests[&key].unfinished.len());
            self.forget(key);
        }
    }

    /// Fails the requests whose time is over.
    pub(super) fn fail_late(&mut self) {
        let now = Instant::now();
        let late: Vec<(u64, EngineError)> = self
            .requests
            .iter()
            .filter_map(|(&key, request)| Some((key, EngineError::TimedOut(request.timed_out(now)?.as_secs_f64()))))
            .collect();
        for (key, error) in late {
            self.fail(key, &error);
        }
    }

    /// Ends the sequences that cannot get the blocks they need although nobody else holds one.
    pub(super) fn cut_exhausted(&mut self, step: &Step) {
        for &id in &step.exhausted {
            let key = self.sequences[&id].request;
            let unborn = self.requests.get_mut(&key).map(|request| std::mem::take(&mut request.unborn));
            for id in unborn.into_iter().flatten().chain([id]) {
                let sequence = self.sequences.get_mut(&id).expect("the scheduler knows the same sequences");
                let accepted = sequence.cut();
                self.deliver(id, accepted, Instant::now());
            }
        }
    }

    /// Passes on what a token did to a sequence.
    pub(super) fn deliver(&mut self, id: SequenceId, accepted: Accepted, now: Instant) {
        let key = self.sequences[&id].request;
        let request = self.requests.get_mut(&key).expect("a sequence lives no longer than its request");
        if let Some(Event::Finished { reason, .. }) = &accepted.event {
            let choice = request.finished(*reason, &self.sequences[&id]);
            self.shared.metrics.note_finished(choice, now);
        }
        if let Some(event) = accepted.event {
            self.outbox.push(&request.events, event);
        }
        if !accepted.is_finished {
            return;
        }
        request.unfinished.retain(|&unfinished| unfinished != id);
        if request.unfinished.is_empty() {
            self.complete(key, now);
        }
        self.drop_sequence(id);
    }

    /// Tells that a request is complete, and removes it.
    pub(super) fn complete(&mut self, key: u64, now: Instant) {
        let Some(request) = self.requests.get(&key) else { return };
        if request.pooler.is_none() {
            self.shared.metrics.longest_choice.observe(request.longest_choice() as f64);
        }
        self.outbox.push(&request.events, Event::Done(request.usage(now)));
        let age_s = request.age_s(now);
        let mut status = self.shared.status();
        let mean = status.mean_request_s;
        status.mean_request_s = if mean == 0.0 { age_s } else { 0.8 * mean + 0.2 * age_s };
        drop(status);
        self.forget(key);
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, key: u64, error: &EngineError) {
        if let Some(request) = self.requests.get(&key) {
            tracing::warn!(request = key, %error, "request failed");
            self.shared.metrics.note_ended(EndReason::Error, request.unfinished.len());
            self.outbox.push(&request.events, Event::Failed(error.clone()));
            self.forget(key);
        }
    }

    pub(super) fn fail_all(&mut self, error: &EngineError) {
        let keys: Vec<u64> = self.requests.keys().copied().collect();
        for key in keys {
            self.fail(key, error);
        }
    }

    /// Removes a request and what is left of its sequences.
    pub(super) fn forget(&mut self, key: u64) {
        let Some(request) = self.requests.remove(&key) else { return };
        if request.is_queued {
            self.shared.queued_tokens.fetch_sub(request.prompt_tokens, Ordering::AcqRel);
        }
        for id in request.unfinished {
            self.drop_sequence(id);
        }
    }

    fn drop_sequence(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        self.restoring.retain(|restoring| restoring.id != id);
        if let Some(drafter) = &mut self.drafter {
            drafter.forget(id);
        }
        if self.sequences.remove(&id).is_some() {
            if let Some(masks) = &mut self.masks {
                masks.abandon(id);
            }
            self.shared.live.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
