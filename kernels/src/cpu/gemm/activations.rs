//! Activations of one product, quantized once: integers of fifteen bits per block of 32 with a float32 scale, each kept as
//! two int8 digits, `q = 128 high + low`, so that instructions for bytes multiply them. They lie in row tiles as the kernels
//! walk them. A tile of R rows (as many as the instruction set's tile, fewer at the end) is `[block][R][high 32 | low 32]`
//! int8, `[block][R]` scales and `[block][R]` terms (see [`Terms`]), so that one block of all its rows lies together.

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

/// Memory that products reuse; it grows to the largest one and stays there.
#[derive(Debug, Default)]
pub struct GemmScratch {
    pub(super) digits: Vec<i8>,
    pub(super) scales: Vec<f32>,
    sums: Vec<[i32; 2]>,
    pub(super) terms: [Vec<i32>; Terms::COUNT],
    /// Rows for BF16 weights, in the layout of [`super::bf16`].
    pub(super) pairs: Vec<[u32; 2]>,
}

/// Where the blocks of one row of a tile go: the first, and the distance to the next in blocks.
pub(super) struct RowTarget<'a> {
    pub(super) digits: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
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
        (&mut self.digits[index * DIGITS..(index + 1) * DIGITS]).try_into().expect("a slice of 64")
    }

    /// Ends a block: all zero, for input that has no scale.
    pub(super) fn put_zero(&mut self, block: usize, scale: f32) {
        let index = self.index(block);
        *self.digits(index) = [0; DIGITS];
        self.scales[index] = scale;
        self.sums[index] = [0; 2];
    }
}

/// The scale of a block whose largest magnitude has these bits, and the factor that takes values to -16256..=16256. A factor
/// of zero means that the values become zeros: nothing to scale (or so small that the factor overflows), or, with a scale of
/// NaN, an infinite or undefined input, which must show in the output and not vanish.
pub(super) fn block_scale(largest_bits: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest_bits);
    let factor = LARGEST / largest;
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if factor.is_finite() {
        (largest / LARGEST, factor)
    } else {
        (0.0, 0.0)
    }
}

impl GemmScratch {
    /// Quantizes the rows of `x` (each `cols` wide) in tiles of `tile`, with the terms in `wanted`.
    pub(super) fn quantize(
        &mut self,
        pool: &Pool,
        kernels: &Kernels,
        tile: usize,
        (x, cols): (&[f32], usize),
        wanted: [bool; Terms::COUNT],
    ) {
        let blocks = cols / BLOCK;
        let rows = x.len() / cols;
        grow(&mut self.digits, rows * blocks * DIGITS);
        grow(&mut self.scales, rows * blocks);
        grow(&mut self.sums, rows * blocks);
        for (terms, kind) in self.terms.iter_mut().zip(Terms::ALL) {
            if wanted[kind as usize] {
                grow(terms, rows * blocks * kind.words());
            }
        }
        let (digits, scales) = (SharedMut::new(&mut self.digits), SharedMut::new(&mut self.scales));
        let sums = SharedMut::new(&mut self.sums);
        let terms = self.terms.each_mut().map(|terms| SharedMut::new(terms));
        let quantize_tile = |index: usize| {
            let first = index * tile;
            let tile_rows = tile.min(rows - first);
            let (start, len) = (first * blocks, tile_rows * blocks);
            // SAFETY: every tile is given out once, and tiles do not overlap.
            let (digits, scales, sums) = unsafe {
                (digits.slice(start * DIGITS, len * DIGITS), scales.slice(start, len), sums.slice(start, len))
            };
            for row in 0..tile_rows {
                let target = RowTarget { digits, scales, sums, row, tile_rows };
                // SAFETY: the table is only given out on machines that have its instruction set.
                unsafe { (kernels.quantize)(&x[(first + row) * cols..][..cols], target) };
            }
            for kind in Terms::ALL.into_iter().filter(|&kind| wanted[kind as usize]) {
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
        let mut scratch = GemmScratch::default();
        scratch.quantize(&Pool::new(1), &isa.table().gemm, 1, (x, x.len()), [true; Terms::COUNT]);
        scratch
    }

    fn every_isa(check: impl Fn(Isa)) {
        Isa::available().into_iter().for_each(check);
    }

    /// The integers of block `block` of a single row.
    fn values(scratch: &GemmScratch, block: usize) -> Vec<i32> {
        let (high, low) = scratch.digits[block * DIGITS..][..DIGITS].split_at(BLOCK);
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
    fn blocks_without_a_scale_become_zeros_and_undefined_input_shows() {
        every_isa(|isa| {
            for (value, expected) in [(0.0, Some(0.0)), (1e-36, Some(0.0)), (f32::INFINITY, None), (f32::NAN, None)] {
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
        let expected = quantize(Isa::Portable, &x);
        every_isa(|isa| {
            let scratch = quantize(isa, &x);
            assert_eq!(scratch.digits, expected.digits);
            assert_eq!(scratch.sums, expected.sums);
            let bits = |scales: &[f32]| scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&scratch.scales), bits(&expected.scales));
        });
    }
}
