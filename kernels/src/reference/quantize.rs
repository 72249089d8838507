//! Float weights as blocks of [`WeightType::F8E4M3`]: of each 32 of a row a float16 scale d and their codes, 34 bytes.
//!
//! A code of e4m3 has a sign, four bits of exponent (bias 7) and three of significand: magnitudes up to 448, from 2^-6 on with four
//! significant bits, below it multiples of 2^-9. A weight is d times what its code stands for. A block's code is the one nearest to
//! weight / d; of two that are equally near, the even one. So an error is at most a sixteenth of the weight, or 2^-10 d.
//!
//! d is the float16 nearest to largest / 448 (computed in float32), where `largest` is the block's largest magnitude: this becomes
//! 448 times d. Below 2^-19 float16 has so few bits that it would not; there d is the smallest power of two (at least 2^-24, float16's
//! smallest number) of which `largest` is at most 464 times, for that is what rounds to 448. Blocks that come out of this come out of
//! it again as they are. A weight that is not finite, or beyond 448 times float16's largest number, is refused: no code is not a number.

use super::dequantize::dequantize_row;
use super::parallel::for_each_chunk;
use crate::{Error, MatrixData, WeightType};
use half::f16;
use std::sync::atomic::{AtomicU32, Ordering};

/// Weights of a block, and its bytes.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;
/// The largest number of e4m3, and the largest that rounds to it.
const MOST: f32 = 448.0;
const ROUNDS_TO_MOST: f32 = 464.0;
/// Below this a float16 is not within a sixty-fourth of every number.
const LEAST_NEAREST: f32 = 1.0 / (1 << 19) as f32;
/// All bits of a float32 but its sign: in the order of magnitudes, with what is not finite at the end.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Whether a matrix of this type with so many columns can be quantized: float types, in whole blocks.
pub fn can_be_quantized(weight_type: WeightType, cols: usize) -> bool {
    let is_float = matches!(weight_type, WeightType::F32 | WeightType::F16 | WeightType::BF16);
    is_float && cols > 0 && cols.is_multiple_of(BLOCK)
}

/// The rows of a matrix as [`WeightType::F8E4M3`], one behind the other. Large matrices take all cores; no bit depends on how many.
///
/// # Errors
/// When the bytes are not those of the shape, a weight is not finite or too large, or there is not enough memory.
///
/// # Panics
/// When the matrix is none that [`can_be_quantized`].
pub fn quantize_rows(matrix: MatrixData<'_>) -> Result<Vec<u8>, Error> {
    // About what one costs.
    const MULTIPLY_ADDS: usize = 8;
    let row_bytes = matrix.checked_row_bytes()?;
    let MatrixData { weight_type, rows, cols, bytes } = matrix;
    assert!(can_be_quantized(weight_type, cols), "{weight_type:?} rows of {cols} become blocks of F8E4M3");
    let (blocks_of_row, block_of_file) = (cols / BLOCK, BLOCK * weight_type.block_bytes());
    let len = rows * blocks_of_row * BLOCK_BYTES;
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { what: "a quantized matrix", bytes: len })?;
    out.resize(len, 0_u8);
    let refused = AtomicU32::new(0);
    for_each_chunk(&mut out, blocks_of_row * BLOCK_BYTES, rows * cols * MULTIPLY_ADDS, |row, out| {
        let blocks = bytes[row * row_bytes..][..row_bytes].chunks_exact(block_of_file);
        let mut weights = [0.0; BLOCK];
        for (block, out) in blocks.zip(out.as_chunks_mut::<BLOCK_BYTES>().0) {
            dequantize_row(weight_type, block, &mut weights);
            if let Err(largest) = quantize_block(&weights, out) {
                refused.fetch_max(largest.to_bits(), Ordering::Relaxed);
            }
        }
    });
    match refused.into_inner() {
        0 => Ok(out),
        largest => Err(Error::Unstorable {
            value: f32::from_bits(largest),
            weight_type: WeightType::F8E4M3,
            most: MOST * f16::MAX.to_f32(),
        }),
    }
}

/// One block; an error is its largest magnitude, for which there is no scale.
fn quantize_block(weights: &[f32; BLOCK], out: &mut [u8; BLOCK_BYTES]) -> Result<(), f32> {
    let bits = weights.iter().fold(0, |largest, weight| (weight.to_bits() & MAGNITUDE).max(largest));
    let largest = f32::from_bits(bits);
    let scale = scale_of(largest);
    if !scale.is_finite() {
        return Err(largest);
    }
    let (to_scale, codes) = out.split_at_mut(2);
    to_scale.copy_from_slice(&scale.to_le_bytes());
    // In float64 a quotient is a tie where it is one of the numbers themselves, and only there.
    let scale = f64::from(scale.to_f32());
    for (code, &weight) in codes.iter_mut().zip(weights) {
        *code = nearest_code(f64::from(weight) / scale);
    }
    Ok(())
}

/// The scale of a block whose largest magnitude this is; not finite where there is none.
fn scale_of(largest: f32) -> f16 {
    if largest / MOST >= LEAST_NEAREST || largest.is_nan() {
        return f16::from_f32(largest / MOST);
    }
    // 2^-24, and 2^-19 at most.
    let mut power = f16::from_bits(1);
    while largest > ROUNDS_TO_MOST * power.to_f32() {
        power = f16::from_bits(2 * power.to_bits());
    }
    power
}

/// The code of e4m3 nearest to a number of at most 464 in magnitude; of two, the even one.
fn nearest_code(x: f64) -> u8 {
    const BIAS: u64 = 1023;
    const LEAST_NORMAL: f64 = 1.0 / 64.0;
    // From here on float64 has whole numbers only: an addition rounds, ties to even.
    const WHOLE: f64 = (1_u64 << 52) as f64;
    let magnitude = x.abs();
    // In each binade, and below the first, codes count eighths of where it begins.
    let exponent = magnitude.max(LEAST_NORMAL).to_bits() >> 52;
    let eighths_in_one = f64::from_bits((2 * BIAS + 3 - exponent) << 52);
    let eighths = (magnitude * eighths_in_one + WHOLE).to_bits() & 31;
    // Sixteen eighths are the first code of the next binade.
    let code = (exponent + 7 - BIAS) * 8 + eighths - 8;
    code as u8 | u8::from(x.is_sign_negative()) << 7
}

#[cfg(test)]
mod tests {
    use super::super::dequantize::e4m3;
    use super::*;
    use half::bf16;

    /// Seeded numbers from -1 to 1.
    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn block_of(weights: &[f32; BLOCK]) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        quantize_block(weights, &mut block).unwrap();
        block
    }

    fn decoded(block: &[u8; BLOCK_BYTES]) -> [f32; BLOCK] {
        let mut weights = [f32::NAN; BLOCK];
        dequantize_row(WeightType::F8E4M3, block, &mut weights);
        weights
    }

    fn scale(block: &[u8; BLOCK_BYTES]) -> f32 {
        f16::from_le_bytes([block[0], block[1]]).to_f32()
    }

    fn quantized(weight_type: WeightType, values: &[f32], cols: usize) -> Result<Vec<u8>, Error> {
        let bytes: Vec<u8> = match weight_type {
            WeightType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            WeightType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        };
        quantize_rows(MatrixData { weight_type, rows: values.len() / cols, cols, bytes: &bytes })
    }

    #[test]
    fn every_code_is_the_nearest_to_its_own_number_and_ties_go_to_the_even_one() {
        // By the definition of the format.
        let number = |code: u8| match (code >> 3, code & 7) {
            (0, significand) => f64::from(significand) / 512.0,
            (exponent, significand) => f64::from(8 + significand) * 2_f64.powi(i32::from(exponent) - 10),
        };
        for code in 0..0x7f_u8 {
            assert_eq!(f64::from(e4m3(code)), number(code));
            assert_eq!((f64::from(e4m3(code | 0x80)), e4m3(code | 0x80).is_sign_negative()), (-number(code), true));
            for sign in [0, 0x80] {
                let signed = if sign == 0 { 1.0 } else { -1.0 };
                assert_eq!(nearest_code(signed * number(code)), code | sign);
                if code == 0x7e {
                    assert_eq!(nearest_code(signed * f64::from(ROUNDS_TO_MOST)), code | sign);
                    continue;
                }
                let middle = f64::midpoint(number(code), number(code + 1));
                assert_eq!(nearest_code(signed * middle), (code + code % 2) | sign, "{middle}");
                assert_eq!(nearest_code(signed * middle * (1.0 - 1e-12)), code | sign, "{middle}");
                assert_eq!(nearest_code(signed * middle * (1.0 + 1e-12)), (code + 1) | sign, "{middle}");
            }
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!((number(0x7e), number(0x08)), (f64::from(MOST), 1.0 / 64.0));
    }

    #[test]
    fn the_largest_weight_has_the_largest_code_wherever_the_scale_can_have_it() {
        for exponent in -38..25 {
            for seed in 0..40 {
                let size = 2_f32.powi(exponent);
                let weights: [f32; BLOCK] = std::array::from_fn(|i| size * random(BLOCK, seed)[i]);
                let largest = weights.iter().fold(0.0_f32, |largest, weight| weight.abs().max(largest));
                let block = block_of(&weights);
                let code = block[2..].iter().map(|code| code & 0x7f).max().unwrap();
                if largest / MOST >= LEAST_NEAREST {
                    assert_eq!(code, 0x7e, "{largest:e}");
                    assert_eq!(scale(&block), f16::from_f32(largest / MOST).to_f32());
                } else {
                    let smallest = scale(&block) == 2_f32.powi(-24);
                    assert!(scale(&block).to_bits().trailing_zeros() >= 23, "{} is a power of two", scale(&block));
                    assert!(smallest || (0x77..=0x7e).contains(&code), "{code:#x} for {largest:e}");
                }
                // A sixteenth of the weight, or half of the smallest distance.
                for (weight, decoded) in weights.iter().zip(decoded(&block)) {
                    let error = (f64::from(*weight) - f64::from(decoded)).abs();
                    let allowed = (f64::from(weight.abs()) / 16.0).max(f64::from(scale(&block)) / 1024.0);
                    assert!(error <= allowed, "{weight:e} as {decoded:e}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_zeros_and_of_what_is_nearly_nothing() {
        let mut weights = [0.0; BLOCK];
        weights[3] = -0.0;
        let block = block_of(&weights);
        assert_eq!((block[..2].to_vec(), block[2], block[5]), (vec![1, 0], 0, 0x80));
        assert!(decoded(&block).iter().zip(weights).all(|(a, b)| a.to_bits() == b.to_bits()));
        // Half of the smallest distance is nothing, more is one.
        let least = 2_f32.powi(-33);
        weights[0] = least / 2.0;
        weights[1] = least * 0.51;
        assert_eq!(decoded(&block_of(&weights))[..2], [0.0, least]);
        weights[0] = f32::from_bits(1);
        assert_eq!(decoded(&block_of(&weights))[..2], [0.0, least]);
    }

    #[test]
    fn what_was_quantized_is_quantized_to_itself() {
        for exponent in -40..25 {
            for seed in 0..200 {
                let size = 2_f32.powi(exponent);
                let random = random(BLOCK + 1, seed);
                let weights: [f32; BLOCK] = std::array::from_fn(|i| size * random[i] * random[BLOCK]);
                let block = block_of(&weights);
                assert_eq!(block_of(&decoded(&block)), block, "2^{exponent}, seed {seed}");
            }
        }
    }

    #[test]
    fn float_types_of_the_same_numbers_give_the_same_blocks_with_any_threads() {
        // Enough of them for threads; eight significant bits, which all types hold.
        let (rows, cols) = (300, 1024);
        let values: Vec<f32> = random(rows * cols, 7).iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
        let whole = quantized(WeightType::F32, &values, cols).unwrap();
        assert_eq!(whole.len(), rows * WeightType::F8E4M3.row_bytes(cols).unwrap());
        assert_eq!(quantized(WeightType::BF16, &values, cols).unwrap(), whole);
        let halves: Vec<f32> = values.iter().map(|&x| if x.abs() < 1e-3 { 0.0 } else { x }).collect();
        assert_eq!(
            quantized(WeightType::F16, &halves, cols).unwrap(),
            quantized(WeightType::BF16, &halves, cols).unwrap()
        );
        let row_by_row: Vec<u8> =
            values.chunks(cols).flat_map(|row| quantized(WeightType::F32, row, cols).unwrap()).collect();
        assert_eq!(row_by_row, whole);
    }

    #[test]
    fn weights_that_no_block_holds_are_refused() {
        let most = MOST * f16::MAX.to_f32();
        let with = |value| {
            let mut values = random(3 * 64, 1);
            values[100] = value;
            quantized(WeightType::F32, &values, 64)
        };
        assert!(with(most).is_ok() && with(-most).is_ok());
        for value in [f32::INFINITY, f32::NEG_INFINITY, most * 1.001, f32::MAX] {
            let Err(Error::Unstorable { value: found, .. }) = with(value) else { panic!("{value} was taken") };
            assert_eq!(found, value.abs());
        }
        let message = with(f32::NAN).unwrap_err().to_string();
        assert!(message.contains("NaN") && message.contains("F8E4M3"), "{message}");
    }

    #[test]
    fn whole_blocks_of_float_types_can_be_quantized() {
        assert!(can_be_quantized(WeightType::BF16, 64) && can_be_quantized(WeightType::F32, 32));
        assert!(!can_be_quantized(WeightType::BF16, 48) && !can_be_quantized(WeightType::F16, 0));
        assert!(!can_be_quantized(WeightType::Q8_0, 64) && !can_be_quantized(WeightType::F8E4M3, 64));
        assert!(matches!(
            quantize_rows(MatrixData { weight_type: WeightType::F16, rows: 2, cols: 32, bytes: &[0; 127] }),
            Err(Error::WeightSize { .. })
        ));
    }
}
