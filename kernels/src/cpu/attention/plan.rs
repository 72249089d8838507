//! How a step is divided into tasks. It decides the speed only: a split is computed, and splits are merged, in one way.

use super::Call;
use crate::KV_SPLIT;
use std::ops::Range;

/// Query vectors (rows times heads) of a tile: enough to make reading a block of keys cheap beside using it, few enough
/// that what belongs to a tile stays in the second cache.
const TILE_QUERIES: usize = 48;
/// Tasks per thread that a step is divided into, as far as it has splits: enough to even out what threads lose to other
/// programs, few enough that most blocks are asked for before they are used, which the first of a task is not.
const TASKS_PER_THREAD: usize = 8;

/// A step divided into tasks.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    pub(super) merges: Vec<Merge>,
    /// States that the tasks leave.
    pub(super) num_states: usize,
    /// Query-key products.
    pub(super) work: usize,
}

/// One tile over some splits.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) span: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) splits: Range<usize>,
    /// Where its states go, one per split and query vector; `None` when it sees all splits and gives the answer itself.
    pub(super) states: Option<usize>,
}

/// States of one tile, split after split, that make its answer.
#[derive(Debug, Clone)]
pub(super) struct Merge {
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) num_splits: usize,
    pub(super) states: usize,
}

impl Plan {
    /// Divides the rows and KV heads that are `wanted` into tasks, longest first.
    pub(super) fn fill(&mut self, call: Call<'_>, threads: usize, wanted: impl Fn(usize, usize) -> bool) {
        let Self { tasks, merges, num_states, work } = self;
        tasks.clear();
        merges.clear();
        (*num_states, *work) = (0, 0);
        let (step, num_kv_heads, group) = (call.step, call.params.heads.num_kv_heads, call.group());
        let tile_rows = (TILE_QUERIES / group).max(1);
        let mut total_splits = 0;
        for (span_index, span) in step.spans.iter().enumerate() {
            // The last rows see the most keys.
            for start in span.rows.clone().step_by(tile_rows).rev() {
                let rows = start..span.rows.end.min(start + tile_rows);
                for kv_head in 0..num_kv_heads {
                    let Some(first) = rows.clone().find(|&row| wanted(row, kv_head)) else { continue };
                    let last = rows.clone().rfind(|&row| wanted(row, kv_head)).unwrap_or(first);
                    let num_keys = step.positions[last] as usize + 1;
                    let splits = 0..num_keys.div_ceil(KV_SPLIT);
                    total_splits += splits.len();
                    *work += (last + 1 - first) * group * num_keys;
                    tasks.push(Task { span: span_index, kv_head, rows: first..last + 1, splits, states: None });
                }
            }
        }
        // Tiles with more splits than the share of a task leave states and are merged.
        let share = if threads == 1 { usize::MAX } else { total_splits.div_ceil(threads * TASKS_PER_THREAD) };
        for index in 0..tasks.len() {
            let Task { kv_head, ref rows, ref splits, .. } = tasks[index];
            if splits.len() <= share {
                continue;
            }
            let whole = tasks[index].clone();
            merges.push(Merge { kv_head, rows: rows.clone(), num_splits: splits.len(), states: *num_states });
            for first in (0..whole.splits.end).step_by(share) {
                let splits = first..whole.splits.end.min(first + share);
                let part = Task { splits, states: Some(*num_states), ..whole.clone() };
                *num_states += part.splits.len() * part.rows.len() * group;
                if first == 0 { tasks[index] = part } else { tasks.push(part) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::rows::Disjoint;
    use crate::{AttentionParams, AttentionScheme, HeadLayout, SequenceSpan, Softmax, StepTables};

    fn step(spans: &[(usize, usize)]) -> StepTables {
        let mut step = StepTables::default();
        for &(rows, context_len) in spans {
            let start = step.num_rows();
            step.positions.extend((context_len - rows..context_len).map(|position| position as u32));
            step.spans.push(SequenceSpan { rows: start..start + rows, context_len, blocks: 0..0 });
        }
        step
    }

    /// Plans a step, and checks that every wanted row and KV head sees its splits once and every state has one owner.
    fn check(spans: &[(usize, usize)], threads: usize, wanted: impl Fn(usize, usize) -> bool) -> Plan {
        let heads = HeadLayout { num_heads: 9, num_kv_heads: 3, head_dim: 64 };
        let step = step(spans);
        let params =
            AttentionParams { layer: 0, heads, scale: 1.0, scheme: AttentionScheme::SplitKv, softmax: Softmax::Online };
        let out = Disjoint::new(&mut []);
        let call = Call { isa: Isa::Portable, step: &step, params, qkv: &[], out: &out, references: &[], unfit: &[] };
        let mut plan = Plan::default();
        plan.fill(call, threads, &wanted);
        for (row, &position) in step.positions.iter().enumerate() {
            let num_splits = (position as usize + 1).div_ceil(KV_SPLIT);
            for kv_head in (0..3).filter(|&kv_head| wanted(row, kv_head)) {
                let mut seen = vec![0; num_splits];
                for task in plan.tasks.iter().filter(|task| task.rows.contains(&row) && task.kv_head == kv_head) {
                    task.splits.clone().filter(|&split| split < num_splits).for_each(|split| seen[split] += 1);
                }
                assert!(seen.iter().all(|&times| times == 1), "{threads} threads, row {row}: {seen:?}");
            }
        }
        let mut owners = vec![0; plan.num_states];
        for task in &plan.tasks {
            if let Some(at) = task.states {
                owners[at..at + task.splits.len() * task.rows.len() * 3].iter_mut().for_each(|owners| *owners += 1);
            }
        }
        assert!(owners.iter().all(|&owners| owners == 1));
        let merged: usize = plan.merges.iter().map(|merge| merge.num_splits * merge.rows.len() * 3).sum();
        assert_eq!(merged, plan.num_states);
        plan
    }

    #[test]
    fn every_row_and_head_sees_every_split_once() {
        let batch = [(1, 1), (1, 3000), (1, 512), (16, 2000), (17, 2000), (200, 200), (100, 1300)];
        for threads in [1, 2, 3, 100] {
            check(&batch, threads, |_, _| true);
            check(&batch, threads, |row, kv_head| row % 7 == 3 && kv_head != 1);
            check(&batch, threads, |_, _| false);
        }
    }

    #[test]
    fn one_long_sequence_is_divided_and_a_prompt_is_not() {
        assert_eq!(check(&[(1, 8192)], 2, |_, _| true).merges.len(), 3);
        assert!(check(&[(1, 8192)], 2, |_, _| true).tasks.len() >= 12);
        assert_eq!(check(&[(1, 8192)], 1, |_, _| true).tasks.len(), 3);
        assert!(check(&[(512, 512)], 2, |_, _| true).merges.is_empty());
    }
}
