//! Three-pass safe softmax, the baseline: `m = floor max x`, then `p = 2^(x - m)` and `l = sum p`, then `p / l`.

use super::Context;
use super::row::{RowScheme, for_each_row, reference, scale_and_divide, weights};
use super::state::State;
use crate::cpu::simd::Simd;

/// Softmax of each row of `cols` elements.
pub fn three_pass(context: Context<'_>, x: &[f32], cols: usize, out: &mut [f32]) {
    for_each_row(context, ThreePass, x, cols, out);
}

#[derive(Clone, Copy)]
struct ThreePass;

impl RowScheme for ThreePass {
    #[inline(always)]
    fn row<S: Simd>(self, s: S, x: &[f32], out: &mut [f32]) -> bool {
        let m = reference(s, x);
        let l = weights(s, m, x, out);
        scale_and_divide(s, out, 1.0, State { m, l }.divisor());
        false
    }
}
