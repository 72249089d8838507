//! Unified max, calibrated (FlashDecoding++): phi and a range (a, b) come from the scores that calibration has seen.
//!
//! A score with `x - phi >= b` stops its row at once (at the end of its 256 scores), and the row is recomputed online. Scores
//! far below phi are harmless as long as the row keeps enough weight, which [`Validity::Row`] tests on its sum:
//! `2^-100 L <= l < 2^126` for L unmasked scores. [`Validity::TwoSided`] is the paper's literal test, which also recomputes a
//! row for any unmasked score with `x - phi <= a`.

use super::Context;
use super::row::for_each_row;
use super::unified::Unified;

/// What calibration found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// The common reference, a whole number in log2 units.
    pub phi: f32,
    /// Lower end of the range of `x - phi`; only [`Validity::TwoSided`] asks for it.
    pub a: f32,
    /// Upper end of the range of `x - phi`.
    pub b: f32,
}

/// Which rows are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Those with a score at or above b, and those whose sum has lost weight.
    Row,
    /// Those as well that have a score at or below a.
    TwoSided,
}

/// Softmax of each row of `cols` elements; the number of rows that were recomputed online.
///
/// # Panics
/// When phi is not a whole number or the range is empty.
pub fn calibrated(
    context: Context<'_>,
    calibration: Calibration,
    validity: Validity,
    x: &[f32],
    cols: usize,
    out: &mut [f32],
) -> usize {
    let Calibration { phi, a, b } = calibration;
    assert!(phi.fract() == 0.0 && a < b, "phi is whole and the range not empty: {calibration:?}");
    let stop_below = (validity == Validity::TwoSided).then_some(a);
    for_each_row(context, Unified { phi, stop_at: b, stop_below }, x, cols, out)
}
