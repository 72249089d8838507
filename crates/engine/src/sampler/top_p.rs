//! top_p: keep the smallest set of most probable tokens whose mass reaches the share p.

use super::candidates::{Candidate, Candidates};

/// Keeps the nucleus of share `p`; 1 keeps all, 0 the most probable token.
pub(super) fn keep(candidates: &mut Candidates, p: f32) {
    if p >= 1.0 {
        return;
    }
    let mass = candidates.mass();
    let target = f64::from(p) * mass;
    // Tokens lighter than (1 - p) / count hold less than 1 - p together, so the nucleus is complete without them, and only a
    // few of a large vocabulary need sorting. Half of that bound keeps clear of rounding.
    let light = 0.5 * (mass - target) / candidates.items.len() as f64;
    candidates.items.retain(|candidate| f64::from(candidate.weight) >= light);
    candidates.items.sort_unstable_by(Candidate::rank);
    let mut sum = 0.0;
    let reaches = |candidate: &Candidate| {
        sum += f64::from(candidate.weight);
        sum >= target
    };
    if let Some(last) = candidates.items.iter().position(reaches) {
        candidates.items.truncate(last + 1);
    }
}
