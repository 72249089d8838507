//! top_n_sigma (Tang et al., "Top-nσ: not all logits are you need", 2024, arXiv 2411.07641): keep the tokens whose logit is at least
//! `max - n * sigma`, where sigma is the standard deviation of the logits of all tokens that can be chosen. Dividing the logits divides
//! sigma too, so the same tokens are kept at any temperature.

use super::chain::Left;

/// Keeps the tokens within `n` standard deviations of the most probable one.
pub(super) fn keep(left: &mut Left<'_>, n: f32) {
    // Logits less the largest one: their deviation is the same.
    let logits = || left.items.iter().map(|item| f64::from(left.ln_weight(item)));
    let num = left.items.len() as f64;
    let mean = logits().sum::<f64>() / num;
    let variance = logits().map(|logit| (logit - mean).powi(2)).sum::<f64>() / num;
    let floor = -f64::from(n) * variance.sqrt();
    left.retain(|ln_weight, _| f64::from(ln_weight) >= floor);
}
