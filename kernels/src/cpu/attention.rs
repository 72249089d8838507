//! Causal attention over the paged cache.
//!
//! A row and head go through their keys in splits of [`crate::KV_SPLIT`], in a split through blocks of 64 in order, and the states
//! of the splits are merged in index order. Nothing else decides the bits: how many rows are processed together, which
//! thread has which split, and whether a row is a generated token or part of a prompt change only the speed.
//!
//! A *tile* is some consecutive rows of one sequence with the query heads of one KV head: each block of keys is read once
//! for all of them. Where tiles are fewer than threads keep busy, runs of their splits are tasks of their own, which leave
//! states that are merged afterwards (`plan.rs`); elsewhere a task goes through all splits of its tile.
//!
//! References of the softmax are running ones, or fixed before a row begins (`references.rs`); rows that a fixed one turns
//! out not to fit are computed again under running ones, by the same code.

mod blocks;
mod naive;
mod observe;
mod plan;
mod references;
mod state;
mod tile;
mod working_memory;

pub(super) use working_memory::working_bytes;

use super::isa::Isa;
use super::kv_cache::{AnyStorage, Format, KvCache, Storage, for_any_storage};
use super::pool::Pool;
use super::rows::Disjoint;
use super::simd::run;
use crate::memory::AlignedVec;
use crate::{AttentionParams, AttentionScheme, ScoreStatistics, Softmax, StepTables};
use plan::Plan;
use references::{FixReferences, References};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Multiply-adds below which one thread is faster.
const WORTH_SHARING: usize = 128 * 1024;

/// Memory of attention between calls; grows, never shrinks.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    plan: Plan,
    states: Option<AlignedVec<f32>>,
    references: References,
}

/// What all tasks of a call share.
#[derive(Clone, Copy)]
struct Call<'a> {
    isa: Isa,
    step: &'a StepTables,
    params: AttentionParams<'a>,
    /// `[rows, qkv_width]`
    qkv: &'a [f32],
    /// `[rows, q_width]`
    out: &'a Disjoint<'a, f32>,
    /// `[rows, num_heads]` when they are fixed.
    references: &'a [f32],
    /// `[rows, num_heads]` when references are fixed, and when the rows they did not fit are computed again.
    unfit: &'a [AtomicBool],
}

/// Attention of all rows of a step; `out` is `[rows, q_width]`. Returns the number of (row, head) computed again.
pub(super) fn attention(
    (isa, pool, scratch): (Isa, &Pool, &mut AttentionScratch),
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &[f32],
    cache: &KvCache,
    out: &mut [f32],
) -> u64 {
    if let Softmax::Calibrated(ranges) | Softmax::CalibratedTwoSided(ranges) = params.softmax {
        assert_eq!(ranges.len(), params.heads.num_kv_heads, "one range per KV head");
    }
    let out = Disjoint::new(out);
    let call = Call { isa, step, params, qkv, out: &out, references: &[], unfit: &[] };
    for_any_storage!(&cache.storage, storage => match params.scheme {
        AttentionScheme::SplitKv => split_kv(call, pool, scratch, storage),
        AttentionScheme::Naive => {
            naive::naive(call, pool, storage);
            0
        }
    })
}

/// Adds the scores of all rows of a step to the statistics of their KV heads.
pub(super) fn observe_scores(
    (isa, pool): (Isa, &Pool),
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &[f32],
    cache: &KvCache,
    statistics: &mut [ScoreStatistics],
) {
    let (out, statistics) = (Disjoint::new(&mut []), Disjoint::new(statistics));
    let call = Call { isa, step, params, qkv, out: &out, references: &[], unfit: &[] };
    for_any_storage!(&cache.storage, storage => observe::observe(call, pool, storage, &statistics));
}

/// All rows under the references asked for, then those that these did not fit under running ones.
fn split_kv<F: Format>(call: Call<'_>, pool: &Pool, scratch: &mut AttentionScratch, storage: &Storage<F>) -> u64 {
    let AttentionScratch { plan, states, references } = scratch;
    plan.fill(call, pool.threads(), |_, _| true);
    if !call.params.softmax.is_fixed() {
        run_plan::<F, false>(call, pool, plan, states, storage);
        return 0;
    }
    let num_heads = call.params.heads.num_heads;
    references.reset(call.step.num_rows() * num_heads);
    fix_references(call, pool, &mut references.values, storage);
    let call = Call { references: &references.values, unfit: &references.unfit, ..call };
    run_plan::<F, true>(call, pool, plan, states, storage);
    let num_unfit = call.unfit.iter().filter(|unfit| unfit.load(Ordering::Relaxed)).count();
    if num_unfit > 0 {
        let group = call.group();
        let any_unfit = |row, kv_head| (0..group).any(|head| call.wants(row, kv_head * group + head));
        plan.fill(call, pool.threads(), any_unfit);
        run_plan::<F, false>(call, pool, plan, states, storage);
    }
    num_unfit as u64
}

/// One task per sequence and KV head.
fn fix_references<F: Format>(call: Call<'_>, pool: &Pool, references: &mut [f32], storage: &Storage<F>) {
    let heads = call.params.heads;
    let num_lengths: usize = call.step.spans.iter().map(|span| span.blocks.len() * heads.num_kv_heads).sum();
    let alone = num_lengths * LENGTH_COST < WORTH_SHARING;
    let references = Disjoint::new(references);
    for_each(pool, alone, call.step.spans.len() * heads.num_kv_heads, |task| {
        let (span, kv_head) = (task / heads.num_kv_heads, task % heads.num_kv_heads);
        let write = |row: usize| {
            let start = row * heads.num_heads + kv_head * call.group();
            // SAFETY: each row and KV head is asked for once, by one task.
            unsafe { references.part(start..start + call.group()) }
        };
        run(call.isa, FixReferences { call, storage, span, kv_head, write });
    });
}

/// Multiply-adds in the time in which the length of a block's keys is read and compared.
const LENGTH_COST: usize = 16;

fn run_plan<F: Format, const FIXED: bool>(
    call: Call<'_>,
    pool: &Pool,
    plan: &Plan,
    states: &mut Option<AlignedVec<f32>>,
    storage: &Storage<F>,
) {
    let heads = call.params.heads;
    let state_len = state::len(storage.geometry);
    let states = Disjoint::new(grown(states, plan.num_states * state_len));
    let run_task = |index: usize| {
        let task = &plan.tasks[index];
        let num_queries = task.rows.len() * call.group();
        let len = task.splits.len() * num_queries * state_len;
        // SAFETY: the plan gives every task states of its own.
        let states = task.states.map(|at| unsafe { states.part(at * state_len..at * state_len + len) });
        with_thread_scratch(tile::scratch_len(num_queries, storage.geometry), |scratch| {
            run(call.isa, tile::Tile::<F, FIXED> { call, storage, task, states, scratch });
        });
    };
    let run_merge = |index: usize| {
        let merge = &plan.merges[index];
        let num_queries = merge.rows.len() * call.group();
        let len = merge.num_splits * num_queries * state_len;
        // SAFETY: the round's tasks are done, and each merge has states and a place of its own.
        let (left, kept) = unsafe {
            let kept = merge.kept * state_len..(merge.kept + num_queries) * state_len;
            (states.part(merge.states * state_len..merge.states * state_len + len), states.part(kept))
        };
        run(call.isa, tile::MergeTile::<FIXED> { call, merge, left, kept, geometry: storage.geometry });
    };
    for round in &plan.rounds {
        let alone = plan.work * heads.head_dim < WORTH_SHARING;
        let Range { start, end } = round.tasks;
        for_each(pool, alone, end - start, |index| run_task(start + index));
        let merges = &plan.merges[round.merges.clone()];
        let left: usize = merges.iter().map(|merge| merge.num_splits * merge.rows.len() * call.group()).sum();
        let alone = left * state_len < WORTH_SHARING / 4;
        for_each(pool, alone, merges.len(), |index| run_merge(round.merges.start + index));
    }
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

    /// References of a row for the query heads of a KV head.
    #[inline(always)]
    fn references(&self, row: usize, kv_head: usize) -> &'a [f32] {
        &self.references[row * self.params.heads.num_heads + kv_head * self.group()..][..self.group()]
    }

    /// Whether a fixed reference did not fit.
    #[inline(always)]
    fn unfit(&self, row: usize, head: usize) -> &'a AtomicBool {
        &self.unfit[row * self.params.heads.num_heads + head]
    }

    /// Whether an answer is wanted under a running reference: always, unless it is for those that a fixed one did not fit.
    #[inline(always)]
    fn wants(&self, row: usize, head: usize) -> bool {
        self.unfit.is_empty() || self.unfit(row, head).load(Ordering::Relaxed)
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
