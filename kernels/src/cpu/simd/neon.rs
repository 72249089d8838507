//! Sixteen lanes in four NEON registers.

use super::{LANES, Simd};
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON; exists only where the processor has it.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

impl Neon {
    /// Safe only to call where the feature is enabled, which the compiler checks.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
#[derive(Clone, Copy)]
pub(super) struct Quarters([float32x4_t; 4]);

impl Quarters {
    /// Made of quarters 0 to 3.
    #[inline(always)]
    fn from_fn(quarter: impl Fn(usize) -> float32x4_t) -> Self {
        Self([quarter(0), quarter(1), quarter(2), quarter(3)])
    }
}

/// One expression of intrinsics.
macro_rules! neon {
    ($body:expr) => {
        // SAFETY: `self` exists, so the processor has NEON; memory operands are references to arrays of the full width, of
        // which quarter `i` is four elements from `4 * i`, and the loads and stores used need no alignment.
        unsafe { $body }
    };
}

impl Simd for Neon {
    type F = Quarters;
    // Thirty-two registers, of which a vector takes four: as many vectors as AVX2 has.
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Quarters {
        Quarters([neon!(vdupq_n_f32(x)); 4])
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Quarters {
        Quarters::from_fn(|i| neon!(vld1q_f32(from.as_ptr().add(4 * i))))
    }
    #[inline(always)]
    fn store(self, x: Quarters, to: &mut [f32; LANES]) {
        for (i, x) in x.0.into_iter().enumerate() {
            neon!(vst1q_f32(to.as_mut_ptr().add(4 * i), x));
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Quarters {
        Quarters::from_fn(|i| neon!(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.as_ptr().add(4 * i))))))
    }
    #[inline(always)]
    fn store_f16(self, x: Quarters, to: &mut [u16; LANES]) {
        for (i, x) in x.0.into_iter().enumerate() {
            neon!(vst1_u16(to.as_mut_ptr().add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(x))));
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Quarters {
        Quarters::from_fn(|i| neon!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.as_ptr().add(4 * i))))))
    }
    #[inline(always)]
    fn store_bf16(self, x: Quarters, to: &mut [u16; LANES]) {
        for (i, x) in x.0.into_iter().enumerate() {
            neon!({
                let bits = vreinterpretq_u32_f32(x);
                // Half a unit less one, and one more where the last kept bit is odd: to nearest, ties to even.
                let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
                let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
                let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
                let is_number = vceqq_f32(x, x);
                vst1_u16(to.as_mut_ptr().add(4 * i), vshrn_n_u32::<16>(vbslq_u32(is_number, rounded, quiet)));
            });
        }
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Quarters {
        neon!({
            let bytes = vreinterpretq_s8_u8(vld1q_u8(from.as_ptr()));
            let (first, second) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            let low = |x| vcvtq_f32_s32(vmovl_s16(vget_low_s16(x)));
            let high = |x| vcvtq_f32_s32(vmovl_high_s16(x));
            Quarters([low(first), high(first), low(second), high(second)])
        })
    }
    #[inline(always)]
    fn add(self, a: Quarters, b: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vaddq_f32(a.0[i], b.0[i])))
    }
    #[inline(always)]
    fn sub(self, a: Quarters, b: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vsubq_f32(a.0[i], b.0[i])))
    }
    #[inline(always)]
    fn mul(self, a: Quarters, b: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vmulq_f32(a.0[i], b.0[i])))
    }
    #[inline(always)]
    fn div(self, a: Quarters, b: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vdivq_f32(a.0[i], b.0[i])))
    }
    #[inline(always)]
    fn fma(self, a: Quarters, b: Quarters, c: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vfmaq_f32(c.0[i], a.0[i], b.0[i])))
    }
    #[inline(always)]
    fn max(self, a: Quarters, b: Quarters) -> Quarters {
        Quarters::from_fn(|i| self.larger(a.0[i], b.0[i]))
    }
    #[inline(always)]
    fn floor(self, x: Quarters) -> Quarters {
        Quarters::from_fn(|i| neon!(vrndmq_f32(x.0[i])))
    }
    #[inline(always)]
    fn power_of_two(self, n: Quarters) -> Quarters {
        Quarters::from_fn(|i| {
            neon!({
                let above = self.larger(n.0[i], vdupq_n_f32(-127.0));
                let clamped = vminq_f32(above, vdupq_n_f32(127.0));
                let exponent = vaddq_s32(vcvtq_s32_f32(clamped), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
            })
        })
    }
    #[inline(always)]
    fn first_lanes(self, count: usize, a: Quarters, b: Quarters) -> Quarters {
        const INDEX: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        Quarters::from_fn(|i| {
            neon!({
                let count = vdupq_n_u32(count.min(LANES) as u32);
                let take = vcgtq_u32(count, vld1q_u32(INDEX.as_ptr().add(4 * i)));
                vbslq_f32(take, a.0[i], b.0[i])
            })
        })
    }
    #[inline(always)]
    fn any_at_least(self, a: Quarters, b: Quarters) -> bool {
        neon!({
            let at_least = |i: usize| vcgeq_f32(a.0[i], b.0[i]);
            let any = vorrq_u32(vorrq_u32(at_least(0), at_least(1)), vorrq_u32(at_least(2), at_least(3)));
            vmaxvq_u32(any) != 0
        })
    }
    #[inline(always)]
    fn sum(self, x: Quarters) -> f32 {
        neon!({
            let four = vaddq_f32(vaddq_f32(x.0[0], x.0[2]), vaddq_f32(x.0[1], x.0[3]));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        })
    }
    #[inline(always)]
    fn largest(self, x: Quarters) -> f32 {
        let four = self.larger(self.larger(x.0[0], x.0[2]), self.larger(x.0[1], x.0[3]));
        let two = self.larger(four, neon!(vextq_f32::<2>(four, four)));
        neon!(vgetq_lane_f32::<0>(self.larger(two, vextq_f32::<1>(two, two))))
    }
    #[inline(always)]
    fn prefetch<T>(self, slice: &[T], byte: usize) {
        let at = slice.as_ptr().cast::<u8>().wrapping_add(byte);
        // SAFETY: a prefetch reads nothing, and no address makes it fault. (The intrinsic is not in stable Rust.)
        unsafe { asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)) };
    }
}

impl Neon {
    /// `if a > b { a } else { b }`; `fmax` would give what is not a number where either is.
    #[inline(always)]
    fn larger(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }
}
