//! Tiled rows that are normalised at every column block, the form of Composable Kernel: tiles of `T_r` rows by `T_c` columns.
//!
//! A column block j with its own `m_j`, `P_j = 2^(x - m_j)` and `z_j = sum P_j` is taken into rows with (m, z):
//!
//! ```text
//! m' = max(m, m_j)      z' = 2^(m - m') z + 2^(m_j - m') z_j
//! earlier tiles  Y_k times (z / z') 2^(m - m')
//! the new tile   Y_j = 2^(m_j - m') P_j / z'
//! ```
//!
//! After column block j the tiles are the softmax of the first j blocks. The price is that earlier tiles are read and
//! written again by every block: the work grows with the square of the number of blocks.

use super::Context;
use super::extension::shrink;
use super::row::{check, reference, scale, scale_and_divide, weights};
use super::state::{State, power_of_two};
use crate::cpu::rows::Disjoint;
use crate::cpu::simd::{Kernel, Simd, run};
use std::ops::Range;

/// Shape of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// `T_r`: rows that one task takes through all column blocks.
    pub rows: usize,
    /// `T_c`: columns of a block.
    pub cols: usize,
}

/// Softmax of each row of `cols` elements; tiles of rows are shared between threads.
///
/// # Panics
/// When a tile has no rows or no columns.
pub fn tiled(context: Context<'_>, tile: Tile, x: &[f32], cols: usize, out: &mut [f32]) {
    check(x, cols, out);
    assert!(tile.rows > 0 && tile.cols > 0, "a tile has rows and columns: {tile:?}");
    let len = tile.rows * cols;
    let all = Disjoint::new(out);
    context.pool.run(x.len().div_ceil(len.max(1)), |task| {
        let range = task * len..x.len().min((task + 1) * len);
        // SAFETY: tasks have different rows, and the pool gives each index to one call.
        let out = unsafe { all.part(range.clone()) };
        let mut states = vec![State::EMPTY; range.len() / cols];
        for start in (0..cols).step_by(tile.cols) {
            let block = start..cols.min(start + tile.cols);
            take_in_columns(context, &mut states, &x[range.clone()], block, out);
        }
    });
}

/// Takes one column block into some rows, of which the columns before it are done. `x` and `out` are `[states.len(), cols]`.
///
/// # Panics
/// When the shapes do not fit.
pub fn take_in_columns(context: Context<'_>, states: &mut [State], x: &[f32], block: Range<usize>, out: &mut [f32]) {
    let cols = x.len() / states.len().max(1);
    check(x, cols, out);
    assert!(block.start <= block.end && block.end <= cols, "columns {block:?} of {cols}");
    run(context.isa, TakeIn { states, x, cols, block, out });
}

struct TakeIn<'a> {
    states: &'a mut [State],
    x: &'a [f32],
    cols: usize,
    block: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for TakeIn<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.block.is_empty() {
            return;
        }
        let rows = self.x.chunks_exact(self.cols).zip(self.out.chunks_exact_mut(self.cols));
        for (state, (x, out)) in self.states.iter_mut().zip(rows) {
            let (earlier, new) = out[..self.block.end].split_at_mut(self.block.start);
            let x = &x[self.block.clone()];
            let m = reference(s, x);
            let block = State { m, l: weights(s, m, x, new) };
            let merged = state.merge(block);
            scale(s, earlier, shrink(*state, merged));
            scale_and_divide(s, new, power_of_two(block.m - merged.m), merged.divisor());
            *state = merged;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::pool::Pool;
    use crate::softmax::LOWEST;
    use crate::softmax::tests::{adversarial_rows, assert_close, softmax_f64};

    #[test]
    fn after_every_column_block_the_tiles_are_the_softmax_of_the_blocks_so_far() {
        let pool = Pool::new(1);
        for (name, row) in adversarial_rows(200) {
            let rows = [row.clone(), row.iter().rev().copied().collect()].concat();
            for isa in Isa::available() {
                for width in [1, 16, 33, 64, 200] {
                    let (mut states, mut out) = ([State::EMPTY; 2], vec![f32::NAN; rows.len()]);
                    for start in (0..200).step_by(width) {
                        let end = 200.min(start + width);
                        take_in_columns(Context::new(isa, &pool), &mut states, &rows, start..end, &mut out);
                        for (x, out) in rows.chunks_exact(200).zip(out.chunks_exact(200)) {
                            assert_close(&out[..end], &softmax_f64(&x[..end]), 2e-5, name);
                            assert!(out[end..].iter().all(|y| y.is_nan()), "later tiles are untouched");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_saw_only_masked_columns_have_the_empty_state() {
        let mut states = [State::EMPTY];
        let mut out = [f32::NAN; 4];
        take_in_columns(Context::new(Isa::best(), &Pool::new(1)), &mut states, &[f32::NEG_INFINITY; 4], 0..4, &mut out);
        assert_eq!((states[0], out), (State { m: LOWEST, l: 0.0 }, [0.0; 4]));
    }
}
