//! From a row of logits to a token.
//!
//! What applies, in this order:
//! 1. `processors`, on the logits: `logit_bias`, penalties, the allowed tokens (a client's and a grammar's), bans;
//! 2. temperature 0 takes the largest logit, the lowest id among equals, and that is the token; any other divides the logits;
//! 3. filters, each over what the one before left, with probabilities renormalised in between: min_p, top_k, typical_p,
//!    top_p;
//! 4. one draw among what is left.
//!
//! [`TokenLogprobs`] are of the logits before all of this.
//!
//! The draw is a function of the seed, the choice and the number of tokens accepted before (see `random`), and choosing
//! changes nothing in the sampler: only [`Sampler::accept`] does. So a sequence's text depends on its logits and its seed
//! alone, never on who shares the batch; and rows of guessed tokens are verified by choosing from each row in turn and
//! accepting what was chosen, until it differs from the guess.

mod bad_words;
mod bit_mask;
mod candidates;
mod exp;
mod logprobs;
mod penalties;
mod processors;
mod random;
mod top_k;
mod top_p;
mod typical_p;

pub use logprobs::TokenLogprobs;

use crate::SamplingParams;
use candidates::{Candidate, Candidates};
use processors::Processors;
use random::Stream;
use std::hash::{BuildHasher, RandomState};
use taper_models::Draw;

/// Logits that no token can be chosen from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLogits {
    /// A logit is NaN.
    #[error("the logit of token {token} is not a number; the weights may be damaged")]
    Nan {
        /// The first such token.
        token: usize,
    },
    /// The largest logit is infinite: positive, or negative when every token is ruled out.
    #[error("the largest logit, of token {token}, is {value}; the weights may be damaged")]
    Infinite {
        /// The token.
        token: usize,
        /// `inf` or `-inf`.
        value: String,
    },
    /// The sets of allowed tokens have none in common that the model does not rule out.
    #[error("allowed_token_ids and the grammar leave no token to choose")]
    NoneAllowed,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// What the model thought of it, if that is asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Working memory of a sampler, shared by all sequences of an engine thread.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Candidates,
    /// Candidates with their distance from the entropy.
    typical: Vec<(f32, Candidate)>,
    /// A row of logits as the processors leave it.
    row: Vec<f32>,
    /// Logits of tokens that bans have taken out of it.
    banned: Vec<(u32, f32)>,
}

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    processors: Processors,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    num_top_logprobs: Option<usize>,
    stream: Stream,
}

impl Sampler {
    /// A sampler for each of the `n` choices that continue `prompt`; `end_tokens` are the model's end-of-generation tokens.
    /// Choice 0 is what a request with n = 1 gets.
    pub fn for_choices(params: &SamplingParams, prompt: &[u32], end_tokens: &[u32]) -> Vec<Sampler> {
        // Without a seed, the keys that the standard library draws for its hash maps serve as one; nothing here is secret.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0u64));
        let first = Sampler {
            processors: Processors::new(params, prompt, end_tokens),
            temperature: params.temperature,
            top_k: params.top_k as usize,
            top_p: params.top_p,
            min_p: params.min_p,
            typical_p: params.typical_p,
            num_top_logprobs: params.logprobs.map(|num_top| num_top as usize),
            stream: Stream::new(seed, 0),
        };
        (0..params.n).map(|choice| Sampler { stream: Stream::new(seed, choice), ..first.clone() }).collect()
    }

    /// Chooses a token from one row of logits. A logit of negative infinity rules its token out, and so does a clear bit of
    /// `mask`, a grammar's set of allowed tokens (token `t` is bit `t % 32`, low bit first, of word `t / 32`).
    ///
    /// The caller says with [`Sampler::accept`] which token the sequence goes on with.
    pub fn sample(
        &self,
        logits: &[f32],
        mask: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Result<Sampled, InvalidLogits> {
        let best = largest(logits)?;
        let token = if mask.is_none() && self.processors.are_off() {
            self.choose(logits, best, &mut scratch.candidates, &mut scratch.typical)
        } else {
            let Scratch { candidates, typical, row, banned } = scratch;
            row.clear();
            row.extend_from_slice(logits);
            let best = self.processors.apply(row, mask, banned)?;
            self.choose(row, best, candidates, typical)
        };
        self.forced(token, logits)
    }

    /// How the token `place` places further is drawn from its row of logits by whoever has that, where it takes nothing else: no
    /// processor, mask or typical_p. A draw follows the same distribution as [`Sampler::sample`] with the same random number, and is
    /// nearly always the same token: weights are rounded otherwise. So whether one is made depends on the request and the place alone,
    /// never on what else is asked of the row.
    pub fn draw(&self, place: usize) -> Option<Draw> {
        let plain = self.typical_p >= 1.0 && self.processors.are_off_at(place);
        plain.then(|| Draw {
            temperature: self.temperature,
            min_p: self.min_p,
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            unit: self.stream.share(self.processors.num_generated() + place),
        })
    }

    /// Whether the client wants log-probabilities of every token.
    pub fn wants_logprobs(&self) -> bool {
        self.num_top_logprobs.is_some()
    }

    /// A token that needs no choosing, with what the model thought of it, if that is asked for.
    pub fn forced(&self, token: u32, logits: &[f32]) -> Result<Sampled, InvalidLogits> {
        let logprobs = self.num_top_logprobs.map(|num_top| TokenLogprobs::new(logits, token, num_top)).transpose()?;
        Ok(Sampled { token, logprobs })
    }

    /// Notes a generated token, whether it was sampled or forced.
    pub fn accept(&mut self, token: u32) {
        self.processors.accept(token);
    }

    /// Draws a token from processed logits, the largest of which is that of `best`.
    fn choose(
        &self,
        logits: &[f32],
        best: usize,
        candidates: &mut Candidates,
        typical: &mut Vec<(f32, Candidate)>,
    ) -> u32 {
        if self.temperature == 0.0 {
            return best as u32;
        }
        let max = logits[best];
        candidates.weigh(logits, max, self.temperature);
        let unit = self.stream.unit(self.processors.num_generated());
        let (has_min_p, has_top_k) = (self.min_p > 0.0, self.top_k > 0);
        let (has_typical_p, has_top_p) = (self.typical_p < 1.0, self.top_p < 1.0);
        // The most probable token weighs 1, so min_p is itself the bound on weights.
        if has_top_k {
            candidates.list_top_k(self.top_k, self.min_p);
        } else if has_min_p || has_typical_p {
            candidates.list(self.min_p);
        } else if has_top_p {
            let total = candidates.total();
            candidates.list(top_p::floor(self.top_p, total, candidates.weights.len()));
            top_p::keep(&mut candidates.items, f64::from(self.top_p) * total);
            return candidates.draw_from_list(unit);
        } else {
            return candidates.draw_from_all(unit);
        }
        if has_typical_p {
            let ln_weight = |candidate: &Candidate| (logits[candidate.id as usize] - max) / self.temperature;
            typical_p::keep(&mut candidates.items, self.typical_p, ln_weight, typical);
        }
        if has_top_p {
            let target = f64::from(self.top_p) * candidates::mass(&candidates.items);
            top_p::keep(&mut candidates.items, target);
        }
        candidates.draw_from_list(unit)
    }
}

/// Index of the largest logit, the first among equals.
fn largest(logits: &[f32]) -> Result<usize, InvalidLogits> {
    // Lanes, because the compiler makes SIMD of them and not of one running maximum.
    const LANES: usize = 16;
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut nans = [false; LANES];
    let chunks = logits.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            maxima[lane] = if chunk[lane] > maxima[lane] { chunk[lane] } else { maxima[lane] };
            nans[lane] |= chunk[lane].is_nan();
        }
    }
    let max = maxima.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max);
    if nans.contains(&true) || tail.iter().any(|logit| logit.is_nan()) {
        let token = logits.iter().position(|logit| logit.is_nan()).unwrap_or_default();
        return Err(InvalidLogits::Nan { token });
    }
    let token = logits.iter().position(|&logit| logit == max).unwrap_or_default();
    if max.is_infinite() {
        return Err(InvalidLogits::Infinite { token, value: max.to_string() });
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
