//! What the scheduler knows of one sequence.

use super::{Arrival, KnownRows};
use crate::block_manager::{BlockManager, BlockTable};
use crate::{BlockChain, BlockHash};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct State {
    /// Its known tokens.
    pub(super) chain: BlockChain,
    pub(super) priority: i32,
    /// How many that came later began while it waited.
    pub(super) num_passed_by: usize,
    pub(super) rows: KnownRows,
    /// Tokens whose keys and values lie in `blocks`.
    pub(super) num_computed: usize,
    /// How many of its pending tokens are worth a step, where others decode: a sixth of those that it began with, or all that a
    /// grammar forced.
    pub(super) least_part: usize,
    /// Blocks of the table that the prefix cache knows.
    pub(super) num_published: usize,
    pub(super) num_guesses: usize,
    pub(super) blocks: BlockTable,
    pub(super) is_running: bool,
    /// Whether it was admitted before.
    pub(super) has_run: bool,
}

impl State {
    pub(super) fn new(arrival: Arrival) -> Self {
        let Arrival { chain, priority, rows } = arrival;
        State {
            chain,
            priority,
            num_passed_by: 0,
            rows,
            num_computed: 0,
            least_part: 0,
            num_published: 0,
            num_guesses: 0,
            blocks: BlockTable::default(),
            is_running: false,
            has_run: false,
        }
    }

    /// A sequence of the same tokens that holds no blocks.
    pub(super) fn forked(&self) -> Self {
        State {
            chain: self.chain.clone(),
            num_computed: 0,
            num_published: 0,
            num_guesses: 0,
            blocks: BlockTable::default(),
            is_running: false,
            ..*self
        }
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.chain.tokens().len()
    }

    /// Known tokens that are not computed.
    pub(super) fn pending(&self) -> usize {
        self.num_tokens() - self.num_computed
    }

    /// Takes in the tokens behind the known ones.
    pub(super) fn push(&mut self, chosen: &[u32]) {
        chosen.iter().for_each(|&token| self.chain.push(token));
        if !chosen.is_empty() {
            self.least_part = self.pending();
        }
    }

    /// Names of the blocks that a cache may provide.
    pub(super) fn cacheable(&self) -> &[BlockHash] {
        // Also when it comes back: another sequence may have computed further than this one was asked about.
        if self.rows == KnownRows::Last { self.chain.cacheable() } else { &[] }
    }

    /// Names of the blocks that it is going to publish.
    pub(super) fn unpublished(&self) -> &[BlockHash] {
        &self.chain.names()[self.num_published..]
    }

    /// Lets the prefix cache know the blocks that are full and computed. Returns which those are.
    pub(super) fn publish(&mut self, blocks: &mut BlockManager) -> Range<usize> {
        let num_full = self.num_computed / self.chain.block_size();
        let new = self.num_published..num_full.max(self.num_published);
        for index in new.clone() {
            blocks.publish(&self.blocks, index, self.chain.block(index));
        }
        self.num_published = new.end;
        new
    }

    /// Begins to run with `blocks`, which hold `num_computed` computed tokens.
    pub(super) fn begin(&mut self, blocks: BlockTable, num_computed: usize) {
        self.blocks = blocks;
        self.num_computed = num_computed;
        self.least_part = self.pending().div_ceil(6);
        self.is_running = true;
        self.has_run = true;
    }

    /// Goes back to waiting; its blocks are gone.
    pub(super) fn stop(&mut self) {
        self.num_computed = 0;
        self.num_published = 0;
        self.is_running = false;
    }
}
