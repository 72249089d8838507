//! What the scheduler knows of one sequence.

use super::Arrival;
use crate::BlockHash;
use crate::block_manager::{BlockManager, BlockTable, NamedBlock};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct State {
    pub(super) priority: i32,
    pub(super) all_logits: bool,
    /// Tokens whose keys and values lie in `blocks`.
    pub(super) num_computed: usize,
    /// Blocks of the table that the prefix cache knows.
    pub(super) num_published: usize,
    pub(super) num_guesses: usize,
    pub(super) blocks: BlockTable,
    pub(super) is_running: bool,
    /// Whether it was admitted before.
    pub(super) has_run: bool,
    root: BlockHash,
    block_size: usize,
    tokens: Vec<u32>,
    /// Names of the full blocks of `tokens`.
    names: Vec<BlockHash>,
}

impl State {
    pub(super) fn new(arrival: Arrival<'_>, block_size: usize) -> Self {
        let Arrival { tokens, root, priority, all_logits } = arrival;
        let mut state = State {
            priority,
            all_logits,
            num_computed: 0,
            num_published: 0,
            num_guesses: 0,
            blocks: BlockTable::default(),
            is_running: false,
            has_run: false,
            root,
            block_size,
            tokens: tokens.to_vec(),
            names: Vec::with_capacity(tokens.len() / block_size),
        };
        state.name_blocks();
        state
    }

    /// A sequence of the same tokens that holds no blocks.
    pub(super) fn forked(&self) -> Self {
        State {
            num_computed: 0,
            num_published: 0,
            num_guesses: 0,
            blocks: BlockTable::default(),
            is_running: false,
            tokens: self.tokens.clone(),
            names: self.names.clone(),
            ..*self
        }
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Known tokens that are not computed.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.num_computed
    }

    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.name_blocks();
    }

    /// Names of all full blocks of known tokens.
    pub(super) fn names(&self) -> &[BlockHash] {
        &self.names
    }

    /// Names of the blocks that a cache may provide. At least one token is left to compute, whose logits are wanted.
    pub(super) fn cacheable(&self) -> &[BlockHash] {
        // Also when it comes back: another sequence may have computed further than this one was asked about.
        if self.all_logits {
            return &[];
        }
        &self.names[..(self.tokens.len() - 1) / self.block_size]
    }

    /// Names of the blocks that it is going to publish.
    pub(super) fn unpublished(&self) -> &[BlockHash] {
        &self.names[self.num_published..]
    }

    /// Parent, name and tokens of full block `index`.
    pub(super) fn named(&self, index: usize) -> NamedBlock<'_> {
        let parent = index.checked_sub(1).map_or(self.root, |before| self.names[before]);
        let tokens = &self.tokens[index * self.block_size..][..self.block_size];
        NamedBlock { parent, hash: self.names[index], tokens }
    }

    /// Lets the prefix cache know the blocks that are full and computed. Returns which those are.
    pub(super) fn publish(&mut self, blocks: &mut BlockManager) -> Range<usize> {
        let num_full = self.num_computed / self.block_size;
        let new = self.num_published..num_full.max(self.num_published);
        for index in new.clone() {
            blocks.publish(&self.blocks, index, self.named(index));
        }
        self.num_published = new.end;
        new
    }

    /// Begins to run with `blocks`, which hold `num_computed` computed tokens.
    pub(super) fn begin(&mut self, blocks: BlockTable, num_computed: usize) {
        self.blocks = blocks;
        self.num_computed = num_computed;
        self.is_running = true;
        self.has_run = true;
    }

    /// Goes back to waiting; its blocks are gone.
    pub(super) fn stop(&mut self) {
        self.num_computed = 0;
        self.num_published = 0;
        self.is_running = false;
    }

    fn name_blocks(&mut self) {
        while let Some(tokens) = self.tokens[self.names.len() * self.block_size..].get(..self.block_size) {
            let parent = self.names.last().unwrap_or(&self.root);
            let name = parent.child(tokens);
            self.names.push(name);
        }
    }
}
