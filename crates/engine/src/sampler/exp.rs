//! The exponential of a whole vocabulary.
//!
//! The standard library's `exp` is a call per element: a draw from 49,152 tokens at temperature 1 took 280 us, a tenth of a
//! decode step of a small model. This one is straight-line code that the compiler turns into SIMD; with it the draw takes 60
//! us (AMD EPYC virtual machine, one core, 2026-11).

/// `e^x` for x <= 0, within 2e-7 of it; exactly 1 at 0, and 0 below -80 (e^-80 = 2e-35).
pub(super) fn exp_negative(x: f32) -> f32 {
    // e^x = 2^n e^r with r in [-ln 2 / 2, ln 2 / 2]. Adding 1.5 * 2^23 leaves n in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few bits, so that n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x < -80.0 { -80.0 } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor to the seventh power: the next term is below 1e-8 at the ends.
    let tail = 1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)));
    let power = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * tail)));
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -80.0 { 0.0 } else { power * scale }
}

#[cfg(test)]
mod tests {
    use super::exp_negative;

    #[test]
    fn it_agrees_with_the_exponential() {
        for step in 0..800_000 {
            let x = -80.0 * step as f32 / 800_000.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp_negative(x)) - expected).abs() / expected;
            assert!(error < 2e-7, "e^{x} = {} is off by {error}", exp_negative(x));
        }
    }

    #[test]
    fn its_ends_are_exact() {
        assert_eq!(exp_negative(0.0), 1.0);
        assert_eq!(exp_negative(-0.0), 1.0);
        for x in [-80.1, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_negative(x), 0.0);
        }
    }
}
