//! Dynamic temperature (kalomaze, 2023; as llama.cpp has it): the less sure the model is, the higher the temperature.
//!
//! With `H` the entropy of the tokens that are left and `ln n` the largest that `n` tokens can have, the temperature is
//! `low + (high - low) * (H / ln n)^exponent`.

use super::candidates::mass;
use super::chain::Left;

/// The temperature between `low` and `high`.
pub(super) fn of(left: &Left<'_>, (low, high): (f32, f32), exponent: f32) -> f32 {
    let num = left.items.len();
    if num < 2 {
        return high;
    }
    // With weights w of the sum W: H = ln W - sum(w ln w) / W.
    let total = mass(left.items);
    let weighted = left.items.iter().map(|item| f64::from(item.weight) * f64::from(left.ln_weight(item)));
    let entropy = total.ln() - weighted.sum::<f64>() / total;
    let share = (entropy / (num as f64).ln()).clamp(0.0, 1.0);
    (f64::from(low) + (f64::from(high) - f64::from(low)) * share.powf(f64::from(exponent))) as f32
}
