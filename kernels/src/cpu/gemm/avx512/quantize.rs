//! Rounding of activations to two digits for AVX-512; see [`crate::cpu::gemm`] for the rule.

use crate::cpu::gemm::activations::{LOW_BITS, RowTarget};
use crate::cpu::gemm::format::BLOCK;
use std::arch::x86_64::*;

/// One row.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn quantize_row(x: &[f32], mut target: RowTarget<'_>) {
    let blocks = x.as_chunks::<BLOCK>().0;
    let halves = |x: &[f32; BLOCK]| {
        // SAFETY: the two halves of 32 floats.
        unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] }
    };
    let magnitude = _mm512_set1_epi32(0x7FFF_FFFF);
    let limit = target.limit(blocks.iter().map(|x| {
        let [first, second] = halves(x).map(|x| _mm512_and_si512(_mm512_castps_si512(x), magnitude));
        _mm512_reduce_max_epu32(_mm512_max_epu32(first, second))
    }));
    for (block, x) in blocks.iter().enumerate() {
        let Some(rounding) = target.begin(block, limit) else { continue };
        let (factor, shift) = (_mm512_set1_ps(rounding.factor), _mm_cvtsi32_si128(rounding.shift.cast_signed()));
        // The default rounding of a conversion is to nearest, ties to even.
        let round = |x: __m512| _mm512_sll_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)), shift);
        let [first, second] = halves(x).map(round);
        let digits = target.digits(rounding.index);
        for (half, values) in [first, second].into_iter().enumerate() {
            let high = _mm512_srai_epi32::<LOW_BITS>(_mm512_add_epi32(values, _mm512_set1_epi32(1 << (LOW_BITS - 1))));
            let low = _mm512_sub_epi32(values, _mm512_slli_epi32::<LOW_BITS>(high));
            // SAFETY: sixteen bytes of each half of the 32 high and of the 32 low digits.
            unsafe {
                let place = digits.as_mut_ptr().add(16 * half);
                _mm_storeu_si128(place.cast(), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(place.add(BLOCK).cast(), _mm512_cvtepi32_epi8(low));
            }
        }
        target.sums[rounding.index] = [_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)];
    }
}
