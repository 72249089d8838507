//! The paged KV cache of the CPU backend, in float16 (or float32 when asked for).
//!
//! For each layer, block and KV head one contiguous piece: keys as `[4 groups of 16 keys][head_dim][16 keys]`, so that a
//! load gives one element of sixteen keys and a score needs no shuffle; then values as `[64 keys][head_dim]`, rows padded
//! to sixteen elements. Memory comes zeroed from the system, so blocks that were never written cost nothing.

use super::isa::Isa;
use super::rows::Disjoint;
use super::simd::{Kernel, LANES, Simd, load_part, run};
use crate::memory::{AlignedVec, Plain};
use crate::{BLOCK_SIZE, Error, KvDtype, KvLayout};

/// An element that keys and values are stored in.
pub(super) trait Element: Plain {
    fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::F;
    fn store<S: Simd>(s: S, x: S::F, to: &mut [Self; LANES]);
}

/// float16 bits.
impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u16; LANES]) -> S::F {
        s.load_f16(from)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, to: &mut [u16; LANES]) {
        s.store_f16(x, to);
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32; LANES]) -> S::F {
        s.load(from)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, to: &mut [f32; LANES]) {
        s.store(x, to);
    }
}

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

    /// Elements of the keys of one (layer, block, KV head).
    fn key_elements(self) -> usize {
        BLOCK_SIZE * self.layout.head_dim
    }

    /// Elements of the keys and values of one (layer, block, KV head).
    fn piece_elements(self) -> usize {
        self.key_elements() + BLOCK_SIZE * self.value_stride()
    }

    /// Bytes of one block of one layer.
    fn block_bytes(self) -> usize {
        let element = match self.layout.dtype {
            KvDtype::F16 => size_of::<u16>(),
            KvDtype::F32 => size_of::<f32>(),
        };
        self.piece_elements().saturating_mul(self.layout.num_kv_heads).saturating_mul(element)
    }

    fn total_elements(self) -> usize {
        [self.layout.num_layers, self.layout.num_blocks, self.layout.num_kv_heads]
            .into_iter()
            .fold(self.piece_elements(), usize::saturating_mul)
    }

    fn piece(self, layer: usize, block: usize, kv_head: usize) -> std::ops::Range<usize> {
        let index = (layer * self.layout.num_blocks + block) * self.layout.num_kv_heads + kv_head;
        index * self.piece_elements()..(index + 1) * self.piece_elements()
    }
}

/// Keys and values in elements of one type.
#[derive(Debug)]
pub(super) struct Storage<E: Plain> {
    data: AlignedVec<E>,
    pub(super) geometry: Geometry,
}

impl<E: Element> Storage<E> {
    /// Keys and values of one (layer, block, KV head).
    #[inline(always)]
    pub(super) fn piece(&self, layer: usize, block: usize, kv_head: usize) -> (&[E], &[E]) {
        self.data[self.geometry.piece(layer, block, kv_head)].split_at(self.geometry.key_elements())
    }
}

/// The paged KV cache.
#[derive(Debug)]
pub struct KvCache {
    pub(super) storage: AnyStorage,
    layout: KvLayout,
}

#[derive(Debug)]
pub(super) enum AnyStorage {
    F16(Storage<u16>),
    F32(Storage<f32>),
}

impl KvCache {
    pub(super) fn new(layout: KvLayout) -> Result<Self, Error> {
        let geometry = Geometry { layout };
        let (len, what) = (geometry.total_elements(), "the KV cache");
        let storage = match layout.dtype {
            KvDtype::F16 => AnyStorage::F16(Storage { data: AlignedVec::zeroed(len, what)?, geometry }),
            KvDtype::F32 => AnyStorage::F32(Storage { data: AlignedVec::zeroed(len, what)?, geometry }),
        };
        Ok(Self { storage, layout })
    }

    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Stores the keys and values of fused qkv rows of one layer at their slots; `run_tasks(n, f)` calls `f` for every
    /// index below n, on any thread.
    pub(super) fn store(
        &mut self,
        isa: Isa,
        rows: StoreRows<'_>,
        run_tasks: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
    ) {
        match &mut self.storage {
            AnyStorage::F16(storage) => store(storage, isa, rows, run_tasks),
            AnyStorage::F32(storage) => store(storage, isa, rows, run_tasks),
        }
    }
}

/// Bytes that a block of one layer takes.
pub(super) fn block_bytes(layout: KvLayout) -> usize {
    Geometry { layout }.block_bytes()
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
fn store<E: Element>(
    storage: &mut Storage<E>,
    isa: Isa,
    rows: StoreRows<'_>,
    run_tasks: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) {
    let geometry = storage.geometry;
    let data = Disjoint::new(&mut storage.data);
    run_tasks(geometry.layout.num_kv_heads, &|kv_head| run(isa, StoreHead { data: &data, geometry, rows, kv_head }));
}

struct StoreHead<'a, E> {
    data: &'a Disjoint<'a, E>,
    geometry: Geometry,
    rows: StoreRows<'a>,
    kv_head: usize,
}

impl<E: Element> Kernel for StoreHead<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { geometry, rows, kv_head, .. } = self;
        let head_dim = geometry.layout.head_dim;
        let values_at = rows.width - geometry.layout.num_kv_heads * head_dim;
        let keys_at = values_at - geometry.layout.num_kv_heads * head_dim;
        for (row, &slot) in rows.qkv.chunks_exact(rows.width).zip(rows.slots) {
            let (block, place) = (slot as usize / BLOCK_SIZE, slot as usize % BLOCK_SIZE);
            // SAFETY: a piece belongs to one KV head, and each head is the business of one task.
            let piece = unsafe { self.data.part(geometry.piece(rows.layer, block, kv_head)) };
            let (keys, values) = piece.split_at_mut(geometry.key_elements());
            let group = &mut keys[place / LANES * head_dim * LANES..][..head_dim * LANES];
            store_column(s, &row[keys_at + kv_head * head_dim..][..head_dim], group, place % LANES);
            let stride = geometry.value_stride();
            store_row(s, &row[values_at + kv_head * head_dim..][..head_dim], &mut values[place * stride..][..stride]);
        }
    }
}

/// Writes a key into lane `lane` of a group `[head_dim][16]`.
#[inline(always)]
fn store_column<S: Simd, E: Element>(s: S, key: &[f32], group: &mut [E], lane: usize) {
    let groups = group.chunks_mut(LANES * LANES);
    for (key, group) in key.chunks(LANES).zip(groups) {
        let mut elements = [E::default(); LANES];
        E::store(s, load_part(s, key), &mut elements);
        for (element, column) in elements.iter().zip(group.as_chunks_mut::<LANES>().0) {
            column[lane] = *element;
        }
    }
}

/// Writes a value row; its padding stays zero.
#[inline(always)]
fn store_row<S: Simd, E: Element>(s: S, value: &[f32], row: &mut [E]) {
    for (value, row) in value.chunks(LANES).zip(row.as_chunks_mut::<LANES>().0) {
        E::store(s, load_part(s, value), row);
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
                let (keys, values) = storage.piece(1, 2, kv_head);
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
    fn a_block_takes_the_bytes_that_it_says() {
        let layout = KvLayout { num_layers: 3, num_blocks: 5, num_kv_heads: 3, head_dim: 64, dtype: KvDtype::F16 };
        assert_eq!(block_bytes(layout), 64 * 3 * 64 * 2 * 2);
        let KvCache { storage: AnyStorage::F16(storage), .. } = KvCache::new(layout).unwrap() else {
            panic!("float16 was asked for")
        };
        assert_eq!(storage.data.len() * 2, 15 * block_bytes(layout));
    }
}
