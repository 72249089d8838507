//! Whole blocks, moved within a cache and to and from bytes.
//!
//! The bytes of a block are, for each layer, the pieces of all KV heads as they lie in memory, then the lengths of their
//! keys by place (`[kv head][64]` float32), then by block (`[kv head]` float32); all numbers are little-endian.

use super::{AnyStorage, Format, Geometry, KvCache, Storage, block_bytes, for_any_storage};
use crate::memory::Plain;
use crate::{BLOCK_SIZE, Error};
use std::ops::Range;

impl KvCache {
    /// Makes block `to` what block `from` is.
    pub(in crate::cpu) fn copy_block(&mut self, from: usize, to: usize) {
        for_any_storage!(&mut self.storage, storage => storage.copy_block(from, to));
    }

    /// Appends the bytes of a block.
    pub(in crate::cpu) fn export_block(&self, block: usize, out: &mut Vec<u8>) {
        out.reserve(self.num_block_bytes());
        for_any_storage!(&self.storage, storage => storage.export_block(block, out));
    }

    /// Makes a block what was exported.
    pub(in crate::cpu) fn import_block(&mut self, block: usize, bytes: &[u8]) -> Result<(), Error> {
        let (expected, actual) = (self.num_block_bytes(), bytes.len());
        if actual != expected {
            return Err(Error::BlockSize { expected, actual });
        }
        for_any_storage!(&mut self.storage, storage => storage.import_block(block, bytes));
        Ok(())
    }

    /// Bytes of a block of all layers.
    fn num_block_bytes(&self) -> usize {
        block_bytes(self.layout) * self.layout.num_layers
    }
}

/// Where one layer of a block lies: all its KV heads are side by side but for the lengths by block.
struct LayerOfBlock {
    data: Range<usize>,
    key_lengths: Range<usize>,
    /// First of those, and the way from one head to the next.
    block_lengths: (usize, usize),
}

impl Geometry {
    fn layers_of_block<F: Format>(self, block: usize) -> impl Iterator<Item = LayerOfBlock> {
        let layout = self.layout;
        assert!(block < layout.num_blocks, "block {block} lies beyond the cache");
        (0..layout.num_layers).map(move |layer| {
            let of_heads = |first: Range<usize>| first.start..first.start + first.len() * layout.num_kv_heads;
            LayerOfBlock {
                data: of_heads(self.piece::<F>(layer, block, 0)),
                key_lengths: of_heads(self.lengths(layer, block, 0)),
                block_lengths: (self.block_lengths(layer, 0).start + block, layout.num_blocks),
            }
        })
    }
}

impl<F: Format> Storage<F> {
    fn copy_block(&mut self, from: usize, to: usize) {
        let geometry = self.geometry;
        for (from, to) in geometry.layers_of_block::<F>(from).zip(geometry.layers_of_block::<F>(to)) {
            self.data.copy_within(from.data, to.data.start);
            self.key_lengths.copy_within(from.key_lengths, to.key_lengths.start);
            let ((from, stride), (to, _)) = (from.block_lengths, to.block_lengths);
            for head in 0..geometry.layout.num_kv_heads {
                self.block_lengths[to + head * stride] = self.block_lengths[from + head * stride];
            }
        }
    }

    fn export_block(&self, block: usize, out: &mut Vec<u8>) {
        for layer in self.geometry.layers_of_block::<F>(block) {
            F::Unit::append_bytes(&self.data[layer.data], out);
            f32::append_bytes(&self.key_lengths[layer.key_lengths], out);
            let (first, stride) = layer.block_lengths;
            for head in 0..self.geometry.layout.num_kv_heads {
                f32::append_bytes(&[self.block_lengths[first + head * stride]], out);
            }
        }
    }

    fn import_block(&mut self, block: usize, bytes: &[u8]) {
        let geometry = self.geometry;
        let num_kv_heads = geometry.layout.num_kv_heads;
        let lengths_bytes = num_kv_heads * BLOCK_SIZE * size_of::<f32>();
        let layer_bytes = geometry.block_bytes::<F>();
        for (layer, bytes) in geometry.layers_of_block::<F>(block).zip(bytes.chunks_exact(layer_bytes)) {
            let (data, lengths) = bytes.split_at(layer.data.len() * size_of::<F::Unit>());
            let (key_lengths, block_lengths) = lengths.split_at(lengths_bytes);
            F::Unit::from_bytes(data, &mut self.data[layer.data]);
            f32::from_bytes(key_lengths, &mut self.key_lengths[layer.key_lengths]);
            let (first, stride) = layer.block_lengths;
            for (head, length) in block_lengths.chunks_exact(size_of::<f32>()).enumerate() {
                let place = first + head * stride;
                f32::from_bytes(length, &mut self.block_lengths[place..=place]);
            }
        }
    }
}
