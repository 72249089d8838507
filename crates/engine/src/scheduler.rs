//! Which tokens are computed next. Pure: state in, [`Step`] out; no clock, no channel, no model.
//!
//! A sequence is, to the scheduler, a number of known tokens and how many of them are computed (their keys and values lie
//! in its blocks). A step is a list of (sequence, token range). Decoding is a range of length one, a chunk of a prompt a
//! longer one; nothing distinguishes them but their length. Whoever runs the step reports back with
//! [`Scheduler::computed`], and [`Scheduler::push_token`] for every sequence that was computed to its end and sampled.
//!
//! Rules, in order:
//! 1. Running sequences that lack one token come first, oldest first; each takes one row of the budget.
//! 2. Running sequences that lack more (prompts) share what is left of the budget, oldest first.
//! 3. Waiting sequences are admitted strictly in order of arrival while the batch has room. On admission a sequence takes
//!    the blocks of all its known tokens, so only decoding ever asks for more.
//! 4. A running sequence that needs a block when none is free takes those of the youngest running sequence, which goes back
//!    to waiting and recomputes later. It may be itself.
//!
//! Nobody waits forever: the oldest running sequence is never preempted by another, so it ends; ids grow with arrival, so
//! everyone becomes the oldest. A sequence that does not fit although nobody else holds a block is reported as exhausted.

use crate::block_manager::{BlockManager, BlockTable};
use std::collections::BTreeMap;
use std::ops::Range;

/// Names a sequence. Later ids are younger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Part of a step: the tokens of `sequence` at these positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepEntry {
    /// Whose tokens.
    pub sequence: SequenceId,
    /// Their positions; never empty, and beginning where the computed ones end.
    pub tokens: Range<usize>,
}

/// What to compute next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// The work, at most one entry per sequence.
    pub entries: Vec<StepEntry>,
    /// Sequences that lost their blocks in making this step, in that order; for logs and counters.
    pub preempted: Vec<SequenceId>,
    /// Sequences that need more blocks than there are. They cannot go on and should be removed.
    pub exhausted: Vec<SequenceId>,
}

impl Step {
    /// Tokens to compute in all.
    pub fn num_rows(&self) -> usize {
        self.entries.iter().map(|entry| entry.tokens.len()).sum()
    }
}

/// Bounds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most sequences that run together.
    pub max_batch: usize,
    /// Most tokens of one step; at least `max_batch`, so that every decoding sequence advances in every step.
    pub token_budget: usize,
}

#[derive(Debug)]
struct State {
    num_tokens: usize,
    num_computed: usize,
    blocks: BlockTable,
    is_running: bool,
}

impl State {
    fn pending(&self) -> usize {
        self.num_tokens - self.num_computed
    }
}

/// Decides what runs. See the module's documentation for its rules.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    // Ordered by id, which is the order of arrival.
    sequences: BTreeMap<SequenceId, State>,
    num_running: usize,
}

impl Scheduler {
    /// Nothing to do yet, all blocks free.
    pub fn new(config: SchedulerConfig, blocks: BlockManager) -> Self {
        assert!(config.max_batch > 0, "a batch has room for at least one sequence");
        assert!(
            config.token_budget >= config.max_batch,
            "a budget of {} tokens cannot advance {} sequences",
            config.token_budget,
            config.max_batch
        );
        Scheduler { config, blocks, sequences: BTreeMap::new(), num_running: 0 }
    }

    /// Puts a sequence of `num_tokens` known tokens at the end of the queue. Its id must be the largest so far.
    pub fn add(&mut self, id: SequenceId, num_tokens: usize) {
        assert!(num_tokens > 0, "an empty sequence has nothing to compute");
        let youngest = self.sequences.last_key_value().map(|(&last, _)| last);
        assert!(youngest < Some(id), "ids grow with arrival: {id:?} came after {youngest:?}");
        let state = State { num_tokens, num_computed: 0, blocks: BlockTable::default(), is_running: false };
        self.sequences.insert(id, state);
    }

    /// Forgets a sequence, finished or cancelled, and frees its blocks.
    pub fn remove(&mut self, id: SequenceId) {
        if let Some(mut state) = self.sequences.remove(&id) {
            self.blocks.release(&mut state.blocks);
            self.num_running -= usize::from(state.is_running);
        }
    }

    /// Records that the tokens of an entry are computed. True when they were the last known ones, so that their logits
    /// choose the next token.
    pub fn computed(&mut self, entry: &StepEntry) -> bool {
        let state = self.state_mut(entry.sequence);
        assert_eq!(entry.tokens.start, state.num_computed, "tokens are computed in order");
        state.num_computed = entry.tokens.end;
        state.pending() == 0
    }

    /// Records that a sequence got one more token.
    pub fn push_token(&mut self, id: SequenceId) {
        let state = self.state_mut(id);
        assert_eq!(state.pending(), 0, "a token is chosen when all before it are computed");
        state.num_tokens += 1;
    }

    /// Whether `entry`, part of the latest step, reaches the last known token, so that logits are wanted.
    pub fn wants_logits(&self, entry: &StepEntry) -> bool {
        entry.tokens.end == self.sequences[&entry.sequence].num_tokens
    }

    /// The blocks of a running sequence; they cover every entry of the latest step.
    pub fn block_table(&self, id: SequenceId) -> &[u32] {
        self.sequences[&id].blocks.as_slice()
    }

    /// Sequences that hold blocks.
    pub fn num_running(&self) -> usize {
        self.num_running
    }

    /// Sequences that wait for room.
    pub fn num_waiting(&self) -> usize {
        self.sequences.len() - self.num_running
    }

    /// The blocks, for their counts.
    pub fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Decides the next step. Empty only when there is no sequence, or none that is not exhausted.
    pub fn schedule(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = self.config.token_budget;
        self.schedule_running(&mut step, &mut budget, |pending| pending == 1);
        self.schedule_running(&mut step, &mut budget, |pending| pending > 1);
        self.admit(&mut step, &mut budget);
        step
    }

    fn schedule_running(&mut self, step: &mut Step, budget: &mut usize, is_turn: impl Fn(usize) -> bool) {
        let running: Vec<SequenceId> =
            self.running().filter(|(_, state)| is_turn(state.pending())).map(|(id, _)| id).collect();
        for id in running {
            let state = &self.sequences[&id];
            let len = state.pending().min(*budget);
            // The sequence may have been preempted for the sake of an older one a moment ago.
            if !state.is_running || len == 0 {
                continue;
            }
            let tokens = state.num_computed..state.num_computed + len;
            if self.make_room(id, tokens.end, step, budget) {
                *budget -= len;
                step.entries.push(StepEntry { sequence: id, tokens });
            }
        }
    }

    /// Makes the blocks of `id` cover `num_tokens`, preempting the youngest as often as needed. False when `id` itself had to
    /// go, or can never fit.
    fn make_room(&mut self, id: SequenceId, num_tokens: usize, step: &mut Step, budget: &mut usize) -> bool {
        loop {
            let state = self.sequences.get_mut(&id).expect("only known sequences are scheduled");
            if self.blocks.grow(&mut state.blocks, num_tokens) {
                return true;
            }
            if self.num_running == 1 {
                step.exhausted.push(id);
                return false;
            }
            let youngest = self.running().next_back().map(|(id, _)| id).expect("several sequences are running");
            self.preempt(youngest, step, budget);
            if youngest == id {
                return false;
            }
        }
    }

    fn preempt(&mut self, id: SequenceId, step: &mut Step, budget: &mut usize) {
        let state = self.sequences.get_mut(&id).expect("only known sequences are preempted");
        self.blocks.release(&mut state.blocks);
        state.num_computed = 0;
        state.is_running = false;
        self.num_running -= 1;
        if let Some(place) = step.entries.iter().position(|entry| entry.sequence == id) {
            *budget += step.entries.remove(place).tokens.len();
        }
        step.preempted.push(id);
    }

    fn admit(&mut self, step: &mut Step, budget: &mut usize) {
        let waiting: Vec<SequenceId> =
            self.sequences.iter().filter(|(_, state)| !state.is_running).map(|(&id, _)| id).collect();
        for id in waiting {
            if self.num_running == self.config.max_batch || *budget == 0 {
                return;
            }
            // One block stays free for each running sequence: without that, the last one admitted would be preempted as
            // soon as an older one crosses into its next block, and its prompt computed for nothing.
            let headroom = self.num_running;
            let state = self.sequences.get_mut(&id).expect("taken from the map above");
            let needed = self.blocks.blocks_for(state.num_tokens);
            if needed > self.blocks.num_blocks() {
                step.exhausted.push(id);
                continue;
            }
            if needed + headroom > self.blocks.num_free() || !self.blocks.grow(&mut state.blocks, state.num_tokens) {
                return;
            }
            state.is_running = true;
            self.num_running += 1;
            let len = state.num_tokens.min(*budget);
            *budget -= len;
            step.entries.push(StepEntry { sequence: id, tokens: 0..len });
        }
    }

    fn running(&self) -> impl DoubleEndedIterator<Item = (SequenceId, &State)> {
        self.sequences.iter().filter(|(_, state)| state.is_running).map(|(&id, state)| (id, state))
    }

    fn state_mut(&mut self, id: SequenceId) -> &mut State {
        self.sequences.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not scheduled"))
    }
}

#[cfg(test)]
mod tests;
