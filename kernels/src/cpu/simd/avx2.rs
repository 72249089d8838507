//! Sixteen lanes in two AVX2 registers.

use super::{LANES, Simd};
use std::arch::x86_64::*;

/// AVX2, FMA and F16C; exists only where the processor has them.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Safe only to call where the features are enabled, which the compiler checks.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(super) struct Pair(__m256, __m256);

/// One expression of intrinsics.
macro_rules! avx2 {
    ($body:expr) => {
        // SAFETY: `self` exists, so the processor has the features of these instructions; memory operands are references to
        // arrays of the full width, and the loads and stores used need no alignment.
        unsafe { $body }
    };
}

impl Simd for Avx2 {
    type F = Pair;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        let x = avx2!(_mm256_set1_ps(x));
        Pair(x, x)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Pair {
        avx2!(Pair(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))))
    }
    #[inline(always)]
    fn store(self, x: Pair, to: &mut [f32; LANES]) {
        avx2!({
            _mm256_storeu_ps(to.as_mut_ptr(), x.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x.1);
        });
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Pair {
        avx2!(Pair(
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast()))
        ))
    }
    #[inline(always)]
    fn store_f16(self, x: Pair, to: &mut [u16; LANES]) {
        avx2!({
            let low = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x.0);
            let high = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x.1);
            _mm_storeu_si128(to.as_mut_ptr().cast(), low);
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), high);
        });
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Pair {
        avx2!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast()));
            let widened = |bits| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
            Pair(widened(low), widened(high))
        })
    }
    #[inline(always)]
    fn store_bf16(self, x: Pair, to: &mut [u16; LANES]) {
        let narrowed = |x: __m256| {
            avx2!({
                let bits = _mm256_castps_si256(x);
                // Half a unit less one, and one more where the last kept bit is odd: to nearest, ties to even.
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                let not_a_number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
                _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, not_a_number))
            })
        };
        let (low, high) = (narrowed(x.0), narrowed(x.1));
        avx2!({
            // Packing goes by halves of a register: quarters 0, 2, 1, 3.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
        });
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Pair {
        avx2!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let widened = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            Pair(widened(bytes), widened(_mm_srli_si128::<8>(bytes)))
        })
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        avx2!(Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        avx2!(Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        avx2!(Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        avx2!(Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        avx2!(Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)))
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        avx2!(Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn floor(self, x: Pair) -> Pair {
        avx2!(Pair(_mm256_floor_ps(x.0), _mm256_floor_ps(x.1)))
    }
    #[inline(always)]
    fn power_of_two(self, n: Pair) -> Pair {
        let power = |n: __m256| {
            avx2!({
                let above = _mm256_max_ps(n, _mm256_set1_ps(-127.0));
                let clamped = _mm256_min_ps(above, _mm256_set1_ps(127.0));
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(clamped), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            })
        };
        Pair(power(n.0), power(n.1))
    }
    #[inline(always)]
    fn first_lanes(self, count: usize, a: Pair, b: Pair) -> Pair {
        avx2!({
            let count = _mm256_set1_epi32(count.min(LANES) as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            let take = |index| _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, index));
            Pair(_mm256_blendv_ps(b.0, a.0, take(low)), _mm256_blendv_ps(b.1, a.1, take(high)))
        })
    }
    #[inline(always)]
    fn any_at_least(self, a: Pair, b: Pair) -> bool {
        let at_least = |a, b| avx2!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b)));
        at_least(a.0, b.0) | at_least(a.1, b.1) != 0
    }
    #[inline(always)]
    fn sum(self, x: Pair) -> f32 {
        avx2!({
            let eight = _mm256_add_ps(x.0, x.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn largest(self, x: Pair) -> f32 {
        avx2!({
            let eight = _mm256_max_ps(x.0, x.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, slice: &[T], byte: usize) {
        // A prefetch reads nothing, and no address makes it fault.
        avx2!(_mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().cast::<i8>().wrapping_add(byte)));
    }
}
