//! Penalties on tokens that the text holds already.
//!
//! - repetition (Keskar et al., "CTRL", 2019; vLLM's reading): a token of the prompt or of the generated text has its logit
//!   divided by the penalty if it is positive, and multiplied by it if not;
//! - frequency and presence (OpenAI): `logit -= count * frequency + (count > 0) * presence`, over generated tokens alone.
//!
//! `penalty_last_n` (llama.cpp's `repeat_last_n`) has them look at the last tokens of prompt and generated text alone.
//!
//! The counts are kept up to date token by token, so a step costs the number of distinct tokens and not the vocabulary.

use crate::SamplingParams;
use std::collections::{HashMap, VecDeque};

/// The penalties of one sequence, and the counts they need.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    presence: f32,
    frequency: f32,
    repetition: f32,
    /// Tokens that are looked at. Empty while nothing is penalised.
    counts: HashMap<u32, Count>,
    window: Option<Window>,
}

/// How often a token is looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    in_prompt: u32,
    generated: u32,
}

/// The last tokens of the text, where not all are looked at.
#[derive(Debug, Clone)]
struct Window {
    len: usize,
    tokens: VecDeque<u32>,
    /// Tokens at its front that are the prompt's.
    num_prompt: usize,
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Penalties {
        let &SamplingParams {
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            penalty_last_n,
            ..
        } = params;
        let mut penalties = Penalties { presence, frequency, repetition, counts: HashMap::new(), window: None };
        if penalty_last_n == Some(0) {
            (penalties.presence, penalties.frequency, penalties.repetition) = (0.0, 0.0, 1.0);
        }
        if penalties.is_off() {
            return penalties;
        }
        let first = penalty_last_n.map_or(0, |len| prompt.len().saturating_sub(len));
        let seen = &prompt[first..];
        if penalties.repetition != 1.0 {
            seen.iter().for_each(|&token| penalties.counts.entry(token).or_default().in_prompt += 1);
        }
        penalties.window =
            penalty_last_n.map(|len| Window { len, tokens: seen.iter().copied().collect(), num_prompt: seen.len() });
        penalties
    }

    pub(super) fn is_off(&self) -> bool {
        self.presence == 0.0 && self.frequency == 0.0 && self.repetition == 1.0
    }

    /// Counts a generated token.
    pub(super) fn accept(&mut self, token: u32) {
        if self.is_off() {
            return;
        }
        self.counts.entry(token).or_default().generated += 1;
        let Some(window) = &mut self.window else { return };
        window.tokens.push_back(token);
        if window.tokens.len() > window.len
            && let Some(oldest) = window.tokens.pop_front()
        {
            let is_prompt = window.num_prompt > 0;
            window.num_prompt -= usize::from(is_prompt);
            // Tokens of the prompt are counted for the repetition penalty alone.
            if let Some(count) = self.counts.get_mut(&oldest) {
                let counted = if is_prompt { &mut count.in_prompt } else { &mut count.generated };
                *counted = counted.saturating_sub(1);
                if (count.in_prompt, count.generated) == (0, 0) {
                    self.counts.remove(&oldest);
                }
            }
        }
    }

    pub(super) fn apply(&self, row: &mut [f32]) {
        for (&token, count) in &self.counts {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            if count.generated > 0 {
                *logit -= count.generated as f32 * self.frequency + self.presence;
            }
        }
    }
}
