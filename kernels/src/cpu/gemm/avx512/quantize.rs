//! Rounding of activations to two digits for AVX-512; see [`crate::cpu::gemm`] for the rule.

use crate::cpu::gemm::activations::{LOW_BITS, RowTarget, block_scale};
use crate::cpu::gemm::format::BLOCK;
use std::arch::x86_64::*;

/// One row.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn quantize_row(x: &[f32], mut target: RowTarget<'_>) {
    let magnitude = _mm512_set1_epi32(0x7FFF_FFFF);
    for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        // SAFETY: the two halves of 32 floats.
        let (first, second) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
        let bits = |x: __m512| _mm512_and_si512(_mm512_castps_si512(x), magnitude);
        let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(bits(first), bits(second)));
        let (scale, factor) = block_scale(largest);
        if factor == 0.0 {
            target.put_zero(block, scale);
            continue;
        }
        let factor = _mm512_set1_ps(factor);
        // The default rounding of a conversion is to nearest, ties to even.
        let first = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor));
        let second = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
        let index = target.index(block);
        let digits = target.digits(index);
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
        target.scales[index] = scale;
        target.sums[index] = [_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)];
    }
}
