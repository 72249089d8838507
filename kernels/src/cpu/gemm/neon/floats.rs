//! Products with float weights for NEON: `acc = fma(w, x, acc)`, k ascending, weights `[k][16 rows]`.

use super::{QUARTER, TILE_ROWS, store};
use crate::cpu::gemm::format::PANEL_ROWS;
use crate::cpu::gemm::kernels::Task;
use std::arch::aarch64::*;

/// Runs the kernel over all panels of a task, as many at a time as there are registers for their sums while there are so many:
/// each register is a chain of additions, and several chains hide their latency.
macro_rules! sweep {
    ($task:ident, $type:ident, $rows:expr, $most:literal) => {{
        let mut panel = 0;
        while $task.num_panels - panel >= $most {
            float_panels::<$type, $most, { $rows }>($task, panel);
            panel += $most;
        }
        while panel < $task.num_panels {
            float_panels::<$type, 1, { $rows }>($task, panel);
            panel += 1;
        }
    }};
}

/// # Safety
/// See [`crate::cpu::gemm::kernels::Product`].
#[target_feature(enable = "neon")]
pub(crate) unsafe fn floats<E: Element>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    // SAFETY: the caller's obligation, passed on.
    unsafe {
        match task.rows {
            1 => sweep!(task, E, 1, 4),
            2 => sweep!(task, E, 2, 2),
            3 => sweep!(task, E, 3, 1),
            _ => sweep!(task, E, TILE_ROWS, 1),
        }
    }
}

/// A float type that weights are stored in.
pub(crate) trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// Four of them.
    ///
    /// # Safety
    /// NEON, and four elements at `at`.
    unsafe fn load(at: *const u8) -> float32x4_t;
}

pub(crate) struct F32;
pub(crate) struct F16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load(at: *const u8) -> float32x4_t {
        // SAFETY: the caller's obligation.
        unsafe { vld1q_f32(at.cast()) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load(at: *const u8) -> float32x4_t {
        // SAFETY: the caller's obligation.
        vcvt_f32_f16(vreinterpret_f16_u16(unsafe { vld1_u16(at.cast()) }))
    }
}

#[target_feature(enable = "neon")]
unsafe fn float_panels<E: Element, const PANELS: usize, const ROWS: usize>(task: &Task, first_panel: usize) {
    // SAFETY: a float panel is `cols` runs of sixteen elements, `x` has ROWS rows of `cols`, and
    // `first_panel + PANELS <= num_panels`.
    unsafe {
        let mut sums = [[[vdupq_n_f32(0.0); 4]; ROWS]; PANELS];
        for k in 0..task.cols {
            for (panel, sums) in sums.iter_mut().enumerate() {
                let at = task.panels.add((first_panel + panel) * task.panel_bytes + k * PANEL_ROWS * E::BYTES);
                let weights = [0, 1, 2, 3].map(|quarter| E::load(at.add(quarter * QUARTER * E::BYTES)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = *task.x.add(row * task.cols + k);
                    for (sum, &weights) in sums.iter_mut().zip(&weights) {
                        *sum = vfmaq_n_f32(*sum, weights, x);
                    }
                }
            }
        }
        for (panel, sums) in sums.iter().enumerate() {
            for (row, sums) in sums.iter().enumerate() {
                for (quarter, &sum) in sums.iter().enumerate() {
                    store(task, first_panel + panel, quarter, row, sum);
                }
            }
        }
    }
}
