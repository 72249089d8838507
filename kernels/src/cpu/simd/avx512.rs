//! Sixteen lanes in one AVX-512 register.

use super::{LANES, Simd};
use std::arch::x86_64::*;

/// AVX-512 F, BW, VL and DQ; exists only where the processor has them.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// Safe only to call where the features are enabled, which the compiler checks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// One expression of intrinsics.
macro_rules! avx512 {
    ($body:expr) => {
        // SAFETY: `self` exists, so the processor has the features of these instructions; memory operands are references to
        // arrays of the full width, and the loads and stores used need no alignment.
        unsafe { $body }
    };
}

impl Simd for Avx512 {
    type F = __m512;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        avx512!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        avx512!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        avx512!(_mm512_storeu_ps(to.as_mut_ptr(), x));
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> __m512 {
        avx512!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, x: __m512, to: &mut [u16; LANES]) {
        avx512!(_mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        ));
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> __m512 {
        avx512!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            from.as_ptr().cast()
        )))))
    }
    #[inline(always)]
    fn store_bf16(self, x: __m512, to: &mut [u16; LANES]) {
        avx512!({
            let bits = _mm512_castps_si512(x);
            // Half a unit less one, and one more where the last kept bit is odd: to nearest, ties to even.
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let kept = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), quiet);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept)));
        });
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> __m512 {
        avx512!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx512!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn floor(self, x: __m512) -> __m512 {
        avx512!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x))
    }
    #[inline(always)]
    fn power_of_two(self, n: __m512) -> __m512 {
        avx512!({
            let above = _mm512_max_ps(n, _mm512_set1_ps(-127.0));
            let clamped = _mm512_min_ps(above, _mm512_set1_ps(127.0));
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(clamped), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    fn first_lanes(self, count: usize, a: __m512, b: __m512) -> __m512 {
        let mask = ((1_u32 << count.min(LANES)) - 1) as __mmask16;
        avx512!(_mm512_mask_blend_ps(mask, b, a))
    }
    #[inline(always)]
    fn any_at_least(self, a: __m512, b: __m512) -> bool {
        avx512!(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b)) != 0
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        avx512!({
            let high = _mm512_extractf32x8_ps::<1>(x);
            let eight = _mm256_add_ps(_mm512_castps512_ps256(x), high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        avx512!({
            let high = _mm512_extractf32x8_ps::<1>(x);
            let eight = _mm256_max_ps(_mm512_castps512_ps256(x), high);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, slice: &[T], byte: usize) {
        // A prefetch reads nothing, and no address makes it fault.
        avx512!(_mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().cast::<i8>().wrapping_add(byte)));
    }
}
