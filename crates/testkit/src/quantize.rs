//! Weights in GGUF's storage types, by the simplest quantizer for each.
//!
//! The types of 32-element blocks and the float types hold the values that they are given, rounded. The K-quants hold
//! random blocks of about the same spread instead: their real quantizers are long, and a test of decoding and
//! arithmetic needs only blocks that use every field.

use crate::half::{bf16_bits, f16_bits};
use crate::rng::SplitMix;

/// Storage type of a tiny model's weights, by GGUF's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
#[allow(missing_docs)] // the names are GGUF's own
pub enum TinyType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl TinyType {
    /// Every type.
    pub const ALL: [TinyType; 13] = [
        TinyType::F32,
        TinyType::F16,
        TinyType::BF16,
        TinyType::Q4_0,
        TinyType::Q4_1,
        TinyType::Q5_0,
        TinyType::Q5_1,
        TinyType::Q8_0,
        TinyType::Q2_K,
        TinyType::Q3_K,
        TinyType::Q4_K,
        TinyType::Q5_K,
        TinyType::Q6_K,
    ];

    /// The number that stands for the type in a file, the elements of a block, and its bytes.
    fn row(self) -> (u32, usize, usize) {
        match self {
            TinyType::F32 => (0, 1, 4),
            TinyType::F16 => (1, 1, 2),
            TinyType::BF16 => (30, 1, 2),
            TinyType::Q4_0 => (2, 32, 18),
            TinyType::Q4_1 => (3, 32, 20),
            TinyType::Q5_0 => (6, 32, 22),
            TinyType::Q5_1 => (7, 32, 24),
            TinyType::Q8_0 => (8, 32, 34),
            TinyType::Q2_K => (10, 256, 84),
            TinyType::Q3_K => (11, 256, 110),
            TinyType::Q4_K => (12, 256, 144),
            TinyType::Q5_K => (13, 256, 176),
            TinyType::Q6_K => (14, 256, 210),
        }
    }

    /// The number that stands for the type in a file.
    pub fn type_id(self) -> u32 {
        self.row().0
    }

    /// Elements of a block.
    pub fn block_len(self) -> usize {
        self.row().1
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().2
    }

    /// What `general.file_type` says of a model mostly in this type, by llama.cpp's numbers.
    pub fn file_type(self) -> u32 {
        match self {
            TinyType::F32 => 0,
            TinyType::F16 => 1,
            TinyType::Q4_0 => 2,
            TinyType::Q4_1 => 3,
            TinyType::Q8_0 => 7,
            TinyType::Q5_0 => 8,
            TinyType::Q5_1 => 9,
            TinyType::Q2_K => 10,
            TinyType::Q3_K => 12,
            TinyType::Q4_K => 15,
            TinyType::Q5_K => 17,
            TinyType::Q6_K => 18,
            TinyType::BF16 => 32,
        }
    }
}

/// The blocks for these values; see the module's words on K-quants. The values must fill whole blocks.
pub fn encode(dtype: TinyType, values: &[f32], rng: &mut SplitMix) -> Vec<u8> {
    assert!(values.len().is_multiple_of(dtype.block_len()), "{} values do not fill blocks of {dtype:?}", values.len());
    let mut out = Vec::with_capacity(values.len() / dtype.block_len() * dtype.block_bytes());
    match dtype {
        TinyType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        TinyType::F16 => out.extend(values.iter().flat_map(|&v| f16_bits(v).to_le_bytes())),
        TinyType::BF16 => out.extend(values.iter().flat_map(|&v| bf16_bits(v).to_le_bytes())),
        TinyType::Q8_0 => values.chunks(32).for_each(|block| q8_0(block, &mut out)),
        TinyType::Q4_0 => values.chunks(32).for_each(|block| symmetric(block, 4, &mut out)),
        TinyType::Q5_0 => values.chunks(32).for_each(|block| symmetric(block, 5, &mut out)),
        TinyType::Q4_1 => values.chunks(32).for_each(|block| affine(block, 4, &mut out)),
        TinyType::Q5_1 => values.chunks(32).for_each(|block| affine(block, 5, &mut out)),
        _ => {
            let square = values.iter().map(|v| v * v).sum::<f32>() / values.len().max(1) as f32;
            (0..values.len() / 256).for_each(|_| random_k_block(dtype, square.sqrt(), rng, &mut out));
        }
    }
    assert_eq!(out.len(), values.len() / dtype.block_len() * dtype.block_bytes());
    out
}

/// `x = d q`, q in -127..=127.
fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let scale = block.iter().fold(0f32, |max, v| max.max(v.abs())) / 127.0;
    out.extend(f16_bits(scale).to_le_bytes());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(block.iter().map(|v| (v * inverse).round() as i8 as u8));
}

/// `x = d (q - 2^(bits-1))`: the value farthest from zero becomes the lowest code.
fn symmetric(block: &[f32], bits: u32, out: &mut Vec<u8>) {
    let half = (1u32 << (bits - 1)) as f32;
    let farthest = block.iter().fold(0f32, |far, &v| if v.abs() > far.abs() { v } else { far });
    let scale = farthest / -half;
    out.extend(f16_bits(scale).to_le_bytes());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let codes: Vec<u8> =
        block.iter().map(|v| (v * inverse + half).round().clamp(0.0, 2.0 * half - 1.0) as u8).collect();
    pack(&codes, bits, out);
}

/// `x = d q + m`, q in 0..2^bits.
fn affine(block: &[f32], bits: u32, out: &mut Vec<u8>) {
    let steps = ((1u32 << bits) - 1) as f32;
    let low = block.iter().fold(f32::INFINITY, |low, &v| low.min(v));
    let high = block.iter().fold(f32::NEG_INFINITY, |high, &v| high.max(v));
    let scale = (high - low) / steps;
    out.extend(f16_bits(scale).to_le_bytes());
    out.extend(f16_bits(low).to_le_bytes());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let codes: Vec<u8> = block.iter().map(|v| ((v - low) * inverse).round().clamp(0.0, steps) as u8).collect();
    pack(&codes, bits, out);
}

/// Fifth bits first, as a little-endian word of 32; then nibbles: element i low, element i + 16 high.
fn pack(codes: &[u8], bits: u32, out: &mut Vec<u8>) {
    if bits == 5 {
        let high = codes.iter().enumerate().fold(0u32, |word, (i, code)| word | u32::from(code >> 4) << i);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|i| codes[i] & 15 | codes[i + 16] << 4));
}

/// A random block whose weights have about this deviation and mean zero. Scales and codes are uniform over all their
/// values; the factors are what that makes of the deviation.
fn random_k_block(dtype: TinyType, deviation: f32, rng: &mut SplitMix, out: &mut Vec<u8>) {
    let half = |value: f32, out: &mut Vec<u8>| out.extend(f16_bits(value).to_le_bytes());
    let jitter = rng.uniform(0.8, 1.25);
    match dtype {
        // d sc q - dmin m, with 4-bit sc and m in one byte and 2-bit q
        TinyType::Q2_K => {
            let scales: Vec<u8> = (0..16).map(|_| 17 * rng.below(16) as u8).collect();
            out.extend(scales);
            out.extend(rng.bytes(64));
            let d = jitter * deviation / 9.8;
            half(d, out);
            half(1.5 * d, out);
        }
        // d (sc - 32) (q - 4), with 6-bit sc and 3-bit q
        TinyType::Q3_K => {
            out.extend(rng.bytes(32 + 64 + 12));
            half(jitter * deviation / 43.5, out);
        }
        // d sc q - dmin m, with 6-bit sc and m, and 4-bit or 5-bit q
        TinyType::Q4_K | TinyType::Q5_K => {
            let (codes_len, codes_mean, spread) =
                if dtype == TinyType::Q4_K { (128, 7.5, 258.0) } else { (32 + 128, 15.5, 520.0) };
            let d = jitter * deviation / spread;
            half(d, out);
            half(codes_mean * d, out);
            out.extend(rng.bytes(12));
            out.extend(rng.bytes(codes_len));
        }
        // d sc (q - 32), with 8-bit signed sc and 6-bit q
        TinyType::Q6_K => {
            out.extend(rng.bytes(128 + 64 + 16));
            half(jitter * deviation / 1366.0, out);
        }
        _ => unreachable!("{dtype:?} is no K-quant"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symmetric_block_is_written_as_the_format_says() {
        let mut block = [0f32; 32];
        block[0] = -8.0;
        block[17] = 7.0;
        let bytes = encode(TinyType::Q4_0, &block, &mut SplitMix::new(0));
        assert_eq!(bytes[..2], f16_bits(1.0).to_le_bytes());
        assert_eq!(bytes[2], 0x80, "codes 0 and 8");
        assert_eq!(bytes[3], 0xf8, "codes 8 and 15");
        let bytes = encode(TinyType::Q8_0, &block, &mut SplitMix::new(0));
        assert_eq!((bytes[2] as i8, bytes[19] as i8), (-127, 111));
    }

    #[test]
    fn a_fifth_bit_stands_at_its_elements_place() {
        let mut block = [0f32; 32];
        block[3] = 31.0;
        let bytes = encode(TinyType::Q5_1, &block, &mut SplitMix::new(0));
        assert_eq!(bytes[4..8], 8u32.to_le_bytes());
        assert_eq!(bytes[8 + 3], 15);
    }

    #[test]
    fn blocks_have_their_formats_sizes() {
        let mut rng = SplitMix::new(1);
        let values = rng.normals(512, 0.1);
        for dtype in TinyType::ALL {
            assert_eq!(
                encode(dtype, &values, &mut rng).len(),
                512 / dtype.block_len() * dtype.block_bytes(),
                "{dtype:?}"
            );
        }
    }
}
