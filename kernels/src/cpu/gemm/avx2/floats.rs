//! Products with F32 and F16 weights for AVX2: `acc = fma(w, x, acc)`, k ascending, weights `[k][16 rows]`.

use super::{HALF, by_fours, prefetch, store};
use crate::cpu::gemm::format::PANEL_ROWS;
use crate::cpu::gemm::kernels::Task;
use std::arch::x86_64::*;

/// How far ahead to prefetch, over all panels together.
const AHEAD_BYTES: usize = 8192;

/// # Safety
/// See [`crate::cpu::gemm::kernels::Product`].
pub(crate) unsafe fn floats<E: Element>(task: &Task) {
    // SAFETY: the caller's obligation, passed on.
    unsafe { by_fours(task, |task| sweep!(task, float_units, E, (8, 4, 2), (4, 2), (2))) }
}

/// A float type that weights are stored in.
pub(crate) trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// Eight of them.
    ///
    /// # Safety
    /// AVX2 with F16C, and eight elements at `at`.
    unsafe fn load(at: *const u8) -> __m256;
}

pub(crate) struct F32;
pub(crate) struct F16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's obligation.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's obligation.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_units<E: Element, const UNITS: usize, const ROWS: usize>(task: &Task, first_unit: usize) {
    // SAFETY: a float panel is `cols` runs of sixteen elements, `x` has ROWS rows of `cols`, and
    // `first_unit + UNITS <= 2 * num_panels`. Prefetches may go anywhere.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); ROWS]; UNITS];
        for k in 0..task.cols {
            let at = k * PANEL_ROWS * E::BYTES;
            let panels = UNITS.div_ceil(2);
            let mut ahead = at + AHEAD_BYTES / panels;
            if ahead >= task.panel_bytes {
                ahead += (panels - 1) * task.panel_bytes;
            }
            let mut weights = [_mm256_setzero_ps(); UNITS];
            for (unit, weights) in weights.iter_mut().enumerate() {
                let (panel, half) = ((first_unit + unit) / 2, (first_unit + unit) % 2);
                let panel = task.panels.add(panel * task.panel_bytes);
                if half == 0 {
                    prefetch(panel.wrapping_add(ahead), 1);
                }
                *weights = E::load(panel.add(at + half * HALF * E::BYTES));
            }
            for row in 0..ROWS {
                let x = _mm256_set1_ps(*task.x.add(row * task.cols + k));
                for (sums, &weights) in sums.iter_mut().zip(&weights) {
                    sums[row] = _mm256_fmadd_ps(weights, x, sums[row]);
                }
            }
        }
        for (unit, sums) in sums.iter().enumerate() {
            for (row, &sums) in sums.iter().enumerate() {
                store(task, first_unit + unit, row, sums);
            }
        }
    }
}
