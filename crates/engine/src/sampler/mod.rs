//! From a row of logits to a token.
//!
//! Filters run in this order, each over what the one before left, with probabilities renormalised in between:
//! temperature, min_p, top_k, top_p. Temperature 0 takes the largest logit, the lowest id among equals, and draws nothing.
//! Otherwise every token costs exactly one draw from the sequence's own generator, so a sequence's text depends on its
//! logits and its seed alone, never on who shares the batch.

mod candidates;
mod exp;
mod top_k;
mod top_p;

use crate::SamplingParams;
use candidates::Candidates;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::hash::{BuildHasher, RandomState};

/// Logits that no token can be chosen from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLogits {
    /// A logit is NaN.
    #[error("the logit of token {token} is not a number")]
    Nan {
        /// The first such token.
        token: usize,
    },
    /// The largest logit is infinite: positive, or negative when every token is ruled out.
    #[error("the largest logit, of token {token}, is {value}")]
    Infinite {
        /// The token.
        token: usize,
        /// `inf` or `-inf`.
        value: String,
    },
}

/// Working memory of a sampler, shared by all sequences of an engine thread.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Candidates,
}

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    rng: Xoshiro256PlusPlus,
}

impl Sampler {
    /// A sampler for each of the `n` choices of a request. All draw from one seeded sequence, 2^128 draws apart: choice 0
    /// is what a request with n = 1 gets, and no two choices ever share a draw.
    pub fn for_choices(params: &SamplingParams) -> Vec<Sampler> {
        // Without a seed, the keys that the standard library draws for its hash maps serve as one; nothing here is secret.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0u64));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut samplers = Vec::with_capacity(params.n);
        for _ in 0..params.n {
            samplers.push(Sampler {
                temperature: params.temperature,
                top_k: params.top_k as usize,
                top_p: params.top_p,
                min_p: params.min_p,
                rng: rng.clone(),
            });
            rng.jump();
        }
        samplers
    }

    /// Chooses a token from one row of logits. A logit of negative infinity rules its token out.
    pub fn sample(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<u32, InvalidLogits> {
        let best = largest(logits)?;
        if self.temperature == 0.0 {
            return Ok(best as u32);
        }
        let candidates = &mut scratch.candidates;
        candidates.weigh(logits, logits[best], self.temperature);
        let unit = unit_interval(self.rng.next_u64());
        if self.list(candidates) { Ok(candidates.draw_from_list(unit)) } else { Ok(candidates.draw_from_all(unit)) }
    }

    /// Lists the tokens that the filters leave. False when there is no filter, and no list.
    fn list(&self, candidates: &mut Candidates) -> bool {
        let (has_min_p, has_top_k, has_top_p) = (self.min_p > 0.0, self.top_k > 0, self.top_p < 1.0);
        // The most probable token weighs 1, so min_p is itself the bound on weights.
        if has_top_k {
            candidates.list_top_k(self.top_k, self.min_p);
        } else if has_min_p {
            candidates.list(self.min_p);
        } else if has_top_p {
            let total = candidates.total();
            candidates.list(top_p::floor(self.top_p, total, candidates.weights.len()));
            top_p::keep(&mut candidates.items, f64::from(self.top_p) * total);
            return true;
        } else {
            return false;
        }
        if has_top_p {
            let target = f64::from(self.top_p) * candidates::mass(&candidates.items);
            top_p::keep(&mut candidates.items, target);
        }
        true
    }
}

/// A float64 in [0, 1) from the upper 53 bits.
fn unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
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
