//! Which tokens are computed next. Pure: state in, [`Step`] out; no clock, no channel, no model.
//!
//! A sequence is, to the scheduler, its known tokens and how many of them are computed (their keys and values lie in its
//! blocks). A step is a list of (sequence, token range). Decoding is a range of length one, a chunk of a prompt a longer one,
//! guessed tokens that are to be verified make a decode range longer; nothing else distinguishes them. Whoever runs the step
//! reports back with [`Scheduler::advance`].
//!
//! Sequences are ranked by priority, then by arrival. Rules, in order:
//! 1. Running sequences that lack one token come first, by rank; each takes one row of the budget, and rows for its guesses
//!    while there are any left.
//! 2. Waiting sequences are admitted by rank while the batch has room. What the prefix cache has of them is shared, and they
//!    take blocks for the rest, so only decoding ever asks for more. A sequence whose next block is just being computed for
//!    another one waits for it, and others may pass. One of a more urgent priority takes the place of the last in rank of a
//!    less urgent one.
//! 3. Prompts share the rows that [`StepLimits`] leaves them: the first in rank gets half, so that it always moves; the rest
//!    goes to those that have least left, so that a short prompt does not wait for a long one. Where each would fit into a step
//!    beside those that decode, a step has of them what keeps it short: half as many rows as decode, or more where those are
//!    cheap. It has not less than is worth a step, nor than a sixth of the first, which so has its first token five undisturbed
//!    steps later at most; and the more of them wait, the more it has. They come by rank, one after the other; what the first
//!    leaves goes as above.
//! 4. A running sequence that needs a block when none is free takes those of the last in rank, which goes back to waiting and
//!    recomputes later, as far as its blocks are not found in the prefix cache by then. It may be itself.
//!
//! 5. A sequence that as many later ones have passed as [`SchedulerConfig::patience`] says, while it waited or lacked more than
//!    one token, is more urgent than any priority from then on.
//!
//! So nobody waits forever: the first in rank is never preempted by another, so it ends, and everyone becomes the first. A
//! sequence that does not fit although nobody else holds a block is reported as exhausted.

mod admission;
mod prompts;
mod state;

use crate::BlockChain;
use crate::block_manager::{BlockCopy, BlockManager};
pub use admission::Admission;
use state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Names a sequence. Later ids are younger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// A sequence that joins the queue.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Its known tokens; at least one.
    pub chain: BlockChain,
    /// Lower is served earlier, as in vLLM, within what [`SchedulerConfig::patience`] leaves.
    pub priority: i32,
    /// What is wanted of its known tokens.
    pub rows: KnownRows,
}

/// What is wanted of the rows of a sequence's known tokens, beside their keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KnownRows {
    /// Something of the last one alone; those before it may come from the prefix cache.
    #[default]
    Last,
    /// Logits of every one. Nothing is taken from the prefix cache, and each takes a row of logits.
    AllLogits,
    /// Hidden states of every one. Nothing is taken from the prefix cache.
    AllHidden,
}

/// Part of a step: the tokens of `sequence` at these positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepEntry {
    /// Whose tokens.
    pub sequence: SequenceId,
    /// Their positions; never empty, and beginning where the computed ones end.
    pub tokens: Range<usize>,
    /// How many of them, at the end, are guesses.
    pub num_guesses: usize,
}

/// What to compute next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Blocks to copy before anything is computed, in this order.
    pub copies: Vec<BlockCopy>,
    /// The work, at most one entry per sequence.
    pub entries: Vec<StepEntry>,
    /// Sequences that begin, or begin again, to hold blocks in this step.
    pub admitted: Vec<Admission>,
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

/// Bounds of every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most sequences that run together.
    pub max_batch: usize,
    /// Most tokens of one step; at least `max_batch`, so that every decoding sequence advances in every step.
    pub token_budget: usize,
    /// Most rows of logits of one step; at least `max_batch`.
    pub max_logit_rows: usize,
    /// How many sequences that came later begin, or begin again, before one that waits, or before the prompt of one that runs
    /// and is less urgent; after that it passes all.
    pub patience: usize,
}

/// Bounds of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Most prompt tokens of a step in which others decode; at least one.
    pub prompt_tokens: usize,
    /// How many of them keep a step short; enough where each prompt would fit into it alone.
    pub short_prompts: usize,
}

/// Less urgent sequences have greater ranks.
type Rank = (i32, SequenceId);

/// Rows that a step has left.
#[derive(Debug)]
struct Budget {
    rows: usize,
    logit_rows: usize,
}

/// Decides what runs. See the module's documentation for its rules.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    blocks: BlockManager,
    sequences: BTreeMap<SequenceId, State>,
    running: BTreeSet<Rank>,
    waiting: BTreeSet<Rank>,
    /// Waiting sequences that the latest step passed over, because what they need is being computed for others.
    num_deferred: usize,
}

impl Scheduler {
    /// Nothing to do yet, all blocks free.
    pub fn new(config: SchedulerConfig, blocks: BlockManager) -> Self {
        let SchedulerConfig { max_batch, token_budget, max_logit_rows, .. } = config;
        assert!(max_batch > 0, "a batch has room for at least one sequence");
        assert!(token_budget >= max_batch, "a budget of {token_budget} tokens cannot advance {max_batch} sequences");
        assert!(
            max_logit_rows >= max_batch,
            "{max_logit_rows} rows of logits are not enough for {max_batch} sequences"
        );
        let (running, waiting) = (BTreeSet::new(), BTreeSet::new());
        Scheduler { config, blocks, sequences: BTreeMap::new(), running, waiting, num_deferred: 0 }
    }

    /// Puts a sequence into the queue.
    pub fn add(&mut self, id: SequenceId, arrival: Arrival) {
        assert!(!arrival.chain.tokens().is_empty(), "an empty sequence has nothing to compute");
        assert_eq!(arrival.chain.block_size(), self.blocks.block_size(), "names are of blocks of this size");
        let state = State::new(arrival);
        self.waiting.insert((state.priority, id));
        assert!(self.sequences.insert(id, state).is_none(), "{id:?} is there already");
    }

    /// A second sequence that has the tokens of an entry's sequence, just computed to their end, and goes on with `chosen`.
    /// To be called before the entry is reported with [`Scheduler::advance`]. It shares the blocks and runs at once if the
    /// batch has room, else it waits, without blocks.
    pub fn fork(&mut self, entry: &StepEntry, id: SequenceId, chosen: &[u32]) {
        let from = &self.sequences[&entry.sequence];
        assert_eq!(
            entry.tokens.end,
            from.num_tokens(),
            "a sequence forks where its known tokens end, before any guess"
        );
        let mut state = from.forked();
        let is_running = from.is_running && self.running.len() < self.config.max_batch;
        if is_running {
            state.begin(self.blocks.fork(&from.blocks), entry.tokens.end);
        }
        state.push(chosen);
        state.publish(&mut self.blocks);
        let ranks = if is_running { &mut self.running } else { &mut self.waiting };
        ranks.insert((state.priority, id));
        assert!(self.sequences.insert(id, state).is_none(), "{id:?} is there already");
    }

    /// Forgets a sequence, finished or cancelled, and lets go of its blocks.
    pub fn remove(&mut self, id: SequenceId) {
        if let Some(mut state) = self.sequences.remove(&id) {
            self.blocks.release(&mut state.blocks);
            let rank = (state.priority, id);
            assert!(self.running.remove(&rank) || self.waiting.remove(&rank), "{id:?} has no rank");
        }
    }

    /// Says how many guessed tokens the sequence has; the next step may verify some of them.
    pub fn set_guesses(&mut self, id: SequenceId, num_guesses: usize) {
        self.state_mut(id).num_guesses = num_guesses;
    }

    /// Records that an entry is computed. `chosen` are the tokens that follow the known ones, if the entry reached their
    /// end; the first `num_right` of them are what had been guessed, so they are computed as well. Returns which blocks of the
    /// sequence, by place in its table, are full and computed since.
    pub fn advance(&mut self, entry: &StepEntry, chosen: &[u32], num_right: usize) -> Range<usize> {
        assert!(num_right <= entry.num_guesses.min(chosen.len()), "{num_right} right guesses of {entry:?}");
        let state = self.state_mut(entry.sequence);
        assert_eq!(entry.tokens.start, state.num_computed, "tokens are computed in order");
        state.num_computed = entry.tokens.end - entry.num_guesses + num_right;
        assert!(chosen.is_empty() || entry.tokens.end - entry.num_guesses == state.num_tokens(), "chosen too early");
        state.num_guesses = 0;
        state.push(chosen);
        let state = self.sequences.get_mut(&entry.sequence).expect("looked up above");
        state.publish(&mut self.blocks)
    }

    /// Whether the last token of an entry of the latest step is the last known one, so that its logits choose the next.
    pub fn reaches_end(&self, entry: &StepEntry) -> bool {
        entry.tokens.end - entry.num_guesses == self.sequences[&entry.sequence].num_tokens()
    }

    /// The blocks of a running sequence; they cover every entry of the latest step.
    pub fn block_table(&self, id: SequenceId) -> &[u32] {
        self.sequences[&id].blocks.as_slice()
    }

    /// Sequences that hold blocks.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Those, by rank.
    pub fn running(&self) -> impl Iterator<Item = SequenceId> {
        self.running.iter().map(|&(_, id)| id)
    }

    /// Sequences that wait for room.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Of those, the ones that wait for blocks which another sequence computes, as of the latest step.
    pub fn num_deferred(&self) -> usize {
        self.num_deferred
    }

    /// Running sequences that lack one token, by rank: those that the next step will decode, if there are blocks.
    pub fn decoding(&self) -> impl Iterator<Item = SequenceId> {
        self.running.iter().map(|&(_, id)| id).filter(|id| self.sequences[id].pending() == 1)
    }

    /// The blocks, for their counts.
    pub fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// The blocks, to put contents from elsewhere into free ones. No step may be under way.
    pub fn blocks_mut(&mut self) -> &mut BlockManager {
        &mut self.blocks
    }

    /// The known tokens of a sequence.
    pub fn chain(&self, id: SequenceId) -> &BlockChain {
        &self.sequences[&id].chain
    }

    /// Most guesses, of all sequences, that the next step could verify.
    pub fn max_guesses(&self) -> usize {
        self.config.token_budget.min(self.config.max_logit_rows) - self.num_in_step()
    }

    /// Decides the next step. Empty only when there is no sequence, or none that is not exhausted.
    pub fn schedule(&mut self, limits: StepLimits) -> Step {
        let mut step = Step::default();
        let mut budget = Budget { rows: self.config.token_budget, logit_rows: self.config.max_logit_rows };
        self.schedule_decoding(&mut step, &mut budget);
        self.admit(&mut step, &mut budget);
        self.schedule_prompts(limits, &mut step, &mut budget);
        for admission in &step.admitted {
            self.let_pass(admission.sequence);
        }
        step
    }

    fn schedule_decoding(&mut self, step: &mut Step, budget: &mut Budget) {
        let decoding: Vec<Rank> =
            self.running.iter().filter(|(_, id)| self.sequences[id].pending() == 1).copied().collect();
        let others = self.num_in_step();
        let (mut spare_rows, mut spare_logit_rows) = (budget.rows - others, budget.logit_rows - others);
        for rank in decoding {
            let state = &self.sequences[&rank.1];
            // It may have been preempted for the sake of another a moment ago.
            if !state.is_running {
                continue;
            }
            let num_guesses = state.num_guesses.min(spare_rows).min(spare_logit_rows);
            let tokens = state.num_computed..state.num_tokens() + num_guesses;
            if self.make_room(rank, tokens.clone(), step, budget) {
                spare_rows -= num_guesses;
                spare_logit_rows -= num_guesses;
                Self::take(step, budget, StepEntry { sequence: rank.1, tokens, num_guesses }, num_guesses + 1);
            }
        }
    }

    /// Sequences that may be in the next step, whether they decode or end their prompts or begin them; a row is kept for each.
    fn num_in_step(&self) -> usize {
        self.config.max_batch.min(self.running.len() + self.waiting.len())
    }

    fn take(step: &mut Step, budget: &mut Budget, entry: StepEntry, logit_rows: usize) {
        budget.rows -= entry.tokens.len();
        budget.logit_rows -= logit_rows;
        step.entries.push(entry);
    }

    /// Makes the blocks of a sequence cover `tokens` and the first of them its own, preempting the last in rank as often as
    /// needed. False when the sequence itself had to go, or can never fit.
    fn make_room(&mut self, rank: Rank, tokens: Range<usize>, step: &mut Step, budget: &mut Budget) -> bool {
        loop {
            let state = self.sequences.get_mut(&rank.1).expect("only known sequences are scheduled");
            if self.blocks.make_writable(&mut state.blocks, tokens.start, &mut step.copies)
                && self.blocks.grow(&mut state.blocks, tokens.end)
            {
                return true;
            }
            if self.running.len() == 1 {
                step.exhausted.push(rank.1);
                return false;
            }
            let last = *self.running.last().expect("several sequences are running");
            self.preempt(last, step, budget);
            if last == rank {
                return false;
            }
        }
    }

    fn preempt(&mut self, rank: Rank, step: &mut Step, budget: &mut Budget) {
        let id = rank.1;
        let state = self.sequences.get_mut(&id).expect("only known sequences are preempted");
        self.blocks.release(&mut state.blocks);
        state.stop();
        self.running.remove(&rank);
        self.waiting.insert(rank);
        if let Some(place) = step.entries.iter().position(|entry| entry.sequence == id) {
            let entry = step.entries.remove(place);
            budget.rows += entry.tokens.len();
            budget.logit_rows += entry.num_guesses + 1;
        }
        step.preempted.push(id);
    }

    fn state_mut(&mut self, id: SequenceId) -> &mut State {
        self.sequences.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not scheduled"))
    }
}

#[cfg(test)]
mod tests;
