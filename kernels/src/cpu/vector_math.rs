//! `2^x` for vectors: a polynomial of the fraction, scaled in the exponent.
//!
//! `2^(x - r) = p(x - floor x) * 2^(floor x - r)`. With a whole number r the scale is an exact power of two and the
//! polynomial does not depend on r, so results under different references differ by exact powers of two only: softmax may
//! change its reference without rounding anything. The polynomial is of degree 5 and within 1.7e-7 of `2^f` for f in [0, 1];
//! results below `2^-126` are zero.

use super::simd::Simd;

/// Near-minimax coefficients of `2^f` on [0, 1], lowest power first; the relative error before rounding is 7.5e-8.
const COEFFICIENTS: [f32; 6] = [0.999_999_94, 0.693_153_1, 0.240_153_62, 0.055_826_318, 0.008_989_34, 0.001_877_576_7];

/// `2^(x - reference)` of each lane; `reference` holds whole numbers.
#[inline(always)]
pub(crate) fn exp2_from<S: Simd>(s: S, x: S::F, reference: S::F) -> S::F {
    let floor = s.floor(x);
    let fraction = s.sub(x, floor);
    let mut p = s.splat(COEFFICIENTS[5]);
    for power in (0..5).rev() {
        p = s.fma(p, fraction, s.splat(COEFFICIENTS[power]));
    }
    s.mul(p, s.power_of_two(s.sub(floor, reference)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::{Kernel, LANES, run};

    struct Exp2<'a> {
        x: &'a [f32],
        reference: f32,
        out: &'a mut [f32],
    }

    impl Kernel for Exp2<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for (x, out) in self.x.as_chunks::<LANES>().0.iter().zip(self.out.as_chunks_mut::<LANES>().0) {
                s.store(exp2_from(s, s.load(x), s.splat(self.reference)), out);
            }
        }
    }

    fn exp2(isa: Isa, x: &[f32], reference: f32) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len()];
        run(isa, Exp2 { x, reference, out: &mut out });
        out
    }

    fn inputs() -> Vec<f32> {
        let fine = (0..1 << 18).map(|i| i as f32 / (1 << 18) as f32);
        fine.chain((0..1 << 18).map(|i| i as f32 * -125.0 / (1 << 18) as f32)).collect()
    }

    #[test]
    fn relative_error_is_below_two_ulp_on_every_instruction_set() {
        let x = inputs();
        for isa in Isa::available() {
            let worst = exp2(isa, &x, 0.0)
                .iter()
                .zip(&x)
                .map(|(&y, &x)| (f64::from(y) / f64::from(x).exp2() - 1.0).abs())
                .fold(0.0, f64::max);
            assert!(worst < 1.7e-7, "{}: {worst:e}", isa.name());
        }
    }

    #[test]
    fn changing_the_reference_scales_by_an_exact_power_of_two() {
        let x: Vec<f32> = (0..4096).map(|i| (i - 2048) as f32 * 0.0371).collect();
        let x: Vec<f32> = x.into_iter().filter(|x| (-50.0..50.0).contains(x)).collect();
        let x = &x[..x.len() / LANES * LANES];
        for isa in Isa::available() {
            let at_zero = exp2(isa, x, 0.0);
            for reference in [-40.0, 7.0, 60.0] {
                for (a, b) in exp2(isa, x, reference).iter().zip(&at_zero) {
                    assert_eq!(a * 2.0_f32.powf(reference), *b);
                }
            }
        }
    }

    #[test]
    fn far_below_the_reference_is_zero_and_not_a_number_stays_so() {
        let mut x = [-127.5; LANES];
        x[1] = -1e30;
        x[2] = f32::NAN;
        for isa in Isa::available() {
            let y = exp2(isa, &x, 0.0);
            assert_eq!(y[..2], [0.0, 0.0]);
            assert!(y[2].is_nan());
        }
    }
}
