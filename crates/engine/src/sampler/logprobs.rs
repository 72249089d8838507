//! Log-probabilities of the model's own distribution: of the logits as the model gave them, before penalties, biases, masks
//! and temperature (as OpenAI's interface and vLLM's default have it). `ln p_t = logit_t - max - ln sum(exp(logit - max))`.
//! Those of what a token was drawn from are in `candidates`.

use super::exp::exp_negative;
use super::{InvalidLogits, largest};

/// A token, how probable the model found it, and what it found most probable in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability; negative infinity when the model rules it out.
    pub logprob: f32,
    /// 1 for the most probable token; the lower id goes first among equals.
    pub rank: usize,
    /// The most probable tokens and their log-probabilities, by rank.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Of a token that nothing else could come in place of.
    pub(super) fn certain(token: u32, num_top: usize) -> TokenLogprobs {
        TokenLogprobs { token, logprob: 0.0, rank: 1, top: vec![(token, 0.0); num_top.min(1)] }
    }

    /// What `logits`, a row of the model, says about `token` and about its `num_top` most probable tokens. For a token of a
    /// prompt that is the row of the token before it.
    ///
    /// # Panics
    /// When `token` is outside the row.
    pub fn new(logits: &[f32], token: u32, num_top: usize) -> Result<TokenLogprobs, InvalidLogits> {
        let max = logits[largest(logits)?];
        let log_total = log_total(logits, max);
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - log_total) as f32;
        let own = logits[token as usize];
        let rank = rank(logits, token);
        let top = top(logits, num_top).into_iter().map(|(token, logit)| (token, logprob(logit))).collect();
        Ok(TokenLogprobs { token, logprob: logprob(own), rank, top })
    }
}

/// `ln sum(exp(logit - max))`. Float32 within blocks of 64, four terms to a lane; float64 from there.
fn log_total(logits: &[f32], max: f32) -> f64 {
    const LANES: usize = 16;
    let sum_block = |block: &[f32]| {
        let mut sums = [0.0f32; LANES];
        for row in block.chunks(LANES) {
            for (sum, &logit) in sums.iter_mut().zip(row) {
                *sum += exp_negative(logit - max);
            }
        }
        sums.iter().map(|&sum| f64::from(sum)).sum::<f64>()
    };
    logits.chunks(4 * LANES).map(sum_block).sum::<f64>().ln()
}

fn rank(logits: &[f32], token: u32) -> usize {
    let (before, rest) = logits.split_at(token as usize);
    let own = rest[0];
    let before = before.iter().filter(|&&logit| logit >= own).count();
    let after = rest[1..].iter().filter(|&&logit| logit > own).count();
    1 + before + after
}

/// The `num_top` largest logits, largest first, the lower ids first among equals.
fn top(logits: &[f32], num_top: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(num_top + 1);
    if num_top == 0 {
        return top;
    }
    // What a logit must exceed to be of interest.
    let mut floor = f32::NEG_INFINITY;
    for (row, chunk) in logits.chunks(16).enumerate() {
        // Soon hardly a row of sixteen holds one, and this test is one of SIMD.
        let max = chunk.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max });
        if max <= floor {
            continue;
        }
        for (lane, &logit) in chunk.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY) {
            let place = top.partition_point(|&(_, better)| better >= logit);
            if place < num_top {
                top.insert(place, ((row * 16 + lane) as u32, logit));
                top.truncate(num_top);
            }
        }
        if top.len() == num_top {
            floor = top[num_top - 1].1;
        }
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_a_small_vocabulary_come_back() {
        let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].map(|share| share.ln() + 5.0).into();
        let found = TokenLogprobs::new(&logits, 2, 3).unwrap();
        assert_eq!((found.token, found.rank), (2, 3));
        assert!((found.logprob.exp() - 0.2).abs() < 1e-6, "{found:?}");
        assert_eq!(found.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 3, 2]);
    }

    #[test]
    fn a_ruled_out_token_has_no_probability_and_is_no_top() {
        let found = TokenLogprobs::new(&[0.0, f32::NEG_INFINITY, 0.0], 1, 5).unwrap();
        assert_eq!((found.logprob, found.rank), (f32::NEG_INFINITY, 3));
        assert_eq!(found.top.iter().map(|top| top.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(TokenLogprobs::new(&[0.0, f32::NAN], 0, 0), Err(InvalidLogits::Nan { token: 1 }));
    }

    proptest! {
        #[test]
        fn they_agree_with_the_definition_in_float64(
            // Eighths, so that many are equal.
            steps in prop::collection::vec(-200i32..80, 1..400),
            token in any::<prop::sample::Index>(),
            num_top in 0usize..21,
        ) {
            let logits: Vec<f32> = steps.iter().map(|&step| step as f32 / 8.0).collect();
            let token = token.index(logits.len());
            let found = TokenLogprobs::new(&logits, token as u32, num_top).unwrap();
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = |token: usize| f64::from(logits[token]) - total.ln();
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            prop_assert!((f64::from(found.logprob) - expected(token)).abs() < 1e-5);
            prop_assert_eq!(order[found.rank - 1], token);
            prop_assert_eq!(found.top.len(), num_top.min(logits.len()));
            for (&(id, logprob), &wanted) in found.top.iter().zip(&order) {
                prop_assert_eq!(id as usize, wanted);
                prop_assert!((f64::from(logprob) - expected(wanted)).abs() < 1e-5);
            }
        }
    }
}
