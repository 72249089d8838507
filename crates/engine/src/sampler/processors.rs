//! What changes a row of logits before the temperature: `logit_bias`, penalties, DRY, the sets of allowed tokens
//! (`allowed_token_ids`, a grammar's mask), then bans (`bad_words`, and the ends of the text before `min_tokens`). That is
//! vLLM's order where order matters: a bias is part of the logit that the repetition penalty divides.
//!
//! Bans give way where they would leave no token at all: a grammar that can only end ends, whatever `min_tokens` says.

use super::bad_words::BadWords;
use super::dry::Dry;
use super::penalties::Penalties;
use super::{InvalidLogits, bit_mask, largest};
use crate::SamplingParams;
use std::sync::Arc;

/// The processors of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Processors {
    penalties: Penalties,
    dry: Option<Dry>,
    logit_bias: Arc<[(u32, f32)]>,
    allowed: Option<Arc<[u32]>>,
    bad_words: BadWords,
    min_tokens: usize,
    /// Tokens that would end the text.
    ends: Arc<[u32]>,
    num_generated: usize,
}

impl Processors {
    /// `end_tokens` are the model's end-of-generation tokens.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32], end_tokens: &[u32]) -> Processors {
        let end_tokens = if params.ignore_eos { &[] } else { end_tokens };
        Processors {
            penalties: Penalties::new(params, prompt),
            dry: Dry::new(params, prompt),
            logit_bias: params.logit_bias.as_slice().into(),
            allowed: params.allowed_token_ids.as_deref().map(|tokens| bit_mask::of(tokens).into()),
            bad_words: BadWords::new(&params.bad_words),
            min_tokens: params.min_tokens,
            ends: end_tokens.iter().chain(&params.stop_token_ids).copied().collect(),
            num_generated: 0,
        }
    }

    /// Tokens accepted so far.
    pub(super) fn num_generated(&self) -> usize {
        self.num_generated
    }

    /// Notes a generated token.
    pub(super) fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
        if let Some(dry) = &mut self.dry {
            dry.accept(token);
        }
        self.bad_words.accept(token);
        self.num_generated += 1;
    }

    /// Whether the next row of logits stays as it is.
    pub(super) fn are_off(&self) -> bool {
        self.are_off_at(0)
    }

    /// Whether the row of logits so many places further stays as it is.
    pub(super) fn are_off_at(&self, place: usize) -> bool {
        self.penalties.is_off()
            && self.dry.is_none()
            && self.logit_bias.is_empty()
            && self.allowed.is_none()
            && self.bad_words.is_off()
            && self.num_generated + place >= self.min_tokens
    }

    /// Changes a row whose largest logit is finite, and returns where it is largest now. `mask` is a grammar's set of
    /// allowed tokens, `banned` is working memory.
    pub(super) fn apply(
        &self,
        row: &mut [f32],
        mask: Option<&[u32]>,
        banned: &mut Vec<(u32, f32)>,
    ) -> Result<usize, InvalidLogits> {
        for &(token, bias) in &*self.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        self.penalties.apply(row);
        if let Some(dry) = &self.dry {
            dry.apply(row);
        }
        for words in self.allowed.as_deref().into_iter().chain(mask) {
            bit_mask::keep(row, words);
        }
        banned.clear();
        let ends = if self.num_generated < self.min_tokens { &*self.ends } else { &[] };
        for token in self.bad_words.completions().chain(ends.iter().copied()) {
            if let Some(logit) = row.get_mut(token as usize) {
                banned.push((token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
        let nothing_left = |row: &[f32]| row.iter().all(|&logit| logit == f32::NEG_INFINITY);
        let best = largest(row);
        if best.is_ok() || !nothing_left(row) {
            return best;
        }
        // Backwards: a token that was banned twice was negative infinity the second time.
        for (token, logit) in banned.drain(..).rev() {
            row[token as usize] = logit;
        }
        if nothing_left(row) { Err(InvalidLogits::NoneAllowed) } else { largest(row) }
    }
}

#[cfg(test)]
mod tests;
