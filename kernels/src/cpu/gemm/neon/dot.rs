//! Dot products of bytes: of groups of weights, a register of four rows and four k each, with the activations of the same k.

use crate::cpu::gemm::format::{Format, Low, Quantized};
use std::arch::aarch64::*;
use std::arch::asm;

/// A way to multiply bytes.
pub(super) trait Dot {
    /// Exact dot products for four rows. A register of `x` has one digit of sixteen k, those of four groups of `weights`.
    ///
    /// # Safety
    /// The processor has NEON and what the implementation names.
    unsafe fn dot<F: Quantized>(weights: &[int8x16_t], x: &[int8x16_t]) -> int32x4_t;
}

/// By `sdot`, which adds four products to each int32; needs dotprod.
pub(super) struct SignedDot;

impl Dot for SignedDot {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn dot<F: Quantized>(weights: &[int8x16_t], x: &[int8x16_t]) -> int32x4_t {
        let mut sum = vdupq_n_s32(0);
        for (weights, &x) in weights.as_chunks::<4>().0.iter().zip(x) {
            // SAFETY: the processor has dotprod, which is the caller's obligation.
            unsafe {
                sum = sdot::<0>(sum, weights[0], x);
                sum = sdot::<1>(sum, weights[1], x);
                sum = sdot::<2>(sum, weights[2], x);
                sum = sdot::<3>(sum, weights[3], x);
            }
        }
        sum
    }
}

/// `sum[i] + weights[4 i ..][..4] . x[4 G ..][..4]` in each lane i. The intrinsic is not in stable Rust. The assembler is told
/// of the extension on the spot, so that this is inlined into kernels that are compiled for NEON alone.
///
/// # Safety
/// The processor has dotprod.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn sdot<const G: usize>(sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the caller's obligation; the instruction touches registers only, and no flags.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.4b[{group}]",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            x = in(vreg) x,
            group = const G,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// By multiplications into int16, added up there as far as the type's values allow.
pub(super) struct WideningMultiply;

impl Dot for WideningMultiply {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn dot<F: Quantized>(weights: &[int8x16_t], x: &[int8x16_t]) -> int32x4_t {
        let at_once = groups_in_int16(F::FORMAT);
        // Rows 0 and 1, rows 2 and 3: two lanes each.
        let mut sums = [vdupq_n_s32(0); 2];
        for (weights, &x) in weights.as_chunks::<4>().0.iter().zip(x) {
            let x = vreinterpretq_s32_s8(x);
            let x =
                [vdupq_laneq_s32::<0>(x), vdupq_laneq_s32::<1>(x), vdupq_laneq_s32::<2>(x), vdupq_laneq_s32::<3>(x)];
            for (weights, x) in weights.chunks_exact(at_once).zip(x.chunks_exact(at_once)) {
                let mut products = [vdupq_n_s16(0); 2];
                for (&w, &x) in weights.iter().zip(x) {
                    let x = vreinterpretq_s8_s32(x);
                    products[0] = vmlal_s8(products[0], vget_low_s8(w), vget_low_s8(x));
                    products[1] = vmlal_high_s8(products[1], w, x);
                }
                sums = [0, 1].map(|i| vpadalq_s16(sums[i], products[i]));
            }
        }
        vpaddq_s32(sums[0], sums[1])
    }
}

/// Groups whose products can be added up in int16, of which each lane gets one product a group: the largest value times 127.
/// Bytes are signed, and their largest product is that of -128.
const fn groups_in_int16(format: Format) -> usize {
    let largest = if matches!(format.low, Low::Bytes) { 128 } else { format.largest() };
    match 32767 / (127 * largest) {
        0..2 => 1,
        2..4 => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::gemm::format::{Q4_0, Q6_K, Q8_0};
    use crate::cpu::isa::Isa;

    fn check<F: Quantized, D: Dot>(weights: [[i8; 16]; 8], x: [[i8; 16]; 2]) {
        let mut expected = [0; 4];
        for (k, &x) in x.as_flattened().iter().enumerate() {
            for (row, expected) in expected.iter_mut().enumerate() {
                *expected += i32::from(x) * i32::from(weights[k / 4][4 * row + k % 4]);
            }
        }
        let mut actual = [0; 4];
        // SAFETY: this is 64-bit Arm, and the test that takes an instruction set asks for it; arrays are whole registers.
        unsafe {
            let dot = D::dot::<F>(&weights.map(|w| vld1q_s8(w.as_ptr())), &x.map(|x| vld1q_s8(x.as_ptr())));
            vst1q_s32(actual.as_mut_ptr(), dot);
        }
        assert_eq!(actual, expected);
    }

    fn extremes_and_mixtures<F: Quantized, D: Dot>(smallest: i8, largest: i8) {
        for x in [127, -127, -64, 0] {
            check::<F, D>([[largest; 16]; 8], [[x; 16]; 2]);
            check::<F, D>([[smallest; 16]; 8], [[x; 16]; 2]);
        }
        let weights =
            std::array::from_fn(|g| std::array::from_fn(|i| ((g * 37 + i * 11) % 128) as i8 % largest.max(1)));
        let x = std::array::from_fn(|h| std::array::from_fn(|i| ((h * 91 + i * 53) % 255) as u8 as i8));
        check::<F, D>(weights, x);
    }

    fn every_type<D: Dot>() {
        extremes_and_mixtures::<Q4_0, D>(0, 15);
        extremes_and_mixtures::<Q6_K, D>(0, 63);
        extremes_and_mixtures::<Q8_0, D>(-128, 127);
    }

    #[test]
    fn widening_multiplications_are_exact_up_to_the_largest_values() {
        every_type::<WideningMultiply>();
    }

    #[test]
    fn dot_products_multiply_each_group_with_its_four_activations() {
        if Isa::NeonDot.is_available() {
            every_type::<SignedDot>();
        }
    }
}
