//! A tile of query vectors against splits of the keys, and the merging of what several tasks left of a tile.
//!
//! Query vector v of a tile is row `v / group`, head `v % group`. In a split, per block: scores in log2 units, the
//! reference raised to the floor of their maximum, weights `2^(x - reference)`, and the sums of weights and of weighted
//! values. Keys behind a row's own position are left out of every sum, so what lies there does not matter.

use super::super::kv_cache::{Element, Geometry, Storage};
use super::super::simd::{Kernel, LANES, Simd};
use super::super::vector_math::exp2_from;
use super::blocks::{QUERIES, Row, Stream, scores, weighted_sum};
use super::{Call, Merge, Task, state};
use crate::{BLOCK_SIZE, KV_SPLIT};

const SPLIT_BLOCKS: usize = KV_SPLIT / BLOCK_SIZE;
/// Query vectors from which a block is widened to float32 once, not by every group of query vectors again.
const WIDEN_FROM: usize = 2 * QUERIES + 1;

/// Elements of scratch that a tile of that many query vectors needs.
pub(super) fn scratch_len(num_queries: usize, geometry: Geometry) -> usize {
    let (head_dim, stride) = (geometry.head_dim(), geometry.value_stride());
    let per_query = head_dim.next_multiple_of(LANES) + BLOCK_SIZE + LANES + 2 * state::len(geometry);
    num_queries * per_query + BLOCK_SIZE * (head_dim + stride)
}

/// One task.
pub(super) struct Tile<'a, E: Element> {
    pub(super) call: Call<'a>,
    pub(super) storage: &'a Storage<E>,
    pub(super) task: &'a Task,
    pub(super) states: Option<&'a mut [f32]>,
    pub(super) scratch: &'a mut [f32],
}

/// What a tile knows of itself while it runs; all slices are scratch.
struct Work<'a> {
    head_dim: usize,
    stride: usize,
    group: usize,
    /// Position of the tile's first row.
    first_position: usize,
    /// Per [`QUERIES`] query vectors `[head_dim][of them]`.
    queries: &'a [f32],
    rows: &'a mut [Row],
    /// Lane sums of the weights.
    weights: &'a mut [[f32; LANES]],
    /// References of the running split.
    references: &'a mut [f32],
    /// Sums of the running split, `[query vectors][stride]`.
    sums: &'a mut [f32],
}

impl<E: Element> Kernel for Tile<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, storage, task, states, scratch } = self;
        let geometry = storage.geometry;
        let (head_dim, stride, group) = (geometry.head_dim(), geometry.value_stride(), call.group());
        let num_queries = task.rows.len() * group;
        let (queries, scratch) = scratch.split_at_mut(num_queries * head_dim.next_multiple_of(LANES));
        let (rows, scratch) = scratch.split_at_mut(num_queries * BLOCK_SIZE);
        let (weights, scratch) = scratch.split_at_mut(num_queries * LANES);
        let (sums, scratch) = scratch.split_at_mut(num_queries * stride);
        let (merged, scratch) = scratch.split_at_mut(num_queries * state::len(geometry));
        let (wide_keys, scratch) = scratch.split_at_mut(BLOCK_SIZE * head_dim);
        let (wide_values, scratch) = scratch.split_at_mut(BLOCK_SIZE * stride);
        let references = &mut scratch[..num_queries];
        pack_queries(&call, task, queries);

        let first_position = call.step.positions[task.rows.start] as usize;
        let num_blocks = (first_position + task.rows.len()).div_ceil(BLOCK_SIZE).min(task.splits.end * SPLIT_BLOCKS);
        let blocks = &call.blocks(task.span)[..num_blocks];
        let mut work = Work {
            head_dim,
            stride,
            group,
            first_position,
            queries,
            rows: rows.as_chunks_mut().0,
            weights: weights.as_chunks_mut().0,
            references,
            sums,
        };
        let merged = states.unwrap_or(merged);
        merged.chunks_exact_mut(state::len(geometry)).for_each(state::clear);
        for split in task.splits.clone() {
            work.references.fill(f32::NEG_INFINITY);
            work.sums.fill(0.0);
            work.weights.fill([0.0; LANES]);
            let split_blocks = split * SPLIT_BLOCKS..num_blocks.min((split + 1) * SPLIT_BLOCKS);
            for (index, &block) in split_blocks.clone().zip(&blocks[split_blocks]) {
                let (keys, values) = storage.piece(call.params.layer, block as usize, task.kv_head);
                if num_queries < WIDEN_FROM {
                    let next = blocks.get(index + 1).map_or(block, |&next| next);
                    let (next_keys, next_values) = storage.piece(call.params.layer, next as usize, task.kv_head);
                    let keys = Stream { block: keys, next: next_keys };
                    let values = Stream { block: values, next: next_values };
                    work.block(s, index * BLOCK_SIZE, keys, values);
                } else {
                    widen(s, keys, wide_keys);
                    widen(s, values, wide_values);
                    work.block(s, index * BLOCK_SIZE, Stream::of(wide_keys), Stream::of(wide_values));
                }
            }
            for (query, merged) in merged.chunks_exact_mut(state::len(geometry)).enumerate() {
                work.merge_into(s, query, merged);
            }
        }
        if task.states.is_none() {
            // SAFETY: a task without states is the only one of its rows and KV head.
            unsafe { answer(s, &call, task.kv_head, task.rows.clone(), merged) };
        }
    }
}

/// Merges the splits of a tile in index order.
pub(super) struct MergeTile<'a> {
    pub(super) call: Call<'a>,
    pub(super) merge: &'a Merge,
    pub(super) states: &'a mut [f32],
    pub(super) geometry: Geometry,
}

impl Kernel for MergeTile<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, merge, states, geometry } = self;
        let len = state::len(geometry);
        let (merged, others) = states.split_at_mut(merge.rows.len() * call.group() * len);
        for split in others.chunks_exact(merged.len()) {
            for (merged, other) in merged.chunks_exact_mut(len).zip(split.chunks_exact(len)) {
                state::merge(s, merged, other);
            }
        }
        // SAFETY: there is one merge per rows and KV head, and the tasks that left the states gave no answer.
        unsafe { answer(s, &call, merge.kv_head, merge.rows.clone(), merged) };
    }
}

/// # Safety
/// Only one task answers for these rows and this KV head.
#[inline(always)]
unsafe fn answer<S: Simd>(s: S, call: &Call<'_>, kv_head: usize, rows: std::ops::Range<usize>, states: &[f32]) {
    let group = call.group();
    let state_len = states.len() / (rows.len() * group);
    for (query, state) in states.chunks_exact(state_len).enumerate() {
        // SAFETY: each row and head once; the caller's promise keeps others away.
        let out = unsafe { call.answer(rows.start + query / group, kv_head * group + query % group) };
        state::finish(s, state, out);
    }
}

/// Queries in log2 units, `[head_dim][QUERIES]` per group of query vectors (the last may be smaller).
#[inline(always)]
fn pack_queries(call: &Call<'_>, task: &Task, packed: &mut [f32]) {
    let (head_dim, group) = (call.params.heads.head_dim, call.group());
    let num_queries = task.rows.len() * group;
    let scale = call.log2_scale();
    for first in (0..num_queries).step_by(QUERIES) {
        let together = QUERIES.min(num_queries - first);
        let packed = &mut packed[first * head_dim..][..together * head_dim];
        for index in 0..together {
            let query = first + index;
            let head = task.kv_head * group + query % group;
            let column = packed[index..].iter_mut().step_by(together);
            for (packed, x) in column.zip(call.query(task.rows.start + query / group, head)) {
                *packed = x * scale;
            }
        }
    }
}

/// Converts elements to float32.
#[inline(always)]
fn widen<S: Simd, E: Element>(s: S, from: &[E], to: &mut [f32]) {
    for (from, to) in from.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
        s.store(E::load(s, from), to);
    }
}

impl Work<'_> {
    /// Keys of the block from `first_key` on that a query vector sees.
    #[inline(always)]
    fn visible(&self, query: usize, first_key: usize) -> usize {
        (self.first_position + query / self.group + 1).saturating_sub(first_key).min(BLOCK_SIZE)
    }

    /// Takes in one block of keys.
    #[inline(always)]
    fn block<S: Simd, E: Element>(&mut self, s: S, first_key: usize, keys: Stream<'_, E>, values: Stream<'_, E>) {
        let num_queries = self.rows.len();
        for first in (0..num_queries).step_by(QUERIES) {
            let last = num_queries.min(first + QUERIES);
            if self.visible(last - 1, first_key) == 0 {
                continue;
            }
            let queries = &self.queries[first * self.head_dim..last * self.head_dim];
            scores(s, queries, keys, &mut self.rows[first..last]);
            for query in first..last {
                let visible = self.visible(query, first_key);
                if visible > 0 {
                    self.exponentials(s, query, visible);
                }
            }
            // What all of them see, then what each sees beyond that.
            let common = self.visible(first, first_key);
            let sums = &mut self.sums[first * self.stride..last * self.stride];
            weighted_sum(s, &self.rows[first..last], 0..common, values, sums);
            for query in first..last {
                let visible = self.visible(query, first_key);
                if visible > common {
                    let sums = &mut self.sums[query * self.stride..][..self.stride];
                    weighted_sum(s, &self.rows[query..=query], common..visible, values, sums);
                }
            }
        }
    }

    /// Turns the scores of the first `visible` keys into weights, after raising the reference and rescaling the sums.
    #[inline(always)]
    fn exponentials<S: Simd>(&mut self, s: S, query: usize, visible: usize) {
        let row = self.rows[query].as_chunks_mut::<LANES>().0;
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut largest = lowest;
        let mut x = [lowest; BLOCK_SIZE / LANES];
        for (group, x) in x.iter_mut().enumerate() {
            *x = s.first_lanes(visible.saturating_sub(group * LANES), s.load(&row[group]), lowest);
            largest = s.max(*x, largest);
        }
        let old = self.references[query];
        let floor = s.largest(s.floor(largest));
        let reference = if floor > old { floor } else { old };
        let scale = s.power_of_two(s.splat(old - reference));
        let mut total = s.mul(s.load(&self.weights[query]), scale);
        for (group, x) in x.into_iter().enumerate() {
            let p = exp2_from(s, x, s.splat(reference));
            let p = s.first_lanes(visible.saturating_sub(group * LANES), p, s.splat(0.0));
            total = s.add(total, p);
            s.store(p, &mut row[group]);
        }
        s.store(total, &mut self.weights[query]);
        if reference > old {
            self.references[query] = reference;
            for sum in self.sums[query * self.stride..][..self.stride].as_chunks_mut::<LANES>().0 {
                s.store(s.mul(s.load(sum), scale), sum);
            }
        }
    }

    /// Merges the running split's state of a query vector into another.
    #[inline(always)]
    fn merge_into<S: Simd>(&self, s: S, query: usize, merged: &mut [f32]) {
        let total = s.sum(s.load(&self.weights[query]));
        let sums = &self.sums[query * self.stride..][..self.stride];
        state::merge_parts(s, merged, self.references[query], total, sums);
    }
}
