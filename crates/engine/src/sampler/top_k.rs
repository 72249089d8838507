//! top_k: keep the k most probable tokens, the lower ids among equals.

use super::candidates::{Candidate, Candidates};

/// Keeps `k` candidates; 0 keeps all.
pub(super) fn keep(candidates: &mut Candidates, k: usize) {
    if k == 0 || k >= candidates.items.len() {
        return;
    }
    candidates.items.select_nth_unstable_by(k - 1, Candidate::rank);
    candidates.items.truncate(k);
    // Selection leaves an order that depends on its pivots; the draw must not.
    candidates.items.sort_unstable_by_key(|candidate| candidate.id);
}
