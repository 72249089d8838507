//! Rounding of activations to two digits for AVX2; see [`crate::cpu::gemm`] for the rule.

use crate::cpu::gemm::activations::{Digits, LOW_BITS, RowTarget, Words};
use crate::cpu::gemm::format::BLOCK;
use std::arch::x86_64::*;

/// One row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize_row(x: &[f32], mut target: RowTarget<'_>) {
    let blocks = x.as_chunks::<BLOCK>().0;
    let quarters = |x: &[f32; BLOCK]| {
        // SAFETY: the four quarters of 32 floats.
        [0, 8, 16, 24].map(|at| unsafe { _mm256_loadu_ps(x.as_ptr().add(at)) })
    };
    let magnitude = _mm256_set1_epi32(0x7FFF_FFFF);
    let limit = target.limit(blocks.iter().map(|x| {
        let bits = quarters(x).map(|x| _mm256_and_si256(_mm256_castps_si256(x), magnitude));
        // With the sign cleared, signed and unsigned order agree.
        let largest = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let largest = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
        _mm_cvtsi128_si32(largest).cast_unsigned()
    }));
    for (block, x) in blocks.iter().enumerate() {
        let Some(rounding) = target.begin(block, limit) else { continue };
        let (factor, shift) = (_mm256_set1_ps(rounding.factor), _mm_cvtsi32_si128(rounding.shift.cast_signed()));
        // The default rounding of a conversion is to nearest, ties to even.
        let round = |x: __m256| _mm256_sll_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x, factor)), shift);
        let integers = quarters(x).map(round);
        // Fifteen bits fit into int16, where the digits are taken. Packing works within 128-bit lanes; the permutation puts
        // the eight runs of four bytes in order.
        let words = [_mm256_packs_epi32(integers[0], integers[1]), _mm256_packs_epi32(integers[2], integers[3])];
        let half_step = _mm256_set1_epi16(1 << (LOW_BITS - 1));
        let high = words.map(|word| _mm256_srai_epi16::<{ LOW_BITS as i32 }>(_mm256_add_epi16(word, half_step)));
        let low = [0, 1].map(|i| _mm256_sub_epi16(words[i], _mm256_slli_epi16::<{ LOW_BITS as i32 }>(high[i])));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let place = target.digits(rounding.index).as_mut_ptr();
        for (at, digits) in [(0, high), (BLOCK, low)] {
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(digits[0], digits[1]), order);
            // SAFETY: 32 bytes of 64.
            unsafe { _mm256_storeu_si256(place.add(at).cast(), bytes) };
        }
        let sum = |a: __m256i, b: __m256i| {
            let sum = _mm256_add_epi32(a, b);
            let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
            _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum)))
        };
        target.sums[rounding.index] = [sum(integers[0], integers[1]), sum(integers[2], integers[3])];
    }
}

/// Words of digits, of the high ones alone unless they are fine.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn put_together(digits: &[Digits], is_fine: bool, words: &mut [Words]) {
    for (digits, words) in digits.iter().zip(words) {
        let halves = digits.0.as_ptr();
        // SAFETY: 32 high digits, 32 low ones.
        let (high, low) = unsafe { (_mm256_loadu_si256(halves.cast()), _mm256_loadu_si256(halves.add(BLOCK).cast())) };
        // A byte in the upper half of a word, shifted down, keeps its sign.
        let upper = [_mm256_slli_epi16::<8>(high), _mm256_and_si256(high, _mm256_set1_epi16(0xFF00_u16.cast_signed()))];
        let lower = [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(low)), _mm256_srai_epi16::<8>(low)];
        for (parity, place) in words.0.iter_mut().enumerate() {
            let word = if is_fine {
                _mm256_add_epi16(_mm256_srai_epi16::<{ 8 - LOW_BITS as i32 }>(upper[parity]), lower[parity])
            } else {
                _mm256_srai_epi16::<8>(upper[parity])
            };
            // SAFETY: sixteen words.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), word) };
        }
    }
}
