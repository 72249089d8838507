//! Seeded operands.

use crate::WeightType;
use half::{bf16, f16};

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0.0..1.0`.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Nearly normal: the sum of twelve uniform numbers less its mean.
    pub(super) fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (0..12).map(|_| self.unit()).sum::<f32>() - 6.0).collect()
    }
}

/// Bytes of a matrix: random blocks whose float16 scales are made sane.
pub(super) fn random_matrix(random: &mut Random, weight_type: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let num_blocks = rows * cols / weight_type.block_len();
    (0..num_blocks).flat_map(|_| random_block(random, weight_type)).collect()
}

fn random_block(random: &mut Random, weight_type: WeightType) -> Vec<u8> {
    let mut block: Vec<u8> = (0..weight_type.block_bytes()).map(|_| random.next() as u8).collect();
    // Places of a block's float16 scales and what they are about.
    let scales: &[(usize, f32)] = match weight_type {
        WeightType::F32 => return random.normals(1)[0].to_le_bytes().into(),
        WeightType::F16 => return f16::from_f32(random.normals(1)[0]).to_le_bytes().into(),
        WeightType::BF16 => return bf16::from_f32(random.normals(1)[0]).to_le_bytes().into(),
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[(0, 0.05)],
        WeightType::Q4_1 | WeightType::Q5_1 => &[(0, 0.1), (2, -0.8)],
        WeightType::Q4_K | WeightType::Q5_K => &[(0, 0.003), (2, 0.02)],
        WeightType::Q2_K => &[(80, 0.05), (82, 0.05)],
        WeightType::Q3_K => &[(108, 0.01)],
        WeightType::Q6_K => &[(208, 0.0005)],
        WeightType::F8E4M3 => {
            // Codes that stand for numbers.
            block[2..].iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
            &[(0, 0.01)]
        }
    };
    for &(at, size) in scales {
        block[at..at + 2].copy_from_slice(&f16::from_f32(size * (random.unit() + 0.5)).to_le_bytes());
    }
    block
}
