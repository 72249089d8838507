//! Prompts that become vectors: no token is chosen at their end.

use super::Worker;
use crate::scheduler::StepEntry;
use crate::{EngineError, Event, FinishReason};
use std::ops::Range;
use std::time::Instant;

impl Worker {
    /// Whether a vector is wanted of an entry's prompt, and no answer.
    pub(super) fn is_embedded(&self, entry: &StepEntry) -> bool {
        let request = self.requests.get(&self.sequences[&entry.sequence].request);
        request.is_some_and(|request| request.pooler.is_some())
    }

    /// Takes in the hidden states of an entry; `hidden` are its rows of those. At the end of the prompt the request is complete.
    pub(super) fn pool(&mut self, entry: &StepEntry, hidden: Range<usize>) -> Result<(), EngineError> {
        let reaches_end = self.scheduler.reaches_end(entry);
        let full = self.scheduler.advance(entry, &[], 0);
        self.save(entry.sequence, full);
        let key = self.sequences[&entry.sequence].request;
        let Some(request) = self.requests.get_mut(&key) else { return Ok(()) };
        let Some(pooler) = &mut request.pooler else { return Ok(()) };
        let width = pooler.hidden_size();
        let states = &self.logits.hidden()[hidden.start * width..hidden.end * width];
        pooler.push(entry.tokens.end - hidden.len(), states);
        if !reaches_end {
            return Ok(());
        }
        let vector = pooler.finish();
        if let Some(element) = vector.iter().position(|x| !x.is_finite()) {
            return Err(EngineError::InvalidEmbedding { element, value: vector[element] });
        }
        let now = Instant::now();
        self.outbox.push(&request.events, Event::Embedding(vector));
        let choice = request.finished(FinishReason::Stop, &self.sequences[&entry.sequence]);
        self.shared.metrics.note_embedded(choice, now);
        self.complete(key, now);
        Ok(())
    }
}
