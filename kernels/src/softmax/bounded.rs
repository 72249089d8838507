//! Unified max, bounded: with `|x| <= B` known beforehand, `phi = floor(B) - 100`, and no weight exceeds `2^101`.
//!
//! Attention has such a bound without looking at a score: `B = |q| max|k| scale log2 e`. Under `B = 100` every
//! weight is above `2^-99`, so no row is ever recomputed; above, rows whose scores all lie far below the bound are.

use super::Context;
use super::row::for_each_row;
use super::unified::Unified;

/// By how much phi lies below the bound: weights stay below `2^101`, sums of a million of them far below overflow.
const HEADROOM: f32 = 100.0;

/// Softmax of each row of `cols` elements, none of which exceeds `bound` in magnitude; the number of rows that were recomputed
/// online. A score over the bound costs speed, not correctness: its row is recomputed once a weight reaches `2^126`.
///
/// # Panics
/// When the bound is negative or not finite.
pub fn bounded(context: Context<'_>, bound: f32, x: &[f32], cols: usize, out: &mut [f32]) -> usize {
    assert!(bound.is_finite() && bound >= 0.0, "a bound of magnitudes is finite: {bound}");
    let phi = bound.floor() - HEADROOM;
    for_each_row(context, Unified { phi, stop_at: f32::INFINITY, stop_below: None }, x, cols, out)
}
