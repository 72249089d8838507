//! The exact integers of a block: a few rows of activations times the sixteen rows of a panel.
//!
//! A group of four k, one vector for each half of the panel, meets the rows before the next group does, and what is broadcast
//! of a row meets both halves. There are two ways:
//!
//! - **Digits.** `vpmaddubsw` multiplies weights with a digit and adds pairs in int16, where further groups are added as
//!   long as none can overflow: all eight for values up to 15. `vpmaddwd` then adds pairs again and weighs the digits, 128
//!   and 1, in the same multiplication.
//! - **Words.** Weights are widened to int16, two vectors of even and odd k from one of bytes, and meet the fifteen bits that
//!   the digits came from; `vpmaddwd` adds pairs in int32. Values above 31 leave int16 no room for a second or third group of
//!   digits, so that this is shorter; and of a row there are two sums rather than four, so that more rows share what is
//!   unpacked.

use super::scaling::Scaling;
use crate::cpu::gemm::activations::{LOW_BITS, Words};
use crate::cpu::gemm::format::{Format, High, Low, Quantized};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// A group of a block in both halves of a panel.
pub(super) type Group = [__m256i; 2];

/// Where the groups of a block come from.
pub(super) trait Weights: Copy {
    /// Group `g`, values as they are stored, unsigned.
    ///
    /// # Safety
    /// AVX2, and the block that this stands for is there.
    unsafe fn group<F: Quantized>(self, g: usize) -> Group;
}

/// The bit planes of a block.
#[derive(Clone, Copy)]
pub(super) struct Packed(pub(super) *const u8);

/// Its groups, unpacked before.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<'a>(pub(super) &'a [Group; 8]);

impl Weights for Unpacked<'_> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group<F: Quantized>(self, g: usize) -> Group {
        self.0[g]
    }
}

impl Weights for Packed {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group<F: Quantized>(self, g: usize) -> Group {
        // SAFETY: a vector has a half of the panel in each half.
        unsafe { [half_group::<F>(self.0, g), half_group::<F>(self.0.add(32), g)] }
    }
}

/// Group `g` of one half of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_group<F: Quantized>(planes: *const u8, g: usize) -> __m256i {
    let format = F::FORMAT;
    let low_bits = format.low_bits() as usize;
    let (vector, shift) = match format.low {
        Low::Pairs => (g / 4, 2 * (g % 4)),
        Low::Nibbles => (g % 4, 4 * (g / 4)),
        Low::Bytes => (g, 0),
    };
    // SAFETY: a block has `low_vectors` vectors of 64 bytes here, of which this is a half.
    let mut value = unsafe { _mm256_load_si256(planes.add(64 * vector).cast()) };
    if format.low != Low::Bytes {
        value = _mm256_and_si256(shift_right(value, shift), _mm256_set1_epi8((1 << low_bits) - 1));
    }
    if format.high != High::None {
        let (vector, from, mask) = match format.high {
            High::OneBit => (0, g, 1),
            _ => (g / 4, 2 * (g % 4), 3),
        };
        // SAFETY: and its high vectors after them.
        let high = unsafe { _mm256_load_si256(planes.add(64 * (format.low_vectors() + vector)).cast()) };
        let mask = _mm256_set1_epi8(((mask as u32) << low_bits) as i8);
        value = _mm256_or_si256(value, _mm256_and_si256(move_bits(high, from, low_bits), mask));
    }
    value
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_right(x: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

/// Bits `from..` of every byte moved to `to..`; neighbours come along and are masked off by the caller.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn move_bits(x: __m256i, from: usize, to: usize) -> __m256i {
    if from >= to { shift_right(x, from - to) } else { _mm256_sll_epi16(x, _mm_cvtsi32_si128((to - from) as i32)) }
}

/// Whether integers of so many rows are computed by words. Of a block without low digits they are for bytes alone, which do not
/// fit `vpmaddubsw`. For two rows, and three where little is to unpack, digits take less time.
pub(super) const fn by_words(format: Format, fine: bool, rows: usize) -> bool {
    let is_long_to_unpack = !matches!(format.high, High::None);
    let is_shorter = format.largest() > 31 || rows > 3 || rows == 3 && is_long_to_unpack;
    matches!(format.low, Low::Bytes) || fine && is_shorter
}

/// The integers of a block and ROWS rows, of their high digits alone unless it is FINE. `digits`, `words` and `terms` are
/// those of the first row; the others follow.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn integers<F: Quantized, W: Weights, const ROWS: usize, const FINE: bool>(
    weights: W,
    scaling: &[Scaling; 2],
    digits: *const i8,
    words: *const Words,
    terms: *const i32,
) -> [Group; ROWS] {
    // SAFETY: the caller's obligation.
    unsafe {
        if F::FORMAT.has_halves() {
            let first = run::<F, W, ROWS, FINE, FIRST>(weights, scaling, digits, words, terms);
            let second = run::<F, W, ROWS, FINE, SECOND>(weights, scaling, digits, words, terms);
            let mut integers = first;
            for (integers, second) in integers.iter_mut().zip(&second) {
                *integers = [_mm256_add_epi32(integers[0], second[0]), _mm256_add_epi32(integers[1], second[1])];
            }
            integers
        } else {
            run::<F, W, ROWS, FINE, WHOLE>(weights, scaling, digits, words, terms)
        }
    }
}

/// Groups that are summed together: half a block, where it has scales of its own, or all of it.
const FIRST: usize = 0;
const SECOND: usize = 1;
const WHOLE: usize = 2;
const RUNS: [Range<usize>; 3] = [0..4, 4..8, 0..8];

/// The integers of groups RUN, times the scales of a half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<F: Quantized, W: Weights, const ROWS: usize, const FINE: bool, const RUN: usize>(
    weights: W,
    scaling: &[Scaling; 2],
    digits: *const i8,
    words: *const Words,
    terms: *const i32,
) -> [Group; ROWS] {
    let format = F::FORMAT;
    // SAFETY: the caller's obligation.
    let mut sums = unsafe {
        if by_words(F::FORMAT, FINE, ROWS) {
            word_sums::<F, W, ROWS, RUN>(weights, words)
        } else {
            digit_sums::<F, W, ROWS, FINE, RUN>(weights, digits.cast())
        }
    };
    for (row, sums) in sums.iter_mut().enumerate() {
        for (sum, scaling) in sums.iter_mut().zip(scaling) {
            if !format.has_min() {
                // SAFETY: a row has the words of its type's terms, one per run.
                let zero = unsafe { *terms.add(row * format.terms().words() + RUN % WHOLE) };
                *sum = _mm256_add_epi32(*sum, _mm256_set1_epi32(zero));
            }
            if format.has_halves() {
                *sum = _mm256_mullo_epi32(*sum, scaling.halves[RUN % WHOLE]);
            }
        }
    }
    sums
}

/// A sum as it is, opaque to the compiler, which would otherwise regroup sums of integers, one output after the other, and
/// have more values alive than there are registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_order(mut sum: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

/// A loop over the groups of a range, written out: the numbers of vectors and shifts are then part of the instructions.
macro_rules! each_group {
    ($groups:expr, $g:ident, $body:block) => { each_group!($groups, $g, $body, 0, 1, 2, 3, 4, 5, 6, 7) };
    ($groups:expr, $g:ident, $body:block, $($number:literal),*) => {
        $(
            if $groups.contains(&$number) {
                let $g: usize = $number;
                $body
            }
        )*
    };
}

/// Groups that can be added up in int16: each adds at most twice the largest value times the largest digit.
const fn groups_in_int16(largest: i32, digit: i32) -> usize {
    (i16::MAX as i32 / (2 * digit * largest)) as usize
}

/// Sums of groups RUN by digits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn digit_sums<F: Quantized, W: Weights, const ROWS: usize, const FINE: bool, const RUN: usize>(
    weights: W,
    x: *const i32,
) -> [Group; ROWS] {
    const { assert!(groups_in_int16(F::FORMAT.largest(), 127) > 0 || by_words(F::FORMAT, false, ROWS)) };
    let none = _mm256_setzero_si256();
    let mut sums = [[none; 2]; ROWS];
    let digits = if FINE { 2 } else { 1 };
    // What a digit is worth, how many groups of it fit, and its sums of pairs.
    let worth = if FINE { [1 << LOW_BITS, 1] } else { [1, 0] };
    let at_once = [127, 1 << (LOW_BITS - 1)].map(|digit| groups_in_int16(F::FORMAT.largest(), digit));
    let mut pairs = [[[none; 2]; 2]; ROWS];
    each_group!(RUNS[RUN], g, {
        // SAFETY: the caller's obligation.
        let w = unsafe { weights.group::<F>(g) };
        for digit in 0..digits {
            let is_full = (g + 1 - RUNS[RUN].start).is_multiple_of(at_once[digit]) || g + 1 == RUNS[RUN].end;
            for row in 0..ROWS {
                // SAFETY: a row has eight groups of four high digits, then of low ones.
                let x = unsafe { _mm256_set1_epi32(x.add(16 * row + 8 * digit + g).read_unaligned()) };
                for half in 0..2 {
                    let pairs = &mut pairs[row][digit][half];
                    *pairs = in_order(_mm256_add_epi16(*pairs, _mm256_maddubs_epi16(w[half], x)));
                    if is_full {
                        let sum = _mm256_madd_epi16(*pairs, _mm256_set1_epi16(worth[digit]));
                        sums[row][half] = _mm256_add_epi32(sums[row][half], sum);
                        *pairs = none;
                    }
                }
            }
        }
    });
    sums
}

/// Sums of groups RUN by words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn word_sums<F: Quantized, W: Weights, const ROWS: usize, const RUN: usize>(
    weights: W,
    x: *const Words,
) -> [Group; ROWS] {
    debug_assert!(!x.is_null(), "words were wanted for a tile of {ROWS} rows");
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    each_group!(RUNS[RUN], g, {
        // SAFETY: the caller's obligation.
        let w = unsafe { weights.group::<F>(g) };
        let even = _mm256_set1_epi16(0xFF);
        let even = [_mm256_and_si256(w[0], even), _mm256_and_si256(w[1], even)];
        let odd = [_mm256_srli_epi16::<8>(w[0]), _mm256_srli_epi16::<8>(w[1])];
        for (parity, w) in [even, odd].iter().enumerate() {
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: a row has eight pairs of either parity.
                let x = unsafe { _mm256_set1_epi32(x.add(row).cast::<i32>().add(8 * parity + g).read()) };
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = in_order(_mm256_add_epi32(*sum, _mm256_madd_epi16(*w, x)));
                }
            }
        }
    });
    sums
}
