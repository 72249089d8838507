//! Mirostat (Basu, Ramachandran, Keskar and Varshney, 2021, arXiv 2007.14966): a truncation that holds the surprise of tokens near a
//! target. The surprise of a token of the probability `p` is `-log2 p`, in bits.
//!
//! `mu` begins at `2 tau` and bounds the surprise:
//! - version 2 keeps the tokens whose surprise is at most `mu`, the most probable one in any case;
//! - version 1 keeps the `k` most probable. Were their probabilities Zipf's, `p_i ~ i^-s`, the last of them would have the surprise `mu`
//!   at `k = (e 2^mu / (1 - N^-e))^(1/s)` with `e = s - 1` and `N` tokens in the vocabulary; `s` is the least-squares slope of
//!   `b_i = ln(p_i / p_(i+1))` over `t_i = ln((i + 1) / i)` among the first 100: `sum(t_i b_i) / sum(t_i^2)`.
//!
//! After each token `mu -= eta * (surprise - tau)`. The surprise is that in the distribution that the token was drawn from, as llama.cpp
//! has it; in the paper it is that before the truncation. A token that was the only one to choose teaches nothing, whether or not a
//! grammar had it chosen.

use super::candidates::mass;
use super::chain::Left;
use crate::{Mirostat as Params, MirostatVersion};

/// Tokens that the shape of a distribution is estimated from.
const NUM_ESTIMATED: usize = 100;

/// The truncation of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mirostat {
    params: Params,
    mu: f64,
}

impl Mirostat {
    pub(super) fn new(params: Params) -> Mirostat {
        Mirostat { params, mu: 2.0 * f64::from(params.tau) }
    }

    /// Notes the surprise of the token that was accepted, in bits.
    pub(super) fn learn(&mut self, surprise: f32) {
        self.mu -= f64::from(self.params.eta) * (f64::from(surprise) - f64::from(self.params.tau));
    }

    /// Keeps the tokens that are not too surprising, of a vocabulary of `vocab_size`.
    pub(super) fn keep(&self, left: &mut Left<'_>, vocab_size: usize) {
        match self.params.version {
            MirostatVersion::One => {
                let num = num_kept(slope(left), self.mu, vocab_size);
                left.keep_heaviest(num);
            }
            MirostatVersion::Two => {
                let floor = mass(left.items) * (-self.mu).exp2();
                // The heaviest weighs 1.
                if floor > 1.0 {
                    left.keep_heaviest(1);
                } else {
                    left.retain(|_, item| f64::from(item.weight) >= floor);
                }
            }
        }
    }
}

/// The exponent of Zipf's law that fits the most probable tokens best.
fn slope(left: &mut Left<'_>) -> f64 {
    let num = left.items.len().min(NUM_ESTIMATED);
    let rank = left.rank();
    if num < left.items.len() {
        left.items.select_nth_unstable_by(num - 1, &rank);
    }
    left.items[..num].sort_unstable_by(&rank);
    let ln_weights: Vec<f64> = left.items[..num].iter().map(|item| f64::from(left.ln_weight(item))).collect();
    let (mut products, mut squares) = (0.0, 0.0);
    for (place, pair) in ln_weights.windows(2).enumerate() {
        let t = ((place + 2) as f64 / (place + 1) as f64).ln();
        products += t * (pair[0] - pair[1]);
        squares += t * t;
    }
    products / squares
}

/// How many tokens are kept; at least 1.
fn num_kept(slope: f64, mu: f64, vocab_size: usize) -> usize {
    let excess = slope - 1.0;
    let vocab_size = vocab_size as f64;
    // At a slope of 1 the quotient is nothing divided by nothing; this is what it comes near to.
    let quotient = if excess.abs() < 1e-9 { 1.0 / vocab_size.ln() } else { excess / (1.0 - vocab_size.powf(-excess)) };
    // A single token has no slope; what is no number becomes 0.
    ((quotient * mu.exp2()).powf(1.0 / slope) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipfs_distribution_is_cut_where_its_surprise_is_mu() {
        for exponent in [1.0, 1.2, 2.0] {
            let logits: Vec<f32> = (1..=5000).map(|rank| -exponent * (rank as f32).ln()).collect();
            let mut items = Vec::new();
            let mut left = Left::all(&logits, 0.0, 1.0, &mut items);
            let slope = slope(&mut left);
            assert!((slope - f64::from(exponent)).abs() < 1e-4, "{slope}");
            for mu in [4.0, 6.0, 8.0] {
                let num = num_kept(slope, mu, logits.len());
                let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let surprise = |rank: usize| (total / f64::from(logits[rank - 1]).exp()).log2();
                // The formula has an integral in place of the sum, which is smaller by 0.72 bits at the most.
                assert!(surprise(num) < mu + 0.75 && surprise(num + 1) > mu, "{exponent} {mu}: {num}");
            }
        }
    }

    #[test]
    fn tokens_too_light_for_a_float_have_a_slope() {
        let logits: Vec<f32> = (1..=200).rev().map(|rank| -2.0 * (rank as f32).ln()).collect();
        let mut items = Vec::new();
        let slope = slope(&mut Left::all(&logits, 0.0, 0.05, &mut items));
        assert!((slope - 40.0).abs() < 1e-3, "{slope}");
    }

    #[test]
    fn what_has_no_slope_keeps_something() {
        assert_eq!(num_kept(f64::NAN, 5.0, 10), 1);
        assert_eq!(num_kept(0.0, 1.0, 10), 1);
        assert!(num_kept(0.0, 9.0, 10) > 10, "all");
        assert!(num_kept(1.0 + 1e-12, 9.0, 10) > 10 && num_kept(1.0, -1000.0, 10) == 1);
    }

    #[test]
    fn surprises_that_are_too_large_lower_the_bound() {
        let mut mirostat = Mirostat::new(Params { tau: 3.0, eta: 0.5, version: MirostatVersion::Two });
        assert_eq!(mirostat.mu, 6.0);
        mirostat.learn(5.0);
        assert_eq!(mirostat.mu, 5.0);
        mirostat.learn(1.0);
        assert_eq!(mirostat.mu, 6.0);
    }

    #[test]
    fn version_2_keeps_what_is_not_too_surprising() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).into();
        let check = |tau: f32, expected: &[u32]| {
            let mut items = Vec::new();
            let mut left = Left::all(&logits, logits[0], 1.0, &mut items);
            Mirostat::new(Params { tau, eta: 0.1, version: MirostatVersion::Two }).keep(&mut left, 4);
            assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), expected, "tau {tau}");
        };
        check(1.6, &[0, 1, 2, 3]);
        check(1.4, &[0, 1]);
        check(0.6, &[0]);
        check(0.1, &[0]);
    }
}
