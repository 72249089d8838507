//! Sequences whose text must have a form: masks for the tokens they choose, and tokens that need no choosing.

use super::Worker;
use crate::grammar::{MaskError, MaskWorker};
use crate::scheduler::{SequenceId, Step, StepEntry};
use crate::sequence::{Accepted, Form};
use crate::{EngineError, InvalidLogits, Masked};
use std::time::Instant;

impl Worker {
    /// Has the masks of a step's rows computed while the step runs.
    pub(super) fn ask_masks(&mut self, step: &Step) -> Result<(), EngineError> {
        for entry in step.entries.iter().filter(|entry| self.scheduler.reaches_end(entry)) {
            let key = self.sequences[&entry.sequence].request;
            let unborn = self.requests.get(&key).map(|request| request.unborn.clone()).unwrap_or_default();
            for id in unborn.into_iter().chain([entry.sequence]) {
                let sequence = self.sequences.get_mut(&id).expect("the scheduler knows the same sequences");
                if let Some(Form::Idle(grammar, spare)) = sequence.form.take_if(|form| matches!(form, Form::Idle(..))) {
                    sequence.form = Some(Form::Asked);
                    let num_guesses = if id == entry.sequence { entry.num_guesses } else { 0 };
                    let guesses = sequence.guess.tokens[..num_guesses].to_vec();
                    let masks = match &mut self.masks {
                        Some(masks) => masks,
                        None => {
                            let started = MaskWorker::start();
                            let failed =
                                |error| EngineError::Grammar(format!("cannot start the grammar thread: {error}"));
                            self.masks.insert(started.map_err(failed)?)
                        }
                    };
                    masks.request(id, grammar, guesses, spare);
                }
            }
        }
        Ok(())
    }

    /// Whether the masks are there that an entry needs to choose tokens; they are waited for until `deadline`.
    pub(super) fn has_masks(&mut self, entry: &StepEntry, deadline: Instant) -> bool {
        let Some(masks) = &mut self.masks else { return true };
        let unborn = self.requests.get(&self.sequences[&entry.sequence].request).map(|request| &request.unborn);
        let mut ids = unborn.into_iter().flatten().chain([&entry.sequence]);
        ids.all(|id| !matches!(self.sequences[id].form, Some(Form::Asked)) || masks.is_ready(*id, deadline))
    }

    /// Leaves the choice after an entry to a later step, which computes its last known token, and its guesses, once more.
    pub(super) fn put_off(&mut self, entry: &StepEntry) {
        let last = entry.tokens.end - entry.num_guesses - 1;
        if last > entry.tokens.start {
            let before = StepEntry { tokens: entry.tokens.start..last, num_guesses: 0, ..*entry };
            let full = self.scheduler.advance(&before, &[], 0);
            self.save(entry.sequence, full);
        } else {
            // The masks are for these guesses and no more.
            self.scheduler.set_guesses(entry.sequence, entry.num_guesses);
        }
    }

    /// Brings the masks of a sequence here, if it has a form.
    pub(super) fn take_masks(&mut self, id: SequenceId) -> Result<(), EngineError> {
        let sequence = self.sequences.get_mut(&id).expect("only living sequences choose");
        if let (Some(Form::Asked), Some(masks)) = (&sequence.form, &mut self.masks) {
            sequence.form = None;
            let masked = masks.take(id).map_err(|error: MaskError| EngineError::Grammar(error.to_string()))?;
            self.shared.metrics.note_masks(&masked);
            sequence.form = Some(Form::Ready(masked));
        }
        Ok(())
    }

    /// The tokens that come next whatever the model says; `row` are the logits of the first. Where log-probabilities are
    /// asked for, it is one at a time, because each needs its own logits.
    pub(super) fn forced(&mut self, id: SequenceId, row: usize, now: Instant) -> Result<Vec<Accepted>, EngineError> {
        let sequence = self.sequences.get_mut(&id).expect("only living sequences choose");
        let Some(Form::Ready(masked)) = &mut sequence.form else { return Ok(Vec::new()) };
        let num = if sequence.sampler.wants_logprobs() { masked.forced.len().min(1) } else { masked.forced.len() };
        let tokens: Vec<u32> = masked.forced.drain(..num).collect();
        let is_complete = masked.forced.is_empty() && masked.grammar.is_finished();
        let mut news = Vec::with_capacity(num);
        for (place, &token) in tokens.iter().enumerate() {
            let sampled = sequence.sampler.forced(token, self.logits.row(row));
            let position = sequence.tokens.len();
            let sampled = sampled
                .map_err(|error: InvalidLogits| EngineError::InvalidLogits { position, reason: error.to_string() })?;
            let accepted = sequence.accept(sampled, is_complete && place + 1 == num);
            let is_finished = accepted.is_finished;
            if let Some(request) = self.requests.get_mut(&sequence.request) {
                request.note_token(&mut sequence.clock, &self.shared.metrics, now);
                request.note_work(&mut self.token_begun, &accepted);
            }
            news.push(accepted);
            if is_finished {
                break;
            }
        }
        Ok(news)
    }

    /// Makes the masks of a sequence memory again, after its tokens were chosen with them.
    pub(super) fn put_masks_back(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.form = sequence.form.take().map(|form| match form {
                Form::Ready(Masked { grammar, masks, .. }) => Form::Idle(grammar, masks),
                other => other,
            });
        }
    }
}
