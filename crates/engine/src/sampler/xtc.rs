//! XTC, "exclude top choices" (P. E. Weidmann, 2024, text-generation-webui's pull request 6335): with some probability leave out all
//! tokens but the last of those that are at least as probable as a threshold.
//!
//! Where fewer than two are, nothing changes; so the text goes on sensibly, though not in the likeliest way.

use super::candidates::{Candidate, mass};
use super::chain::Left;

/// Leaves out the tokens of at least the probability `threshold`, but for the last of them, if `min_keep` tokens are left.
pub(super) fn leave_out(left: &mut Left<'_>, threshold: f32, min_keep: usize) {
    let floor = f64::from(threshold) * mass(left.items);
    let is_top = |item: &Candidate| f64::from(item.weight) >= floor;
    let num_top = left.items.iter().filter(|item| is_top(item)).count();
    let rank = left.rank();
    let last = left.items.iter().filter(|item| is_top(item)).max_by(|a, b| rank(a, b)).map(|item| item.id);
    if num_top < 2 || left.items.len() - (num_top - 1) < min_keep {
        return;
    }
    left.retain(|_, item| !is_top(item) || Some(item.id) == last);
    left.weigh();
}
