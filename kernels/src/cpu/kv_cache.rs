//! The paged KV cache of the CPU backend: float16, or another type when asked for.
//!
//! For each layer, block and KV head one contiguous piece: keys as `[4 groups of 16 keys][head_dim][16 keys]`, so that a
//! load gives one element of sixteen keys and a score needs no shuffle; then values as `[64 keys][head_dim]`, rows padded
//! to sixteen elements ([`mod@format`] has the types). Memory comes zeroed from the system, so blocks that were never written
//! cost nothing.
//!
//! Beside it, per layer, block, KV head and place, the largest length of the keys stored from place 0 up to it, which
//! bounds the scores of the rows that see so far. It is of the keys as they were rounded, and because it reaches no further
//! than the row that reads it, neither later tokens nor a block's earlier owner change what a row computes. Of whole blocks
//! it is kept a second time, side by side.

mod blocks;
mod format;

pub(super) use format::{Element, F32, Format};

use super::isa::Isa;
use super::pool::Pool;
use super::rows::Disjoint;
use super::simd::{Kernel, LANES, Simd, run};
use crate::memory::AlignedVec;
use crate::{BLOCK_SIZE, Error, KvDtype, KvLayout};
use format::{BF16, F16, Q8_0};
use std::sync::atomic::AtomicU64;

/// Where things lie in a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    layout: KvLayout,
}

impl Geometry {
    /// Elements of a value row: `head_dim` and its padding.
    pub(super) fn value_stride(self) -> usize {
        self.layout.head_dim.next_multiple_of(LANES)
    }

    pub(super) fn head_dim(self) -> usize {
        self.layout.head_dim
    }

    /// Units of the keys of one (layer, block, KV head).
    fn key_units<F: Format>(self) -> usize {
        F::units(BLOCK_SIZE * self.layout.head_dim)
    }

    /// Units of the keys and values of one (layer, block, KV head).
    fn piece_units<F: Format>(self) -> usize {
        self.key_units::<F>() + F::units(BLOCK_SIZE * self.value_stride())
    }

    /// Bytes of one block of one layer.
    fn block_bytes<F: Format>(self) -> usize {
        let piece = self.piece_units::<F>() * size_of::<F::Unit>() + (BLOCK_SIZE + 1) * size_of::<f32>();
        piece.saturating_mul(self.layout.num_kv_heads)
    }

    fn num_pieces(self) -> usize {
        self.layout.num_layers.saturating_mul(self.layout.num_blocks).saturating_mul(self.layout.num_kv_heads)
    }

    fn index(self, layer: usize, block: usize, kv_head: usize) -> usize {
        (layer * self.layout.num_blocks + block) * self.layout.num_kv_heads + kv_head
    }

    fn piece<F: Format>(self, layer: usize, block: usize, kv_head: usize) -> std::ops::Range<usize> {
        let start = self.index(layer, block, kv_head) * self.piece_units::<F>();
        start..start + self.piece_units::<F>()
    }

    fn block_lengths(self, layer: usize, kv_head: usize) -> std::ops::Range<usize> {
        let start = (layer * self.layout.num_kv_heads + kv_head) * self.layout.num_blocks;
        start..start + self.layout.num_blocks
    }

    fn lengths(self, layer: usize, block: usize, kv_head: usize) -> std::ops::Range<usize> {
        let start = self.index(layer, block, kv_head) * BLOCK_SIZE;
        start..start + BLOCK_SIZE
    }
}

/// Keys and values in one format.
#[derive(Debug)]
pub(super) struct Storage<F: Format> {
    data: AlignedVec<F::Unit>,
    /// `[layer][block][kv head][place]`: the largest length of a key up to that place of the block.
    key_lengths: AlignedVec<f32>,
    /// `[layer][kv head][block]`: of the key stored last, which in a block that is followed by another is its last.
    block_lengths: AlignedVec<f32>,
    pub(super) geometry: Geometry,
}

impl<F: Format> Storage<F> {
    fn new(geometry: Geometry) -> Result<Self, Error> {
        let len = |per_piece| geometry.num_pieces().saturating_mul(per_piece);
        Ok(Self {
            data: AlignedVec::zeroed(len(geometry.piece_units::<F>()), "the KV cache")?,
            key_lengths: AlignedVec::zeroed(len(BLOCK_SIZE), "the KV cache")?,
            block_lengths: AlignedVec::zeroed(len(1), "the KV cache")?,
            geometry,
        })
    }

    fn populate(&self, pool: &Pool) {
        let run = |num_parts: usize, part: &(dyn Fn(usize) + Sync)| pool.run(num_parts, part);
        self.data.populate(&run);
        self.key_lengths.populate(&run);
        self.block_lengths.populate(&run);
    }

    /// All of one (layer, block, KV head).
    #[inline(always)]
    pub(super) fn piece(&self, layer: usize, block: usize, kv_head: usize) -> &[F::Unit] {
        &self.data[self.geometry.piece::<F>(layer, block, kv_head)]
    }

    /// Keys and values of a piece.
    #[inline(always)]
    pub(super) fn keys_and_values<'a>(&self, piece: &'a [F::Unit]) -> (&'a [F::Unit], &'a [F::Unit]) {
        piece.split_at(self.geometry.key_units::<F>())
    }

    /// Largest length of the keys of each whole block.
    pub(super) fn block_lengths(&self, layer: usize, kv_head: usize) -> &[f32] {
        &self.block_lengths[self.geometry.block_lengths(layer, kv_head)]
    }

    /// Largest length of the keys of a block from place 0 to `place`.
    pub(super) fn key_length(&self, layer: usize, block: usize, kv_head: usize, place: usize) -> f32 {
        self.key_lengths[self.geometry.lengths(layer, block, kv_head)][place]
    }
}

/// The paged KV cache.
#[derive(Debug)]
pub struct KvCache {
    pub(super) storage: AnyStorage,
    layout: KvLayout,
    /// Per layer, (row, head) pairs that attention computed a second time.
    pub(super) recomputed: Vec<AtomicU64>,
}

#[derive(Debug)]
pub(super) enum AnyStorage {
    F16(Storage<F16>),
    BF16(Storage<BF16>),
    F32(Storage<F32>),
    Q8_0(Storage<Q8_0>),
}

/// The same expression for a storage of any format.
macro_rules! for_any_storage {
    ($any:expr, $storage:ident => $body:expr) => {
        match $any {
            AnyStorage::F16($storage) => $body,
            AnyStorage::BF16($storage) => $body,
            AnyStorage::F32($storage) => $body,
            AnyStorage::Q8_0($storage) => $body,
        }
    };
}
pub(super) use for_any_storage;

impl KvCache {
    pub(super) fn new(layout: KvLayout) -> Result<Self, Error> {
        layout.check()?;
        let geometry = Geometry { layout };
        let storage = match layout.dtype {
            // Ours has no floats of eight bits.
            KvDtype::F16 | KvDtype::F8E4M3 => AnyStorage::F16(Storage::new(geometry)?),
            KvDtype::BF16 => AnyStorage::BF16(Storage::new(geometry)?),
            KvDtype::F32 => AnyStorage::F32(Storage::new(geometry)?),
            KvDtype::Q8_0 => AnyStorage::Q8_0(Storage::new(geometry)?),
        };
        Ok(Self { storage, layout, recomputed: (0..layout.num_layers).map(|_| AtomicU64::new(0)).collect() })
    }

    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Takes all its memory now; see [`crate::Backend::populate_kv_cache`].
    pub(super) fn populate(&self, pool: &Pool) {
        for_any_storage!(&self.storage, storage => storage.populate(pool));
    }

    /// Stores the keys and values of fused qkv rows of one layer at their slots; `run_tasks(n, f)` calls `f` for every
    /// index below n, on any thread.
    pub(super) fn store(
        &mut self,
        isa: Isa,
        rows: StoreRows<'_>,
        run_tasks: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
    ) {
        for_any_storage!(&mut self.storage, storage => store(storage, isa, rows, run_tasks));
    }
}

/// Bytes that a block of one layer takes.
pub(super) fn block_bytes(layout: KvLayout) -> usize {
    let geometry = Geometry { layout };
    match layout.dtype {
        KvDtype::F16 | KvDtype::F8E4M3 => geometry.block_bytes::<F16>(),
        KvDtype::BF16 => geometry.block_bytes::<BF16>(),
        KvDtype::F32 => geometry.block_bytes::<F32>(),
        KvDtype::Q8_0 => geometry.block_bytes::<Q8_0>(),
    }
}

/// Rows whose keys and values are to be stored.
#[derive(Clone, Copy)]
pub(super) struct StoreRows<'a> {
    pub(super) layer: usize,
    /// `[rows, width]`; a row ends in its keys and then its values.
    pub(super) qkv: &'a [f32],
    pub(super) width: usize,
    pub(super) slots: &'a [u32],
}

/// One task per KV head: their pieces are apart, whatever the slots are.
fn store<F: Format>(
    storage: &mut Storage<F>,
    isa: Isa,
    rows: StoreRows<'_>,
    run_tasks: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) {
    let geometry = storage.geometry;
    let data = Disjoint::new(&mut storage.data);
    let key_lengths = Disjoint::new(&mut storage.key_lengths);
    let block_lengths = Disjoint::new(&mut storage.block_lengths);
    let lengths = (&key_lengths, &block_lengths);
    run_tasks(geometry.layout.num_kv_heads, &|kv_head| {
        run(isa, StoreHead::<F> { data: &data, lengths, geometry, rows, kv_head });
    });
}

struct StoreHead<'a, F: Format> {
    data: &'a Disjoint<'a, F::Unit>,
    /// Of keys and of blocks.
    lengths: (&'a Disjoint<'a, f32>, &'a Disjoint<'a, f32>),
    geometry: Geometry,
    rows: StoreRows<'a>,
    kv_head: usize,
}

impl<F: Format> Kernel for StoreHead<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { geometry, rows, kv_head, .. } = self;
        let head_dim = geometry.layout.head_dim;
        let values_at = rows.width - geometry.layout.num_kv_heads * head_dim;
        let keys_at = values_at - geometry.layout.num_kv_heads * head_dim;
        for (row, &slot) in rows.qkv.chunks_exact(rows.width).zip(rows.slots) {
            let (block, place) = (slot as usize / BLOCK_SIZE, slot as usize % BLOCK_SIZE);
            // SAFETY: a piece belongs to one KV head, and each head is the business of one task.
            let piece = unsafe { self.data.part(geometry.piece::<F>(rows.layer, block, kv_head)) };
            // SAFETY: as above.
            let lengths = unsafe { self.lengths.0.part(geometry.lengths(rows.layer, block, kv_head)) };
            // SAFETY: as above.
            let block_lengths = unsafe { self.lengths.1.part(geometry.block_lengths(rows.layer, kv_head)) };
            let (keys, values) = piece.split_at_mut(geometry.key_units::<F>());
            let key = &row[keys_at + kv_head * head_dim..][..head_dim];
            let length = F::store_key(s, key, place, keys).sqrt();
            let before = if place == 0 { 0.0 } else { lengths[place - 1] };
            lengths[place] = if length > before { length } else { before };
            block_lengths[block] = lengths[place];
            F::store_value(s, &row[values_at + kv_head * head_dim..][..head_dim], place, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn a_row_is_found_again_where_the_kernels_look_for_it() {
        let (head_dim, num_kv_heads) = (24, 2);
        let layout = KvLayout { num_layers: 2, num_blocks: 3, num_kv_heads, head_dim, dtype: KvDtype::F16 };
        for isa in Isa::available() {
            let mut cache = KvCache::new(layout).unwrap();
            let width = 8 + 2 * num_kv_heads * head_dim;
            let qkv: Vec<f32> = (0..width).map(|i| i as f32).collect();
            let rows = StoreRows { layer: 1, qkv: &qkv, width, slots: &[2 * 64 + 37] };
            cache.store(isa, rows, |n, f| (0..n).for_each(f));
            let AnyStorage::F16(storage) = &cache.storage else { panic!("float16 was asked for") };
            for kv_head in 0..num_kv_heads {
                let (keys, values) = storage.keys_and_values(storage.piece(1, 2, kv_head));
                for d in 0..head_dim {
                    let key = f16::from_bits(keys[(37 / 16 * head_dim + d) * 16 + 37 % 16]).to_f32();
                    let value = f16::from_bits(values[37 * 32 + d]).to_f32();
                    assert_eq!(key, (8 + kv_head * head_dim + d) as f32);
                    assert_eq!(value, (8 + (num_kv_heads + kv_head) * head_dim + d) as f32);
                }
            }
            let written = storage.data.iter().filter(|&&bits| bits != 0).count();
            assert_eq!(written, 2 * num_kv_heads * head_dim, "nothing else is touched");
        }
    }

    #[test]
    fn the_longest_key_is_of_the_rounded_keys_up_to_a_place_of_this_owner() {
        let layout = KvLayout { num_layers: 1, num_blocks: 2, num_kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        for isa in Isa::available() {
            let mut cache = KvCache::new(layout).unwrap();
            let mut store = |slot: u32, x: f32| {
                let qkv = [x; 2 * 32];
                let rows = StoreRows { layer: 0, qkv: &qkv, width: 64, slots: &[slot] };
                cache.store(isa, rows, |n, f| (0..n).for_each(f));
                let AnyStorage::F16(storage) = &cache.storage else { panic!("float16 was asked for") };
                storage.key_length(0, slot as usize / 64, 0, slot as usize % 64)
            };
            let length = |x: f32| (32.0 * f16::from_f32(x).to_f32().powi(2)).sqrt();
            assert_ne!(length(1.0003), (32.0 * 1.0003_f32.powi(2)).sqrt(), "rounding is to be seen");
            assert_eq!(store(64, 1.0003), length(1.0003));
            assert_eq!(store(65, 7.0), length(7.0));
            assert_eq!(store(66, 2.0), length(7.0), "the longest so far");
            assert_eq!(store(65, 3.0), length(3.0), "a place is written anew, after speculation that failed");
            assert_eq!(store(66, f32::NAN), length(3.0));
            assert_eq!(store(64, 0.5), length(0.5), "another owner");
        }
    }

    #[test]
    fn a_block_takes_the_bytes_that_it_says() {
        let layout = KvLayout { num_layers: 3, num_blocks: 5, num_kv_heads: 3, head_dim: 64, dtype: KvDtype::F16 };
        assert_eq!(block_bytes(layout), 3 * (64 * 64 * 2 * 2 + 65 * 4));
        let KvCache { storage: AnyStorage::F16(storage), .. } = KvCache::new(layout).unwrap() else {
            panic!("float16 was asked for")
        };
        let lengths = storage.key_lengths.len() + storage.block_lengths.len();
        assert_eq!(storage.data.len() * 2 + lengths * 4, 15 * block_bytes(layout));
    }
}
