//! The paged KV cache in a device's memory: `[layer][block][kv head]` of pieces (`kernels/cuda/step.cuh`).

use super::Cuda;
use super::attention::MAX_HEAD_DIM;
use super::buffer::{to_error, zeros};
use super::tensor_cores::Form;
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;
use crate::{BLOCK_SIZE, Error, HeadLayout, KvDtype, KvLayout};
use std::sync::{Mutex, PoisonError};

/// Keys and values of all layers.
pub struct KvCache<D: Device> {
    pub(super) layout: KvLayout,
    memory: Memory<D, u8>,
    /// Per layer, (row, head) pairs that attention computed a second time; they begin again at 2^32.
    counts: Memory<D, u32>,
    counted: Mutex<Counted>,
}

/// What the host knows of the counts.
#[derive(Debug, Default)]
struct Counted {
    last: Vec<u32>,
    total: Vec<u64>,
}

/// What a cache stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F16,
    BF16,
    F32,
    /// Bytes of e4m3, and two scales of bfloat16 for each position and head; where attention is on tensor cores.
    F8,
}

impl Stored {
    /// Of the kernels for each type, in the order of this enum, the one for this type; kernels by multiply-adds have none for the
    /// last, and no cache of it comes to them.
    pub(super) fn kernel<const N: usize>(self, kernels: [Kernel; N]) -> Kernel {
        kernels[self as usize]
    }

    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Stored::F16 | Stored::BF16 => 2,
            Stored::F32 => 4,
            Stored::F8 => 1,
        }
    }

    /// Bytes beside the elements, of each position and KV head: the largest length so far, and scales.
    fn bytes_beside(self) -> usize {
        match self {
            Stored::F16 | Stored::BF16 | Stored::F32 => size_of::<f32>(),
            Stored::F8 => size_of::<f32>() + 2 * size_of::<u16>(),
        }
    }
}

/// What is stored where a type was asked for: of Q8_0 bfloat16, which has its range and half of its error.
pub(super) fn stored(dtype: KvDtype) -> Stored {
    match dtype {
        KvDtype::F16 => Stored::F16,
        KvDtype::BF16 | KvDtype::Q8_0 => Stored::BF16,
        KvDtype::F32 => Stored::F32,
        KvDtype::F8E4M3 => Stored::F8,
    }
}

/// Bytes of one block of one layer.
pub(super) fn block_bytes(layout: KvLayout) -> usize {
    let stored = stored(layout.dtype);
    let of_position = 2 * layout.head_dim * stored.bytes() + stored.bytes_beside();
    layout.num_kv_heads * BLOCK_SIZE * of_position
}

impl<D: Device> KvCache<D> {
    /// An error where the kernels know no such cache.
    pub(super) fn check(cuda: &Cuda<D>, layout: KvLayout) -> Result<(), Error> {
        layout.check()?;
        if layout.head_dim > MAX_HEAD_DIM {
            return Err(Error::Unsupported(format!(
                "the CUDA kernels know heads of up to {MAX_HEAD_DIM} elements, and these have {}",
                layout.head_dim
            )));
        }
        let heads = HeadLayout { num_heads: 1, num_kv_heads: 1, head_dim: layout.head_dim };
        let stored = stored(layout.dtype);
        if stored == Stored::F8 && Form::of(cuda.device.properties(), heads, stored, true).is_none() {
            return Err(Error::Unsupported(format!(
                "a KV cache of F8E4M3 needs heads of 64, 96, 128 or 256 elements on this GPU, and these have {}; BF16 takes any",
                layout.head_dim
            )));
        }
        Ok(())
    }

    pub(super) fn new(cuda: &Cuda<D>, layout: KvLayout) -> Result<KvCache<D>, Error> {
        KvCache::check(cuda, layout)?;
        let bytes = block_bytes(layout).saturating_mul(layout.num_blocks).saturating_mul(layout.num_layers);
        let memory = zeros(&cuda.heap, "the KV cache", bytes).map_err(to_error)?;
        let counts = zeros(&cuda.heap, "counts of recomputed rows", layout.num_layers).map_err(to_error)?;
        let counted = Counted { last: vec![0; layout.num_layers], total: vec![0; layout.num_layers] };
        Ok(KvCache { layout, memory, counts, counted: Mutex::new(counted) })
    }

    /// Where attention of a layer counts.
    pub(super) fn count(&self, layer: usize) -> Argument {
        assert!(layer < self.layout.num_layers, "layer {layer} is not in the cache");
        Argument::Pointer(self.counts.address().at(layer * size_of::<u32>()))
    }

    /// The counts since the cache was made; those that were last heard of from a device that does not answer any more.
    pub(super) fn recomputed(&self) -> Vec<u64> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = vec![0; self.counts.len()];
        if self.counts.read(0, &mut now).is_ok() {
            let Counted { last, total } = &mut *counted;
            for ((total, last), now) in total.iter_mut().zip(last).zip(now) {
                *total += u64::from(now.wrapping_sub(*last));
                *last = now;
            }
        }
        counted.total.clone()
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
