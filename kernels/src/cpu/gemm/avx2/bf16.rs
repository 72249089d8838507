//! Products with BF16 weights for AVX2: pairs are cut into two float32 vectors, each half of a pair is one multiply-add. See
//! [`crate::cpu::gemm::bf16`] for the arithmetic and the layout.

use super::{HALF, by_fours, prefetch, store};
use crate::cpu::gemm::bf16::{BLOCK_QUADS, LINE_BYTES, num_quads};
use crate::cpu::gemm::kernels::Task;
use std::arch::x86_64::*;

/// How far ahead to prefetch, over all panels together.
const AHEAD_BYTES: usize = 8192;

/// # Safety
/// See [`crate::cpu::gemm::kernels::Product`].
pub(crate) unsafe fn bf16(task: &Task) {
    // SAFETY: the caller's obligation, passed on.
    unsafe { by_fours(task, four_rows) }
}

unsafe fn four_rows(task: &Task) {
    let kernel = match task.rows {
        1 => units::<2, 1>,
        2 => units::<2, 2>,
        3 => units::<2, 3>,
        _ => units::<2, 4>,
    };
    let mut panel = 0;
    while panel < task.num_panels {
        // One row alone has few chains of additions; with two panels there are four.
        let wide = task.rows == 1 && task.num_panels - panel >= 2;
        // SAFETY: the caller's obligation, passed on.
        unsafe { if wide { units::<4, 1>(task, panel) } else { kernel(task, panel) } };
        panel += if wide { 2 } else { 1 };
    }
}

/// The numbers in the upper and in the lower halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(pairs: __m256i) -> [__m256; 2] {
    let upper = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed()));
    [upper, _mm256_slli_epi32::<16>(pairs)].map(|bits| _mm256_castsi256_ps(bits))
}

/// UNITS half panels from panel `first_panel`. Even and odd pairs of a block are taken one after the other, so that the
/// chains of one kind, a tile of them, stay in registers.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn units<const UNITS: usize, const ROWS: usize>(task: &Task, first_panel: usize) {
    let (quads, panels) = (num_quads(task.cols), UNITS / 2);
    // SAFETY: a panel has two lines for each quad, the tile two pairs for each quad and row, and
    // `first_panel + UNITS / 2 <= num_panels`. Prefetches may go anywhere.
    unsafe {
        let base = task.panels.add(first_panel * task.panel_bytes);
        let mut sums = [[_mm256_setzero_ps(); ROWS]; UNITS];
        for first in (0..quads).step_by(BLOCK_QUADS) {
            let mut chains = [[[_mm256_setzero_ps(); ROWS]; UNITS]; 2];
            for (parity, chains) in chains.iter_mut().enumerate() {
                for quad in first..quads.min(first + BLOCK_QUADS) {
                    let at = (2 * quad + parity) * LINE_BYTES;
                    let mut ahead = at + AHEAD_BYTES / panels;
                    if ahead >= task.panel_bytes {
                        ahead += (panels - 1) * task.panel_bytes;
                    }
                    let mut weights = [[_mm256_setzero_ps(); 2]; UNITS];
                    for (unit, weights) in weights.iter_mut().enumerate() {
                        let panel = base.add(unit / 2 * task.panel_bytes);
                        if unit % 2 == 0 {
                            prefetch(panel.wrapping_add(ahead), 1);
                        }
                        *weights = halves(_mm256_load_si256(panel.add(at + unit % 2 * LINE_BYTES / 2).cast()));
                    }
                    for row in 0..ROWS {
                        let x = (*task.pairs.add(quad * task.pair_rows + row))[parity];
                        let x = halves(_mm256_set1_epi32(x.cast_signed()));
                        for (chains, weights) in chains.iter_mut().zip(&weights) {
                            chains[row] = _mm256_fmadd_ps(weights[0], x[0], chains[row]);
                            chains[row] = _mm256_fmadd_ps(weights[1], x[1], chains[row]);
                        }
                    }
                }
            }
            for (unit, sums) in sums.iter_mut().enumerate() {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_ps(*sum, _mm256_add_ps(chains[0][unit][row], chains[1][unit][row]));
                }
            }
        }
        for (unit, sums) in sums.iter().enumerate() {
            for (row, &sums) in sums.iter().enumerate() {
                store(task, 2 * first_panel + unit, row, sums);
            }
        }
    }
}

const _: () = assert!(LINE_BYTES == 2 * HALF * 4, "a line is the pairs of two half panels");
