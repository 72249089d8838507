//! From bit planes to signed bytes.

use crate::cpu::gemm::format::{High, Low, Quantized};
use std::arch::aarch64::*;

/// The eight groups of a block, of the four rows whose quarter of the planes begins at `planes`. Values are as stored, below
/// 128; bytes are made signed again.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn unpack<F: Quantized>(planes: *const u8) -> [int8x16_t; 8] {
    let format = F::FORMAT;
    let low_bits = format.low_bits() as usize;
    let mut groups = [vdupq_n_s8(0); 8];
    for (g, group) in groups.iter_mut().enumerate() {
        let (vector, shift) = match format.low {
            Low::Pairs => (g / 4, 2 * (g % 4)),
            Low::Nibbles => (g % 4, 4 * (g / 4)),
            Low::Bytes => (g, 0),
        };
        // SAFETY: a block has `low_vectors` vectors of 64 bytes here, of which this is a quarter.
        let mut value = unsafe { vld1q_u8(planes.add(64 * vector)) };
        if format.low == Low::Bytes {
            value = veorq_u8(value, vdupq_n_u8(0x80));
        } else {
            value = vandq_u8(move_bits(value, shift, 0), vdupq_n_u8((1 << low_bits) - 1));
        }
        if format.high != High::None {
            let (vector, from, mask) = match format.high {
                High::OneBit => (0, g, 1),
                _ => (g / 4, 2 * (g % 4), 3),
            };
            // SAFETY: and its high vectors after them.
            let high = unsafe { vld1q_u8(planes.add(64 * (format.low_vectors() + vector))) };
            value = vorrq_u8(value, vandq_u8(move_bits(high, from, low_bits), vdupq_n_u8(mask << low_bits)));
        }
        *group = vreinterpretq_s8_u8(value);
    }
    groups
}

/// Bits `from..` of every byte moved to `to..`; what else comes along is masked off by the caller.
#[inline]
#[target_feature(enable = "neon")]
fn move_bits(x: uint8x16_t, from: usize, to: usize) -> uint8x16_t {
    vshlq_u8(x, vdupq_n_s8(to as i8 - from as i8))
}
