//! Activations of one product, quantized once: integers of fifteen bits per block of 32 with a float32 scale, each kept as
//! two int8 digits, `q = 128 high + low`, so that instructions for bytes multiply them. They lie in row tiles as the kernels
//! walk them. A tile of R rows (as many as the instruction set's tile, fewer at the end) is `[block][R][high 32 | low 32]`
//! int8, `[block][R]` scales and `[block][R]` terms (see [`Terms`]), so that one block of all its rows lies together, and
//! `[block]` flags: whether any of its rows is fine there. Where none is, all low digits are zero, and integers are the high
//! digits alone, with scales 128 times as large: the same values, and the same bits of every product. Kernels that
//! multiply words get the integers put together again, see [`Words`].

use super::format::{BLOCK, Terms};
use super::kernels::Kernels;
use super::shared::SharedMut;
use crate::cpu::pool::Pool;

/// Bytes of the digits of a block: the high ones, then the low ones.
pub(super) const DIGITS: usize = 2 * BLOCK;
/// Bits of a low digit, which is signed: -64 to 63.
pub(super) const LOW_BITS: u32 = 7;
/// The largest quantized activation: a high digit of 127 and a low one of zero.
const LARGEST: f32 = (127 << LOW_BITS) as f32;
/// 2^-80: blocks of smaller magnitudes become zeros.
const SMALLEST: f32 = f32::from_bits((127 - 80) << 23);
/// 2^80: blocks of larger magnitudes are always fine. Between the two, no scale times a weight's leaves the range of normal
/// numbers, so that scaling both sides of a product by 128 rounds nothing.
const HUGE: f32 = f32::from_bits((127 + 80) << 23);

/// The digits of a block: one cache line, so that no row of a tile register crosses into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Digits(pub(super) [i8; DIGITS]);

impl Default for Digits {
    fn default() -> Self {
        Self([0; DIGITS])
    }
}

/// The integers of a block as they are where it is fine, else its high digits: those of even k, then those of odd k.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Words(pub(super) [[i16; BLOCK / 2]; 2]);

/// What kernels read of a row beside its digits and scales.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The terms of each kind.
    pub(super) terms: [bool; Terms::COUNT],
    /// Words.
    pub(super) words: bool,
}

/// Memory that products reuse; it grows to the largest one and stays there.
#[derive(Debug, Default)]
pub struct GemmScratch {
    pub(super) digits: Vec<Digits>,
    /// In the order of the digits.
    pub(super) words: Vec<Words>,
    pub(super) scales: Vec<f32>,
    /// Per tile, of R times as many, the first `[blocks]`.
    pub(super) fine: Vec<u8>,
    sums: Vec<[i32; 2]>,
    pub(super) terms: [Vec<i32>; Terms::COUNT],
    /// Rows for BF16 weights, in the layout of [`super::bf16`].
    pub(super) pairs: Vec<[u32; 2]>,
}

/// Which blocks of a row are rounded to fifteen bits, and which to eight. It is decided from the row alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activations {
    /// Always fifteen.
    #[default]
    Full,
    /// Fifteen where the block's largest magnitude is more than one and a half times the mean of the row's blocks: rounding
    /// errors grow with it, and outliers are few. Products of many rows take down to half the time.
    Mixed,
}

impl Activations {
    /// Both, in the order of their numbers.
    pub const ALL: [Activations; 2] = [Activations::Full, Activations::Mixed];

    /// Numerics class of products that use it, and of those with BF16 weights.
    pub const fn class(self) -> &'static str {
        match self {
            Activations::Mixed => "int8-15x32-bf16x32",
            Activations::Full => "int15x32-bf16x32",
        }
    }

    /// Multiple of the mean of the blocks' largest magnitudes, above which a block is fine.
    const fn fine_above(self) -> f32 {
        match self {
            Activations::Mixed => 1.5,
            Activations::Full => 0.0,
        }
    }
}

/// Where the blocks of one row of a tile go: the first, and the distance to the next in blocks.
pub(super) struct RowTarget<'a> {
    activations: Activations,
    pub(super) digits: &'a mut [Digits],
    pub(super) scales: &'a mut [f32],
    fine: &'a mut [u8],
    pub(super) sums: &'a mut [[i32; 2]],
    pub(super) row: usize,
    pub(super) tile_rows: usize,
}

impl RowTarget<'_> {
    /// Index of block `block` of the row, in blocks from the start of the tile.
    pub(super) fn index(&self, block: usize) -> usize {
        block * self.tile_rows + self.row
    }

    /// The digits of that block.
    pub(super) fn digits(&mut self, index: usize) -> &mut [i8; DIGITS] {
        &mut self.digits[index].0
    }

    /// Takes the bits of each block's largest magnitude, in order, and says what makes a block fine.
    pub(super) fn limit(&mut self, largest_bits: impl Iterator<Item = u32>) -> Limit {
        let (mut sum, mut count) = (0.0, 0.0);
        for (block, bits) in largest_bits.enumerate() {
            let largest = f32::from_bits(bits);
            // Kept in the place of the scale until that is known.
            let index = self.index(block);
            self.scales[index] = largest;
            sum += largest;
            count += 1.0;
        }
        Limit(self.activations.fine_above() * (sum / count))
    }

    /// Begins a block: stores its scale, and says how to round it. `None` makes it zeros: there is nothing to scale (or next
    /// to nothing), or an infinite or undefined input, whose scale of NaN must show in the output.
    pub(super) fn begin(&mut self, block: usize, limit: Limit) -> Option<Rounding> {
        let index = self.index(block);
        let largest = self.scales[index];
        if !largest.is_finite() || largest < SMALLEST {
            *self.digits(index) = [0; DIGITS];
            self.scales[index] = if largest.is_finite() { 0.0 } else { f32::NAN };
            self.sums[index] = [0; 2];
            return None;
        }
        self.scales[index] = largest / LARGEST;
        let factor = LARGEST / largest;
        if largest > limit.0 || largest > HUGE || limit.0.is_nan() {
            self.fine[block] = 1;
            Some(Rounding { index, factor, shift: 0 })
        } else {
            Some(Rounding { index, factor: factor / (1 << LOW_BITS) as f32, shift: LOW_BITS })
        }
    }
}

/// Blocks with a larger magnitude are fine. Not a number in a row with undefined or huge input, where all others are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit(f32);

/// `q = round(x * factor) << shift`, ties to even: -16256 to 16256.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounding {
    /// The block's place, as of [`RowTarget::index`].
    pub(super) index: usize,
    pub(super) factor: f32,
    pub(super) shift: u32,
}

impl GemmScratch {
    /// Quantizes the rows of `x` (each `cols` wide) in tiles of `tile`.
    pub(super) fn quantize(
        &mut self,
        (pool, kernels, activations): (&Pool, &Kernels, Activations),
        tile: usize,
        (x, cols): (&[f32], usize),
        wanted: Wanted,
    ) {
        let blocks = cols / BLOCK;
        let rows = x.len() / cols;
        grow(&mut self.digits, rows * blocks);
        grow(&mut self.words, if wanted.words { rows * blocks } else { 0 });
        grow(&mut self.scales, rows * blocks);
        grow(&mut self.fine, rows * blocks);
        grow(&mut self.sums, rows * blocks);
        for (terms, kind) in self.terms.iter_mut().zip(Terms::ALL) {
            if wanted.terms[kind as usize] {
                grow(terms, rows * blocks * kind.words());
            }
        }
        let (digits, scales) = (SharedMut::new(&mut self.digits), SharedMut::new(&mut self.scales));
        let (fine, sums) = (SharedMut::new(&mut self.fine), SharedMut::new(&mut self.sums));
        let words = SharedMut::new(&mut self.words);
        let terms = self.terms.each_mut().map(|terms| SharedMut::new(terms));
        let quantize_tile = |index: usize| {
            let first = index * tile;
            let tile_rows = tile.min(rows - first);
            let (start, len) = (first * blocks, tile_rows * blocks);
            // SAFETY: every tile is given out once, and tiles do not overlap.
            let (digits, scales, fine, sums) = unsafe {
                (digits.slice(start, len), scales.slice(start, len), fine.slice(start, blocks), sums.slice(start, len))
            };
            fine.fill(0);
            for row in 0..tile_rows {
                let target = RowTarget { activations, digits, scales, fine, sums, row, tile_rows };
                // SAFETY: the table is only given out on machines that have its instruction set.
                unsafe { (kernels.quantize)(&x[(first + row) * cols..][..cols], target) };
            }
            let rows_of_blocks = scales.chunks_exact_mut(tile_rows).zip(sums.chunks_exact_mut(tile_rows));
            for ((scales, sums), _) in rows_of_blocks.zip(&*fine).filter(|&(_, &fine)| fine == 0) {
                scales.iter_mut().for_each(|scale| *scale *= (1 << LOW_BITS) as f32);
                sums.as_flattened_mut().iter_mut().for_each(|sum| *sum >>= LOW_BITS);
            }
            if let Some(of_words) = kernels.of_words.filter(|_| wanted.words) {
                // SAFETY: as above.
                let words = unsafe { words.slice(start, len) };
                let blocks_of_rows = digits.chunks_exact(tile_rows).zip(words.chunks_exact_mut(tile_rows));
                for ((digits, words), &fine) in blocks_of_rows.zip(&*fine) {
                    // SAFETY: the table is only given out on machines that have its instruction set.
                    unsafe { (of_words.put_together)(digits, fine != 0, words) };
                }
            }
            for kind in Terms::ALL.into_iter().filter(|&kind| wanted.terms[kind as usize]) {
                let words = kind.words();
                // SAFETY: as above.
                let terms = unsafe { terms[kind as usize].slice(start * words, len * words) };
                for ((terms, &sums), &scale) in terms.chunks_exact_mut(words).zip(&*sums).zip(&*scales) {
                    terms.copy_from_slice(&kind.of(scale, sums)[..words]);
                }
            }
        };
        let num_tiles = rows.div_ceil(tile);
        // A tile of the smallest models takes about a microsecond; below two there is nothing to share.
        if rows * cols < 16 * 1024 {
            (0..num_tiles).for_each(quantize_tile);
        } else {
            pool.run(num_tiles, quantize_tile);
        }
    }
}

pub(super) fn grow<T: Clone + Default>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    fn quantize(isa: Isa, x: &[f32]) -> GemmScratch {
        quantize_rows(isa, Activations::Full, 1, x)
    }

    /// A tile of some rows.
    fn quantize_rows(isa: Isa, activations: Activations, rows: usize, x: &[f32]) -> GemmScratch {
        let mut scratch = GemmScratch::default();
        let with = (&Pool::new(1), &isa.table().gemm, activations);
        scratch.quantize(with, rows, (x, x.len() / rows), Wanted { terms: [true; Terms::COUNT], words: true });
        scratch
    }

    fn every_isa(check: impl Fn(Isa)) {
        Isa::available().into_iter().for_each(check);
    }

    /// The integers of block `block` of a single row.
    fn values(scratch: &GemmScratch, block: usize) -> Vec<i32> {
        let (high, low) = scratch.digits[block].0.split_at(BLOCK);
        high.iter().zip(low).map(|(&high, &low)| (i32::from(high) << LOW_BITS) + i32::from(low)).collect()
    }

    #[test]
    fn values_are_rounded_to_the_nearest_and_ties_to_even() {
        every_isa(|isa| {
            let mut x = [0.0; 32];
            x[..8].copy_from_slice(&[16256.0, 0.5, 1.5, -2.5, -126.6, 3.49, -16256.0, 16255.4]);
            x[31] = 1.0;
            let scratch = quantize(isa, &x);
            assert_eq!(values(&scratch, 0)[..8], [16256, 0, 2, -2, -127, 3, -16256, 16255], "{isa:?}");
            let sum = 2 - 2 - 127 + 3 + 16255;
            assert_eq!((scratch.scales[0], scratch.sums[0]), (1.0, [sum, 1]), "{isa:?}");
            assert_eq!(scratch.terms[Terms::Zero8 as usize][0], -8 * (sum + 1));
            assert_eq!(scratch.terms[Terms::HalfZeros32 as usize][..2], [-32 * sum, -32]);
            assert_eq!(f32::from_bits(scratch.terms[Terms::ScaledSum as usize][0].cast_unsigned()), (sum + 1) as f32);
        });
    }

    #[test]
    fn every_integer_is_the_sum_of_its_digits() {
        every_isa(|isa| {
            for first in (-16256..16256).step_by(31) {
                let mut x: Vec<f32> = (0..32).map(|i| (first + i).min(16256) as f32).collect();
                x[31] = 16256.0;
                let expected: Vec<i32> = x.iter().map(|&x| x as i32).collect();
                assert_eq!(values(&quantize(isa, &x), 0), expected, "{isa:?}");
            }
        });
    }

    #[test]
    fn words_are_the_integers_in_use_even_ones_before_odd_ones() {
        every_isa(|isa| {
            if isa.table().gemm.of_words.is_none() {
                return;
            }
            let x: Vec<f32> =
                row([1.0, 1.8, 9.0]).iter().enumerate().map(|(i, x)| if i % 3 == 0 { -x } else { *x }).collect();
            for activations in Activations::ALL {
                let scratch = quantize_rows(isa, activations, 1, &x);
                for block in 0..3 {
                    let high = scratch.digits[block].0[..BLOCK].iter().map(|&high| i32::from(high)).collect();
                    let expected: Vec<i32> = if scratch.fine[block] == 1 { values(&scratch, block) } else { high };
                    let words = scratch.words[block].0.map(|words| words.map(i32::from));
                    let in_order: Vec<i32> = (0..BLOCK).map(|k| words[k % 2][k / 2]).collect();
                    assert_eq!(in_order, expected, "{isa:?} {activations:?} {block}");
                }
            }
        });
    }

    #[test]
    fn blocks_without_a_scale_become_zeros_and_undefined_input_shows() {
        every_isa(|isa| {
            for (value, expected) in [(0.0, Some(0.0)), (1e-30, Some(0.0)), (f32::INFINITY, None), (f32::NAN, None)] {
                let mut x = [0.0; 64];
                x[17] = value;
                x[40] = 16256.0;
                let scratch = quantize(isa, &x);
                assert_eq!(values(&scratch, 0), [0; 32], "{isa:?} {value}");
                assert_eq!((values(&scratch, 1)[8], scratch.scales[1]), (16256, 1.0), "{isa:?} {value}");
                match expected {
                    Some(scale) => assert_eq!(scratch.scales[0], scale),
                    None => assert!(scratch.scales[0].is_nan(), "{isa:?} {value}"),
                }
            }
        });
    }

    /// Three blocks whose largest magnitudes are these.
    fn row(largest: [f32; 3]) -> Vec<f32> {
        (0..96).map(|i| if i % 32 == 0 { largest[i / 32] } else { largest[i / 32] * ((i % 7) as f32 / 7.3) }).collect()
    }

    #[test]
    fn blocks_with_outliers_are_fine_and_others_are_not() {
        every_isa(|isa| {
            // The mean is 2, so that blocks above 3 are fine.
            let x = row([1.0, 1.8, 3.2]);
            let scratch = quantize_rows(isa, Activations::Mixed, 1, &x);
            assert_eq!(scratch.fine[..3], [0, 0, 1], "{isa:?}");
            for (block, x) in x.chunks(BLOCK).enumerate() {
                let (high, low) = scratch.digits[block].0.split_at(BLOCK);
                let is_fine = scratch.fine[block] == 1;
                let digits: Vec<i32> = high.iter().map(|&high| i32::from(high)).collect();
                let integers = if is_fine { values(&scratch, block) } else { digits };
                let levels = if is_fine { 16256.0 } else { 127.0 };
                let expected: Vec<i32> = x.iter().map(|v| (v * (levels / x[0])).round_ties_even() as i32).collect();
                assert_eq!(integers, expected, "{isa:?} {block}");
                assert_eq!(is_fine, low.iter().any(|&low| low != 0), "{isa:?} {block}");
                assert_eq!(scratch.sums[block].iter().sum::<i32>(), expected.iter().sum::<i32>(), "{isa:?} {block}");
                assert!((scratch.scales[block] * levels / x[0] - 1.0).abs() < 1e-6, "{isa:?} {block}");
            }
        });
    }

    #[test]
    fn a_neighbour_in_the_tile_changes_the_digits_in_use_and_not_the_values() {
        every_isa(|isa| {
            let coarse = row([1.0, 1.1, 1.2]);
            let alone = quantize_rows(isa, Activations::Mixed, 1, &coarse);
            assert_eq!(alone.fine[..3], [0; 3]);
            let both = quantize_rows(isa, Activations::Mixed, 2, &[coarse, row([1.0, 9.0, 1.0])].concat());
            assert_eq!(both.fine[..3], [0, 1, 0], "{isa:?}");
            for (block, factor) in [(0, 1.0), (1, 128.0), (2, 1.0)] {
                assert_eq!(both.digits[2 * block], alone.digits[block]);
                assert_eq!(both.scales[2 * block] * factor, alone.scales[block], "{isa:?} {block}");
                assert_eq!(both.sums[2 * block].map(|sum| sum / factor as i32), alone.sums[block], "{isa:?} {block}");
            }
        });
    }

    #[test]
    fn blocks_of_huge_values_are_fine_whatever_the_others_are() {
        every_isa(|isa| {
            for x in [row([1e25, 1e25, 1e25]), row([3e38, 3e38, 3e38])] {
                assert_eq!(quantize_rows(isa, Activations::Mixed, 1, &x).fine[..3], [1; 3], "{isa:?}");
            }
        });
    }

    #[test]
    fn every_instruction_set_quantizes_to_the_same_bits() {
        let mut state = 1_u32;
        let x: Vec<f32> = (0..32 * 500)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let magnitude = [1e-30, 1e-3, 1.0, 1e4, 1e30][i / 32 % 5];
                (state as f32 / u32::MAX as f32 - 0.5) * magnitude
            })
            .collect();
        for (activations, rows) in [(Activations::Full, 1), (Activations::Mixed, 1), (Activations::Mixed, 4)] {
            let expected = quantize_rows(Isa::Portable, activations, rows, &x);
            every_isa(|isa| {
                let scratch = quantize_rows(isa, activations, rows, &x);
                assert_eq!(scratch.digits, expected.digits);
                assert_eq!(scratch.sums, expected.sums);
                assert_eq!(scratch.fine, expected.fine);
                let bits = |scales: &[f32]| scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&scratch.scales), bits(&expected.scales));
            });
        }
    }
}
