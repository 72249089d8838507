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

/// States that a task leaves at most, where it has more than one split: what is kept between tasks and merges is then small
/// beside the second cache, however long sequences are.
const TASK_STATES: usize = 64;

/// A step divided into rounds of tasks.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    pub(super) merges: Vec<Merge>,
    /// In order: the merges of one take in what its tasks left, and the next one uses the same memory.
    pub(super) rounds: Vec<Round>,
    /// States in memory: those that merges keep, then those of a round.
    pub(super) num_states: usize,
    /// Query-key products.
    pub(super) work: usize,
    /// Before they are divided; kept for its memory, so that a step allocates nothing.
    tiles: Vec<Task>,
}

/// Tasks that run together, then merges that do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) tasks: Range<usize>,
    pub(super) merges: Range<usize>,
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

/// What a round left of one tile, split after split.
#[derive(Debug, Clone)]
pub(super) struct Merge {
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) num_splits: usize,
    /// Where the states of the round are, one per split and query vector.
    pub(super) states: usize,
    /// Where the states over all splits so far are kept, one per query vector.
    pub(super) kept: usize,
    /// Nothing is kept yet.
    pub(super) is_first: bool,
    /// What is kept is then the answer.
    pub(super) is_last: bool,
}

impl Plan {
    /// Divides the rows and KV heads that are `wanted` into tasks, longest first.
    pub(super) fn fill(&mut self, call: Call<'_>, threads: usize, wanted: impl Fn(usize, usize) -> bool) {
        let Self { tiles, work, .. } = self;
        tiles.clear();
        *work = 0;
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
                    tiles.push(Task { span: span_index, kv_head, rows: first..last + 1, splits, states: None });
                }
            }
        }
        let most_tasks = threads * TASKS_PER_THREAD;
        self.divide(
            if threads == 1 { usize::MAX } else { total_splits.div_ceil(most_tasks) },
            most_tasks * TASK_STATES,
            group,
        );
    }

    /// Divides tiles with more splits than the share of a task into tasks that leave states, and these into rounds.
    fn divide(&mut self, share: usize, most_states: usize, group: usize) {
        let Self { tiles, tasks, merges, rounds, num_states, .. } = self;
        tasks.clear();
        merges.clear();
        rounds.clear();
        // Tiles that are one task run beside the first round.
        tasks.extend(tiles.iter().filter(|tile| tile.splits.len() <= share).cloned());
        let divided = || tiles.iter().filter(|tile| tile.splits.len() > share);
        let kept = divided().map(|tile| tile.rows.len() * group).sum();
        *num_states = kept;
        let (mut round, mut next_kept, mut next_state) = (Round::default(), 0, kept);
        for tile in divided() {
            let queries = tile.rows.len() * group;
            let share = share.min((TASK_STATES / queries).max(1));
            for first in tile.splits.clone().step_by(share) {
                let splits = first..tile.splits.end.min(first + share);
                if next_state > kept && next_state + splits.len() * queries > kept + most_states {
                    let next = Round { tasks: tasks.len()..0, merges: merges.len()..0 };
                    rounds.push(close(&std::mem::replace(&mut round, next), tasks, merges));
                    next_state = kept;
                }
                let is_last = splits.end == tile.splits.end;
                match merges[round.merges.start..].last_mut().filter(|merge: &&mut Merge| merge.kept == next_kept) {
                    Some(merge) => (merge.num_splits, merge.is_last) = (merge.num_splits + splits.len(), is_last),
                    None => merges.push(Merge {
                        kv_head: tile.kv_head,
                        rows: tile.rows.clone(),
                        num_splits: splits.len(),
                        states: next_state,
                        kept: next_kept,
                        is_first: first == 0,
                        is_last,
                    }),
                }
                next_state += splits.len() * queries;
                *num_states = next_state.max(*num_states);
                tasks.push(Task { states: Some(next_state - splits.len() * queries), splits, ..tile.clone() });
            }
            next_kept += queries;
        }
        rounds.push(close(&round, tasks, merges));
    }
}

/// A round of what there is up to now.
fn close(round: &Round, tasks: &[Task], merges: &[Merge]) -> Round {
    Round { tasks: round.tasks.start..tasks.len(), merges: round.merges.start..merges.len() }
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
        check_rounds(&plan);
        plan
    }

    /// In every round a state has at most one owner and is merged once, into a place kept for its tile alone; the splits of a
    /// tile are merged in index order.
    fn check_rounds(plan: &Plan) {
        let mut merged_splits = std::collections::HashMap::new();
        let (mut next_task, mut next_merge) = (0, 0);
        for round in &plan.rounds {
            assert_eq!((round.tasks.start, round.merges.start), (next_task, next_merge));
            (next_task, next_merge) = (round.tasks.end, round.merges.end);
            let mut left = vec![None; plan.num_states];
            for task in &plan.tasks[round.tasks.clone()] {
                let (queries, splits) = (task.rows.len() * 3, task.splits.clone());
                let Some(at) = task.states else { continue };
                for (index, split) in splits.enumerate() {
                    for state in &mut left[at + index * queries..at + (index + 1) * queries] {
                        assert_eq!(*state, None);
                        *state = Some((task.kv_head, task.rows.clone(), split));
                    }
                }
            }
            for merge in &plan.merges[round.merges.clone()] {
                let queries = merge.rows.len() * 3;
                let first = merged_splits.entry(merge.kept).or_insert(0);
                assert_eq!(merge.is_first, *first == 0);
                for index in 0..merge.num_splits {
                    let tile = Some((merge.kv_head, merge.rows.clone(), *first + index));
                    for state in &mut left[merge.states + index * queries..merge.states + (index + 1) * queries] {
                        assert_eq!(*state, tile);
                        *state = None;
                    }
                }
                *first += merge.num_splits;
                assert!(left[merge.kept..merge.kept + queries].iter().all(Option::is_none));
                if merge.is_last {
                    let tasks =
                        plan.tasks.iter().filter(|task| task.kv_head == merge.kv_head && task.rows == merge.rows);
                    assert_eq!(*first, tasks.map(|task| task.splits.end).max().unwrap());
                }
            }
            assert!(left.iter().all(Option::is_none), "every state is merged");
        }
        assert_eq!((next_task, next_merge), (plan.tasks.len(), plan.merges.len()));
    }

    #[test]
    fn states_do_not_grow_with_the_length_of_a_sequence() {
        for (rows, threads) in [(1, 2), (30, 3)] {
            let plan = check(&[(rows, 1 << 20)], threads, |_, _| true);
            let kept = rows * 9;
            assert!(plan.num_states <= kept + threads * TASKS_PER_THREAD * TASK_STATES);
            assert!(plan.rounds.len() > 1);
        }
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
