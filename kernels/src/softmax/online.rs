//! Two-pass online softmax: a running (m, l) in one pass over the row, then `2^(x - m) / l`.
//!
//! `m' = max(m, floor of the largest of a block)`, `l' = l 2^(m - m') + sum over the block of 2^(x - m')`, in each of sixteen
//! lanes; the lanes are merged at the end. The row is read twice and written once, for a second exponential per element.

use super::Context;
use super::row::{RowScheme, for_each_row, normalise};
use super::state::reduce;
use crate::cpu::simd::Simd;

/// Softmax of each row of `cols` elements.
pub fn online(context: Context<'_>, x: &[f32], cols: usize, out: &mut [f32]) {
    for_each_row(context, Online, x, cols, out);
}

#[derive(Clone, Copy)]
pub(super) struct Online;

impl RowScheme for Online {
    #[inline(always)]
    fn row<S: Simd>(self, s: S, x: &[f32], out: &mut [f32]) -> bool {
        normalise(s, reduce(s, x), x, out);
        false
    }
}
