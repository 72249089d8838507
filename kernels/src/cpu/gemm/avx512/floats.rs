//! Products with F32 and F16 weights for AVX-512: `acc = fma(w, x, acc)`, k ascending, weights `[k][16 rows]`.

use super::{TILE_ROWS, store};
use crate::cpu::gemm::format::PANEL_ROWS;
use crate::cpu::gemm::kernels::Task;
use std::arch::x86_64::*;

/// How far ahead to prefetch, over all panels together.
const AHEAD_BYTES: usize = 8192;

/// Runs the kernel over all panels of a task, four at a time as long as there are so many: a panel has one chain of additions
/// per row, and several chains hide their latency.
macro_rules! sweep {
    ($task:ident, $type:ident, $rows:expr) => {{
        let mut panel = 0;
        while $task.num_panels - panel >= 4 {
            float_panels::<$type, 4, { $rows }>($task, panel);
            panel += 4;
        }
        while panel < $task.num_panels {
            float_panels::<$type, 1, { $rows }>($task, panel);
            panel += 1;
        }
    }};
}

/// # Safety
/// See [`crate::cpu::gemm::kernels::Product`].
pub(crate) unsafe fn floats<E: Element>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    // SAFETY: the caller's obligation, passed on.
    unsafe {
        match task.rows {
            1 => sweep!(task, E, 1),
            2 => sweep!(task, E, 2),
            3 => sweep!(task, E, 3),
            4 => sweep!(task, E, 4),
            5 => sweep!(task, E, 5),
            _ => sweep!(task, E, TILE_ROWS),
        }
    }
}

/// A float type that weights are stored in.
pub(crate) trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// Sixteen of them.
    ///
    /// # Safety
    /// AVX-512, and sixteen elements at `at`.
    unsafe fn load(at: *const u8) -> __m512;
}

pub(crate) struct F32;
pub(crate) struct F16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller's obligation.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the caller's obligation.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn float_panels<E: Element, const PANELS: usize, const ROWS: usize>(task: &Task, first_panel: usize) {
    // SAFETY: a float panel is `cols` runs of sixteen elements, `x` has ROWS rows of `cols`, and
    // `first_panel + PANELS <= num_panels`. Prefetches may go anywhere.
    unsafe {
        let panels = task.panels.add(first_panel * task.panel_bytes);
        let mut sums = [[_mm512_setzero_ps(); ROWS]; PANELS];
        for k in 0..task.cols {
            let at = k * PANEL_ROWS * E::BYTES;
            let mut ahead = at + AHEAD_BYTES / PANELS;
            if ahead >= task.panel_bytes {
                ahead += (PANELS - 1) * task.panel_bytes;
            }
            let mut weights = [_mm512_setzero_ps(); PANELS];
            for (panel, weights) in weights.iter_mut().enumerate() {
                let panel = panels.add(panel * task.panel_bytes);
                _mm_prefetch::<_MM_HINT_T0>(panel.wrapping_add(ahead).cast());
                *weights = E::load(panel.add(at));
            }
            for row in 0..ROWS {
                let x = _mm512_set1_ps(*task.x.add(row * task.cols + k));
                for (sums, &weights) in sums.iter_mut().zip(&weights) {
                    sums[row] = _mm512_fmadd_ps(weights, x, sums[row]);
                }
            }
        }
        for (panel, sums) in sums.iter().enumerate() {
            for (row, &sums) in sums.iter().enumerate() {
                store(task, first_panel + panel, row, sums);
            }
        }
    }
}
