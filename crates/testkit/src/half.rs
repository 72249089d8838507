//! Conversions to the two 16-bit float types, rounding to nearest, ties to even.

/// The bits of the nearest bfloat16.
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let round = 0x7fff + (bits >> 16 & 1);
    (bits.wrapping_add(round) >> 16) as u16
}

/// The bits of the nearest float16; too large values become infinite.
pub fn f16_bits(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7e00;
    }
    // Halfway between the largest float16 and the next power of two.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // In units of the last place, which below 2^-14 stays that of the subnormals.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (f64::from(magnitude) * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // A carry out of the fraction lands in the exponent, as it should.
    let exponent_bits = if units < 1024 { 0 } else { ((exponent + 14) as u16) << 10 };
    sign | (exponent_bits + units)
}

/// The value of float16 bits.
pub fn f16_value(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f32::from(bits & 1023);
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float16_comes_back() {
        for bits in 0..=u16::MAX {
            let value = f16_value(bits);
            if value.is_nan() {
                assert!(f16_value(f16_bits(value)).is_nan());
            } else {
                assert_eq!(f16_bits(value), bits, "{bits:04x} = {value}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_with_ties_to_even() {
        assert_eq!(f16_value(f16_bits(1.0 + 1.0 / 2048.0)), 1.0);
        assert_eq!(f16_value(f16_bits(1.0 + 3.0 / 2048.0)), 1.0 + 2.0 / 1024.0);
        assert_eq!(f16_value(f16_bits(2047.9)), 2048.0);
        assert_eq!(f16_bits(65519.0), 0x7bff);
        assert_eq!(f16_bits(-65520.0), 0xfc00);
        assert_eq!(f16_bits(1e-9), 0);
        assert_eq!(bf16_bits(1.0), 0x3f80);
        assert_eq!(bf16_bits(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(bf16_bits(1.0 + 3.0 / 256.0), 0x3f82);
    }
}
