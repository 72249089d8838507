//! How attention on tensor cores (`kernels/cuda/attention_mma.cu`) is launched: which heads and caches it knows, threads, shared
//! memory, and how many rows share a tile.

use super::kv_cache::Stored;
use crate::cuda::device::DeviceProperties;
use crate::cuda::kernels::Kernel;
use crate::{BLOCK_SIZE, HeadLayout};

/// Threads of a warp, and warps of a block at most.
const WARP: usize = 32;
const MAX_WARPS: usize = 4;
/// Query vectors of the warps that share them.
const VECTORS: usize = 16;
/// Columns of an answer that a warp has, at most.
const MAX_WIDTH: usize = 128;

/// The form of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) kernel: Kernel,
    pub(super) threads: u32,
    pub(super) shared_bytes: usize,
    /// Rows of a tile, at most.
    pub(super) tile_rows: usize,
    /// Blocks of threads that share the query heads of a KV head.
    pub(super) parts: usize,
    /// Blocks of threads that a multiprocessor holds, by their shared memory.
    pub(super) resident: usize,
}

impl Form {
    /// For rows with these heads and a cache of this type; none if the kernel knows no such, or the device has not so much shared
    /// memory. One row of each sequence wants no more vectors than it has.
    pub(super) fn of(
        properties: &DeviceProperties,
        heads: HeadLayout,
        stored: Stored,
        one_row_each: bool,
    ) -> Option<Form> {
        let kernel = kernel(stored, heads.head_dim)?;
        let group = heads.num_heads / heads.num_kv_heads;
        // Warps that share vectors, for their answers are too wide for one.
        let sharing = heads.head_dim.div_ceil(MAX_WIDTH);
        let vectors_of = |warps: usize| warps / sharing * VECTORS;
        let shared_bytes = |warps: usize| shared_bytes(stored, heads.head_dim, vectors_of(warps), warps * WARP);
        let has_room = |warps: usize| shared_bytes(warps) <= properties.shared_bytes_per_block as usize;
        let wanted = if one_row_each { sharing * group.div_ceil(VECTORS) } else { MAX_WARPS };
        let warps = (1..=wanted.min(MAX_WARPS) / sharing).map(|n| n * sharing).rev().find(|&warps| has_room(warps))?;
        let (threads, vectors) = (warps * WARP, vectors_of(warps));
        let shared_bytes = shared_bytes(warps);
        Some(Form {
            kernel,
            threads: threads as u32,
            shared_bytes,
            tile_rows: if one_row_each { 1 } else { vectors / group.min(vectors) },
            parts: group.div_ceil(vectors),
            resident: properties.shared_bytes_per_block as usize / shared_bytes,
        })
    }
}

fn kernel(stored: Stored, head_dim: usize) -> Option<Kernel> {
    Some(match (stored, head_dim) {
        (Stored::BF16, 64) => Kernel::AttentionMmaBf16Dim64,
        (Stored::BF16, 96) => Kernel::AttentionMmaBf16Dim96,
        (Stored::BF16, 128) => Kernel::AttentionMmaBf16Dim128,
        (Stored::BF16, 256) => Kernel::AttentionMmaBf16Dim256,
        (Stored::F16, 64) => Kernel::AttentionMmaF16Dim64,
        (Stored::F16, 96) => Kernel::AttentionMmaF16Dim96,
        (Stored::F16, 128) => Kernel::AttentionMmaF16Dim128,
        (Stored::F16, 256) => Kernel::AttentionMmaF16Dim256,
        (Stored::F8, 64) => Kernel::AttentionMmaF8Dim64,
        (Stored::F8, 96) => Kernel::AttentionMmaF8Dim96,
        (Stored::F8, 128) => Kernel::AttentionMmaF8Dim128,
        (Stored::F8, 256) => Kernel::AttentionMmaF8Dim256,
        _ => return None,
    })
}

/// Dynamic shared memory, as the kernel's file has it: what a block attends to, its pieces of the cache, its queries, and sums.
fn shared_bytes(stored: Stored, head_dim: usize, vectors: usize, threads: usize) -> usize {
    const CALL: usize = 128;
    let (stages, width) = if head_dim <= MAX_WIDTH { (4, head_dim) } else { (2, head_dim / 2) };
    // Pieces of 16-bit elements, and of bytes with their scales, which become those.
    let (pieces, bytes) =
        if stored == Stored::F8 { (stages / 2, stages * BLOCK_SIZE * (head_dim + 4)) } else { (stages, 0) };
    CALL + 2 * (head_dim + 8) * (BLOCK_SIZE * pieces + vectors) + bytes + 24 * vectors + 16 * (1 + width / 8) * threads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(heads: (usize, usize, usize), one_row_each: bool, shared_kib: u32) -> Option<Form> {
        let properties = DeviceProperties {
            name: String::new(),
            multiprocessors: 1,
            shared_bytes_per_block: shared_kib << 10,
            l2_bytes: 0,
        };
        let (num_heads, num_kv_heads, head_dim) = heads;
        Form::of(&properties, HeadLayout { num_heads, num_kv_heads, head_dim }, Stored::BF16, one_row_each)
    }

    #[test]
    fn every_head_that_is_known_has_room_for_bytes_on_every_device() {
        for head_dim in [64, 96, 128, 256] {
            let bytes = |stored, vectors| shared_bytes(stored, head_dim, vectors, 32 * head_dim.div_ceil(MAX_WIDTH));
            assert!(
                bytes(Stored::F8, VECTORS) <= bytes(Stored::BF16, VECTORS) && bytes(Stored::F8, VECTORS) <= 99 << 10
            );
        }
    }

    #[test]
    fn one_row_takes_as_many_warps_as_its_heads_fill() {
        let of = |heads| form(heads, true, 227).map(|form| (form.threads, form.tile_rows, form.parts));
        assert_eq!(of((32, 8, 128)), Some((32, 1, 1)));
        assert_eq!(of((17, 1, 64)), Some((64, 1, 1)));
        assert_eq!(of((8, 1, 256)), Some((64, 1, 1)), "two warps share wide answers");
        assert_eq!(of((71, 1, 64)), Some((128, 1, 2)), "more heads than a block has vectors");
        assert_eq!(of((8, 1, 80)), None, "no kernel");
    }

    #[test]
    fn rows_of_a_prompt_share_a_block_that_fits_the_device() {
        let of = |heads, kib| form(heads, false, kib).map(|form| (form.threads, form.tile_rows, form.parts));
        assert_eq!(of((32, 8, 128), 227), Some((128, 16, 1)));
        assert_eq!(of((32, 8, 128), 99), Some((64, 8, 1)), "as on compute capability 8.6");
        assert_eq!(of((4, 4, 64), 99), Some((128, 64, 1)));
        assert_eq!(of((2, 1, 256), 99), Some((64, 8, 1)));
        assert_eq!(of((2, 1, 256), 48), None);
    }
}
