//! Causal attention over the paged cache.
//!
//! A row and head go through their keys in splits of [`KV_SPLIT`], in a split through blocks of 64 in order, and the states
//! of the splits are merged in index order. Nothing else decides the bits: how many rows are processed together, which
//! thread has which split, and whether a row is a generated token or part of a prompt change only the speed.
//!
//! A *tile* is some consecutive rows of one sequence with the query heads of one KV head: each block of keys is read once
//! for all of them. A sequence with few rows (decoding, a short prompt chunk) is one tile per KV head, and its splits are
//! tasks of their own, which leave states that are merged afterwards; a longer one has tiles enough to keep all threads
//! busy, and a task goes through all splits of its tile.

mod blocks;
mod naive;
mod state;
mod tile;

use super::isa::Isa;
use super::kv_cache::{AnyStorage, Element, KvCache, Storage};
use super::pool::Pool;
use super::rows::Disjoint;
use super::simd::run;
use crate::memory::AlignedVec;
use crate::{AttentionParams, AttentionScheme, HeadLayout, KV_SPLIT, StepTables};
use std::cell::RefCell;
use std::ops::Range;

/// Query vectors (rows times heads) of a tile: enough to make reading a block of keys cheap beside using it, few enough
/// that what belongs to a tile stays in the second cache.
const TILE_QUERIES: usize = 48;
/// Multiply-adds below which one thread is faster.
const WORTH_SHARING: usize = 128 * 1024;

/// Memory of attention between calls; grows, never shrinks.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    tasks: Vec<Task>,
    merges: Vec<Merge>,
    states: Option<AlignedVec<f32>>,
}

/// One tile over some splits.
#[derive(Debug, Clone)]
struct Task {
    span: usize,
    kv_head: usize,
    rows: Range<usize>,
    splits: Range<usize>,
    /// Where its states go, one per query vector; `None` when it sees all splits and gives the answer itself.
    states: Option<usize>,
}

/// States of one tile, split after split, that make its answer.
#[derive(Debug, Clone)]
struct Merge {
    kv_head: usize,
    rows: Range<usize>,
    num_splits: usize,
    states: usize,
}

/// What all tasks of a call share.
#[derive(Clone, Copy)]
struct Call<'a> {
    isa: Isa,
    step: &'a StepTables,
    params: AttentionParams,
    /// `[rows, qkv_width]`
    qkv: &'a [f32],
    /// `[rows, q_width]`
    out: &'a Disjoint<'a, f32>,
}

/// Attention of all rows of a step; `out` is `[rows, q_width]`.
pub(super) fn attention(
    (isa, pool, scratch): (Isa, &Pool, &mut AttentionScratch),
    step: &StepTables,
    params: AttentionParams,
    qkv: &[f32],
    cache: &KvCache,
    out: &mut [f32],
) {
    let out = Disjoint::new(out);
    let call = Call { isa, step, params, qkv, out: &out };
    match (&cache.storage, params.scheme) {
        (AnyStorage::F16(storage), AttentionScheme::SplitKv) => split_kv(call, pool, scratch, storage),
        (AnyStorage::F32(storage), AttentionScheme::SplitKv) => split_kv(call, pool, scratch, storage),
        (AnyStorage::F16(storage), AttentionScheme::Naive) => naive::naive(call, pool, storage),
        (AnyStorage::F32(storage), AttentionScheme::Naive) => naive::naive(call, pool, storage),
    }
}

fn split_kv<E: Element>(call: Call<'_>, pool: &Pool, scratch: &mut AttentionScratch, storage: &Storage<E>) {
    let heads = call.params.heads;
    let state_len = state::len(storage.geometry);
    let (num_states, work) = plan(call.step, heads, &mut scratch.tasks, &mut scratch.merges);
    let states = grown(&mut scratch.states, num_states * state_len);
    let states = Disjoint::new(states);
    let run_task = |index: usize| {
        let task = &scratch.tasks[index];
        let num_queries = task.rows.len() * heads.num_heads / heads.num_kv_heads;
        // SAFETY: the plan gives every task states of its own.
        let states = task.states.map(|at| unsafe { states.part(at * state_len..(at + num_queries) * state_len) });
        with_thread_scratch(tile::scratch_len(num_queries, storage.geometry), |scratch| {
            run(call.isa, tile::Tile { call, storage, task, states, scratch });
        });
    };
    let alone = work * heads.head_dim < WORTH_SHARING;
    for_each(pool, alone, scratch.tasks.len(), run_task);
    let run_merge = |index: usize| {
        let merge = &scratch.merges[index];
        let num_queries = merge.rows.len() * heads.num_heads / heads.num_kv_heads;
        let len = merge.num_splits * num_queries * state_len;
        // SAFETY: the tasks are done, and each merge has states of its own.
        let states = unsafe { states.part(merge.states * state_len..merge.states * state_len + len) };
        run(call.isa, tile::MergeTile { call, merge, states, geometry: storage.geometry });
    };
    let alone = num_states * state_len < WORTH_SHARING / 4;
    for_each(pool, alone, scratch.merges.len(), run_merge);
}

/// Divides a step into tasks, longest first. Returns the number of states they leave and their query-key products.
fn plan(step: &StepTables, heads: HeadLayout, tasks: &mut Vec<Task>, merges: &mut Vec<Merge>) -> (usize, usize) {
    tasks.clear();
    merges.clear();
    let group = heads.num_heads / heads.num_kv_heads;
    let tile_rows = (TILE_QUERIES / group).max(1);
    let (mut num_states, mut work) = (0, 0);
    for (span_index, span) in step.spans.iter().enumerate() {
        if span.rows.is_empty() {
            continue;
        }
        work += span.rows.len() * heads.num_heads * span.context_len;
        let num_splits = span.context_len.div_ceil(KV_SPLIT);
        if span.rows.len() <= tile_rows && num_splits > 1 {
            for kv_head in 0..heads.num_kv_heads {
                merges.push(Merge { kv_head, rows: span.rows.clone(), num_splits, states: num_states });
                for split in 0..num_splits {
                    let splits = split..split + 1;
                    let rows = span.rows.clone();
                    tasks.push(Task { span: span_index, kv_head, rows, splits, states: Some(num_states) });
                    num_states += span.rows.len() * group;
                }
            }
            continue;
        }
        // The last rows see the most keys.
        for start in span.rows.clone().step_by(tile_rows).rev() {
            let rows = start..span.rows.end.min(start + tile_rows);
            let keys = step.positions[rows.end - 1] as usize + 1;
            for kv_head in 0..heads.num_kv_heads {
                let splits = 0..keys.div_ceil(KV_SPLIT);
                tasks.push(Task { span: span_index, kv_head, rows: rows.clone(), splits, states: None });
            }
        }
    }
    (num_states, work)
}

fn for_each(pool: &Pool, alone: bool, num_tasks: usize, task: impl Fn(usize) + Sync) {
    if alone {
        (0..num_tasks).for_each(task);
    } else {
        pool.run(num_tasks, task);
    }
}

/// At least `len` elements of a memory that is kept.
fn grown(memory: &mut Option<AlignedVec<f32>>, len: usize) -> &mut [f32] {
    if memory.as_ref().is_none_or(|memory| memory.len() < len) {
        let grown = AlignedVec::zeroed(len.next_power_of_two(), "attention's working memory");
        // Far smaller than the caches and weights that were allocated before: there is no way on without it.
        *memory = Some(grown.unwrap_or_else(|error| panic!("{error}")));
    }
    memory.as_mut().map_or(&mut [], |memory| &mut memory[..len])
}

thread_local! {
    static THREAD_SCRATCH: RefCell<Option<AlignedVec<f32>>> = const { RefCell::new(None) };
}

/// Calls `f` with memory of this thread, of unspecified content.
fn with_thread_scratch(len: usize, f: impl FnOnce(&mut [f32])) {
    THREAD_SCRATCH.with_borrow_mut(|memory| f(grown(memory, len)));
}

impl<'a> Call<'a> {
    /// Query heads that share a KV head.
    #[inline(always)]
    fn group(&self) -> usize {
        self.params.heads.num_heads / self.params.heads.num_kv_heads
    }

    /// The query of a row and head.
    #[inline(always)]
    fn query(&self, row: usize, head: usize) -> &'a [f32] {
        let heads = self.params.heads;
        &self.qkv[row * heads.qkv_width() + head * heads.head_dim..][..heads.head_dim]
    }

    /// Where the answer of a row and head goes.
    ///
    /// # Safety
    /// Only one task asks for a given row and head, and lets go of it before it asks again.
    #[inline(always)]
    unsafe fn answer(&self, row: usize, head: usize) -> &'a mut [f32] {
        let heads = self.params.heads;
        let start = row * heads.q_width() + head * heads.head_dim;
        // SAFETY: different rows and heads are different places, and the caller keeps each to itself.
        unsafe { self.out.part(start..start + heads.head_dim) }
    }

    /// Block ids of a sequence.
    #[inline(always)]
    fn blocks(&self, span: usize) -> &'a [u32] {
        &self.step.block_tables[self.step.spans[span].blocks.clone()]
    }

    /// Factor on scores, which are kept in log2 units.
    #[inline(always)]
    fn log2_scale(&self) -> f32 {
        self.params.scale * std::f32::consts::LOG2_E
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SequenceSpan;

    fn step(spans: &[(usize, usize)]) -> StepTables {
        let mut step = StepTables::default();
        for &(rows, context_len) in spans {
            let start = step.num_rows();
            step.positions.extend((context_len - rows..context_len).map(|position| position as u32));
            step.spans.push(SequenceSpan { rows: start..start + rows, context_len, blocks: 0..0 });
        }
        step
    }

    #[test]
    fn every_row_and_head_sees_every_split_once() {
        let heads = HeadLayout { num_heads: 9, num_kv_heads: 3, head_dim: 64 };
        let step = step(&[(1, 1), (1, 3000), (1, 512), (16, 2000), (17, 2000), (200, 200), (100, 1300)]);
        let (mut tasks, mut merges) = (Vec::new(), Vec::new());
        let (num_states, _) = plan(&step, heads, &mut tasks, &mut merges);
        let mut states_used = vec![0; num_states];
        for (row, &position) in step.positions.iter().enumerate() {
            let num_splits = (position as usize + 1).div_ceil(KV_SPLIT);
            for kv_head in 0..3 {
                let mut seen = vec![0; num_splits];
                for task in tasks.iter().filter(|task| task.rows.contains(&row) && task.kv_head == kv_head) {
                    task.splits.clone().filter(|&split| split < num_splits).for_each(|split| seen[split] += 1);
                }
                assert!(seen.iter().all(|&times| times == 1), "row {row}: {seen:?}");
            }
        }
        for task in &tasks {
            if let Some(at) = task.states {
                states_used[at..at + task.rows.len() * 3].iter_mut().for_each(|used| *used += 1);
            }
        }
        assert!(states_used.iter().all(|&used| used == 1));
        assert_eq!(merges.len(), 2 * 3, "one decoding and one short chunk have several splits");
    }
}
