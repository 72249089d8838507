//! The kernels in plain Rust: the order of sums that the others reproduce, and what machines without their instructions run.

use super::activations::{DIGITS, LOW_BITS, RowTarget};
use super::bf16::{BLOCK_QUADS, num_quads};
use super::format::{BLOCK, Format, High, Low, PANEL_ROWS, Quantized, Scales};
use super::kernels::{Kernels, Task, products};
use super::portable;
use half::f16;

const TILE_ROWS: usize = 4;

impl Kernels {
    /// Plain Rust.
    pub(crate) const PORTABLE: Kernels = Kernels {
        quantize: quantize_row,
        of_words: None,
        products: products!(portable),
        tile_rows: TILE_ROWS,
        tile_panels: 1,
    };
}

/// Sixteen outputs of one row.
type Lanes<T> = [T; PANEL_ROWS];

fn quantize_row(x: &[f32], mut target: RowTarget<'_>) {
    let blocks = x.as_chunks::<BLOCK>().0;
    // Magnitudes order as their bits do, NaN above infinity.
    let limit = target.limit(blocks.iter().map(|x| x.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0)));
    for (block, x) in blocks.iter().enumerate() {
        let Some(rounding) = target.begin(block, limit) else { continue };
        let mut sums = [0; 2];
        let (high, low) = target.digits(rounding.index).split_at_mut(BLOCK);
        for (i, &x) in x.iter().enumerate() {
            let value = ((x * rounding.factor).round_ties_even() as i32) << rounding.shift;
            let rounded = (value + (1 << (LOW_BITS - 1))) >> LOW_BITS;
            high[i] = rounded as i8;
            low[i] = (value - (rounded << LOW_BITS)) as i8;
            sums[i / 16] += value;
        }
        target.sums[rounding.index] = sums;
    }
}

/// Outputs of the tile, `[row][lane]`, to their places.
unsafe fn store(task: &Task, panel: usize, sums: &[Lanes<f32>; TILE_ROWS]) {
    let first = panel * PANEL_ROWS;
    let lanes = PANEL_ROWS.min(task.outputs - first);
    for (row, sums) in sums[..task.rows].iter().enumerate() {
        for (lane, &sum) in sums[..lanes].iter().enumerate() {
            // SAFETY: `first + lane < outputs`, the width that out (for `rows` rows) and bias (if any) are valid for.
            unsafe {
                let bias = if task.bias.is_null() { sum } else { sum + *task.bias.add(first + lane) };
                task.out.add(row * task.out_stride + first + lane).write(bias);
            }
        }
    }
}

/// A float type that weights are stored in.
pub(super) trait Element {
    type Stored: Copy;
    fn to_f32(stored: Self::Stored) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;

impl Element for F32 {
    type Stored = f32;
    fn to_f32(stored: f32) -> f32 {
        stored
    }
}

impl Element for F16 {
    type Stored = u16;
    fn to_f32(stored: u16) -> f32 {
        f16::from_bits(stored).to_f32()
    }
}

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn floats<E: Element>(task: &Task) {
    for panel in 0..task.num_panels {
        let mut sums = [[0.0_f32; PANEL_ROWS]; TILE_ROWS];
        // SAFETY: a float panel is `cols` runs of sixteen elements, 64-byte aligned at its start; `x` has `rows` rows of
        // `cols`.
        unsafe {
            let weights = task.panels.add(panel * task.panel_bytes).cast::<Lanes<E::Stored>>();
            for k in 0..task.cols {
                let weights = (*weights.add(k)).map(E::to_f32);
                for (row, sums) in sums[..task.rows].iter_mut().enumerate() {
                    let x = *task.x.add(row * task.cols + k);
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = weight.mul_add(x, *sum);
                    }
                }
            }
            store(task, panel, &sums);
        }
    }
}

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn bf16(task: &Task) {
    let quads = num_quads(task.cols);
    for panel in 0..task.num_panels {
        // SAFETY: a panel has two pairs of sixteen rows for each quad, 64-byte aligned; the tile has two for each quad and row.
        let (weights, x) = unsafe {
            let weights = task.panels.add(panel * task.panel_bytes).cast::<[Lanes<u32>; 2]>();
            let len = (quads - 1) * task.pair_rows + task.rows;
            (std::slice::from_raw_parts(weights, quads), std::slice::from_raw_parts(task.pairs, len))
        };
        let mut sums = [[0.0_f32; PANEL_ROWS]; TILE_ROWS];
        for (weights, x) in weights.chunks(BLOCK_QUADS).zip(x.chunks(BLOCK_QUADS * task.pair_rows)) {
            for (row, sums) in sums[..task.rows].iter_mut().enumerate() {
                let mut chains = [[0.0_f32; PANEL_ROWS]; 2];
                for (weights, x) in weights.iter().zip(x[row..].iter().step_by(task.pair_rows)) {
                    for ((chain, weights), &x) in chains.iter_mut().zip(weights).zip(x) {
                        for (sum, &w) in chain.iter_mut().zip(weights) {
                            *sum = add_product(w & 0xFFFF_0000, x & 0xFFFF_0000, *sum);
                            *sum = add_product(w << 16, x << 16, *sum);
                        }
                    }
                }
                for (sum, (even, odd)) in sums.iter_mut().zip(chains[0].iter().zip(chains[1])) {
                    *sum += even + odd;
                }
            }
        }
        // SAFETY: the caller's obligation.
        unsafe { store(task, panel, &sums) };
    }
}

/// `fma(w, x, sum)` for bits of bfloat16 numbers. In float64 the product is exact, and so is the sum unless one side is more
/// than 2^29 times the other, which then is the result: it rounds once.
fn add_product(w: u32, x: u32, sum: f32) -> f32 {
    (f64::from(f32::from_bits(w)) * f64::from(f32::from_bits(x)) + f64::from(sum)) as f32
}

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn quantized<F: Quantized>(task: &Task) {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    for index in 0..task.num_panels {
        // SAFETY: the task's panels are `panel_bytes` each; its activations are as long as the tile's blocks.
        let (panel, digits, fine, scales, terms) = unsafe {
            (
                std::slice::from_raw_parts(task.panels.add(index * task.panel_bytes), task.panel_bytes),
                std::slice::from_raw_parts(task.digits.cast::<[i8; DIGITS]>(), blocks * task.rows),
                std::slice::from_raw_parts(task.fine, blocks),
                std::slice::from_raw_parts(task.scales, blocks * task.rows),
                std::slice::from_raw_parts(task.terms, blocks * task.rows * words),
            )
        };
        let mut sums = [[0.0_f32; PANEL_ROWS]; TILE_ROWS];
        for (block, &fine) in fine.iter().enumerate() {
            let place = format.place(block, blocks);
            let weights = unpack(format, &panel[place.quants..]);
            let scaling = Scaling::read(format, &panel[place.head..], &panel[place.scales..]);
            for (row, sums) in sums[..task.rows].iter_mut().enumerate() {
                let at = block * task.rows + row;
                let activations = (&digits[at], fine != 0, scales[at]);
                scaling.add(format, &weights, activations, &terms[at * words..][..words], sums);
            }
        }
        // SAFETY: the caller's obligation.
        unsafe { store(task, index, &sums) };
    }
}

/// The eight groups of a block, `[16 rows][4 k]` stored values each.
fn unpack(format: Format, planes: &[u8]) -> [[u8; 64]; 8] {
    let plane = |index: usize| -> &[u8; 64] { planes[index * 64..][..64].try_into().expect("a slice of 64") };
    let mut groups = [[0; 64]; 8];
    for (g, group) in groups.iter_mut().enumerate() {
        let (low, shift, mask) = match format.low {
            Low::Pairs => (plane(g / 4), 2 * (g % 4), 3),
            Low::Nibbles => (plane(g % 4), 4 * (g / 4), 15),
            Low::Bytes => (plane(g), 0, 255),
        };
        for (value, &low) in group.iter_mut().zip(low) {
            *value = low >> shift & mask;
        }
        let (high, shift, mask) = match format.high {
            High::None => continue,
            High::OneBit => (plane(format.low_vectors()), g, 1),
            High::TwoBits => (plane(format.low_vectors() + g / 4), 2 * (g % 4), 3),
        };
        for (value, &high) in group.iter_mut().zip(high) {
            *value |= (high >> shift & mask) << format.low_bits();
        }
    }
    groups
}

/// Scales of a block, for sixteen rows: float factors and minima, and integer ones of each half.
struct Scaling {
    factor: Lanes<f32>,
    min: Lanes<f32>,
    halves: [Lanes<i32>; 2],
    half_mins: [Lanes<i32>; 2],
}

impl Scaling {
    fn read(format: Format, head: &[u8], scales: &[u8]) -> Scaling {
        let halves_at = |bytes: &[u8], at: usize| -> Lanes<f32> {
            std::array::from_fn(|i| f16::from_le_bytes([bytes[at + 2 * i], bytes[at + 2 * i + 1]]).to_f32())
        };
        let bytes_at = |at: usize| -> Lanes<u8> { std::array::from_fn(|i| scales[at + i]) };
        let product = |a: Lanes<f32>, b: Lanes<u8>| -> Lanes<f32> { std::array::from_fn(|i| a[i] * f32::from(b[i])) };
        let zero = [0.0; PANEL_ROWS];
        let mut this =
            Scaling { factor: zero, min: zero, halves: [[1; PANEL_ROWS]; 2], half_mins: [[0; PANEL_ROWS]; 2] };
        match format.scales {
            Scales::D => this.factor = halves_at(scales, 0),
            Scales::DM => {
                this.factor = halves_at(scales, 0);
                this.min = halves_at(scales, 32);
            }
            Scales::Block => {
                this.factor = product(halves_at(head, 0), bytes_at(0));
                this.min = product(halves_at(head, 32), bytes_at(16)).map(|min| -min);
            }
            Scales::Half => {
                this.factor = halves_at(head, 0);
                this.halves = [0, 16].map(|at| bytes_at(at).map(|scale| i32::from(scale.cast_signed())));
            }
            Scales::HalfMin => {
                this.factor = halves_at(head, 0);
                this.min = halves_at(head, 32).map(|min| -min);
                this.halves = [0, 16].map(|at| bytes_at(at).map(|both| i32::from(both & 15)));
                this.half_mins = [0, 16].map(|at| bytes_at(at).map(|both| i32::from(both >> 4)));
            }
        }
        this
    }

    /// Adds one block of one row to its sixteen sums: the formulas of the module's table.
    fn add(
        &self,
        format: Format,
        w: &[[u8; 64]; 8],
        (x, fine, da): (&[i8; DIGITS], bool, f32),
        terms: &[i32],
        sums: &mut Lanes<f32>,
    ) {
        let zeros = if format.has_min() { [0; 2] } else { [terms[0], if format.has_halves() { terms[1] } else { 0 }] };
        let (high, low) = x.split_at(BLOCK);
        for lane in 0..PANEL_ROWS {
            let mut dots = zeros;
            for (group, w) in w.iter().enumerate() {
                let dot = |x: &[i8]| {
                    let four = w[4 * lane..][..4].iter().zip(&x[4 * group..]);
                    four.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum::<i32>()
                };
                dots[group / 4] += if fine { (dot(high) << LOW_BITS) + dot(low) } else { dot(high) };
            }
            let integer = dots[0] * self.halves[0][lane] + dots[1] * self.halves[1][lane];
            sums[lane] = (integer as f32).mul_add(self.factor[lane] * da, sums[lane]);
            if format.scales == Scales::HalfMin {
                let integer = self.half_mins[0][lane] * terms[0] + self.half_mins[1][lane] * terms[1];
                sums[lane] = self.min[lane].mul_add(integer as f32 * da, sums[lane]);
            } else if format.has_min() {
                sums[lane] = self.min[lane].mul_add(f32::from_bits(terms[0].cast_unsigned()), sums[lane]);
            }
        }
    }
}
