//! The tokens that can still be chosen, and the draw among them.
//!
//! A token's weight is `exp((logit - max) / temperature)`, so the most probable one weighs 1. Weights of the whole
//! vocabulary lie densely in id order; filters work on the short list of [`Candidate`]s that pass a first bound.

use super::TokenLogprobs;
use super::exp::exp_negative;

/// Weights are summed by blocks of this many, so that the compiler makes SIMD of it and the order of sums is fixed.
const BLOCK: usize = 64;

/// One token and its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) weight: f32,
}

impl Candidate {
    /// Heaviest first, the lower id among equals.
    pub(super) fn rank(&self, other: &Candidate) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

/// What a token was drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Nothing else could come.
    One,
    /// The whole vocabulary, by its weights.
    All,
    /// The list.
    Listed,
}

/// Weights of a vocabulary and the list of candidates.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) weights: Vec<f32>,
    pub(super) items: Vec<Candidate>,
}

impl Candidates {
    /// Sets the weights of all tokens. `max` is the largest logit.
    pub(super) fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32) {
        self.weights.clear();
        // Subtracted first: with a tiny temperature the quotient may be -inf, which weighs nothing, but never NaN.
        self.weights.extend(logits.iter().map(|&logit| exp_negative((logit - max) / temperature)));
    }

    /// Lists, in id order, the tokens that weigh at least `floor` and something.
    pub(super) fn list(&mut self, floor: f32) {
        self.items.clear();
        let floor = floor.max(f32::MIN_POSITIVE);
        for (id, &weight) in self.weights.iter().enumerate() {
            if weight >= floor {
                self.items.push(Candidate { id: id as u32, weight });
            }
        }
    }

    /// Weight of the whole vocabulary.
    pub(super) fn total(&self) -> f64 {
        self.weights.chunks(BLOCK).map(block_sum).sum()
    }

    /// The token at the share `unit` of the whole vocabulary's weight; `unit` lies in [0, 1).
    pub(super) fn draw_from_all(&self, unit: f64) -> u32 {
        let target = unit * self.total();
        let (mut sum, mut last) = (0.0, 0);
        for (number, block) in self.weights.chunks(BLOCK).enumerate() {
            let weight = block_sum(block);
            if weight > 0.0 {
                last = number;
            }
            if target < sum + weight {
                break;
            }
            sum += weight;
        }
        let begin = last * BLOCK;
        let block = &self.weights[begin..self.weights.len().min(begin + BLOCK)];
        let within = block.iter().enumerate().map(|(offset, &weight)| ((begin + offset) as u32, weight));
        draw(within, target - sum)
    }

    /// The listed candidate at the share `unit` of the list's weight, by ascending id whatever order the filters left; `unit` lies in
    /// [0, 1).
    pub(super) fn draw_from_list(&mut self, unit: f64) -> u32 {
        self.items.sort_unstable_by_key(|candidate| candidate.id);
        let target = unit * mass(&self.items);
        draw(self.items.iter().map(|candidate| (candidate.id, candidate.weight)), target)
    }

    /// The logarithm of a drawn token's probability in what it was drawn from.
    pub(super) fn ln_probability(&self, kept: Kept, token: u32) -> f32 {
        let (weight, total) = match kept {
            Kept::One => (1.0, 1.0),
            Kept::All => (self.weights[token as usize], self.total()),
            Kept::Listed => (self.listed_weight(token), mass(&self.items)),
        };
        (f64::from(weight) / total).ln() as f32
    }

    /// What a token was drawn from: its probability there, and those of the `num_top` most probable tokens.
    pub(super) fn logprobs(&self, kept: Kept, token: u32, num_top: usize) -> TokenLogprobs {
        let mut others: Vec<Candidate> = match kept {
            Kept::One => return TokenLogprobs::certain(token, num_top),
            Kept::All => (0..).zip(&self.weights).map(|(id, &weight)| Candidate { id, weight }).collect(),
            Kept::Listed => self.items.clone(),
        };
        others.retain(|candidate| candidate.weight > 0.0);
        let total = mass(&others);
        let logprob = |weight: f32| (f64::from(weight) / total).ln() as f32;
        let own = others.iter().find(|candidate| candidate.id == token).map_or(0.0, |candidate| candidate.weight);
        let is_better = |other: &&Candidate| other.rank(&Candidate { id: token, weight: own }).is_lt();
        let rank = 1 + others.iter().filter(is_better).count();
        if (1..others.len()).contains(&num_top) {
            others.select_nth_unstable_by(num_top - 1, Candidate::rank);
        }
        others.truncate(num_top);
        others.sort_unstable_by(Candidate::rank);
        let top = others.iter().map(|candidate| (candidate.id, logprob(candidate.weight))).collect();
        TokenLogprobs { token, logprob: logprob(own), rank, top }
    }

    fn listed_weight(&self, token: u32) -> f32 {
        self.items.iter().find(|candidate| candidate.id == token).map_or(0.0, |candidate| candidate.weight)
    }
}

/// Weight of a list.
pub(super) fn mass(items: &[Candidate]) -> f64 {
    items.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

fn block_sum(block: &[f32]) -> f64 {
    let mut lanes = [0.0f32; 16];
    for row in block.chunks(lanes.len()) {
        for (lane, weight) in lanes.iter_mut().zip(row) {
            *lane += weight;
        }
    }
    f64::from(lanes.iter().sum::<f32>())
}

/// The first token at which the running sum passes `target`. Rounding can put the target on the total itself: then it is the
/// last one that weighs anything.
fn draw(weights: impl Iterator<Item = (u32, f32)>, target: f64) -> u32 {
    let (mut sum, mut chosen) = (0.0, 0);
    for (id, weight) in weights.filter(|&(_, weight)| weight > 0.0) {
        chosen = id;
        sum += f64::from(weight);
        if target < sum {
            break;
        }
    }
    chosen
}
