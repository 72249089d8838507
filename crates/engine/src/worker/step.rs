//! One step: run the model, sample, and contain what goes wrong to the requests it went wrong for.

use super::Worker;
use crate::scheduler::{Step, StepEntry};
use crate::{EngineError, InvalidLogits, RunnerError};
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;
use taper_models::{LogitRows, SequenceSlice};

/// Failed steps in a row after which the engine calls itself unhealthy.
const MAX_FAILURES_IN_A_ROW: u32 = 3;

impl Worker {
    /// Computes `step`, chooses tokens, and fails the step's requests if that cannot be done.
    pub(super) fn run_step(&mut self, step: &Step) {
        let begin = Instant::now();
        for entry in &step.entries {
            let key = self.sequences[&entry.sequence].request;
            if let Some(request) = self.requests.get_mut(&key) {
                request.note_step(begin);
            }
        }
        let outcome = self.compute(step);
        let mut status = self.shared.status();
        status.steps += 1;
        status.failed_steps += u64::from(outcome.is_err());
        status.recomputed_rows = self.runner.recomputed_rows();
        drop(status);
        match outcome {
            Ok(wants_logits) => {
                self.failures_in_a_row = 0;
                self.shared.is_healthy.store(true, Ordering::Release);
                self.sample(step, &wants_logits);
            }
            Err(error) => self.fail_step(step, &error),
        }
    }

    /// Runs the model; the logits end in `self.logits`. Returns which entries have a row there.
    fn compute(&mut self, step: &Step) -> Result<Vec<bool>, EngineError> {
        let wants_logits: Vec<bool> = step.entries.iter().map(|entry| self.scheduler.wants_logits(entry)).collect();
        let slice = |(entry, &wants_logits): (&StepEntry, &bool)| SequenceSlice {
            tokens: &self.sequences[&entry.sequence].tokens[entry.tokens.clone()],
            start: entry.tokens.start,
            block_table: self.scheduler.block_table(entry.sequence),
            logits: if wants_logits { LogitRows::Last } else { LogitRows::None },
        };
        let slices: Vec<SequenceSlice<'_>> = step.entries.iter().zip(&wants_logits).map(slice).collect();
        let (runner, logits) = (&mut self.runner, &mut self.logits);
        logits.clear();
        // The sequences of a step that panicked are all thrown away, and with them whatever the runner left half done.
        let outcome = catch_unwind(AssertUnwindSafe(|| runner.run(&slices, logits)));
        let due = wants_logits.iter().filter(|&&wants| wants).count();
        match outcome {
            Ok(Ok(())) if logits.num_rows() == due => Ok(wants_logits),
            Ok(Ok(())) => {
                Err(EngineError::Runner(format!("{} rows of logits where {due} were due", logits.num_rows())))
            }
            Ok(Err(RunnerError(message))) => Err(EngineError::Runner(message)),
            Err(panic) => Err(EngineError::Panicked(panic_message(panic.as_ref()))),
        }
    }

    fn fail_step(&mut self, step: &Step, error: &EngineError) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        tracing::error!(%error, in_a_row = self.failures_in_a_row, "step failed");
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW {
            self.shared.is_healthy.store(false, Ordering::Release);
        }
        let keys: BTreeSet<u64> = step.entries.iter().map(|entry| self.sequences[&entry.sequence].request).collect();
        for key in keys {
            self.fail(key, error);
        }
    }

    /// Chooses a token for every sequence that was computed to its end.
    fn sample(&mut self, step: &Step, wants_logits: &[bool]) {
        let mut rows = 0..self.logits.num_rows();
        for (entry, &wants_logits) in step.entries.iter().zip(wants_logits) {
            let row = if wants_logits { rows.next() } else { None };
            // An earlier entry of this step may have failed the request, and this sequence with it.
            if !self.sequences.contains_key(&entry.sequence) {
                continue;
            }
            self.scheduler.computed(entry);
            if let Some(row) = row {
                self.sample_one(entry, row);
            }
        }
    }

    fn sample_one(&mut self, entry: &StepEntry, row: usize) {
        let id = entry.sequence;
        let sequence = self.sequences.get_mut(&id).expect("the caller looked it up");
        let key = sequence.request;
        let (logits, scratch) = (self.logits.row(row), &mut self.scratch);
        // A panic in here, say of the tokenizer on a strange vocabulary, costs one request and not the engine.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let sampled = sequence.sampler.sample(logits, None, scratch)?;
            Ok::<_, InvalidLogits>(sequence.accept(sampled))
        }));
        let now = Instant::now();
        match outcome {
            Ok(Ok(accepted)) => {
                if let Some(request) = self.requests.get_mut(&key) {
                    request.note_token(now);
                }
                self.scheduler.push_token(id);
                self.deliver(id, accepted, now);
            }
            Ok(Err(error)) => {
                let (position, reason) = (entry.tokens.end, error.to_string());
                self.fail(key, &EngineError::InvalidLogits { position, reason });
            }
            Err(panic) => self.fail(key, &EngineError::Panicked(panic_message(panic.as_ref()))),
        }
    }
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
