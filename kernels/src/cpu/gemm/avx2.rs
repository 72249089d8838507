//! The kernels for AVX2 with FMA. A panel of quantized weights is walked block by block, both halves of eight rows side by side,
//! and one panel after the other. Up to five rows, as many as `integers` finds registers for, meet groups of weights as they
//! are unpacked; of a larger tile, some rows after others walk the panel, which is in the first cache then, or a block is
//! unpacked once for all of them. See [`super`] for the arithmetic and [`super::format`] for the layout.

use super::activations::{DIGITS, Words};
use super::avx2;
use super::format::{BLOCK, High, PANEL_ROWS, Quantized, SUPERBLOCK};
use super::kernels::{Kernels, OfWords, Task, products};
use std::arch::x86_64::*;

mod bf16;
mod integers;
mod quantize;
mod scaling;

use integers::{Packed, Unpacked, Weights, by_words, integers};
use quantize::{put_together, quantize_row};
use scaling::Scaling;

/// Most rows of a tile.
const TILE_ROWS: usize = 8;
/// Bytes by which quantized weights are asked for before they are used.
const AHEAD_BYTES: usize = 4096;

impl Kernels {
    /// AVX2, FMA and F16C.
    pub(crate) const AVX2: Kernels = Kernels {
        quantize: quantize_row,
        of_words: Some(OF_WORDS),
        products: products!(avx2),
        tile_rows: TILE_ROWS,
        tile_panels: 2,
    };
}

/// Activations that some passes over a tile read.
const OF_WORDS: OfWords = OfWords { wanted: |format, rows| by_words(format, true, rows), put_together };

/// Rows of a half panel: the lanes of a vector.
const HALF: usize = PANEL_ROWS / 2;

/// Runs a kernel for tiles of up to four rows over a larger one.
#[inline]
unsafe fn by_fours(task: &Task, kernel: unsafe fn(&Task)) {
    for first in (0..task.rows).step_by(4) {
        let part = Task {
            rows: (task.rows - first).min(4),
            x: task.x.wrapping_add(first * task.cols),
            pairs: task.pairs.wrapping_add(first),
            out: task.out.wrapping_add(first * task.out_stride),
            ..*task
        };
        // SAFETY: the caller's obligation, for some of the rows.
        unsafe { kernel(&part) };
    }
}

/// Stores the eight outputs of half panel `unit` of one row, or as many as exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(task: &Task, unit: usize, row: usize, sums: __m256) {
    let first = unit * HALF;
    if first >= task.outputs {
        return;
    }
    let lanes = HALF.min(task.outputs - first);
    // SAFETY: lanes below `outputs`, the width that out (for `rows` rows) and bias (if any) are valid for.
    unsafe {
        let (out, bias) = (task.out.add(row * task.out_stride + first), task.bias.wrapping_add(first));
        // Masked stores are microcode on AMD's processors.
        if lanes == HALF {
            let sums = if task.bias.is_null() { sums } else { _mm256_add_ps(sums, _mm256_loadu_ps(bias)) };
            _mm256_storeu_ps(out, sums);
            return;
        }
        let order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), order);
        let sums = if task.bias.is_null() { sums } else { _mm256_add_ps(sums, _mm256_maskload_ps(bias, mask)) };
        _mm256_maskstore_ps(out, mask, sums);
    }
}

/// Runs a kernel over all half panels of a task, the largest number at a time first.
macro_rules! sweep {
    ($task:ident, $kernel:ident, $type:ident, $one:tt, $two:tt, $more:tt) => {{
        match $task.rows {
            1 => sweep!(@units $task, $kernel, $type, 1, $one),
            2 => sweep!(@units $task, $kernel, $type, 2, $two),
            3 => sweep!(@units $task, $kernel, $type, 3, $more),
            _ => sweep!(@units $task, $kernel, $type, 4, $more),
        }
    }};
    (@units $task:ident, $kernel:ident, $type:ident, $rows:literal, ($($units:literal),*)) => {{
        let mut unit = 0;
        $(
            while 2 * $task.num_panels - unit >= $units {
                $kernel::<$type, $units, $rows>($task, unit);
                unit += $units;
            }
        )*
    }};
}

mod floats; // after the macro, which it uses
pub(super) use bf16::bf16;
pub(super) use floats::{F16, F32, floats};

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn quantized<F: Quantized>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    for panel in 0..task.num_panels {
        let mut row = 0;
        while row < task.rows {
            // SAFETY: the caller's obligation, passed on; there are as many rows left.
            row += unsafe {
                match task.rows - row {
                    1 => quantized_panel::<F, 1>(task, panel, row),
                    2 => quantized_panel::<F, 2>(task, panel, row),
                    5 => quantized_panel::<F, 5>(task, panel, row),
                    6.. if unpacks_first::<F>() => quantized_panel::<F, TILE_ROWS>(task, panel, row),
                    3 | 6 => quantized_panel::<F, 3>(task, panel, row),
                    _ => quantized_panel::<F, 4>(task, panel, row),
                }
            };
        }
    }
}

/// Whether more than five rows meet blocks that are unpacked once for all of them: bit planes above the low one make it too long
/// to repeat.
const fn unpacks_first<F: Quantized>() -> bool {
    !matches!(F::FORMAT.high, High::None)
}

/// A panel and ROWS rows from `first_row` on, or all of the task, if ROWS is a whole tile. Says how many.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantized_panel<F: Quantized, const ROWS: usize>(task: &Task, panel: usize, first_row: usize) -> usize {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    let rows = if ROWS == TILE_ROWS { task.rows } else { ROWS };
    // SAFETY: `place` keeps every load inside its panel (tested), the task's activations have `blocks * rows` entries, and
    // `panel < num_panels`. Prefetches may go anywhere.
    unsafe {
        let base = task.panels.add(panel * task.panel_bytes);
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        let mut start = 0;
        let mut block = 0;
        while block < blocks {
            let in_superblock = SUPERBLOCK.min(blocks - block);
            let head = start + in_superblock * format.quant_bytes();
            for index in 0..in_superblock {
                let quants = start + index * format.quant_bytes();
                let scales = head + format.head_bytes() + index * format.scale_bytes();
                if first_row == 0 {
                    prefetch(base.wrapping_add(quants + AHEAD_BYTES), format.quant_bytes());
                    prefetch(base.wrapping_add(scales + AHEAD_BYTES), format.scale_bytes());
                }
                let (head, scales) = (base.add(head), base.add(scales));
                let scaling = [Scaling::load::<F>(head, scales, 0), Scaling::load::<F>(head, scales, 1)];
                let at = (block + index) * task.rows + first_row;
                let block_of_rows = Block {
                    planes: base.add(quants),
                    scaling: &scaling,
                    digits: task.digits.add(at * DIGITS),
                    words: task.words.wrapping_add(at),
                    scales: task.scales.add(at),
                    terms: task.terms.add(at * words),
                };
                if *task.fine.add(block + index) != 0 {
                    block_of_rows.add::<F, ROWS, true>(&mut sums[..rows]);
                } else {
                    block_of_rows.add::<F, ROWS, false>(&mut sums[..rows]);
                }
            }
            start += format.superblock_bytes(in_superblock);
            block += in_superblock;
        }
        for (row, sums) in sums[..rows].iter().enumerate() {
            for (half, &sums) in sums.iter().enumerate() {
                store(task, 2 * panel + half, first_row + row, sums);
            }
        }
    }
    rows
}

/// One block of a panel and of a tile of rows.
#[derive(Clone, Copy)]
struct Block<'a> {
    planes: *const u8,
    scaling: &'a [Scaling; 2],
    digits: *const i8,
    words: *const Words,
    scales: *const f32,
    terms: *const i32,
}

impl Block<'_> {
    /// Adds the products of all rows, ROWS of them or up to a tile, to their sums.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add<F: Quantized, const ROWS: usize, const FINE: bool>(self, sums: &mut [[__m256; 2]]) {
        let packed = Packed(self.planes);
        // SAFETY: the caller's obligation.
        unsafe {
            if ROWS < TILE_ROWS {
                self.add_passes::<F, _, ROWS, FINE>(packed, 0, sums);
                return;
            }
            let mut groups = [[_mm256_setzero_si256(); 2]; 8];
            for (g, group) in groups.iter_mut().enumerate() {
                *group = packed.group::<F>(g);
            }
            self.add_tile::<F, _, FINE>(Unpacked(&groups), sums);
        }
    }

    /// Adds the products of all rows in as large passes as registers allow.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_tile<F: Quantized, W: Weights, const FINE: bool>(self, weights: W, sums: &mut [[__m256; 2]]) {
        let mut done = 0;
        // SAFETY: the caller's obligation.
        unsafe {
            done = self.add_passes::<F, W, 4, FINE>(weights, done, sums);
            done = self.add_passes::<F, W, 3, FINE>(weights, done, sums);
            done = self.add_passes::<F, W, 2, FINE>(weights, done, sums);
            self.add_passes::<F, W, 1, FINE>(weights, done, sums);
        }
    }

    /// Adds the products of rows from `row` on, PASS at a time as long as there are so many, and says which row is next.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_passes<F: Quantized, W: Weights, const PASS: usize, const FINE: bool>(
        self,
        weights: W,
        mut row: usize,
        sums: &mut [[__m256; 2]],
    ) -> usize {
        let words = F::FORMAT.terms().words();
        for sums in sums[row..].as_chunks_mut::<PASS>().0 {
            // SAFETY: the caller's obligation: there are as many rows as sums.
            unsafe {
                let (digits, terms) = (self.digits.add(row * DIGITS), self.terms.add(row * words));
                let of_words = self.words.wrapping_add(row);
                let integers = integers::<F, W, PASS, FINE>(weights, self.scaling, digits, of_words, terms);
                for (i, (sums, integers)) in sums.iter_mut().zip(&integers).enumerate() {
                    let da = _mm256_set1_ps(*self.scales.add(row + i));
                    for (half, sum) in sums.iter_mut().enumerate() {
                        *sum = self.scaling[half].add::<F>(integers[half], da, terms.add(i * words), *sum);
                    }
                }
            }
            row += PASS;
        }
        row
    }
}

/// Asks for the cache lines that hold `bytes` bytes from `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast());
    }
}
