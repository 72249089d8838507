//! Statistics of attention's scores, computed on the host from copies: for calibration, once per model.

use super::buffer::Buffer;
use super::kv_cache::{KvCache, block_bytes, stored};
use crate::cuda::device::Device;
use crate::cuda::error::DeviceError;
use crate::{AttentionParams, BLOCK_SIZE, KvDtype, ScoreStatistics, StepTables};
use half::{bf16, f16};
use std::collections::HashMap;

/// Adds the scores of all rows of a step to the statistics of their KV heads.
pub(super) fn observe_scores<D: Device>(
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &Buffer<D>,
    cache: &KvCache<D>,
    statistics: &mut [ScoreStatistics],
) -> Result<(), DeviceError> {
    let heads = params.heads;
    let factor = params.scale * std::f32::consts::LOG2_E;
    let mut rows = vec![0.0; step.num_rows() * qkv.cols()];
    qkv.data.read(0, &mut rows)?;
    let mut keys_of = HashMap::new();
    for span in &step.spans {
        let blocks = &step.block_tables[span.blocks.clone()];
        for &block in &blocks[..span.context_len.div_ceil(BLOCK_SIZE)] {
            if let std::collections::hash_map::Entry::Vacant(entry) = keys_of.entry(block) {
                entry.insert(keys(cache, params.layer, block)?);
            }
        }
        for row in span.rows.clone() {
            let num_keys = step.positions[row] as usize + 1;
            for (head, q) in rows[row * qkv.cols()..][..heads.q_width()].chunks_exact(heads.head_dim).enumerate() {
                let kv_head = head / (heads.num_heads / heads.num_kv_heads);
                let score = |position: usize| {
                    let block = &keys_of[&blocks[position / BLOCK_SIZE]];
                    let at = (kv_head * BLOCK_SIZE + position % BLOCK_SIZE) * heads.head_dim;
                    q.iter().zip(&block[at..]).map(|(q, k)| q * k).sum::<f32>() * factor
                };
                statistics[kv_head].add_row((0..num_keys).map(score));
            }
        }
    }
    Ok(())
}

/// Keys of a block, `[kv head][place][head_dim]`.
fn keys<D: Device>(cache: &KvCache<D>, layer: usize, block: u32) -> Result<Vec<f32>, DeviceError> {
    let layout = cache.layout;
    let mut bytes = vec![0; block_bytes(layout)];
    cache.memory.read(cache.offset(layer, block), &mut bytes)?;
    let elements = BLOCK_SIZE * layout.head_dim;
    let piece = bytes.len() / layout.num_kv_heads;
    let decode = |piece: &[u8]| -> Vec<f32> {
        match stored(layout.dtype) {
            KvDtype::F32 => piece.chunks_exact(4).take(elements).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect(),
            KvDtype::BF16 => piece.chunks_exact(2).take(elements).map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32()).collect(),
            KvDtype::F16 | KvDtype::Q8_0 => {
                piece.chunks_exact(2).take(elements).map(|x| f16::from_le_bytes([x[0], x[1]]).to_f32()).collect()
            }
        }
    };
    Ok(bytes.chunks_exact(piece).flat_map(decode).collect())
}
