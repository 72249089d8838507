//! From the file's rows of blocks to panels: see [`super::format`] for what a panel looks like.

use super::bf16;
use super::format::{BLOCK, Format, High, Low, PANEL_ROWS, SUPERBLOCK, Scales};
use crate::WeightType;

/// Writes one zeroed panel from up to sixteen rows of the file; missing rows stay zero and decode to zero.
pub(super) fn pack_panel(weight_type: WeightType, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let Some(format) = Format::of(weight_type) else {
        return match weight_type {
            WeightType::F32 => pack_floats::<4>(rows, row_bytes, panel),
            WeightType::BF16 => bf16::pack_panel(rows, row_bytes, panel),
            _ => pack_floats::<2>(rows, row_bytes, panel),
        };
    };
    let blocks = row_bytes / weight_type.block_bytes() * weight_type.block_len() / BLOCK;
    let mut block = RawBlock::default();
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        for index in 0..blocks {
            block.read(weight_type, row, index);
            let place = format.place(index, blocks);
            put_quants(format, &block.quants, lane, &mut panel[place.quants..]);
            let mut put = |at: usize, bytes: &[u8]| panel[at..at + bytes.len()].copy_from_slice(bytes);
            let (scales, head) = (place.scales, place.head);
            match format.scales {
                Scales::D => put(scales + 2 * lane, &block.d),
                Scales::DM => {
                    put(scales + 2 * lane, &block.d);
                    put(scales + 32 + 2 * lane, &block.m);
                }
                Scales::Block | Scales::Half | Scales::HalfMin => {
                    put(scales + lane, &block.small[..1]);
                    put(scales + 16 + lane, &block.small[1..]);
                    put(head + 2 * lane, &block.d);
                    if format.has_min() {
                        put(head + 32 + 2 * lane, &block.m);
                    }
                }
            }
        }
    }
}

/// F32 and F16 panels are `[k][16 rows]`, elements of SIZE bytes as the file has them.
fn pack_floats<const SIZE: usize>(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let (elements, _) = rows.as_chunks::<SIZE>();
    let (places, _) = panel.as_chunks_mut::<SIZE>();
    for (k, places) in places.chunks_exact_mut(PANEL_ROWS).enumerate() {
        for (place, element) in places.iter_mut().zip(elements[k..].iter().step_by(row_bytes / SIZE)) {
            *place = *element;
        }
    }
}

/// Distributes the 32 values of one row over the bit planes of a block.
fn put_quants(format: Format, quants: &[u8; BLOCK], lane: usize, planes: &mut [u8]) {
    let (low_bits, low_vectors) = (format.low_bits(), format.low_vectors());
    let low_mask = 0x0101_0101 * ((1_u32 << low_bits) - 1);
    let mut put = |vector: usize, bits: u32| {
        let at = vector * 64 + lane * 4;
        let slot: &mut [u8] = &mut planes[at..at + 4];
        let old = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
        slot.copy_from_slice(&(old | bits).to_le_bytes());
    };
    for (group, four) in quants.chunks_exact(4).enumerate() {
        let four = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        let low = four & low_mask;
        match format.low {
            Low::Pairs => put(group / 4, low << (2 * (group % 4))),
            Low::Nibbles => put(group % 4, low << (4 * (group / 4))),
            Low::Bytes => put(group, low),
        }
        match format.high {
            High::None => {}
            High::OneBit => put(low_vectors, (four >> low_bits & 0x0101_0101) << group),
            High::TwoBits => put(low_vectors + group / 4, (four >> low_bits & 0x0303_0303) << (2 * (group % 4))),
        }
    }
}

/// The value of one row and one k of a block, as stored.
pub(super) fn quant_at(format: Format, planes: &[u8], lane: usize, k: usize) -> i32 {
    let (group, byte) = (k / 4, lane * 4 + k % 4);
    let low = match format.low {
        Low::Pairs => planes[group / 4 * 64 + byte] >> (2 * (group % 4)) & 3,
        Low::Nibbles => planes[group % 4 * 64 + byte] >> (4 * (group / 4)) & 15,
        Low::Bytes => planes[group * 64 + byte],
    };
    let above = &planes[format.low_vectors() * 64..];
    let high = match format.high {
        High::None => 0,
        High::OneBit => above[byte] >> group & 1,
        High::TwoBits => above[group / 4 * 64 + byte] >> (2 * (group % 4)) & 3,
    };
    // Bytes have no high plane, and a shift by their eight bits would overflow.
    if high == 0 { i32::from(low) } else { i32::from(low) | i32::from(high) << format.low_bits() }
}

/// Thirty-two values of one row with their scales, still as the file's integers and float16 bits.
#[derive(Default)]
struct RawBlock {
    quants: [u8; BLOCK],
    d: [u8; 2],
    m: [u8; 2],
    /// Integer scales: (scale, minimum) of the block, or one byte for each half.
    small: [u8; 2],
}

impl RawBlock {
    /// Reads the 32 values from element `32 * index` of a row.
    fn read(&mut self, weight_type: WeightType, row: &[u8], index: usize) {
        let size = weight_type.block_bytes();
        if weight_type.block_len() == BLOCK {
            return self.read_small(weight_type, &row[index * size..][..size]);
        }
        let (block, part) = (&row[index / SUPERBLOCK * size..][..size], index % SUPERBLOCK);
        match weight_type {
            WeightType::Q2_K => self.read_q2_k(block, part),
            WeightType::Q3_K => self.read_q3_k(block, part),
            WeightType::Q4_K | WeightType::Q5_K => self.read_q4_k_or_q5_k(block, part),
            WeightType::Q6_K => self.read_q6_k(block, part),
            _ => unreachable!("the types with blocks of 256"),
        }
    }

    fn read_small(&mut self, weight_type: WeightType, block: &[u8]) {
        self.d = [block[0], block[1]];
        let has_m = matches!(weight_type, WeightType::Q4_1 | WeightType::Q5_1);
        if has_m {
            self.m = [block[2], block[3]];
        }
        let rest = &block[if has_m { 4 } else { 2 }..];
        if weight_type == WeightType::Q8_0 {
            for (quant, &byte) in self.quants.iter_mut().zip(rest) {
                *quant = byte ^ 0x80; // signed to value + 128
            }
            return;
        }
        let has_fifth = matches!(weight_type, WeightType::Q5_0 | WeightType::Q5_1);
        let pairs = &rest[if has_fifth { 4 } else { 0 }..][..16];
        for (i, &pair) in pairs.iter().enumerate() {
            self.quants[i] = pair & 15;
            self.quants[i + 16] = pair >> 4;
        }
        if has_fifth {
            let fifth = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
            for (i, quant) in self.quants.iter_mut().enumerate() {
                *quant |= ((fifth >> i & 1) as u8) << 4;
            }
        }
    }

    /// Part p of 256 two-bit values: bits 2 (p % 4) of the 32 bytes at 32 (p / 4).
    fn two_bits(&mut self, bytes: &[u8], part: usize) {
        for (quant, &byte) in self.quants.iter_mut().zip(&bytes[part / 4 * 32..][..32]) {
            *quant = byte >> (2 * (part % 4)) & 3;
        }
    }

    fn read_q2_k(&mut self, block: &[u8], part: usize) {
        self.two_bits(&block[16..80], part);
        self.small = [block[2 * part], block[2 * part + 1]];
        self.d = [block[80], block[81]];
        self.m = [block[82], block[83]];
    }

    fn read_q3_k(&mut self, block: &[u8], part: usize) {
        self.two_bits(&block[32..96], part);
        for (quant, &high) in self.quants.iter_mut().zip(&block[..32]) {
            *quant |= (high >> part & 1) << 2;
        }
        let packed = &block[96..108];
        for (half, small) in self.small.iter_mut().enumerate() {
            let s = 2 * part + half;
            let scale = packed[s % 8] >> (4 * (s / 8)) & 15 | (packed[8 + s % 4] >> (2 * (s / 4)) & 3) << 4;
            *small = scale.wrapping_sub(32); // signed
        }
        self.d = [block[108], block[109]];
    }

    fn read_q4_k_or_q5_k(&mut self, block: &[u8], part: usize) {
        self.d = [block[0], block[1]];
        self.m = [block[2], block[3]];
        let packed = &block[4..16];
        self.small = if part < 4 {
            [packed[part] & 63, packed[part + 4] & 63]
        } else {
            let both = packed[part + 4];
            [both & 15 | packed[part - 4] >> 6 << 4, both >> 4 | packed[part] >> 6 << 4]
        };
        let is_q5 = block.len() == WeightType::Q5_K.block_bytes();
        let pairs = &block[if is_q5 { 48 } else { 16 }..];
        for (quant, &pair) in self.quants.iter_mut().zip(&pairs[part / 2 * 32..][..32]) {
            *quant = pair >> (4 * (part % 2)) & 15;
        }
        if is_q5 {
            for (quant, &fifth) in self.quants.iter_mut().zip(&block[16..48]) {
                *quant |= (fifth >> part & 1) << 4;
            }
        }
    }

    fn read_q6_k(&mut self, block: &[u8], part: usize) {
        // Of every 128: nibbles of part p share bytes with part p + 2, two-bit tops share bytes with all four parts.
        let (half, p) = (part / 4, part % 4);
        self.two_bits(&block[128..192], part);
        for (quant, &pair) in self.quants.iter_mut().zip(&block[half * 64 + p % 2 * 32..][..32]) {
            *quant = *quant << 4 | pair >> (4 * (p / 2)) & 15;
        }
        self.small = [block[192 + 2 * part], block[192 + 2 * part + 1]];
        self.d = [block[208], block[209]];
    }
}
