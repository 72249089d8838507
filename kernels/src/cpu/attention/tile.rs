//! A tile of query vectors against splits of the keys, and the merging of what several tasks left of a tile.
//!
//! Query vector v of a tile is row `v / group`, head `v % group`. In a split, per block: scores in log2 units, the
//! reference raised to the floor of their maximum, weights `2^(x - reference)`, and the sums of weights and of weighted
//! values. Keys behind a row's own position are left out of every sum, so what lies there does not matter.

use super::super::kv_cache::{Element, F32, Format, Geometry, Storage};
use super::super::simd::{Kernel, LANES, Simd};
use super::super::vector_math::exp2_from;
use super::blocks::{Ahead, QUERIES, Row, scores, weighted_sum};
use super::plan::{Merge, Task};
use super::references::Limits;
use super::{Call, state};
use crate::memory::Plain;
use crate::{BLOCK_SIZE, KV_SPLIT};
use std::sync::atomic::Ordering;

const SPLIT_BLOCKS: usize = KV_SPLIT / BLOCK_SIZE;
/// Query vectors from which a block is widened to float32 once, not by every group of query vectors again.
const WIDEN_FROM: usize = 2 * QUERIES + 1;

/// Elements of scratch that a tile of that many query vectors needs.
pub(super) fn scratch_len(num_queries: usize, geometry: Geometry) -> usize {
    let (head_dim, stride) = (geometry.head_dim(), geometry.value_stride());
    let per_query = head_dim.next_multiple_of(LANES) + BLOCK_SIZE + LANES + 2 * state::len(geometry);
    num_queries * per_query + BLOCK_SIZE * (head_dim + stride)
}

/// One task; FIXED: under references that were chosen beforehand.
pub(super) struct Tile<'a, F: Format, const FIXED: bool> {
    pub(super) call: Call<'a>,
    pub(super) storage: &'a Storage<F>,
    pub(super) task: &'a Task,
    pub(super) states: Option<&'a mut [f32]>,
    pub(super) scratch: &'a mut [f32],
}

/// What a tile knows of itself while it runs; all slices are scratch.
struct Work<'a, const FIXED: bool> {
    head_dim: usize,
    stride: usize,
    group: usize,
    /// Position of the tile's first row.
    first_position: usize,
    /// What scores may be, relative to a fixed reference, if that is limited.
    limits: Option<Limits>,
    /// Per [`QUERIES`] query vectors `[head_dim][of them]`.
    queries: &'a [f32],
    rows: &'a mut [Row],
    /// Lane sums of the weights.
    weights: &'a mut [[f32; LANES]],
    /// References of the running split. Not a number: a fixed one that was unfit, and the row has stopped.
    references: &'a mut [f32],
    /// Sums of the running split, `[query vectors][stride]`.
    sums: &'a mut [f32],
}

impl<F: Format, const FIXED: bool> Kernel for Tile<'_, F, FIXED> {
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
        if FIXED {
            for (references, row) in references.chunks_exact_mut(group).zip(task.rows.clone()) {
                references.copy_from_slice(call.references(row, task.kv_head));
            }
        }

        let first_position = call.step.positions[task.rows.start] as usize;
        let num_blocks = (first_position + task.rows.len()).div_ceil(BLOCK_SIZE).min(task.splits.end * SPLIT_BLOCKS);
        let blocks = &call.blocks(task.span)[..num_blocks];
        let mut work = Work::<FIXED> {
            head_dim,
            stride,
            group,
            first_position,
            limits: call.limits(task.kv_head),
            queries,
            rows: rows.as_chunks_mut().0,
            weights: weights.as_chunks_mut().0,
            references,
            sums,
        };
        let answers = states.is_none();
        let merged = states.unwrap_or(merged);
        merged.chunks_exact_mut(state::len(geometry)).for_each(state::clear);
        for split in task.splits.clone() {
            work.begin_split();
            let split_blocks = split * SPLIT_BLOCKS..num_blocks.min((split + 1) * SPLIT_BLOCKS);
            for (index, &block) in split_blocks.clone().zip(&blocks[split_blocks]) {
                let piece = storage.piece(call.params.layer, block as usize, task.kv_head);
                let (keys, values) = storage.keys_and_values(piece);
                let next = blocks.get(index + 1).filter(|_| num_queries < WIDEN_FROM);
                let next = next.map(|&next| storage.piece(call.params.layer, next as usize, task.kv_head));
                let in_place = (F::in_place(keys), F::in_place(values));
                if let (Some(in_place_keys), Some(in_place_values), true) =
                    (in_place.0, in_place.1, num_queries < WIDEN_FROM)
                {
                    // Half a block ahead: what is further ahead drives out of the first cache what is used first.
                    let next_keys =
                        next.map_or(Ahead::nothing(keys), |next| Ahead::of(storage.keys_and_values(next).0));
                    let ahead = [Ahead::of(values), next_keys];
                    work.block::<S, F::Element, _>(s, index * BLOCK_SIZE, in_place_keys, in_place_values, ahead);
                } else {
                    F::widen_keys(s, keys, wide_keys);
                    F::widen_values(s, values, wide_values);
                    let next = next.map_or([keys, values].map(Ahead::nothing), |next| {
                        let (keys, values) = storage.keys_and_values(next);
                        [keys, values].map(Ahead::of)
                    });
                    work.block::<S, F32, _>(s, index * BLOCK_SIZE, wide_keys, wide_values, next);
                }
            }
            // One state per split where they are merged elsewhere.
            let at = if answers { 0 } else { (split - task.splits.start) * num_queries * state::len(geometry) };
            let merged = merged[at..].chunks_exact_mut(state::len(geometry)).take(num_queries);
            for (query, merged) in merged.enumerate() {
                work.merge_into(s, query, merged);
            }
        }
        if answers {
            // SAFETY: a task without states is the only one of its rows and KV head.
            unsafe { answer::<S, FIXED>(s, &call, task.kv_head, task.rows.clone(), merged) };
        }
    }
}

/// Merges what a round left of a tile into what is kept of it, in index order.
pub(super) struct MergeTile<'a, const FIXED: bool> {
    pub(super) call: Call<'a>,
    pub(super) merge: &'a Merge,
    pub(super) left: &'a [f32],
    pub(super) kept: &'a mut [f32],
    pub(super) geometry: Geometry,
}

impl<const FIXED: bool> Kernel for MergeTile<'_, FIXED> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, merge, left, kept, geometry } = self;
        let len = state::len(geometry);
        if merge.is_first {
            kept.chunks_exact_mut(len).for_each(state::clear);
        }
        for split in left.chunks_exact(kept.len()) {
            for (kept, state) in kept.chunks_exact_mut(len).zip(split.chunks_exact(len)) {
                let (head, o) = state.split_at(LANES);
                state::merge_parts::<S, FIXED>(s, kept, head[0], head[1], o);
            }
        }
        if merge.is_last {
            // SAFETY: one merge is the last per rows and KV head, and the tasks that left the states gave no answer.
            unsafe { answer::<S, FIXED>(s, &call, merge.kv_head, merge.rows.clone(), kept) };
        }
    }
}

/// Answers of the query vectors whose reference was fit; the others are noted. Where rows are computed again, only theirs.
///
/// # Safety
/// Only one task answers for these rows and this KV head.
#[inline(always)]
unsafe fn answer<S: Simd, const FIXED: bool>(
    s: S,
    call: &Call<'_>,
    kv_head: usize,
    rows: std::ops::Range<usize>,
    states: &[f32],
) {
    let group = call.group();
    let state_len = states.len() / (rows.len() * group);
    for (query, state) in states.chunks_exact(state_len).enumerate() {
        let (row, head) = (rows.start + query / group, kv_head * group + query % group);
        if FIXED && !state::is_valid(s, state, call.step.positions[row] as usize + 1) {
            call.unfit(row, head).store(true, Ordering::Relaxed);
        } else if FIXED || call.wants(row, head) {
            // SAFETY: each row and head once; the caller's promise keeps others away.
            state::finish(s, state, unsafe { call.answer(row, head) });
        }
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

impl<const FIXED: bool> Work<'_, FIXED> {
    #[inline(always)]
    fn begin_split(&mut self) {
        if !FIXED {
            self.references.fill(f32::NEG_INFINITY);
        }
        self.sums.fill(0.0);
        self.weights.fill([0.0; LANES]);
    }

    /// Keys of the block from `first_key` on that a query vector sees.
    #[inline(always)]
    fn visible(&self, query: usize, first_key: usize) -> usize {
        (self.first_position + query / self.group + 1).saturating_sub(first_key).min(BLOCK_SIZE)
    }

    /// Takes in one block of keys.
    #[inline(always)]
    fn block<S: Simd, E: Element, U: Plain>(
        &mut self,
        s: S,
        first_key: usize,
        keys: &[E::Bits],
        values: &[E::Bits],
        [mut during_scores, mut during_sums]: [Ahead<'_, U>; 2],
    ) {
        let num_queries = self.rows.len();
        for first in (0..num_queries).step_by(QUERIES) {
            let last = num_queries.min(first + QUERIES);
            if self.visible(last - 1, first_key) == 0 || self.all_stopped(first..last) {
                continue;
            }
            let queries = &self.queries[first * self.head_dim..last * self.head_dim];
            scores::<S, E, U>(s, queries, keys, &mut during_scores, &mut self.rows[first..last]);
            for query in first..last {
                let visible = self.visible(query, first_key);
                if visible > 0 && self.fits(s, query, visible) {
                    self.exponentials(s, query, visible);
                }
            }
            // What all of them see, then what each sees beyond that.
            let common = self.visible(first, first_key);
            let sums = &mut self.sums[first * self.stride..last * self.stride];
            weighted_sum::<S, E, U>(s, &self.rows[first..last], 0..common, values, &mut during_sums, sums);
            for query in first..last {
                let visible = self.visible(query, first_key);
                if visible > common {
                    let sums = &mut self.sums[query * self.stride..][..self.stride];
                    weighted_sum::<S, E, U>(
                        s,
                        &self.rows[query..=query],
                        common..visible,
                        values,
                        &mut during_sums,
                        sums,
                    );
                }
            }
        }
    }

    #[inline(always)]
    fn all_stopped(&self, queries: std::ops::Range<usize>) -> bool {
        FIXED && self.limits.is_some() && self.references[queries].iter().all(|reference| reference.is_nan())
    }

    /// Makes the reference fit the scores of the first `visible` keys, or, where it is fixed, says whether it does; a row
    /// that leaves its limits stops.
    #[inline(always)]
    fn fits<S: Simd>(&mut self, s: S, query: usize, visible: usize) -> bool {
        if !FIXED {
            self.raise_reference(s, query, visible);
            return true;
        }
        let Some(limits) = self.limits else { return true };
        let reference = self.references[query];
        if reference.is_nan() {
            return false;
        }
        let (infinity, mut outside) = (s.splat(f32::INFINITY), false);
        for (group, x) in self.rows[query].as_chunks::<LANES>().0.iter().enumerate() {
            let visible = visible.saturating_sub(group * LANES);
            let above = s.sub(s.load(x), s.splat(reference));
            outside |= s.any_at_least(s.first_lanes(visible, above, s.splat(f32::NEG_INFINITY)), s.splat(limits.above));
            if let Some(below) = limits.below {
                outside |= s.any_at_least(s.splat(below), s.first_lanes(visible, above, infinity));
            }
        }
        if outside {
            self.references[query] = f32::NAN;
            self.weights[query] = [f32::NAN; LANES];
        }
        !outside
    }

    /// Raises the reference to the floor of the largest score, and rescales the sums.
    #[inline(always)]
    fn raise_reference<S: Simd>(&mut self, s: S, query: usize, visible: usize) {
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut largest = lowest;
        for (group, x) in self.rows[query].as_chunks::<LANES>().0.iter().enumerate() {
            let x = s.load(x);
            let x =
                if visible == BLOCK_SIZE { x } else { s.first_lanes(visible.saturating_sub(group * LANES), x, lowest) };
            largest = s.max(x, largest);
        }
        let (old, floor) = (self.references[query], s.largest(s.floor(largest)));
        if floor > old {
            let scale = s.power_of_two(s.splat(old - floor));
            self.references[query] = floor;
            s.store(s.mul(s.load(&self.weights[query]), scale), &mut self.weights[query]);
            for sum in self.sums[query * self.stride..][..self.stride].as_chunks_mut::<LANES>().0 {
                s.store(s.mul(s.load(sum), scale), sum);
            }
        }
    }

    /// Turns the scores of the first `visible` keys into weights.
    #[inline(always)]
    fn exponentials<S: Simd>(&mut self, s: S, query: usize, visible: usize) {
        let reference = s.splat(self.references[query]);
        let mut total = s.load(&self.weights[query]);
        for (group, x) in self.rows[query].as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut p = exp2_from(s, s.load(x), reference);
            if visible < BLOCK_SIZE {
                p = s.first_lanes(visible.saturating_sub(group * LANES), p, s.splat(0.0));
            }
            total = s.add(total, p);
            s.store(p, x);
        }
        s.store(total, &mut self.weights[query]);
    }

    /// Merges the running split's state of a query vector into another.
    #[inline(always)]
    fn merge_into<S: Simd>(&self, s: S, query: usize, merged: &mut [f32]) {
        let total = s.sum(s.load(&self.weights[query]));
        let sums = &self.sums[query * self.stride..][..self.stride];
        state::merge_parts::<S, FIXED>(s, merged, self.references[query], total, sums);
    }
}
