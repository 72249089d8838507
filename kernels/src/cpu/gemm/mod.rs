//! Matrix products with weights as the file quantizes them: `out = x * matrix^T + bias`.
//!
//! # Numerics
//!
//! One class for all instruction sets, row counts and thread counts; they give the same bits, and the tests compare bits.
//!
//! **Quantized weights.** A row of `x` is rounded once, per block of 32, to fifteen bits: `da = max|x| / 16256`,
//! `qa = round(x * (16256 / max|x|))`, ties to even (a block without a usable scale becomes zeros; one with an infinity or
//! NaN gives NaN). With `qa = 128 high + low`, both int8, instructions that multiply bytes compute the integers below
//! exactly: `i_b = 128 sum qw high + sum qw low`. (Seven bits and a sign would be half the products; they cost a hundred
//! times the error: the log-probabilities of a model of 135 million parameters move by 0.1 instead of 0.001. In between is
//! [`Activations::Mixed`]: blocks without outliers have `da = max|x| / 127`, `high = round(x * (127 / max|x|))`, and no low
//! digit. Outliers are blocks whose largest magnitude is above 1.5 times the mean of the row's blocks' (summed in order); it
//! moves them by 0.04.)
//! Then for every output, with blocks b in ascending order and one accumulator that starts at zero:
//!
//! | weights | integer `i_b` (exact) | `acc = fma(f32(i_b), dw * da, acc)`, then |
//! |---|---|---|
//! | Q4_0, Q5_0, Q8_0 | sum of (qw - zero) qa | |
//! | Q4_1, Q5_1 | sum of qw qa | `acc = fma(m, da * f32(sum qa), acc)` |
//! | Q4_K, Q5_K | sum of qw qa; `dw = d s` | `acc = fma(-(dmin m), da * f32(sum qa), acc)` |
//! | Q3_K, Q6_K | sum over halves h of s_h (sum of (qw - zero) qa); `dw = d` | |
//! | Q2_K | sum over halves h of s_h (sum of qw qa); `dw = d` | `acc = fma(-dmin, f32(sum of m_h sum_h qa) * da, acc)` |
//!
//! All integers fit into 32 bits (Q6_K comes closest: 32 * 32 * 128 * 16256 < 2^31); `f32()` rounds them once, to nearest;
//! `d s` and `dmin m` are exact; each product with `da` and each `fma` rounds once. The bias is added at the end.
//!
//! **F32 and F16 weights:** `acc = fma(w, x, acc)`, k ascending, float32 activations. **BF16 weights:** activations rounded to
//! bfloat16, even and odd k summed apart within blocks of 32 (`bf16`).
//!
//! # How
//!
//! Weights lie in panels of sixteen rows (`format`). Threads divide the panels; with many rows they also divide the rows
//! into bands whose activations stay in the second cache, and unpack each block once for a tile of rows.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
mod choice;
mod format;
mod kernels;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod portable;
mod shared;
#[cfg(test)]
mod tests;

pub use activations::{Activations, GemmScratch};
pub use choice::{Choice, Shape, Tuning};
pub(crate) use kernels::Kernels;
pub use matrix::PackedMatrix;

use super::isa::Isa;
use super::pool::Pool;
use super::silu::silu_mul_row;
use crate::WeightType;
use activations::Wanted;
use format::{BLOCK, Format, PANEL_ROWS, Terms};
use kernels::Task;
use matrix::Part;
use shared::SharedMut;

/// What a product runs on.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The best instruction set that may be used.
    pub isa: Isa,
    /// Threads.
    pub pool: &'a Pool,
    /// How activations are rounded for quantized weights.
    pub activations: Activations,
    /// The implementation; `None` takes what the matrix was tuned for.
    pub choice: Option<Choice>,
}

impl<'a> Context<'a> {
    /// Everything up to an instruction set, chosen by shape.
    pub fn new(isa: Isa, pool: &'a Pool) -> Context<'a> {
        Context { isa, pool, activations: Activations::default(), choice: None }
    }
}

/// Bytes of activations that a band of rows may take: half of a common second cache, beside the weights passing through.
const BAND_BYTES: usize = 512 * 1024;
/// The same for BF16 weights: every band reads them again, and they are many bytes. Against half of it, 256 rows with
/// 2048 x 8192 gain a seventh, narrower matrices nothing (Zen 5, second cache of 1 MiB).
const BF16_BAND_BYTES: usize = 1024 * 1024;
/// Panels of BF16 weights that stay in the second cache while tiles pass: kernels take two together, and more are too large.
const BF16_TILE_PANELS: usize = 2;
/// Bytes of weights, times tiles of rows, that a thread takes at once: half a microsecond, some ten times what taking costs.
const PIECE_BYTES: usize = 16 * 1024;

/// `out[r] = x[r] * matrix^T (+ bias)` for the first `rows` rows; `x` is `[rows, K]`, `out` `[rows, N]`. Allocates only when
/// the scratch has not seen this size before.
///
/// # Panics
/// When a slice is too short for `rows`, or the bias is not N long.
pub fn gemm(
    context: Context<'_>,
    rows: usize,
    x: &[f32],
    matrix: &PackedMatrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut GemmScratch,
) {
    assert!(bias.is_none_or(|bias| bias.len() == matrix.rows()), "one bias per output");
    if matrix.cols() == 0 {
        for row in out[..length(rows, matrix.rows())].chunks_exact_mut(matrix.rows().max(1)) {
            match bias {
                Some(bias) => row.copy_from_slice(bias),
                None => row.fill(0.0),
            }
        }
        return;
    }
    multiply(context, rows, (x, out), matrix, Epilogue::Bias(bias), scratch);
}

/// `gated[r] = silu(gate) * up` with `[gate | up] = x[r] * matrix^T`, for a matrix that is a pair; `gate_up` is `[rows, N]`
/// and holds the product afterwards, `gated` is `[rows, N / 2]`. Sixteen outputs and more are multiplied while they are in the
/// first cache; the bits are those of the product followed by the multiplication.
///
/// # Panics
/// When a slice is too short for `rows`, and when the matrix is not a pair or has no columns.
pub(super) fn gemm_silu_mul(
    context: Context<'_>,
    rows: usize,
    x: &[f32],
    matrix: &PackedMatrix,
    (gate_up, gated): (&mut [f32], &mut [f32]),
    scratch: &mut GemmScratch,
) {
    assert!(matrix.is_pair() && matrix.cols() > 0, "gate and up are multiplied together");
    let gated = SharedMut::new(&mut gated[..length(rows, matrix.rows() / 2)]);
    multiply(context, rows, (x, gate_up), matrix, Epilogue::SiluMul(gated), scratch);
}

fn length(rows: usize, width: usize) -> usize {
    rows.checked_mul(width).expect("a buffer of this size cannot exist")
}

fn multiply(
    context: Context<'_>,
    rows: usize,
    (x, out): (&[f32], &mut [f32]),
    matrix: &PackedMatrix,
    epilogue: Epilogue<'_>,
    scratch: &mut GemmScratch,
) {
    let (n, k) = (matrix.rows(), matrix.cols());
    let (x, out) = (&x[..length(rows, k)], &mut out[..length(rows, n)]);
    if rows == 0 || n == 0 {
        return;
    }
    let tuned = || choice::choose(&matrix.crossings, context.activations, context.isa, rows);
    let choice = context.choice.unwrap_or_else(tuned);
    let kernels = &choice.isa.table().gemm;
    assert!((1..=kernels.tile_rows).contains(&choice.tile_rows), "tiles of {} rows", choice.tile_rows);
    let tile_rows = choice.rows_of_a_tile(rows);
    let formats = || matrix.parts.iter().filter_map(|part| Format::of(part.weight_type));
    if formats().next().is_some() {
        let mut wanted = Wanted { terms: [false; Terms::COUNT], words: false };
        for format in formats() {
            wanted.terms[format.terms() as usize] = true;
            wanted.words |= kernels.want_words(format, tile_rows);
        }
        scratch.quantize((context.pool, kernels, context.activations), tile_rows, (x, k), wanted);
    }
    if matrix.parts.iter().any(|part| part.weight_type == WeightType::BF16) {
        scratch.round(context.pool, tile_rows, (x, k));
    }
    let product =
        Multiplication { choice, tile_rows, kernels, matrix, rows, x, epilogue, out: SharedMut::new(out), scratch };
    let bands = Bands::new(&product);
    // Of a pair, a panel of each at a time.
    let is_gated = matches!(product.epilogue, Epilogue::SiluMul(_));
    let num_panels = if is_gated { matrix.parts[0].num_panels() } else { matrix.num_panels() };
    context.pool.run_ranges(bands.count * num_panels, bands.piece_panels, |mut items| {
        while !items.is_empty() {
            let (band, first) = (items.start / num_panels, items.start % num_panels);
            let panels = first..num_panels.min(first + items.len());
            items.start += panels.len();
            let rows = band * bands.rows..rows.min((band + 1) * bands.rows);
            product.run(panels.clone(), rows.clone());
            if is_gated {
                product.run(num_panels + panels.start..num_panels + panels.end, rows.clone());
                product.silu_mul(context.isa, panels, rows);
            }
        }
    });
}

/// What becomes of a product beside being stored.
#[derive(Clone, Copy)]
enum Epilogue<'a> {
    /// One number per output is added.
    Bias(Option<&'a [f32]>),
    /// Rows of gate and up are combined into rows of half the width.
    SiluMul(SharedMut<'a, f32>),
}

/// How a product is divided: bands of rows, each times all panels, given out in pieces of some panels.
struct Bands {
    rows: usize,
    count: usize,
    piece_panels: usize,
}

impl Bands {
    fn new(product: &Multiplication<'_>) -> Bands {
        let (rows, cols, tile) = (product.rows, product.matrix.cols(), product.tile_rows);
        let any = |types: &[WeightType]| product.matrix.parts.iter().any(|part| types.contains(&part.weight_type));
        // Digits and bfloat16 take two bytes.
        let row_bytes = cols.saturating_mul(if any(&[WeightType::F32, WeightType::F16]) { 4 } else { 2 });
        let band_bytes = if any(&[WeightType::BF16]) { BF16_BAND_BYTES } else { BAND_BYTES };
        let band_rows = (band_bytes / row_bytes / tile * tile).clamp(tile, rows.next_multiple_of(tile));
        let num_panels = product.matrix.num_panels();
        // The time of a piece grows with the bytes of weights and with the tiles of rows that each meets.
        let panel_bytes = (product.matrix.bytes() / num_panels).max(1);
        let tiles = rows.min(band_rows).div_ceil(tile);
        let piece_panels = (PIECE_BYTES / panel_bytes / tiles).max(product.choice.tile_panels);
        Bands { rows: band_rows, count: rows.div_ceil(band_rows), piece_panels }
    }
}

/// One product in progress.
struct Multiplication<'a> {
    choice: Choice,
    tile_rows: usize,
    kernels: &'static Kernels,
    matrix: &'a PackedMatrix,
    rows: usize,
    x: &'a [f32],
    epilogue: Epilogue<'a>,
    out: SharedMut<'a, f32>,
    scratch: &'a GemmScratch,
}

impl Multiplication<'_> {
    /// Combines the outputs of some panels of gate and up, which are there, in one band of rows.
    fn silu_mul(&self, isa: Isa, panels: std::ops::Range<usize>, rows: std::ops::Range<usize>) {
        let Epilogue::SiluMul(gated) = self.epilogue else { return };
        let width = self.matrix.rows() / 2;
        let first = panels.start * PANEL_ROWS;
        let len = (panels.len() * PANEL_ROWS).min(width - first);
        for row in rows {
            // SAFETY: the outputs of these panels and this band belong to one item, which has written them and goes on alone.
            unsafe {
                let [gate, up] = [0, width].map(|part| self.out.slice(2 * width * row + part + first, len));
                silu_mul_row(isa, gate, up, gated.slice(width * row + first, len));
            }
        }
    }

    /// Some panels, counted through all parts, times one band of rows.
    fn run(&self, mut panels: std::ops::Range<usize>, rows: std::ops::Range<usize>) {
        let mut first = 0;
        for part in &self.matrix.parts {
            let end = first + part.num_panels();
            if panels.start < end && !panels.is_empty() {
                let here = panels.start - first..panels.end.min(end) - first;
                panels.start += here.len();
                self.run_part(part, here, rows.clone());
            }
            first = end;
        }
    }

    fn run_part(&self, part: &Part, panels: std::ops::Range<usize>, rows: std::ops::Range<usize>) {
        let tile = self.tile_rows;
        let is_bf16 = part.weight_type == WeightType::BF16;
        let tile_panels = self.choice.tile_panels.min(if is_bf16 { BF16_TILE_PANELS } else { usize::MAX });
        let at_once = if rows.len() <= tile { panels.len() } else { tile_panels };
        let kernel = self.kernels.product(part.weight_type);
        for first_panel in panels.clone().step_by(at_once) {
            let num_panels = at_once.min(panels.end - first_panel);
            for first_row in rows.clone().step_by(tile) {
                let task = self.task(part, first_panel, num_panels, first_row, tile.min(rows.end - first_row));
                // SAFETY: the table is only given out on machines that have its instruction set. `task` takes its pointers
                // from slices that are alive and as long as rows and panels ask for (asserted at the door, sized in `pack`
                // and `quantize`); the outputs of a panel and band belong to one item, and every item runs once.
                unsafe { kernel(&task) };
            }
        }
    }

    fn task(&self, part: &Part, first_panel: usize, num_panels: usize, first_row: usize, rows: usize) -> Task {
        let (n, cols) = (self.matrix.rows(), self.matrix.cols());
        let first_output = first_panel * PANEL_ROWS;
        let column = part.first_row + first_output;
        let (mut digits, mut scales) = (std::ptr::null(), std::ptr::null());
        let (mut fine, mut terms) = (std::ptr::null(), std::ptr::null());
        let (mut words, mut pairs) = (std::ptr::null(), std::ptr::null());
        if part.weight_type == WeightType::BF16 {
            pairs = self.scratch.pairs[first_row * bf16::num_quads(cols)..].as_ptr();
        }
        if let Some(format) = Format::of(part.weight_type) {
            let first_block = first_row * (cols / BLOCK);
            digits = self.scratch.digits[first_block..].as_ptr().cast();
            if self.kernels.want_words(format, self.tile_rows) {
                words = self.scratch.words[first_block..].as_ptr();
            }
            scales = self.scratch.scales[first_block..].as_ptr();
            fine = self.scratch.fine[first_block..].as_ptr();
            terms = self.scratch.terms[format.terms() as usize][first_block * format.terms().words()..].as_ptr();
        }
        Task {
            panels: part.data[first_panel * part.panel_bytes..].as_ptr(),
            panel_bytes: part.panel_bytes,
            num_panels,
            cols,
            rows,
            x: self.x[first_row * cols..].as_ptr(),
            pairs,
            pair_rows: rows,
            digits,
            words,
            scales,
            fine,
            terms,
            out: self.out.at(first_row * n + column),
            out_stride: n,
            outputs: (num_panels * PANEL_ROWS).min(part.rows - first_output),
            bias: match self.epilogue {
                Epilogue::Bias(Some(bias)) => bias[column..].as_ptr(),
                _ => std::ptr::null(),
            },
        }
    }
}
