//! Guesses of the draft model, where its time is expected to pay.

use super::Worker;
use super::step::panic_message;
use crate::SequenceId;
use crate::speculation::{Drafter, MAX_GUESSES, Wish, plan_draft};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Tokens after which a sequence that is not drafted gets one guess of the draft model, to see whether that has become better.
const PROBE_EVERY: usize = 32;
/// Most tokens that the draft model computes for the sake of a probe alone.
const MOST_FOR_PROBE: usize = 256;
/// Share of the time of the tokens to come that following a prompt may take.
const CATCH_UP_SHARE: f64 = 0.2;
/// Tokens to come that are counted on: an answer may end any time.
const COUNTED_ON: usize = 256;

impl Worker {
    /// Has the draft model guess for those of the `decoding` sequences whose guesses from their own text, if any, are less
    /// sure.
    pub(super) fn draft(&mut self, num_rows: usize, decoding: &[SequenceId]) {
        let Some(mut drafter) = self.drafter.take() else { return };
        if self.draft_with(&mut drafter, num_rows, decoding) {
            self.drafter = Some(drafter);
        }
    }

    /// False when the draft model has failed; it is not asked again.
    fn draft_with(&mut self, drafter: &mut Drafter, num_rows: usize, decoding: &[SequenceId]) -> bool {
        let mut candidates: Vec<(SequenceId, f64)> = Vec::with_capacity(decoding.len());
        for &id in decoding {
            let sequence = &self.sequences[&id];
            let (sure, room) = (sequence.acceptance.drafted(), sequence.room());
            let found = sequence.acceptance.chances(&sequence.guess).first().copied().unwrap_or(0.0);
            if room > 1 && found < sure {
                candidates.push((id, sure));
            }
        }
        let max_len = MAX_GUESSES.min(self.scheduler.max_guesses() / candidates.len().max(1));
        if max_len == 0 {
            return true;
        }
        let sure: Vec<f64> = candidates.iter().map(|&(_, sure)| sure).collect();
        let worth = plan_draft(num_rows, max_len, &sure, [&self.costs, drafter.costs()]);
        let wants = |id: SequenceId| {
            let sequence = &self.sequences[&id];
            let num_missing = drafter.num_missing(id, &sequence.tokens);
            match worth {
                None => sequence.undrafted >= PROBE_EVERY && num_missing <= MOST_FOR_PROBE,
                Some(_) => {
                    let rows = num_missing.min(MOST_FOR_PROBE);
                    let catch_up_s = drafter.costs().seconds(rows) * num_missing as f64 / rows as f64;
                    let to_come = sequence.room().min(COUNTED_ON) as f64;
                    num_missing <= PROBE_EVERY || catch_up_s < CATCH_UP_SHARE * to_come * self.costs.seconds(num_rows)
                }
            }
        };
        let wishes: Vec<Wish<'_>> = candidates
            .iter()
            .filter(|&&(id, _)| wants(id))
            .map(|&(id, _)| {
                let sequence = &self.sequences[&id];
                let max_len = if worth.is_some() { (sequence.room() - 1).min(max_len) } else { 1 };
                let (sampler, acceptance) = (sequence.sampler.clone(), &sequence.acceptance);
                Wish { id, tokens: &sequence.tokens, sampler, acceptance, max_len }
            })
            .collect();
        if wishes.is_empty() {
            return true;
        }
        // Alone, nobody waits for the next token but the one who gains by it.
        let max_catch_up = if num_rows == 1 { usize::MAX } else { self.pace.prompt_tokens(decoding.len()) };
        let (scheduler, scratch) = (&self.scheduler, &mut self.scratch);
        let outcome = catch_unwind(AssertUnwindSafe(|| drafter.guess(wishes, max_catch_up, worth, scheduler, scratch)));
        let guesses = match outcome {
            Ok(Ok(guesses)) => guesses,
            Ok(Err(error)) => {
                tracing::error!(%error, "the draft model failed; the engine goes on without it");
                return false;
            }
            Err(panic) => {
                let error = panic_message(panic.as_ref());
                tracing::error!(error, "the draft model failed; the engine goes on without it");
                return false;
            }
        };
        let mut num_drafted = 0;
        for (id, guess) in guesses {
            let sequence = self.sequences.get_mut(&id).expect("it was read above");
            num_drafted += guess.tokens.len() as u64;
            if !guess.tokens.is_empty() {
                sequence.undrafted = 0;
                sequence.guess = guess;
            }
        }
        self.shared.status().drafted_tokens += num_drafted;
        true
    }
}
