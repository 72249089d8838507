//! How quantized panels lie in memory. A panel is 16 output rows; along k it is cut into superblocks of up to eight blocks of
//! 32 (256 elements, the K types' own block; the last superblock of a row may be shorter for the other types).
//!
//! A superblock is `[quants of block 0, 1, ..][head][scales of block 0, 1, ..]`, padded to 64 bytes:
//!
//! - **Quants** of a block are 64-byte vectors of `[16 rows][4 k]`. Group j (j < 8) means k = 4j .. 4j + 3 of the block, one
//!   vector of bytes, just what `vpdpbusd` multiplies with four activation bytes. Groups are packed into bit planes of the
//!   same `[16][4]` shape, so unpacking is shifts and masks and never a shuffle:
//!   low plane: nibbles (vector j: groups j and j + 4), pairs of bits (vector v, field f: group 4v + f), or whole bytes;
//!   high plane: one bit (bit j: group j) or two (as the pairs), worth 16 above nibbles and 4 above pairs.
//! - **Head**, K types only: 16 float16 `d`, then 16 `dmin` where the type has minima.
//! - **Scales** of a block: 16 float16 `d` and, with minima, 16 `m`; for K types 2 x 16 bytes: scales and minima of the 32, or
//!   the scales of the two halves of 16 (Q2_K: nibble pairs of scale and minimum).
//!
//! Values are stored unsigned; [`Format::zero`] is what to subtract.

use crate::WeightType;

/// Output rows of a panel.
pub(crate) const PANEL_ROWS: usize = 16;
/// Elements of a block: the unit of activation scales and of float32 accumulation.
pub(crate) const BLOCK: usize = 32;
/// Blocks of a full superblock.
pub(crate) const SUPERBLOCK: usize = 8;

/// Lower bits of the quants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Low {
    /// Two bits.
    Pairs,
    /// Four bits.
    Nibbles,
    /// All eight bits.
    Bytes,
}

/// Bits above the low plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum High {
    /// None.
    None,
    /// One bit.
    OneBit,
    /// Two bits.
    TwoBits,
}

/// How scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// `d` per block.
    D,
    /// `d` and `m` per block.
    DM,
    /// Superblock `d`, `dmin`; an integer scale and minimum per block.
    Block,
    /// Superblock `d`; an integer scale per half block.
    Half,
    /// Superblock `d`, `dmin`; a nibble of scale and one of minimum per half block.
    HalfMin,
}

/// Everything that tells one quantized type from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Lower bits.
    pub(crate) low: Low,
    /// Bits above.
    pub(crate) high: High,
    /// Stored value that means zero.
    pub(crate) zero: i32,
    /// How scales are stored.
    pub(crate) scales: Scales,
}

/// A [`Format`] as a type, so that kernels are compiled once for each.
pub(crate) trait Quantized {
    /// Its description.
    const FORMAT: Format;
}

macro_rules! formats {
    ($($name:ident: $low:ident, $high:ident, $zero:literal, $scales:ident;)*) => {
        $(
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;
            impl Quantized for $name {
                const FORMAT: Format =
                    Format { low: Low::$low, high: High::$high, zero: $zero, scales: Scales::$scales };
            }
        )*
        impl Format {
            /// The format of a quantized type; `None` for the float types, those without products among them.
            pub(crate) fn of(weight_type: WeightType) -> Option<Format> {
                match weight_type {
                    $(WeightType::$name => Some($name::FORMAT),)*
                    WeightType::F32 | WeightType::F16 | WeightType::BF16 | WeightType::F8E4M3 => None,
                }
            }
        }
    };
}

formats! {
    Q4_0: Nibbles, None, 8, D;
    Q4_1: Nibbles, None, 0, DM;
    Q5_0: Nibbles, OneBit, 16, D;
    Q5_1: Nibbles, OneBit, 0, DM;
    Q8_0: Bytes, None, 128, D;
    Q2_K: Pairs, None, 0, HalfMin;
    Q3_K: Pairs, OneBit, 4, Half;
    Q4_K: Nibbles, None, 0, Block;
    Q5_K: Nibbles, OneBit, 0, Block;
    Q6_K: Nibbles, TwoBits, 32, Half;
}

impl Format {
    /// 64-byte vectors of the low plane of a block.
    pub(crate) const fn low_vectors(self) -> usize {
        match self.low {
            Low::Pairs => 2,
            Low::Nibbles => 4,
            Low::Bytes => 8,
        }
    }

    /// Bits of the low plane, the place of the high one.
    pub(crate) const fn low_bits(self) -> u32 {
        match self.low {
            Low::Pairs => 2,
            Low::Nibbles => 4,
            Low::Bytes => 8,
        }
    }

    /// The largest stored value.
    pub(crate) const fn largest(self) -> i32 {
        let high_bits = match self.high {
            High::None => 0,
            High::OneBit => 1,
            High::TwoBits => 2,
        };
        (1 << (self.low_bits() + high_bits)) - 1
    }

    /// Bytes of the quants of one block of a panel.
    pub(crate) const fn quant_bytes(self) -> usize {
        let high = match self.high {
            High::None => 0,
            High::OneBit => 1,
            High::TwoBits => 2,
        };
        64 * (self.low_vectors() + high)
    }

    /// Bytes of the head of a superblock.
    pub(crate) const fn head_bytes(self) -> usize {
        match self.scales {
            Scales::D | Scales::DM => 0,
            Scales::Half => 32,
            Scales::Block | Scales::HalfMin => 64,
        }
    }

    /// Bytes of the scales of one block of a panel.
    pub(crate) const fn scale_bytes(self) -> usize {
        match self.scales {
            Scales::D | Scales::Block | Scales::Half | Scales::HalfMin => 32,
            Scales::DM => 64,
        }
    }

    /// Whether a value is `scale * q - minimum` rather than `scale * (q - zero)`.
    pub(crate) const fn has_min(self) -> bool {
        matches!(self.scales, Scales::DM | Scales::Block | Scales::HalfMin)
    }

    /// Whether integer scales belong to runs of 16.
    pub(crate) const fn has_halves(self) -> bool {
        matches!(self.scales, Scales::Half | Scales::HalfMin)
    }

    /// Bytes of a superblock of `blocks` blocks.
    pub(crate) const fn superblock_bytes(self, blocks: usize) -> usize {
        (self.head_bytes() + blocks * (self.quant_bytes() + self.scale_bytes())).next_multiple_of(64)
    }

    /// Bytes of a panel that is `blocks` blocks wide. Rows come from memory, so this cannot overflow by more than the
    /// checks of the caller.
    pub(crate) const fn panel_bytes(self, blocks: usize) -> usize {
        let rest = blocks % SUPERBLOCK;
        let tail = if rest == 0 { 0 } else { self.superblock_bytes(rest) };
        blocks / SUPERBLOCK * self.superblock_bytes(SUPERBLOCK) + tail
    }

    /// Where block `block` of a panel lies.
    pub(crate) const fn place(self, block: usize, blocks: usize) -> Place {
        let start = block / SUPERBLOCK * self.superblock_bytes(SUPERBLOCK);
        let in_superblock = blocks - block / SUPERBLOCK * SUPERBLOCK;
        let in_superblock = if in_superblock < SUPERBLOCK { in_superblock } else { SUPERBLOCK };
        let index = block % SUPERBLOCK;
        let head = start + in_superblock * self.quant_bytes();
        Place {
            quants: start + index * self.quant_bytes(),
            head,
            scales: head + self.head_bytes() + index * self.scale_bytes(),
        }
    }

    /// Which four-byte terms of the activations the kernels need beside the quants.
    pub(crate) const fn terms(self) -> Terms {
        if self.has_min() {
            if self.has_halves() { Terms::HalfSums } else { Terms::ScaledSum }
        } else if self.has_halves() {
            if self.zero == 32 { Terms::HalfZeros32 } else { Terms::HalfZeros4 }
        } else {
            match self.zero {
                8 => Terms::Zero8,
                16 => Terms::Zero16,
                _ => Terms::Zero128,
            }
        }
    }
}

/// Byte offsets of one block in its panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its quant vectors.
    pub(crate) quants: usize,
    /// The head of its superblock.
    pub(crate) head: usize,
    /// Its scales.
    pub(crate) scales: usize,
}

/// Sums over the activations of a block that a weight type multiplies with its zero or its minimum. A type needs one kind,
/// prepared once per product so that kernels only load it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terms {
    /// `-8 * sum`, int32.
    Zero8,
    /// `-16 * sum`, int32.
    Zero16,
    /// `-128 * sum`, int32.
    Zero128,
    /// `-4 * sum` of each half, int32.
    HalfZeros4,
    /// `-32 * sum` of each half, int32.
    HalfZeros32,
    /// `sum` of each half, int32.
    HalfSums,
    /// `da * sum`, float32.
    ScaledSum,
}

impl Terms {
    /// Kinds there are.
    pub(crate) const COUNT: usize = 7;
    /// All of them, in order of their numbers.
    pub(crate) const ALL: [Terms; Terms::COUNT] = [
        Terms::Zero8,
        Terms::Zero16,
        Terms::Zero128,
        Terms::HalfZeros4,
        Terms::HalfZeros32,
        Terms::HalfSums,
        Terms::ScaledSum,
    ];

    /// Four-byte words per block and row.
    pub(crate) const fn words(self) -> usize {
        match self {
            Terms::HalfZeros4 | Terms::HalfZeros32 | Terms::HalfSums => 2,
            _ => 1,
        }
    }

    /// The words for a block with scale `da` and half sums `sums`, as bits.
    pub(crate) fn of(self, da: f32, sums: [i32; 2]) -> [i32; 2] {
        let [first, second] = sums;
        match self {
            Terms::Zero8 => [-8 * (first + second), 0],
            Terms::Zero16 => [-16 * (first + second), 0],
            Terms::Zero128 => [-128 * (first + second), 0],
            Terms::HalfZeros4 => [-4 * first, -4 * second],
            Terms::HalfZeros32 => [-32 * first, -32 * second],
            Terms::HalfSums => sums,
            Terms::ScaledSum => [(da * (first + second) as f32).to_bits().cast_signed(), 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_cost_what_the_file_does_plus_padding() {
        for weight_type in WeightType::ALL {
            let Some(format) = Format::of(weight_type) else { continue };
            let file = PANEL_ROWS * weight_type.row_bytes(1024).unwrap();
            let panel = format.panel_bytes(1024 / BLOCK);
            // Six-bit K scales are widened to bytes: 8 % for Q3_K is the most.
            assert!(panel >= file && panel * 100 <= file * 109, "{weight_type:?}: {panel} for {file}");
        }
    }

    #[test]
    fn blocks_of_a_panel_do_not_overlap_and_fill_it() {
        for weight_type in WeightType::ALL {
            let Some(format) = Format::of(weight_type) else { continue };
            for blocks in [1, 2, 7, 8, 9, 18, 24] {
                let mut used = vec![0; format.panel_bytes(blocks)];
                for block in 0..blocks {
                    let place = format.place(block, blocks);
                    assert_eq!(place.quants % 64, 0, "a quant vector is one cache line");
                    used[place.quants..][..format.quant_bytes()].iter_mut().for_each(|used| *used += 1);
                    used[place.scales..][..format.scale_bytes()].iter_mut().for_each(|used| *used += 1);
                    if block % SUPERBLOCK == 0 {
                        used[place.head..][..format.head_bytes()].iter_mut().for_each(|used| *used += 1);
                    }
                }
                assert!(used.iter().all(|&used| used <= 1));
                let padding = used.iter().filter(|&&used| used == 0).count();
                assert!(padding < 64 * blocks.div_ceil(SUPERBLOCK), "{weight_type:?}: {padding} unused bytes");
            }
        }
    }
}
