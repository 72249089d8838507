//! The tokens that can still be chosen, and the draw among them.
//!
//! A token's weight is `exp((logit - max) / temperature)`, so the most probable one weighs 1. Weights of the whole
//! vocabulary lie densely in id order; filters work on the short list of [`Candidate`]s that pass a first bound.

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
