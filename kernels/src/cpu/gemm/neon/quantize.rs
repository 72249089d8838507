//! Rounding of activations to two digits for NEON; see [`crate::cpu::gemm`] for the rule.

use crate::cpu::gemm::activations::{LOW_BITS, RowTarget};
use crate::cpu::gemm::format::BLOCK;
use std::arch::aarch64::*;

/// One row.
#[target_feature(enable = "neon")]
pub(super) fn quantize_row(x: &[f32], mut target: RowTarget<'_>) {
    let blocks = x.as_chunks::<BLOCK>().0;
    let fours = |x: &[f32; BLOCK]| {
        // SAFETY: the eight runs of four of 32 floats.
        [0, 4, 8, 12, 16, 20, 24, 28].map(|at| unsafe { vld1q_f32(x.as_ptr().add(at)) })
    };
    let limit = target.limit(blocks.iter().map(|x| {
        // Magnitudes order as their bits do, NaN above infinity.
        let bits = fours(x).map(|x| vreinterpretq_u32_f32(vabsq_f32(x)));
        vmaxvq_u32(bits[1..].iter().fold(bits[0], |largest, &bits| vmaxq_u32(largest, bits)))
    }));
    for (block, x) in blocks.iter().enumerate() {
        let Some(rounding) = target.begin(block, limit) else { continue };
        let shift = vdupq_n_s32(rounding.shift.cast_signed());
        // To nearest, ties to even.
        let integers = fours(x).map(|x| vshlq_s32(vcvtnq_s32_f32(vmulq_n_f32(x, rounding.factor)), shift));
        let digits = target.digits(rounding.index);
        for (half, fours) in integers.as_chunks::<4>().0.iter().enumerate() {
            // Fifteen bits fit into int16, where the digits are taken.
            let words = [
                vcombine_s16(vmovn_s32(fours[0]), vmovn_s32(fours[1])),
                vcombine_s16(vmovn_s32(fours[2]), vmovn_s32(fours[3])),
            ];
            // A rounding shift adds half a step first.
            let high = words.map(|words| vrshrq_n_s16::<{ LOW_BITS as i32 }>(words));
            let low = [0, 1].map(|i| vsubq_s16(words[i], vshlq_n_s16::<{ LOW_BITS as i32 }>(high[i])));
            // SAFETY: sixteen bytes of each half of the 32 high and of the 32 low digits.
            unsafe {
                let place = digits.as_mut_ptr().add(16 * half);
                vst1q_s8(place, vcombine_s8(vmovn_s16(high[0]), vmovn_s16(high[1])));
                vst1q_s8(place.add(BLOCK), vcombine_s8(vmovn_s16(low[0]), vmovn_s16(low[1])));
            }
        }
        let sum =
            |fours: &[int32x4_t]| vaddvq_s32(vaddq_s32(vaddq_s32(fours[0], fours[1]), vaddq_s32(fours[2], fours[3])));
        target.sums[rounding.index] = [sum(&integers[..4]), sum(&integers[4..])];
    }
}
