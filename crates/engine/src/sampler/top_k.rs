//! top_k: keep the k most probable tokens, the lower ids among equals.

use super::candidates::{Candidate, Candidates};

impl Candidates {
    /// Lists, in id order, the `k` heaviest of the tokens that weigh at least `floor`; `k` is not 0.
    pub(super) fn list_top_k(&mut self, k: usize, floor: f32) {
        self.items.clear();
        let mut floor = floor.max(f32::MIN_POSITIVE);
        for (row, weights) in self.weights.chunks(16).enumerate() {
            // Soon hardly a row holds a token that is still of interest; this test of sixteen is one of SIMD.
            if weights.iter().fold(0.0f32, |max, &weight| if weight > max { weight } else { max }) < floor {
                continue;
            }
            for (lane, &weight) in weights.iter().enumerate() {
                if weight >= floor {
                    self.items.push(Candidate { id: (row * 16 + lane) as u32, weight });
                }
            }
            if self.items.len() >= 2 * k + 64 {
                // Tokens still to come have higher ids, so one that only equals the k-th loses to all that are kept.
                floor = truncate(&mut self.items, k).next_up();
            }
        }
        if self.items.len() > k {
            truncate(&mut self.items, k);
        }
        // Selection leaves an order that depends on its pivots; the draw must not.
        self.items.sort_unstable_by_key(|candidate| candidate.id);
    }
}

/// Keeps the first `k` by rank and returns the weight of the last of them.
fn truncate(items: &mut Vec<Candidate>, k: usize) -> f32 {
    let (_, last, _) = items.select_nth_unstable_by(k - 1, Candidate::rank);
    let weight = last.weight;
    items.truncate(k);
    weight
}
