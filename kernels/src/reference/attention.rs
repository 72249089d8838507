//! Causal attention of every row over its sequence's keys: `out = softmax(scale * q k^T) v`, per head.
//!
//! Query heads share key/value heads in order: head h reads KV head `h / (num_heads / num_kv_heads)`. A row at position p
//! sees the keys of positions 0 to p. States have the largest score of their split as reference, whatever [`crate::Softmax`]
//! asks for: references are a matter of speed, not of the answer.

use super::buffer::Buffer;
use super::linear::dot;
use super::parallel::for_each_chunk;
use super::softmax::{State, softmax};
use crate::memory::{AlignedVec, Plain};
use crate::{AttentionParams, AttentionScheme, BLOCK_SIZE, Error, KV_SPLIT, KvLayout, SequenceSpan, StepTables};
use std::ops::Range;

/// Keys and values in float32, `[layer][slot][kv head][head_dim]`.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    keys: AlignedVec<f32>,
    values: AlignedVec<f32>,
}

impl KvCache {
    pub(super) fn new(layout: KvLayout) -> Result<Self, Error> {
        layout.check()?;
        let len = [layout.num_layers, layout.num_blocks, BLOCK_SIZE, layout.num_kv_heads, layout.head_dim]
            .into_iter()
            .fold(1, usize::saturating_mul);
        let zeroed = || AlignedVec::zeroed(len, "the KV cache");
        Ok(Self { layout, keys: zeroed()?, values: zeroed()? })
    }

    fn offset(&self, layer: usize, slot: usize, kv_head: usize) -> usize {
        assert!(layer < self.layout.num_layers, "layer {layer} is not in the cache");
        assert!(slot < self.layout.num_blocks * BLOCK_SIZE, "slot {slot} lies beyond the cache");
        ((layer * self.layout.num_blocks * BLOCK_SIZE + slot) * self.layout.num_kv_heads + kv_head)
            * self.layout.head_dim
    }

    fn key(&self, layer: usize, slot: usize, kv_head: usize) -> &[f32] {
        &self.keys[self.offset(layer, slot, kv_head)..][..self.layout.head_dim]
    }

    fn value(&self, layer: usize, slot: usize, kv_head: usize) -> &[f32] {
        &self.values[self.offset(layer, slot, kv_head)..][..self.layout.head_dim]
    }

    /// Stores the key and value parts of one row, all heads.
    pub(super) fn store(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let start = self.offset(layer, slot, 0);
        self.keys[start..][..key.len()].copy_from_slice(key);
        self.values[start..][..value.len()].copy_from_slice(value);
    }

    /// Elements of the keys (or values) of a block, all heads, in each layer.
    fn block_ranges(&self, block: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        assert!(block < self.layout.num_blocks, "block {block} lies beyond the cache");
        let KvLayout { num_layers, num_blocks, num_kv_heads, head_dim, .. } = self.layout;
        let len = BLOCK_SIZE * num_kv_heads * head_dim;
        (0..num_layers).map(move |layer| (layer * num_blocks + block) * len).map(move |start| start..start + len)
    }

    pub(super) fn copy_block(&mut self, from: usize, to: usize) {
        for (from, to) in self.block_ranges(from).zip(self.block_ranges(to)) {
            self.keys.copy_within(from.clone(), to.start);
            self.values.copy_within(from, to.start);
        }
    }

    /// Per layer the keys, then the values.
    pub(super) fn export_block(&self, block: usize, out: &mut Vec<u8>) {
        for range in self.block_ranges(block) {
            f32::append_bytes(&self.keys[range.clone()], out);
            f32::append_bytes(&self.values[range], out);
        }
    }

    pub(super) fn import_block(&mut self, block: usize, bytes: &[u8]) -> Result<(), Error> {
        let half = BLOCK_SIZE * self.layout.num_kv_heads * self.layout.head_dim * size_of::<f32>();
        let (expected, actual) = (2 * half * self.layout.num_layers, bytes.len());
        if actual != expected {
            return Err(Error::BlockSize { expected, actual });
        }
        for (range, bytes) in self.block_ranges(block).zip(bytes.chunks_exact(2 * half)) {
            let (keys, values) = bytes.split_at(half);
            f32::from_bytes(keys, &mut self.keys[range.clone()]);
            f32::from_bytes(values, &mut self.values[range]);
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }
}

/// Attention of all rows of a step.
pub(super) fn attention(
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &Buffer,
    cache: &KvCache,
    out: &mut Buffer,
) {
    let heads = params.heads;
    assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), heads.q_width(), "one output element per query element");
    let span_of_row: Vec<usize> =
        step.spans.iter().enumerate().flat_map(|(index, span)| span.rows.clone().map(move |_| index)).collect();
    let num_keys: usize = step.positions.iter().map(|&position| position as usize + 1).sum();
    let work = num_keys * 2 * heads.q_width();
    for_each_chunk(out.rows_mut(step.num_rows()), heads.q_width(), work, |row, out| {
        let span = &step.spans[span_of_row[row]];
        let slots = visible_slots(step, span, row);
        for (head, out) in out.chunks_exact_mut(heads.head_dim).enumerate() {
            let q = &qkv.row(row)[head * heads.head_dim..][..heads.head_dim];
            let kv_head = head / (heads.num_heads / heads.num_kv_heads);
            match params.scheme {
                AttentionScheme::Naive => naive(q, kv_head, &slots, params, cache, out),
                AttentionScheme::SplitKv => split_kv(q, kv_head, &slots, params, cache, out),
            }
        }
    });
}

/// Slots of the keys that a row sees.
pub(super) fn visible_slots(step: &StepTables, span: &SequenceSpan, row: usize) -> Vec<usize> {
    let blocks = &step.block_tables[span.blocks.clone()];
    let slot = |key| blocks[key / BLOCK_SIZE] as usize * BLOCK_SIZE + key % BLOCK_SIZE;
    (0..=step.positions[row] as usize).map(slot).collect()
}

/// `scale * q.k` of every slot.
pub(super) fn scores(
    q: &[f32],
    kv_head: usize,
    slots: &[usize],
    params: AttentionParams<'_>,
    cache: &KvCache,
) -> Vec<f32> {
    slots.iter().map(|&slot| dot(q, cache.key(params.layer, slot, kv_head)) * params.scale).collect()
}

/// All scores, then all probabilities, then the weighted sum.
fn naive(q: &[f32], kv_head: usize, slots: &[usize], params: AttentionParams<'_>, cache: &KvCache, out: &mut [f32]) {
    let mut probabilities = scores(q, kv_head, slots, params, cache);
    softmax(&mut probabilities);
    out.fill(0.0);
    for (p, &slot) in probabilities.iter().zip(slots) {
        for (out, v) in out.iter_mut().zip(cache.value(params.layer, slot, kv_head)) {
            *out += p * v;
        }
    }
}

/// A state per split of the keys, merged in index order.
fn split_kv(q: &[f32], kv_head: usize, slots: &[usize], params: AttentionParams<'_>, cache: &KvCache, out: &mut [f32]) {
    slots
        .chunks(KV_SPLIT)
        .map(|split| {
            let values = split.iter().map(|&slot| cache.value(params.layer, slot, kv_head));
            State::of(&scores(q, kv_head, split, params, cache), values, q.len())
        })
        .fold(State::empty(q.len()), |merged, split| merged.merge(&split))
        .finish(out);
}
