//! BF16 weights: the numerics class `bf16x32`, how panels and activations lie, and how both are made.
//!
//! # Numerics
//!
//! Activations are rounded to bfloat16, ties to even; magnitudes below 2^-56 become zero, in activations and in weights.
//! Then, for every block of 32 k (the last may be shorter), with fused multiply-adds:
//!
//! ```text
//! even = chain over k = 0, 2, .., 30 from zero     odd = chain over k = 1, 3, .., 31 from zero
//! acc = acc + (even + odd)                         blocks ascending, acc from zero; the bias at the end
//! ```
//!
//! That is what a tile of AMX's `tdpbf16ps` with K = 32 computes, and each chain is a sequence of AVX-512's `vdpbf16ps`.
//! Both flush denormal numbers, which plain arithmetic does not; here there are none. Operands are zero or multiples of 2^-63
//! (2^-56 with seven more bits), so products and all their sums, rounded or not, are zero or at least 2^-126. A product of
//! two bfloat16 has 16 bits: float32 holds it exactly unless it overflows.
//!
//! # Layout
//!
//! `vdpbf16ps` multiplies pairs and adds the product of the upper halves first. A pair is one 32-bit word of two k of the same
//! chain, the lower k above: `k << 16 | k + 2`. Four k are an even pair and an odd one. A panel is `[k / 4][even, odd][16 rows]`,
//! so that a cache line is one pair of sixteen rows; a tile of R rows of activations is `[k / 4][R][even, odd]`. Zeros fill
//! up the last four.

use super::activations::{GemmScratch, grow};
use super::format::{BLOCK, PANEL_ROWS};
use super::shared::SharedMut;
use crate::cpu::pool::Pool;

/// Elements that make an even and an odd pair.
const QUAD: usize = 4;
/// Quads of a full block.
pub(super) const BLOCK_QUADS: usize = BLOCK / QUAD;
/// Bytes of a pair of sixteen rows.
pub(super) const LINE_BYTES: usize = PANEL_ROWS * 4;
/// Smallest magnitude that is not zero, 2^-56, as float32.
const SMALLEST: u32 = (127 - 56) << 23;

/// Quads of a row of `cols` elements.
pub(super) const fn num_quads(cols: usize) -> usize {
    cols.div_ceil(QUAD)
}

/// Bytes of a panel that is `cols` wide; `None` when no memory is so large.
pub(super) fn panel_bytes(cols: usize) -> Option<usize> {
    num_quads(cols).checked_mul(2 * LINE_BYTES)
}

/// A float32 as the bfloat16 that products see, in the upper half of a word.
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let nearest = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    // A NaN whose payload is all in the lower half must not become an infinity.
    let number = if magnitude > 0x7F80_0000 { bits | 0x40_0000 } else { nearest };
    if magnitude < SMALLEST { 0 } else { number & 0xFFFF_0000 }
}

/// The even and the odd pair of four elements.
fn pairs(quad: [f32; QUAD]) -> [u32; 2] {
    let [a, b, c, d] = quad.map(round);
    [a | c >> 16, b | d >> 16]
}

/// Writes one zeroed panel from up to sixteen rows of the file.
pub(super) fn pack_panel(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let (words, _) = panel.as_chunks_mut::<4>();
    let number = |weight: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*weight)) << 16);
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (quad, weights) in row.as_chunks::<2>().0.chunks(QUAD).enumerate() {
            let pairs = pairs(std::array::from_fn(|i| weights.get(i).map_or(0.0, number)));
            for (parity, pair) in pairs.into_iter().enumerate() {
                words[(2 * quad + parity) * PANEL_ROWS + lane] = pair.to_le_bytes();
            }
        }
    }
}

/// The weight of one row and one k of a panel.
pub(super) fn weight_at(panel: &[u8], lane: usize, k: usize) -> f32 {
    let line = k / QUAD * 2 + k % 2;
    let pair = u32::from_le_bytes(panel.as_chunks::<4>().0[line * PANEL_ROWS + lane]);
    f32::from_bits(if k % QUAD < 2 { pair & 0xFFFF_0000 } else { pair << 16 })
}

impl GemmScratch {
    /// Rounds the rows of `x` (each `cols` wide) in tiles of `tile`.
    pub(super) fn round(&mut self, pool: &Pool, tile: usize, (x, cols): (&[f32], usize)) {
        let quads = num_quads(cols);
        let rows = x.len() / cols;
        grow(&mut self.pairs, rows * quads);
        let shared = SharedMut::new(&mut self.pairs);
        let round_tile = |index: usize| {
            let first = index * tile;
            let tile_rows = tile.min(rows - first);
            // SAFETY: every tile is given out once, and tiles do not overlap.
            let target = unsafe { shared.slice(first * quads, tile_rows * quads) };
            for (row, x) in x[first * cols..][..tile_rows * cols].chunks_exact(cols).enumerate() {
                round_row(x, &mut target[row..], tile_rows);
            }
        };
        let num_tiles = rows.div_ceil(tile);
        // Below some microseconds there is nothing to share.
        if rows * cols < 16 * 1024 {
            (0..num_tiles).for_each(round_tile);
        } else {
            pool.run(num_tiles, round_tile);
        }
    }
}

/// Writes the pairs of a row to every `stride`-th place.
fn round_row(x: &[f32], target: &mut [[u32; 2]], stride: usize) {
    let (whole, rest) = x.as_chunks::<QUAD>();
    let mut places = target.iter_mut().step_by(stride);
    // In this order: `zip` asks the second only when the first has one, so no place is lost.
    for (&quad, place) in whole.iter().zip(places.by_ref()) {
        *place = pairs(quad);
    }
    if let (Some(place), false) = (places.next(), rest.is_empty()) {
        *place = pairs(std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Context, PackedMatrix, gemm};
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::{MatrixData, WeightType};
    use half::bf16;

    /// Random numbers of either sign with exponents in a range.
    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 20) as u32
        }

        fn number(&mut self, exponents: std::ops::Range<i32>) -> f32 {
            let exponent = exponents.start + (self.bits() % exponents.len() as u32) as i32;
            f32::from_bits(self.bits() & 0x807F_FFFF | ((exponent + 127) as u32) << 23)
        }
    }

    fn number(upper_half: u32) -> f32 {
        f32::from_bits(upper_half)
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        let one = |ulps: f32| 1.0 + ulps / 128.0;
        for (x, expected) in [
            (one(0.5), 1.0),
            (one(1.5), one(2.0)),
            (one(0.51), one(1.0)),
            (-one(0.49), -1.0),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (2_f32.powi(-56), 2_f32.powi(-56)),
            (2_f32.powi(-56).next_down(), 0.0),
            (-2_f32.powi(-57), 0.0),
            (f32::from_bits(1), 0.0),
        ] {
            assert_eq!(number(round(x)), expected, "{x:e}");
        }
        for nan in [f32::NAN, f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)] {
            assert!(number(round(nan)).is_nan());
        }
        let mut random = Random(1);
        for _ in 0..100_000 {
            let x = random.number(-56..128);
            assert_eq!(number(round(x)), bf16::from_f32(x).to_f32(), "{x:e}");
        }
    }

    #[test]
    fn a_panel_and_a_tile_lie_as_described_and_end_in_zeros() {
        let values: Vec<f32> = (0..3 * 6).map(|i| (i + 1) as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let mut panel = vec![0; panel_bytes(6).unwrap()];
        pack_panel(&bytes, 12, &mut panel);
        let mut scratch = GemmScratch::default();
        scratch.round(&Pool::new(1), 3, (&values, 6));
        let pair = |row: usize, k: usize| {
            let value = |k: usize| if k < 6 { values[row * 6 + k].to_bits() } else { 0 };
            value(k) | value(k + 2) >> 16
        };
        for row in 0..3 {
            for quad in 0..2 {
                for parity in 0..2 {
                    let at = ((2 * quad + parity) * PANEL_ROWS + row) * 4;
                    let expected = pair(row, 4 * quad + parity);
                    assert_eq!(panel[at..at + 4], expected.to_le_bytes());
                    assert_eq!(scratch.pairs[quad * 3 + row][parity], expected);
                }
            }
            assert_eq!([0, 1, 2, 3, 4, 5].map(|k| weight_at(&panel, row, k)), values[row * 6..][..6]);
        }
    }

    /// One output, by the definition.
    fn defined(w: &[f32], x: &[f32], bias: f32) -> f32 {
        let mut acc = 0.0;
        for (w, x) in w.chunks(BLOCK).zip(x.chunks(BLOCK)) {
            let mut chains = [0.0_f32; 2];
            for (k, (&w, &x)) in w.iter().zip(x).enumerate() {
                chains[k % 2] = number(round(w)).mul_add(number(round(x)), chains[k % 2]);
            }
            acc += chains[0] + chains[1];
        }
        acc + bias
    }

    /// Multiplies 5 rows with 20 outputs, of numbers with these exponents and some that are not finite, on everything.
    fn check(exponents: std::ops::Range<i32>, not_finite: bool) {
        let pool = Pool::new(2);
        let mut random = Random(7 + exponents.len() as u64);
        for cols in [1, 2, 3, 31, 32, 33, 64, 250] {
            for _ in 0..20 {
                let weights: Vec<bf16> =
                    (0..20 * cols).map(|_| bf16::from_f32(random.number(exponents.clone()))).collect();
                let mut x: Vec<f32> = (0..5 * cols).map(|_| random.number(exponents.clone())).collect();
                if not_finite {
                    x[3 * cols] = [f32::NAN, f32::INFINITY][cols % 2];
                }
                let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
                let weights: Vec<f32> = weights.iter().map(|w| w.to_f32()).collect();
                let bias: Vec<f32> = (0..20).map(|_| random.number(exponents.clone())).collect();
                let data = MatrixData { weight_type: WeightType::BF16, rows: 20, cols, bytes: &bytes };
                let matrix = PackedMatrix::pack(&[data], &pool).unwrap();
                for isa in Isa::available() {
                    let mut out = vec![0.0; 5 * 20];
                    let context = Context::new(isa, &pool);
                    gemm(context, 5, &x, &matrix, Some(&bias), &mut out, &mut GemmScratch::default());
                    for (i, &actual) in out.iter().enumerate() {
                        let (row, output) = (i / 20, i % 20);
                        let w = &weights[output * cols..][..cols];
                        let expected = defined(w, &x[row * cols..][..cols], bias[output]);
                        let same = actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan();
                        assert!(same, "{isa:?} {cols} {exponents:?}: {actual:e} is not {expected:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_computes_the_definition() {
        check(-4..4, false);
        check(-4..4, true);
    }

    #[test]
    fn neither_tiny_nor_huge_numbers_make_a_difference() {
        // Around the smallest: products and sums down to 2^-126, where instructions that flush denormals would differ.
        check(-58..-53, false);
        check(-60..0, false);
        check(-127..-50, false);
        // Products that overflow, and sums that do not.
        check(60..66, false);
        check(-126..128, false);
    }
}
