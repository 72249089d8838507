//! What the unified-max schemes share: one reference phi that is fixed before a score is seen, so that partial sums of
//! different parts merge by plain addition. `p = 2^(x - phi)`, `l = sum p`, `y = p / l`.
//!
//! A row of L unmasked scores is valid when `2^-100 L <= l < 2^126`. Below, weights that were flushed to zero may hold more
//! than `2^-26` of the sum. Above, a weight may have been clamped: `2^(x - phi)` grows no further than `2^127`, and a single
//! clamped weight already exceeds the limit. A row that is not valid is recomputed online.

use super::online::Online;
use super::row::{BLOCK, RowScheme, load_scores, scale_and_divide, store};
use super::{LOWEST, State};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::vector_math::exp2_from;

/// `2^126`, just under what one clamped weight amounts to.
const OVERFLOW: f32 = f32::from_bits((126 + 127) << 23);
/// `2^-100`.
const SMALLEST_MEAN: f32 = f32::from_bits((127 - 100) << 23);

#[derive(Clone, Copy)]
pub(super) struct Unified {
    /// The whole number that all rows share.
    pub(super) phi: f32,
    /// A score with `x - phi` at or above this stops its row; plus infinity stops none.
    pub(super) stop_at: f32,
    /// An unmasked score with `x - phi` at or below this stops its row, in the literal two-sided test.
    pub(super) stop_below: Option<f32>,
}

impl RowScheme for Unified {
    #[inline(always)]
    fn row<S: Simd>(self, s: S, x: &[f32], out: &mut [f32]) -> bool {
        if let Some(l) = self.weights(s, x, out)
            && is_valid(l, x)
        {
            scale_and_divide(s, out, 1.0, State { m: self.phi, l }.divisor());
            return false;
        }
        Online.row(s, x, out);
        true
    }
}

impl Unified {
    /// `out = 2^(x - phi)` and its sum, or nothing where a score stops the row.
    #[inline(always)]
    fn weights<S: Simd>(self, s: S, x: &[f32], out: &mut [f32]) -> Option<f32> {
        let (phi, lowest) = (s.splat(self.phi), s.splat(LOWEST));
        let mut l = s.splat(0.0);
        for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let (mut largest, mut sum) = (lowest, s.splat(0.0));
            for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
                let x = load_scores(s, x);
                let p = exp2_from(s, x, phi);
                largest = s.max(x, largest);
                sum = s.add(sum, p);
                store(s, p, out);
            }
            l = s.add(l, sum);
            if self.stop_at < f32::INFINITY && s.largest(largest) - self.phi >= self.stop_at {
                return None;
            }
            if self.stop_below.is_some_and(|a| any_at_or_below(x, self.phi + a)) {
                return None;
            }
        }
        Some(s.sum(l))
    }
}

/// Whether an unmasked score is that low. Without a way out of the loop, which is what lets the compiler vectorise it.
#[inline(always)]
fn any_at_or_below(x: &[f32], low: f32) -> bool {
    x.iter().fold(false, |found, &x| found | ((x >= LOWEST) & (x <= low)))
}

/// Whether a sum says that nothing of weight was lost. The unmasked scores are counted only where it is that small.
fn is_valid(l: f32, x: &[f32]) -> bool {
    let unmasked = || x.iter().filter(|&&x| x >= LOWEST).count();
    let is_large = l >= SMALLEST_MEAN * x.len() as f32 || l >= SMALLEST_MEAN * unmasked() as f32;
    is_large && l < OVERFLOW
}
