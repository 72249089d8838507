//! Guesses for the next step.

use super::Worker;
use crate::sequence::Form;
use crate::speculation::{Guess, MAX_GUESSES, choose_guesses};
use crate::{SequenceId, Speculation};

impl Worker {
    /// Guesses what follows the decoding sequences, and has those guesses verified that are expected to pay.
    pub(super) fn guess(&mut self) {
        if self.speculation == Speculation::Off {
            return;
        }
        // A sequence that others are about to fork from has no guesses: they share blocks up to its known tokens. One that
        // has its next mask already has none for the tokens after it, and one whose masks are late keeps the guesses that
        // they are for.
        let is_single = |id: &SequenceId| {
            let sequence = &self.sequences[id];
            self.requests.get(&sequence.request).is_some_and(|request| request.unborn.is_empty())
                && !matches!(sequence.form, Some(Form::Ready(_) | Form::Asked))
        };
        let num_rows = self.scheduler.decoding().count();
        let decoding: Vec<SequenceId> = self.scheduler.decoding().filter(is_single).collect();
        if decoding.is_empty() {
            return;
        }
        for id in &decoding {
            let sequence = self.sequences.get_mut(id).expect("the scheduler knows the same sequences");
            let len = sequence.room().saturating_sub(1).min(MAX_GUESSES);
            sequence.guess =
                sequence.lookup.as_ref().map(|lookup| lookup.guess(&sequence.tokens, len)).unwrap_or_default();
        }
        self.draft(num_rows, &decoding);
        let chances: Vec<Vec<f64>> = (decoding.iter().map(|id| &self.sequences[id]))
            .map(|sequence| sequence.acceptance.chances(&sequence.guess))
            .collect();
        let numbers = choose_guesses(num_rows, &chances, &self.costs);
        for (&id, num_guesses) in decoding.iter().zip(numbers) {
            self.scheduler.set_guesses(id, num_guesses);
        }
    }

    /// Learns from the tokens that came after an entry with `num_guesses` verified guesses.
    pub(super) fn learn(
        &mut self,
        id: SequenceId,
        guess: &Guess,
        num_guesses: usize,
        chosen: &[u32],
        num_right: usize,
    ) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.acceptance.learn(guess, chosen);
            self.experience.learn(guess, chosen);
            if let Some(request) = self.requests.get_mut(&sequence.request) {
                request.note_guesses(num_guesses, num_right);
            }
        }
        if num_guesses > 0 {
            self.shared.metrics.note_right_guesses(num_right);
            let mut status = self.shared.status();
            status.guessed_steps += 1;
            status.guessed_tokens += num_guesses as u64;
            status.right_guesses += num_right as u64;
        }
    }
}
