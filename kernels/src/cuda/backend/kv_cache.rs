//! The paged KV cache in a device's memory: `[layer][block][kv head]` of pieces (`kernels/cuda/step.cuh`).

use super::attention::MAX_HEAD_DIM;
use super::buffer::{to_error, zeros};
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::Memory;
use crate::{BLOCK_SIZE, Error, KvDtype, KvLayout};
use std::sync::Arc;

/// Keys and values of all layers.
pub struct KvCache<D: Device> {
    pub(super) layout: KvLayout,
    pub(super) memory: Memory<D, u8>,
}

/// What is stored where a type was asked for: of Q8_0 bfloat16, which has its range and half of its error.
pub(super) fn stored(dtype: KvDtype) -> KvDtype {
    match dtype {
        KvDtype::F16 => KvDtype::F16,
        KvDtype::BF16 | KvDtype::Q8_0 => KvDtype::BF16,
        KvDtype::F32 => KvDtype::F32,
    }
}

/// Bytes of one block of one layer.
pub(super) fn block_bytes(layout: KvLayout) -> usize {
    let element = if stored(layout.dtype) == KvDtype::F32 { 4 } else { 2 };
    let piece = 2 * BLOCK_SIZE * layout.head_dim * element + BLOCK_SIZE * size_of::<f32>();
    layout.num_kv_heads * piece
}

impl<D: Device> KvCache<D> {
    pub(super) fn new(device: &Arc<D>, layout: KvLayout) -> Result<KvCache<D>, Error> {
        layout.check()?;
        if layout.head_dim > MAX_HEAD_DIM {
            return Err(Error::Unsupported(format!(
                "the CUDA kernels know heads of up to {MAX_HEAD_DIM} elements, and these have {}",
                layout.head_dim
            )));
        }
        let bytes = block_bytes(layout).saturating_mul(layout.num_blocks).saturating_mul(layout.num_layers);
        Ok(KvCache { layout, memory: zeros(device, "the KV cache", bytes).map_err(to_error)? })
    }

    /// The address of a layer.
    pub(super) fn layer(&self, layer: usize) -> Argument {
        assert!(layer < self.layout.num_layers, "layer {layer} is not in the cache");
        Argument::Pointer(self.memory.address().at(self.offset(layer, 0)))
    }

    /// Where a block of a layer begins, in bytes.
    pub(super) fn offset(&self, layer: usize, block: u32) -> usize {
        assert!((block as usize) < self.layout.num_blocks, "block {block} lies beyond the cache");
        (layer * self.layout.num_blocks + block as usize) * block_bytes(self.layout)
    }

    /// Appends the bytes of a block, layer by layer.
    pub(super) fn export(&self, block: u32, out: &mut Vec<u8>) -> Result<(), DeviceError> {
        let bytes = block_bytes(self.layout);
        for layer in 0..self.layout.num_layers {
            let start = out.len();
            out.resize(start + bytes, 0);
            self.memory.read(self.offset(layer, block), &mut out[start..])?;
        }
        Ok(())
    }

    /// Makes a block what was exported.
    pub(super) fn import(&mut self, block: u32, bytes: &[u8]) -> Result<(), Error> {
        let of_layer = block_bytes(self.layout);
        let (expected, actual) = (of_layer * self.layout.num_layers, bytes.len());
        if expected != actual {
            return Err(Error::BlockSize { expected, actual });
        }
        for (layer, bytes) in bytes.chunks_exact(of_layer).enumerate() {
            let offset = self.offset(layer, block);
            self.memory.write(offset, bytes).map_err(to_error)?;
        }
        Ok(())
    }
}
