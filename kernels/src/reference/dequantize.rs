//! Decoding of block types to float32, one plain loop each. `d`, `m`, `dmin` are float16 scales of a block; K types
//! hold 256 elements with small integer scales for runs of 16 or 32 of them.
//!
//! | type | bytes: fields in order | value |
//! |---|---|---|
//! | Q4_0 | 18: d, 16 nibble pairs (element i, i + 16) | d (q - 8) |
//! | Q4_1 | 20: d, m, 16 nibble pairs | d q + m |
//! | Q5_0 | 22: d, 32 fifth bits, 16 nibble pairs | d (q - 16) |
//! | Q5_1 | 24: d, m, 32 fifth bits, 16 nibble pairs | d q + m |
//! | Q8_0 | 34: d, 32 signed bytes | d q |
//! | Q2_K | 84: 16 nibble pairs (scale, min), 64 x 4 two-bit values, d, dmin | d s q - dmin m |
//! | Q3_K | 110: 256 third bits, 64 x 4 two-bit values, 16 six-bit scales, d | d (s - 32) (q - 4) |
//! | Q4_K | 144: d, dmin, 8 six-bit (scale, min), 128 nibble pairs | d s q - dmin m |
//! | Q5_K | 176: d, dmin, 8 six-bit (scale, min), 256 fifth bits, 128 nibble pairs | d s q - dmin m |
//! | Q6_K | 210: 128 nibble pairs, 64 x 4 two-bit values, 16 signed byte scales, d | d s (q - 32) |
//! | F8E4M3 | 34: d, 32 codes of e4m3 | d e4m3(code) |
//!
//! All products above are exact in float32 (11 bits of scale, at most 7 of sub-scale and 6 of value), so a value is rounded
//! at most once, by the final addition, and every order of evaluation gives the same bits.

use crate::WeightType;
use half::{bf16, f16};

/// Decodes one row (or any whole number of blocks).
///
/// # Panics
/// When `out` is not a whole number of blocks or `bytes` is not as long as its blocks are.
pub fn dequantize_row(weight_type: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(weight_type.row_bytes(out.len()), Some(bytes.len()), "{weight_type:?} row of {} elements", out.len());
    let blocks = bytes.chunks_exact(weight_type.block_bytes()).zip(out.chunks_exact_mut(weight_type.block_len()));
    let decode = match weight_type {
        WeightType::F32 => |b: &[u8], y: &mut [f32]| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        WeightType::F16 => |b: &[u8], y: &mut [f32]| y[0] = half_at(b, 0),
        WeightType::BF16 => |b: &[u8], y: &mut [f32]| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        WeightType::Q4_0 => q4_0,
        WeightType::Q4_1 => q4_1,
        WeightType::Q5_0 => q5_0,
        WeightType::Q5_1 => q5_1,
        WeightType::Q8_0 => q8_0,
        WeightType::Q2_K => q2_k,
        WeightType::Q3_K => q3_k,
        WeightType::Q4_K => q4_k,
        WeightType::Q5_K => q5_k,
        WeightType::Q6_K => q6_k,
        WeightType::F8E4M3 => f8e4m3,
    };
    blocks.for_each(|(block, values)| decode(block, values));
}

fn half_at(bytes: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([bytes[offset], bytes[offset + 1]]).to_f32()
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for i in 0..16 {
        let pair = block[2 + i];
        out[i] = d * (f32::from(pair & 15) - 8.0);
        out[i + 16] = d * (f32::from(pair >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for i in 0..16 {
        let pair = block[4 + i];
        out[i] = d * f32::from(pair & 15) + m;
        out[i + 16] = d * f32::from(pair >> 4) + m;
    }
}

fn fifth_bits(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), fifth_bits(block, 2));
    for i in 0..16 {
        let pair = u32::from(block[6 + i]);
        out[i] = d * ((pair & 15 | (high >> i & 1) << 4) as f32 - 16.0);
        out[i + 16] = d * ((pair >> 4 | (high >> (i + 16) & 1) << 4) as f32 - 16.0);
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), fifth_bits(block, 4));
    for i in 0..16 {
        let pair = u32::from(block[8 + i]);
        out[i] = d * (pair & 15 | (high >> i & 1) << 4) as f32 + m;
        out[i + 16] = d * (pair >> 4 | (high >> (i + 16) & 1) << 4) as f32 + m;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for i in 0..32 {
        out[i] = d * f32::from(block[2 + i].cast_signed());
    }
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        // Byte l of each half of 32 holds elements l, l + 32, l + 64, l + 96 of that half's 128, lowest bits first.
        let q = quants[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        let scale = scales[i / 16];
        *value = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let (high, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (i, value) in out.iter_mut().enumerate() {
        let q = quants[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        let third_bit = high[i % 32] >> (i / 32) & 1;
        // Scale s: its low nibble in byte s % 8, its two high bits in byte 8 + s % 4.
        let s = i / 16;
        let scale = scales[s % 8] >> (4 * (s / 8)) & 15 | (scales[8 + s % 4] >> (2 * (s / 4)) & 3) << 4;
        *value = d * (f32::from(scale) - 32.0) * (f32::from(q | third_bit << 2) - 4.0);
    }
}

/// The `(scale, min)` of run `j` of Q4_K and Q5_K: six bits each. The first four lie whole in bytes j and j + 4; of the last
/// four the low nibbles share byte j + 4 and the high bits are on top of the first eight bytes.
fn scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..144]);
    for (i, value) in out.iter_mut().enumerate() {
        // Byte l of each 32 holds elements l and l + 32 of 64.
        let q = quants[i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15;
        let (scale, min) = scale_min(packed, i / 32);
        *value = d * scale * f32::from(q) - dmin * min;
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, high, quants) = (&block[4..16], &block[16..48], &block[48..176]);
    for (i, value) in out.iter_mut().enumerate() {
        let q = quants[i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15;
        let fifth_bit = high[i % 32] >> (i / 32) & 1;
        let (scale, min) = scale_min(packed, i / 32);
        *value = d * scale * f32::from(q | fifth_bit << 4) - dmin * min;
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        // Of each 128 elements: nibbles of l and l + 64 share byte l (l < 64); two-bit parts of l, l + 32, l + 64, l + 96
        // share byte l (l < 32).
        let (half, at) = (i / 128, i % 128);
        let nibble = low[half * 64 + at % 64] >> (4 * (at / 64)) & 15;
        let top = high[half * 32 + at % 32] >> (2 * (at / 32)) & 3;
        *value = d * f32::from(scales[i / 16].cast_signed()) * (f32::from(nibble | top << 4) - 32.0);
    }
}

/// What a code of e4m3 stands for. Moved to the place of a float32's, its exponent and significand count from 120 powers of two below;
/// there is no infinity, and one magnitude is no number.
pub(super) fn e4m3(code: u8) -> f32 {
    const UP: f32 = f32::from_bits((127 + 120) << 23);
    let (sign, magnitude) = (u32::from(code & 0x80), u32::from(code & 0x7f));
    if magnitude == 0x7f { f32::NAN } else { f32::from_bits(sign << 24 | magnitude << 20) * UP }
}

fn f8e4m3(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for i in 0..32 {
        out[i] = d * e4m3(block[2 + i]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Random blocks whose float16 scales are small ordinary numbers.
    pub(crate) fn random_row(weight_type: WeightType, cols: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
        };
        let mut unit = move || (next() as f64 / f64::from(u32::MAX), next() as u8);
        let mut bytes: Vec<u8> = (0..weight_type.row_bytes(cols).unwrap()).map(|_| unit().1).collect();
        let block_bytes = weight_type.block_bytes();
        let scales: &[usize] = match weight_type {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 | WeightType::F8E4M3 => &[0],
            WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
            WeightType::Q2_K => &[80, 82],
            WeightType::Q3_K => &[108],
            WeightType::Q6_K => &[208],
        };
        for block in bytes.chunks_exact_mut(block_bytes) {
            let value = (unit().0 - 0.5) as f32;
            match weight_type {
                WeightType::F32 => block.copy_from_slice(&value.to_le_bytes()),
                WeightType::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                WeightType::BF16 => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                // Codes are numbers.
                WeightType::F8E4M3 => block.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1),
                _ => {}
            }
            for &at in scales {
                let scale = f16::from_f32(((unit().0 - 0.5) / 32.0) as f32);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn a_q4_1_block_by_hand() {
        let mut block = vec![0; 20];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(-1.0).to_le_bytes());
        block[4] = 0x72; // element 0 is 2, element 16 is 7
        let mut out = [0.0; 32];
        dequantize_row(WeightType::Q4_1, &block, &mut out);
        assert_eq!((out[0], out[16], out[1]), (0.0, 2.5, -1.0));
    }

    #[test]
    fn an_f8e4m3_block_by_hand() {
        let mut block = vec![0; 34];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        // 448, -1.125, the smallest normal number, the largest below it, the smallest of all, and nothing less than zero.
        block[2..8].copy_from_slice(&[0x7e, 0xb9, 0x08, 0x07, 0x01, 0x80]);
        let mut out = [f32::NAN; 32];
        dequantize_row(WeightType::F8E4M3, &block, &mut out);
        assert_eq!(out[..6], [224.0, -0.5625, 1.0 / 128.0, 7.0 / 1024.0, 1.0 / 1024.0, 0.0]);
        assert!(out[5].is_sign_negative() && out[6..].iter().all(|&x| x.to_bits() == 0));
    }

    #[test]
    #[should_panic(expected = "Q8_0 row of 33 elements")]
    fn a_row_that_is_no_whole_number_of_blocks_is_our_mistake() {
        dequantize_row(WeightType::Q8_0, &[0; 34], &mut [0.0; 33]);
    }
}
