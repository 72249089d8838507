//! The kernels for NEON. A panel is walked as four quarters of four rows, whose groups of four k are one register each, so that
//! the eight unpacked groups of a block stay in registers while the rows of a tile pass. See [`super`] for the arithmetic and
//! [`super::format`] for the layout. What multiplies the bytes is a [`Dot`]: `sdot` where the processor has it, else
//! multiplications that widen. Nothing is prefetched: a panel is read in ascending order, which hardware follows.

use super::activations::{DIGITS, LOW_BITS};
use super::format::{BLOCK, Low, PANEL_ROWS, Quantized, SUPERBLOCK};
use super::kernels::{Kernels, Task, products};
use std::arch::aarch64::*;

mod dot;
mod floats;
mod quantize;
mod scaling;
mod unpack;

use dot::{Dot, SignedDot, WideningMultiply};
use quantize::quantize_row;
use scaling::Scaling;
use unpack::unpack;

/// Rows of a tile: their sums, sixteen registers, are half of all.
const TILE_ROWS: usize = 4;
/// Rows of a quarter panel: the lanes of a register.
const QUARTER: usize = PANEL_ROWS / 4;

impl Kernels {
    /// NEON.
    pub(crate) const NEON: Kernels = Kernels {
        quantize: quantize_row,
        of_words: None,
        products: products!(baseline),
        tile_rows: TILE_ROWS,
        tile_panels: 2,
    };
    /// NEON with dot products.
    pub(crate) const NEON_DOT: Kernels = Kernels { products: products!(dotprod), ..Kernels::NEON };
}

/// The products without dot products of bytes.
mod baseline {
    pub(super) use super::floats::{F16, F32, floats};
    pub(super) use crate::cpu::gemm::portable::bf16;

    /// # Safety
    /// See [`crate::cpu::gemm::kernels::Product`].
    pub(super) unsafe fn quantized<F: super::Quantized>(task: &super::Task) {
        // SAFETY: the caller's obligation, passed on; the set has NEON.
        unsafe { super::quantized::<F, super::WideningMultiply>(task) };
    }
}

/// The products with them.
mod dotprod {
    pub(super) use super::floats::{F16, F32, floats};
    pub(super) use crate::cpu::gemm::portable::bf16;

    /// # Safety
    /// See [`crate::cpu::gemm::kernels::Product`].
    pub(super) unsafe fn quantized<F: super::Quantized>(task: &super::Task) {
        // SAFETY: the caller's obligation, passed on; the set has NEON and the dot products.
        unsafe { super::quantized::<F, super::SignedDot>(task) };
    }
}

/// Stores the four outputs of quarter `quarter` of a panel and one row, or as many as exist.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(task: &Task, panel: usize, quarter: usize, row: usize, sums: float32x4_t) {
    let first = panel * PANEL_ROWS + quarter * QUARTER;
    if first >= task.outputs {
        return;
    }
    let lanes = QUARTER.min(task.outputs - first);
    // SAFETY: lanes below `outputs`, the width that out (for `rows` rows) and bias (if any) are valid for.
    unsafe {
        let out = task.out.add(row * task.out_stride + first);
        if lanes == QUARTER {
            let bias = task.bias.wrapping_add(first);
            vst1q_f32(out, if task.bias.is_null() { sums } else { vaddq_f32(sums, vld1q_f32(bias)) });
            return;
        }
        let mut values = [0.0; QUARTER];
        vst1q_f32(values.as_mut_ptr(), sums);
        for (lane, &value) in values[..lanes].iter().enumerate() {
            let value = if task.bias.is_null() { value } else { value + *task.bias.add(first + lane) };
            out.add(lane).write(value);
        }
    }
}

/// # Safety
/// NEON and what `D` needs; the pointers of the task are valid for what their fields say.
#[target_feature(enable = "neon")]
unsafe fn quantized<F: Quantized, D: Dot>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    let kernel = match task.rows {
        1 => quantized_panel::<F, D, 1>,
        2 => quantized_panel::<F, D, 2>,
        3 => quantized_panel::<F, D, 3>,
        _ => quantized_panel::<F, D, TILE_ROWS>,
    };
    for panel in 0..task.num_panels {
        // SAFETY: the caller's obligation, passed on.
        unsafe { kernel(task, panel) };
    }
}

#[target_feature(enable = "neon")]
unsafe fn quantized_panel<F: Quantized, D: Dot, const ROWS: usize>(task: &Task, panel: usize) {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    // SAFETY: `place` keeps every load inside its panel (tested), the task's activations have `blocks * ROWS` entries, and
    // `panel < num_panels`.
    unsafe {
        let base = task.panels.add(panel * task.panel_bytes);
        let mut sums = [[vdupq_n_f32(0.0); ROWS]; 4];
        let mut start = 0;
        let mut block = 0;
        while block < blocks {
            let in_superblock = SUPERBLOCK.min(blocks - block);
            let head = start + in_superblock * format.quant_bytes();
            for index in 0..in_superblock {
                let quants = start + index * format.quant_bytes();
                let scales = head + format.head_bytes() + index * format.scale_bytes();
                let at = (block + index) * ROWS;
                let (digits, terms) = (task.digits.add(at * DIGITS), task.terms.add(at * words));
                let fine = *task.fine.add(block + index) != 0;
                for (quarter, sums) in sums.iter_mut().enumerate() {
                    let weights = unpack::<F>(base.add(quants + 16 * quarter));
                    let scaling = Scaling::load::<F>(base.add(head), base.add(scales), quarter);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let terms = terms.add(row * words);
                        let x = (digits.add(row * DIGITS), fine);
                        let integer = integer::<F, D>(&weights, &scaling, x, terms);
                        *sum = scaling.add::<F>(integer, *task.scales.add(at + row), terms, *sum);
                    }
                }
            }
            start += format.superblock_bytes(in_superblock);
            block += in_superblock;
        }
        for (quarter, sums) in sums.iter().enumerate() {
            for (row, &sums) in sums.iter().enumerate() {
                store(task, panel, quarter, row, sums);
            }
        }
    }
}

/// The exact integers of one block and row, for four rows of the panel; unless the block is fine, of the high digits alone.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn integer<F: Quantized, D: Dot>(
    weights: &[int8x16_t; 8],
    scaling: &Scaling,
    (digits, fine): (*const i8, bool),
    terms: *const i32,
) -> int32x4_t {
    let format = F::FORMAT;
    let has_zero = !format.has_min() && !matches!(format.low, Low::Bytes);
    // SAFETY: the caller has what D needs. A block and row has 32 high digits and 32 low ones, two registers each, and the
    // words of its type's terms.
    unsafe {
        let [high, low] = [digits, digits.add(BLOCK)].map(|digit| [vld1q_s8(digit), vld1q_s8(digit.add(16))]);
        let dot = |weights: &[int8x16_t], high: &[int8x16_t], low: &[int8x16_t], word: usize| {
            let mut sum = D::dot::<F>(weights, high);
            if fine {
                sum = vaddq_s32(vshlq_n_s32::<{ LOW_BITS as i32 }>(sum), D::dot::<F>(weights, low));
            }
            if has_zero { vaddq_s32(sum, vdupq_n_s32(*terms.add(word))) } else { sum }
        };
        if !format.has_halves() {
            return dot(weights, &high, &low, 0);
        }
        let first = dot(&weights[..4], &high[..1], &low[..1], 0);
        let second = dot(&weights[4..], &high[1..], &low[1..], 1);
        vmlaq_s32(vmulq_s32(first, scaling.halves[0]), second, scaling.halves[1])
    }
}
