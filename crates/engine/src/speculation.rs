//! Guessing tokens before the model computes them, and verifying several in one step.
//!
//! A step reads all weights whether it computes one row or eight, so rows that verify guesses cost little. Guesses come from
//! the sequence itself: where its last tokens stood before, what followed then may follow now ([`Lookup`]); quoting,
//! summarising and editing repeat much. Whether a guess is right depends mostly on how long the match is, so each sequence
//! counts how often guesses after matches of each length were right ([`Acceptance`]), also of guesses that were not
//! verified; and [`choose_guesses`] verifies those that are expected to pay for their rows, at the costs of steps that were
//! measured ([`StepCosts`]). When none pays, a step is what it would be without speculation.
//!
//! No text depends on any of this: every row is sampled as if its token came next, and guesses are kept as far as they
//! agree. For greedy sampling that is the same bits; for random sampling the same draws, hence the same distribution. It is
//! rejection sampling for a proposal that is certain of its token: a guess x is kept with probability p(x), and in its place
//! comes a token from the rest of p.

mod acceptance;
mod costs;
mod lookup;

pub(crate) use acceptance::Acceptance;
pub(crate) use costs::StepCosts;
pub(crate) use lookup::{Guess, Lookup};

/// Most guesses of one sequence in one step.
pub(crate) const MAX_GUESSES: usize = 15;

/// Decides how many guesses of each sequence are verified in a step of `num_rows` rows without any. `chances[i][j]` is the
/// probability that guesses 0 to j of sequence i are all right. Most tokens per second are wanted: guesses are added from the
/// likeliest on, and as many are kept as make the best ratio of expected tokens to the step's time, if it is better by
/// `GAIN` than none.
pub(crate) fn choose_guesses(num_rows: usize, chances: &[Vec<f64>], costs: &StepCosts) -> Vec<usize> {
    let mut candidates: Vec<(f64, usize)> =
        chances.iter().enumerate().flat_map(|(i, chances)| chances.iter().map(move |&chance| (chance, i))).collect();
    // Chances of one sequence fall, so its guesses stay in order.
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut tokens = num_rows as f64;
    let (mut best_speed, mut best_len) = (GAIN * tokens / costs.seconds(num_rows), 0);
    for (place, &(chance, _)) in candidates.iter().enumerate() {
        tokens += chance;
        let speed = tokens / costs.seconds(num_rows + place + 1);
        if speed > best_speed {
            (best_speed, best_len) = (speed, place + 1);
        }
    }
    let mut numbers = vec![0; chances.len()];
    for &(_, sequence) in &candidates[..best_len] {
        numbers[sequence] += 1;
    }
    numbers
}

/// What speculation has to promise, since estimates err.
const GAIN: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which every row beyond the first costs a tenth of a step.
    fn costs() -> StepCosts {
        let mut costs = StepCosts::default();
        for rows in 1..=64 {
            costs.observe(rows, 0.010 + 0.001 * (rows - 1) as f64);
        }
        costs
    }

    #[test]
    fn likely_guesses_are_verified_and_unlikely_ones_are_not() {
        let falling = |chance: f64| (1..=8).map(|len| chance.powi(len)).collect::<Vec<f64>>();
        assert_eq!(choose_guesses(1, &[falling(0.99)], &costs()), [8]);
        assert_eq!(choose_guesses(1, &[falling(0.05)], &costs()), [0]);
        let some = choose_guesses(1, &[falling(0.7)], &costs())[0];
        assert!((2..8).contains(&some), "{some}");
        assert_eq!(choose_guesses(1, &[vec![]], &costs()), [0]);
    }

    #[test]
    fn sequences_compete_for_rows() {
        let numbers = choose_guesses(2, &[vec![0.9, 0.8, 0.7], vec![0.02]], &costs());
        assert_eq!(numbers, [3, 0]);
    }
}
