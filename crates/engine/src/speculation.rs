//! Guessing tokens before the model computes them, and verifying several in one step.
//!
//! A step reads all weights whether it computes one row or eight, so rows that verify guesses cost little. Guesses come from
//! the sequence itself: where its last tokens stood before, what followed then may follow now ([`Lookup`]); quoting,
//! summarising and editing repeat much. Whether a guess is right depends mostly on how long the match is, so each sequence
//! counts how often guesses after matches of each length were right ([`Acceptance`]), also of guesses that were not
//! verified. Where there is a draft model ([`Drafter`]), it guesses for the sequences whose own text says less, as long as
//! [`plan_draft`] expects it to pay. In the end [`choose_guesses`] has those verified that are expected to pay for their rows,
//! at the costs of steps that were measured ([`StepCosts`]). When none pays, a step is what it would be without speculation.
//!
//! No text depends on any of this: every row is sampled as if its token came next, and guesses are kept as far as they
//! agree. For greedy sampling that is the same bits; for random sampling the same draws, hence the same distribution. For a
//! guess from the text that is rejection sampling: a guess x is kept with probability p(x), and in its place comes a token
//! from the rest of p. A draft model makes its draws with the random numbers that the large model will be sampled with, so
//! the two agree the oftener the closer their distributions are.

mod acceptance;
mod costs;
mod drafter;
mod lookup;

pub(crate) use acceptance::{Acceptance, Guess};
pub(crate) use costs::StepCosts;
pub(crate) use drafter::{Drafter, Wish, Worth};
pub(crate) use lookup::Lookup;

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

/// Decides whether a draft model should guess for some of the sequences of a step of `num_rows` rows, at most `max_len` tokens
/// each; `sure[i]` is how probable it is that its choice for sequence i is right, and `costs` are those of the large model and
/// of the draft model. None when no number of guesses is expected to pay, or costs are not known yet.
pub(crate) fn plan_draft(num_rows: usize, max_len: usize, sure: &[f64], costs: [&StepCosts; 2]) -> Option<Worth> {
    let [costs, draft_costs] = costs;
    if sure.is_empty() || !costs.is_known() || !draft_costs.is_known() {
        return None;
    }
    let plain = num_rows as f64 / costs.seconds(num_rows);
    let (mut tokens, mut chances, mut best) = (num_rows as f64, sure.to_vec(), None);
    let mut best_speed = GAIN * plain;
    for len in 1..=max_len {
        tokens += chances.iter().sum::<f64>();
        chances.iter_mut().zip(sure).for_each(|(chance, sure)| *chance *= sure);
        let num_guesses = len * sure.len();
        let verified_s = costs.seconds(num_rows + num_guesses);
        let speed = tokens / (verified_s + len as f64 * draft_costs.seconds(sure.len()));
        if speed > best_speed {
            let row_s = (verified_s - costs.seconds(num_rows)).max(0.0) / num_guesses as f64;
            (best_speed, best) = (speed, Some(Worth { speed, row_s }));
        }
    }
    best
}

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
    fn a_draft_model_works_while_it_is_right_and_cheap() {
        let draft_costs = |seconds: f64| {
            let mut costs = StepCosts::default();
            (1..=8).for_each(|rows| costs.observe(rows, seconds));
            costs
        };
        let plan = |sure: &[f64], draft_s| plan_draft(sure.len(), 8, sure, [&costs(), &draft_costs(draft_s)]);
        let worth = plan(&[0.8], 0.001).unwrap();
        assert!(worth.speed > 180.0 && (worth.row_s - 0.001).abs() < 1e-9, "{worth:?} where 100 tokens/s are plain");
        assert!(plan(&[0.8], 0.010).is_none(), "as slow as the large model");
        assert!(plan(&[0.1], 0.001).is_none(), "nearly always wrong");
        assert!(plan(&[0.8; 8], 0.002).is_some());
        assert!(plan_draft(1, 8, &[0.8], [&costs(), &StepCosts::default()]).is_none(), "nobody knows what it costs");
        assert!(plan(&[], 0.001).is_none());
    }

    #[test]
    fn sequences_compete_for_rows() {
        let numbers = choose_guesses(2, &[vec![0.9, 0.8, 0.7], vec![0.02]], &costs());
        assert_eq!(numbers, [3, 0]);
    }
}
