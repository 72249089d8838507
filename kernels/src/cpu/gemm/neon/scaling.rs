//! Scales of a block, and what they make of its integers.

use super::QUARTER;
use crate::cpu::gemm::format::{Quantized, Scales};
use std::arch::aarch64::*;

/// Scales of a block for four rows.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    factor: float32x4_t,
    /// What is added (`m`) or subtracted.
    min: float32x4_t,
    /// Integer scales of the halves.
    pub(super) halves: [int32x4_t; 2],
    half_mins: [int32x4_t; 2],
}

impl Scaling {
    /// Those of quarter `quarter` of a panel.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn load<F: Quantized>(head: *const u8, scales: *const u8, quarter: usize) -> Scaling {
        // SAFETY: a quarter of a place of sixteen float16 in a panel.
        let floats = |at: *const u8| unsafe {
            vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at.add(2 * QUARTER * quarter).cast())))
        };
        // SAFETY: the same for bytes; a load of four needs no alignment.
        let bytes = |at: usize| unsafe { scales.add(at + QUARTER * quarter).cast::<u32>().read_unaligned() };
        let bytes = |at: usize| vmovl_u8(vcreate_u8(u64::from(bytes(at))));
        let unsigned = |at: usize| vmovl_u16(vget_low_u16(bytes(at)));
        let none = vdupq_n_s32(0);
        let mut this =
            Scaling { factor: vdupq_n_f32(0.0), min: vdupq_n_f32(0.0), halves: [none; 2], half_mins: [none; 2] };
        // SAFETY: the places are those that `Format` describes.
        unsafe {
            match F::FORMAT.scales {
                Scales::D => this.factor = floats(scales),
                Scales::DM => {
                    this.factor = floats(scales);
                    this.min = floats(scales.add(32));
                }
                Scales::Block => {
                    this.factor = vmulq_f32(floats(head), vcvtq_f32_u32(unsigned(0)));
                    this.min = vmulq_f32(floats(head.add(32)), vcvtq_f32_u32(unsigned(16)));
                }
                Scales::Half => {
                    this.factor = floats(head);
                    // The sign of a byte is extended from the middle of sixteen bits, and those to 32.
                    this.halves = [0, 16].map(|at| {
                        let signed = vshrq_n_s16::<8>(vshlq_n_s16::<8>(vreinterpretq_s16_u16(bytes(at))));
                        vmovl_s16(vget_low_s16(signed))
                    });
                }
                Scales::HalfMin => {
                    this.factor = floats(head);
                    this.min = floats(head.add(32));
                    let both = [unsigned(0), unsigned(16)].map(|both| vreinterpretq_s32_u32(both));
                    this.halves = both.map(|both| vandq_s32(both, vdupq_n_s32(15)));
                    this.half_mins = both.map(|both| vshrq_n_s32::<4>(both));
                }
            }
        }
        this
    }

    /// Adds the scaled integer and the minimum to a sum; `da` is the activations' scale.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn add<F: Quantized>(
        &self,
        integer: int32x4_t,
        da: f32,
        terms: *const i32,
        sum: float32x4_t,
    ) -> float32x4_t {
        let sum = vfmaq_f32(sum, vcvtq_f32_s32(integer), vmulq_n_f32(self.factor, da));
        // SAFETY: the words that the type's terms have.
        unsafe {
            match F::FORMAT.scales {
                Scales::D | Scales::Half => sum,
                Scales::DM => vfmaq_n_f32(sum, self.min, *terms.cast::<f32>()),
                Scales::Block => vfmsq_n_f32(sum, self.min, *terms.cast::<f32>()),
                Scales::HalfMin => {
                    let first = vmulq_n_s32(self.half_mins[0], *terms);
                    let integer = vmlaq_n_s32(first, self.half_mins[1], *terms.add(1));
                    vfmsq_f32(sum, self.min, vmulq_n_f32(vcvtq_f32_s32(integer), da))
                }
            }
        }
    }
}
