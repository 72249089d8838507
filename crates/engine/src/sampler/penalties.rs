//! Penalties on tokens that the text holds already.
//!
//! - repetition (Keskar et al., "CTRL", 2019; vLLM's reading): a token of the prompt or of the generated text has its logit
//!   divided by the penalty if it is positive, and multiplied by it if not;
//! - frequency and presence (OpenAI): `logit -= count * frequency + (count > 0) * presence`, over generated tokens alone.
//!
//! The counts are kept up to date token by token, so a step costs the number of distinct tokens and not the vocabulary.

use crate::SamplingParams;
use std::collections::HashMap;

/// The penalties of one sequence, and the counts they need.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    presence: f32,
    frequency: f32,
    repetition: f32,
    /// How often each token was generated; 0 for those that only the prompt has. Empty while nothing is penalised.
    counts: HashMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Penalties {
        let SamplingParams { presence_penalty, frequency_penalty, repetition_penalty, .. } = *params;
        let mut counts = HashMap::new();
        if repetition_penalty != 1.0 {
            counts.extend(prompt.iter().map(|&token| (token, 0)));
        }
        Penalties { presence: presence_penalty, frequency: frequency_penalty, repetition: repetition_penalty, counts }
    }

    pub(super) fn is_off(&self) -> bool {
        self.presence == 0.0 && self.frequency == 0.0 && self.repetition == 1.0
    }

    /// Counts a generated token.
    pub(super) fn accept(&mut self, token: u32) {
        if !self.is_off() {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    pub(super) fn apply(&self, row: &mut [f32]) {
        for (&token, &count) in &self.counts {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            if count > 0 {
                *logit -= count as f32 * self.frequency + self.presence;
            }
        }
    }
}
