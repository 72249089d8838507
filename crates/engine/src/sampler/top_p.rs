//! top_p: keep the smallest set of most probable tokens whose mass reaches the share p.

use super::candidates::Candidate;
use std::cmp::Ordering;

/// The weight below which no token of a vocabulary of `num_tokens`, weighing `total`, is in the nucleus of share `p`: all the
/// lighter ones together weigh less than the share left out. Half of the bound keeps clear of rounding.
pub(super) fn floor(p: f32, total: f64, num_tokens: usize) -> f32 {
    (0.5 * (1.0 - f64::from(p)) * total / num_tokens as f64) as f32
}

/// Keeps the heaviest candidates up to the one with which their weight reaches `target`, in order of rank; at least `min_keep`.
pub(super) fn keep(items: &mut Vec<Candidate>, target: f64, min_keep: usize) {
    keep_mass(items, (target, min_keep), |item| item.weight, Candidate::rank);
}

/// Keeps the first items of an order up to the one with which their weight reaches `target`, in that order; at least `min_keep`.
pub(super) fn keep_mass<T>(
    items: &mut Vec<T>,
    (target, min_keep): (f64, usize),
    weight: impl Fn(&T) -> f32,
    order: impl Fn(&T, &T) -> Ordering,
) {
    // What is kept is mostly little, so ranks are found piece by piece, each eight times as long as the one before.
    let (mut sum, mut begin, mut len) = (0.0, 0, 32);
    while begin < items.len() {
        let end = items.len().min(begin + len);
        if end < items.len() {
            items[begin..].select_nth_unstable_by(end - begin - 1, &order);
        }
        items[begin..end].sort_unstable_by(&order);
        for place in begin..end {
            sum += f64::from(weight(&items[place]));
            if sum >= target && place + 1 >= min_keep {
                items.truncate(place + 1);
                return;
            }
        }
        begin = end;
        len *= 8;
    }
}
