//! top_p: keep the smallest set of most probable tokens whose mass reaches the share p.

use super::candidates::Candidate;
use std::cmp::Ordering;

/// The weight below which no token of a vocabulary of `num_tokens`, weighing `total`, is in the nucleus of share `p`: all the
/// lighter ones together weigh less than the share left out. Half of the bound keeps clear of rounding.
pub(super) fn floor(p: f32, total: f64, num_tokens: usize) -> f32 {
    (0.5 * (1.0 - f64::from(p)) * total / num_tokens as f64) as f32
}

/// Keeps the heaviest candidates up to the one with which their weight reaches `target`, in order of rank.
pub(super) fn keep(items: &mut Vec<Candidate>, target: f64) {
    keep_mass(items, (target, 0), |item| item.weight, Candidate::rank);
}

/// Keeps the first items of an order up to the one with which their weight reaches `target`; at least `min_keep`. They are in that
/// order, but for those of a large `min_keep`: they stay whatever their ranks are, which would be the whole vocabulary to sort.
pub(super) fn keep_mass<T>(
    items: &mut Vec<T>,
    (target, min_keep): (f64, usize),
    weight: impl Fn(&T) -> f32,
    order: impl Fn(&T, &T) -> Ordering,
) {
    if min_keep >= items.len() {
        return;
    }
    // What is kept is mostly little, so ranks are found piece by piece, each eight times as long as the one before.
    let (mut sum, mut begin, mut len) = (0.0_f64, 0, 32);
    if min_keep > len {
        items.select_nth_unstable_by(min_keep - 1, &order);
        sum = items[..min_keep].iter().map(|item| f64::from(weight(item))).sum::<f64>();
        if sum >= target {
            items.truncate(min_keep);
            return;
        }
        begin = min_keep;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    // A large one had the whole vocabulary sorted at every token.
    #[test]
    fn min_keep_keeps_the_first_whatever_their_mass() {
        let total: u32 = (0..1000).sum();
        for min_keep in [0, 1, 31, 32, 33, 500, 999, 1000, usize::MAX] {
            for share in [0.0, 0.3, 0.9, 0.9999, 2.0] {
                // 7 and 1000 have no common factor, so this is each weight once.
                let mut items: Vec<u32> = (0..1000).map(|index| index * 7 % 1000).collect();
                let target = share * f64::from(total);
                keep_mass(&mut items, (target, min_keep), |&weight| weight as f32, |a, b| b.cmp(a));
                items.sort_unstable();
                items.reverse();
                let mut sum = 0.0_f64;
                let reaches = |weight: u32| {
                    sum += f64::from(weight);
                    sum >= target
                };
                let num_needed = (0..1000).rev().position(reaches).map_or(1000, |place| place + 1);
                let expected: Vec<u32> = (0..1000).rev().take(num_needed.max(min_keep)).collect();
                assert_eq!(items, expected, "{min_keep} and {share}");
            }
        }
    }
}
