//! From a row of logits to a token.
//!
//! What applies, in this order:
//! 1. `processors`, on the logits: `logit_bias`, penalties, DRY, the allowed tokens (a client's and a grammar's), bans;
//! 2. temperature 0 takes the largest logit, the lowest id among equals, and that is the token; any other divides the logits;
//! 3. filters, each over what the one before left, with probabilities renormalised in between: min_p, top_k, typical_p,
//!    top_p;
//! 4. one draw among what is left.
//!
//! A request may ask for another order of 2 and 3, and for more stages: top_n_sigma, dynamic temperature, XTC, or mirostat in place of
//! all filters. Then a `chain` does what is asked for; where nothing of it is, what is above has its own code, because that is faster.
//!
//! [`TokenLogprobs`] are of the logits before all of this, or if that is asked for of what the token is drawn from.
//!
//! The draw is a function of the seed, the choice and the number of tokens accepted before (see `random`), and choosing
//! changes nothing in the sampler: only [`Sampler::accept`] does. So a sequence's text depends on its logits and its seed
//! alone, never on who shares the batch; and rows of guessed tokens are verified by choosing from each row in turn and
//! accepting what was chosen, until it differs from the guess.

mod bad_words;
mod bit_mask;
mod candidates;
mod chain;
mod dry;
mod dynamic_temperature;
mod exp;
mod logprobs;
mod mirostat;
mod penalties;
mod processors;
mod random;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical_p;
mod xtc;

pub use logprobs::TokenLogprobs;

use crate::{SamplingParams, Stage};
use candidates::{Candidate, Candidates, Kept};
use chain::Chain;
use mirostat::Mirostat;
use processors::Processors;
use random::Stream;
use std::hash::{BuildHasher, RandomState};
use taper_models::{Draw, Largest};

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
    /// How surprising it was in what it was drawn from, in bits; where mirostat wants to know, and there was a choice.
    pub surprise: Option<f32>,
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
    /// What is done in place of these.
    chain: Option<Chain>,
    mirostat: Option<Mirostat>,
    num_top_logprobs: Option<usize>,
    logprobs_of_draw: bool,
    stream: Stream,
    coins: Stream,
}

impl Sampler {
    /// A sampler for each of the `n` choices that continue `prompt`; `end_tokens` are the model's end-of-generation tokens.
    /// Choice 0 is what a request with n = 1 gets.
    pub fn for_choices(params: &SamplingParams, prompt: &[u32], end_tokens: &[u32]) -> Vec<Sampler> {
        // Without a seed, the keys that the standard library draws for its hash maps serve as one; nothing here is secret.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0u64));
        // A stage that the order does not name is off.
        let has = |stage: Stage| params.order.contains(&stage);
        let first = Sampler {
            processors: Processors::new(params, prompt, end_tokens),
            temperature: if has(Stage::Temperature) { params.temperature } else { 1.0 },
            top_k: if has(Stage::TopK) { params.top_k as usize } else { 0 },
            top_p: if has(Stage::TopP) { params.top_p } else { 1.0 },
            min_p: if has(Stage::MinP) { params.min_p } else { 0.0 },
            typical_p: if has(Stage::TypicalP) { params.typical_p } else { 1.0 },
            chain: Chain::new(params),
            mirostat: params.mirostat.map(Mirostat::new),
            num_top_logprobs: params.logprobs.map(|num_top| num_top as usize),
            logprobs_of_draw: params.logprobs_of_draw,
            stream: Stream::new(seed, 0),
            coins: Stream::coins(seed, 0),
        };
        let choice =
            |choice| Sampler { stream: Stream::new(seed, choice), coins: Stream::coins(seed, choice), ..first.clone() };
        (0..params.n).map(choice).collect()
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
        let Scratch { candidates, typical, row, banned } = scratch;
        let (row, best) = if mask.is_none() && self.processors.are_off() {
            (logits, best)
        } else {
            row.clear();
            row.extend_from_slice(logits);
            let best = self.processors.apply(row, mask, banned)?;
            (&**row, best)
        };
        let (token, kept, is_choice) = match &self.chain {
            None => {
                let (token, kept) = self.choose(row, best, candidates, typical);
                (token, kept, false)
            }
            Some(chain) => {
                let index = self.processors.num_generated();
                let coin = self.coins.unit(index);
                let is_choice = chain.run(row, row[best], coin, self.mirostat.as_ref(), candidates, typical);
                (candidates.draw_from_list(self.stream.unit(index)), Kept::Listed, is_choice)
            }
        };
        let logprobs = match self.num_top_logprobs {
            Some(num_top) if self.logprobs_of_draw => Some(candidates.logprobs(kept, token, num_top)),
            Some(num_top) => Some(TokenLogprobs::new(logits, token, num_top)?),
            None => None,
        };
        let is_learnt = self.mirostat.is_some() && is_choice;
        let surprise = is_learnt.then(|| -candidates.ln_probability(kept, token) * std::f32::consts::LOG2_E);
        Ok(Sampled { token, logprobs, surprise })
    }

    /// How the token `place` places further is drawn from its row of logits by whoever has that, where it takes nothing else: no
    /// processor, mask, typical_p or chain. A draw follows the same distribution as [`Sampler::sample`] with the same random number, and is
    /// nearly always the same token: weights are rounded otherwise. So whether one is made depends on the request and the place alone,
    /// never on what else is asked of the row.
    pub fn draw(&self, place: usize) -> Option<Draw> {
        let is_told = self.logprobs_of_draw && self.num_top_logprobs.is_some();
        let plain = self.typical_p >= 1.0 && self.chain.is_none() && !is_told && self.processors.are_off_at(place);
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
        let logprobs = match self.num_top_logprobs {
            Some(num_top) if self.logprobs_of_draw => Some(TokenLogprobs::certain(token, num_top)),
            Some(num_top) => Some(TokenLogprobs::new(logits, token, num_top)?),
            None => None,
        };
        Ok(Sampled { token, logprobs, surprise: None })
    }

    /// Notes a generated token, whether it was sampled or forced, with its [`Sampled::surprise`].
    pub fn accept(&mut self, token: u32, surprise: Option<f32>) {
        self.processors.accept(token);
        if let (Some(mirostat), Some(surprise)) = (&mut self.mirostat, surprise) {
            mirostat.learn(surprise);
        }
    }

    /// Draws a token from processed logits, the largest of which is that of `best`; says from what.
    fn choose(
        &self,
        logits: &[f32],
        best: usize,
        candidates: &mut Candidates,
        typical: &mut Vec<(f32, Candidate)>,
    ) -> (u32, Kept) {
        if self.temperature == 0.0 {
            return (best as u32, Kept::One);
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
            return (candidates.draw_from_list(unit), Kept::Listed);
        } else {
            return (candidates.draw_from_all(unit), Kept::All);
        }
        if has_typical_p {
            let ln_weight = |candidate: &Candidate| (logits[candidate.id as usize] - max) / self.temperature;
            typical_p::keep(&mut candidates.items, self.typical_p, ln_weight, 0, typical);
        }
        if has_top_p {
            let target = f64::from(self.top_p) * candidates::mass(&candidates.items);
            top_p::keep(&mut candidates.items, target);
        }
        (candidates.draw_from_list(unit), Kept::Listed)
    }
}

/// Index of the largest logit, the first among equals.
fn largest(logits: &[f32]) -> Result<usize, InvalidLogits> {
    let Largest { index: token, value, has_nan } = taper_models::largest(logits);
    if has_nan {
        let token = logits.iter().position(|logit| logit.is_nan()).unwrap_or_default();
        return Err(InvalidLogits::Nan { token });
    }
    if value.is_infinite() {
        return Err(InvalidLogits::Infinite { token, value: value.to_string() });
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
