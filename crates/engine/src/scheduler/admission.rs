//! Who begins to run, and what the prefix cache spares them.

use super::{Budget, Rank, Scheduler, SequenceId, Step};
use crate::BlockHash;
use crate::block_manager::{BlockTable, Miss};
use std::collections::HashMap;

/// The priority of those that have been passed often enough.
const MOST_URGENT: i32 = i32::MIN;

/// A sequence that begins to hold blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Which.
    pub sequence: SequenceId,
    /// Its tokens that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens that could have been found: those of its full blocks.
    pub cacheable_tokens: usize,
    /// Why no more were; `None` when all were.
    pub miss: Option<Miss>,
    /// Whether it ran before and was preempted.
    pub is_return: bool,
}

impl Scheduler {
    pub(super) fn admit(&mut self, step: &mut Step, budget: &mut Budget) {
        self.num_deferred = 0;
        if self.waiting.is_empty() {
            return;
        }
        let mut in_flight = self.in_flight();
        let waiting: Vec<Rank> = self.waiting.iter().copied().collect();
        for rank in waiting {
            // Whoever was preempted for this step's sake does not come back in it.
            if step.preempted.contains(&rank.1) {
                return;
            }
            if self.blocks.blocks_for(self.sequences[&rank.1].num_tokens()) > self.blocks.num_blocks() {
                step.exhausted.push(rank.1);
                continue;
            }
            let cacheable = self.sequences[&rank.1].cacheable();
            let (found, _) = self.blocks.matching(cacheable);
            if cacheable.get(found).and_then(|next| in_flight.get(next)).is_some_and(|&priority| priority <= rank.0) {
                self.num_deferred += 1;
                continue;
            }
            while !self.has_room(rank) {
                let last = self.running.last().copied().filter(|last| last.0 > rank.0);
                let Some(last) = last else { return };
                self.preempt(last, step, budget);
                in_flight = self.in_flight();
            }
            self.begin(rank, step);
            for &name in self.sequences[&rank.1].unpublished() {
                in_flight.entry(name).or_insert(rank.0);
            }
        }
    }

    /// Notes that a sequence began before those that came earlier and wait, or whose prompts come after its own.
    pub(super) fn let_pass(&mut self, later: SequenceId) {
        let priority = self.sequences[&later].priority;
        let is_behind = |rank: &&Rank| rank.0 > priority && self.sequences[&rank.1].pending() > 1;
        let behind = self.running.iter().filter(is_behind);
        let passed: Vec<Rank> = self.waiting.iter().chain(behind).filter(|(_, id)| *id < later).copied().collect();
        for rank in passed {
            let state = self.sequences.get_mut(&rank.1).expect("it has a rank");
            state.num_passed_by += 1;
            if state.num_passed_by > self.config.patience && state.priority != MOST_URGENT {
                state.priority = MOST_URGENT;
                let ranks = if state.is_running { &mut self.running } else { &mut self.waiting };
                ranks.remove(&rank);
                ranks.insert((MOST_URGENT, rank.1));
            }
        }
    }

    /// Names of the blocks that running sequences are going to publish, and how urgent the most urgent of those is. Nobody
    /// waits for a less urgent one.
    fn in_flight(&self) -> HashMap<BlockHash, i32> {
        let least_urgent_first = self.running.iter().rev();
        least_urgent_first
            .flat_map(|&(priority, id)| self.sequences[&id].unpublished().iter().map(move |&name| (name, priority)))
            .collect()
    }

    /// Whether a waiting sequence can run beside those that do.
    fn has_room(&self, rank: Rank) -> bool {
        let state = &self.sequences[&rank.1];
        let (found, found_idle) = self.blocks.matching(state.cacheable());
        let needed = self.blocks.blocks_for(state.num_tokens()) - found + found_idle;
        // One block stays free for each running sequence: without that, the last one admitted would be preempted as soon as
        // another crosses into its next block, and its prompt computed for nothing.
        let headroom = self.running.len();
        self.running.len() < self.config.max_batch && needed + headroom <= self.blocks.num_free()
    }

    fn begin(&mut self, rank: Rank, step: &mut Step) {
        let id = rank.1;
        let state = self.sequences.get_mut(&id).expect("taken from the queue");
        let size = self.blocks.block_size();
        let num_cacheable = state.cacheable().len();
        let mut blocks = BlockTable::default();
        let mut found = 0;
        while found < num_cacheable && self.blocks.share(&mut blocks, &state.chain.names()[found]) {
            found += 1;
        }
        let miss = (found < num_cacheable).then(|| {
            let named = state.chain.block(found);
            self.blocks.why_missed(&named.parent, &named.hash, named.tokens)
        });
        let is_grown = self.blocks.grow(&mut blocks, state.num_tokens());
        assert!(is_grown, "there was room for {id:?}");
        let is_return = state.has_run;
        state.begin(blocks, found * size);
        state.num_published = found;
        let (cached_tokens, cacheable_tokens) = (found * size, num_cacheable * size);
        step.admitted.push(Admission { sequence: id, cached_tokens, cacheable_tokens, miss, is_return });
        self.waiting.remove(&rank);
        self.running.insert(rank);
    }
}
