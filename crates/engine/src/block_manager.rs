//! Who holds which block of the KV cache, and what is worth keeping in blocks that nobody holds.
//!
//! A block stores `block_size` consecutive positions of a sequence; a [`BlockTable`] lists a sequence's blocks in order, so
//! position p lies in block `table[p / block_size]`. Several sequences may hold one block, as long as they agree on every
//! position in it; who is about to write to a shared block gets a copy of its own first ([`BlockManager::make_writable`]).
//!
//! A full block can be published under the hash of all tokens up to its end. From then on sequences that begin with the same
//! tokens share it, and when its last holder lets go it stays as it is until its memory is needed: blocks without content
//! are handed out first, then those that have been idle longest.
//!
//! The manager conserves blocks: each is held, idle or blank, and the asserts here say so on every change. What the blocks
//! contain is the backend's business.

mod prefix_cache;

use crate::BlockHash;
pub use prefix_cache::Miss;
use prefix_cache::PrefixCache;
use std::collections::BTreeMap;

/// The blocks of one sequence, in the order of its positions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BlockTable(Vec<u32>);

impl BlockTable {
    /// The block ids, as a step hands them to the model.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

/// A full block under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedBlock<'a> {
    /// Name of the block before it, or of the root.
    pub parent: BlockHash,
    /// Its own name.
    pub hash: BlockHash,
    /// Its tokens, one per position.
    pub tokens: &'a [u32],
}

/// The contents of block `from` have to be copied to block `to` before the step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Read.
    pub from: u32,
    /// Written.
    pub to: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// In none of the tables, and nothing worth keeping.
    Blank,
    /// In none of the tables; found by its hash. The number orders idle blocks by when they became so.
    Idle { since: u64 },
    /// In so many tables.
    Held(u32),
}

/// Hands out blocks and takes them back.
#[derive(Debug)]
pub struct BlockManager {
    block_size: usize,
    uses: Vec<Use>,
    // A stack: the block released last is used next, while some of it may still be in a cache of the processor.
    blank: Vec<u32>,
    // Longest idle first.
    idle: BTreeMap<u64, u32>,
    num_releases: u64,
    prefixes: PrefixCache,
}

impl BlockManager {
    /// All of `num_blocks` blocks free and blank.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        assert!(block_size > 0, "a block stores at least one position");
        let last = u32::try_from(num_blocks).expect("block ids are 32 bits wide");
        BlockManager {
            block_size,
            uses: vec![Use::Blank; num_blocks],
            blank: (0..last).rev().collect(),
            idle: BTreeMap::new(),
            num_releases: 0,
            prefixes: PrefixCache::new(num_blocks),
        }
    }

    /// Blocks in all.
    pub fn num_blocks(&self) -> usize {
        self.uses.len()
    }

    /// Positions per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks that nobody holds.
    pub fn num_free(&self) -> usize {
        self.blank.len() + self.idle.len()
    }

    /// Blocks that nobody holds and that would be found by their hash.
    pub fn num_idle(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that `num_tokens` positions need.
    pub fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.block_size)
    }

    /// Whether a block of this name is here.
    pub fn contains(&self, hash: &BlockHash) -> bool {
        self.prefixes.get(hash).is_some()
    }

    /// How many of these names, from the first, have blocks here, and how many of those blocks nobody holds.
    pub fn matching(&self, hashes: &[BlockHash]) -> (usize, usize) {
        let found = hashes.iter().map_while(|hash| self.prefixes.get(hash));
        found.fold((0, 0), |(num, idle), block| {
            (num + 1, idle + usize::from(matches!(self.uses[block as usize], Use::Idle { .. })))
        })
    }

    /// Why `tokens`, which follow the block named `parent` and fill the block named `hash`, were not found.
    pub fn why_missed(&self, parent: &BlockHash, hash: &BlockHash, tokens: &[u32]) -> Miss {
        self.prefixes.why_missed(parent, hash, tokens)
    }

    /// Appends the block of this name to `table`. False when there is none.
    #[must_use]
    pub fn share(&mut self, table: &mut BlockTable, hash: &BlockHash) -> bool {
        let Some(block) = self.prefixes.get(hash) else { return false };
        self.hold(block);
        table.0.push(block);
        true
    }

    /// A second table with the same blocks.
    #[must_use]
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in &table.0 {
            self.hold(block);
        }
        BlockTable(table.0.clone())
    }

    /// Makes `table` cover `num_tokens` positions. When there are not enough free blocks, nothing changes and the answer is
    /// false.
    #[must_use]
    pub fn grow(&mut self, table: &mut BlockTable, num_tokens: usize) -> bool {
        let missing = self.blocks_for(num_tokens).saturating_sub(table.0.len());
        if missing > self.num_free() {
            return false;
        }
        for _ in 0..missing {
            table.0.push(self.take().expect("counted above"));
        }
        true
    }

    /// Makes sure that the block of `position`, if there is one yet, is in no other table; a copy takes its place if it is.
    /// False, and nothing changed, when no block is free for the copy.
    #[must_use]
    pub fn make_writable(&mut self, table: &mut BlockTable, position: usize, copies: &mut Vec<BlockCopy>) -> bool {
        let Some(place) = table.0.get_mut(position / self.block_size) else { return true };
        let from = *place;
        let Use::Held(holders) = self.uses[from as usize] else { panic!("block {from} is in a table and not held") };
        if holders == 1 {
            debug_assert!(
                !self.prefixes.names(from),
                "block {from} is published, so it is full and never written again"
            );
            return true;
        }
        let Some(to) = self.take() else { return false };
        *place = to;
        self.uses[from as usize] = Use::Held(holders - 1);
        copies.push(BlockCopy { from, to });
        true
    }

    /// Gives a full block of a table its name. Nothing happens when it has one, or another block has this name already.
    pub fn publish(&mut self, table: &BlockTable, index: usize, named: NamedBlock<'_>) {
        self.prefixes.insert(table.0[index], named);
    }

    /// Takes a free block for contents that come from elsewhere, and gives it their name; nobody holds it. None when the
    /// name is taken or nothing is free.
    pub fn adopt(&mut self, named: NamedBlock<'_>) -> Option<u32> {
        if self.contains(&named.hash) {
            return None;
        }
        let block = self.take()?;
        self.prefixes.insert(block, named);
        self.let_go(block);
        Some(block)
    }

    /// Counts an idle block as used just now.
    pub fn refresh(&mut self, hash: &BlockHash) {
        if let Some(block) = self.prefixes.get(hash)
            && matches!(self.uses[block as usize], Use::Idle { .. })
        {
            self.hold(block);
            self.let_go(block);
        }
    }

    /// Takes the name of a block away that nobody holds, because its contents are not what the name says.
    pub fn forget(&mut self, block: u32) {
        self.hold(block);
        self.prefixes.evict(block);
        self.let_go(block);
    }

    /// Takes all blocks of `table` back.
    pub fn release(&mut self, table: &mut BlockTable) {
        // Last blocks first: the next sequence gets blank ones in the same order, and of idle ones the ends of prompts go
        // before their beginnings, which more prompts share.
        for block in table.0.drain(..).rev() {
            self.let_go(block);
        }
    }

    fn hold(&mut self, block: u32) {
        let state = &mut self.uses[block as usize];
        *state = match *state {
            Use::Held(holders) => Use::Held(holders + 1),
            Use::Idle { since } => {
                assert_eq!(self.idle.remove(&since), Some(block), "block {block} is idle and not listed as such");
                Use::Held(1)
            }
            Use::Blank => panic!("block {block} has no contents to hold"),
        };
    }

    fn let_go(&mut self, block: u32) {
        let state = &mut self.uses[block as usize];
        let Use::Held(holders) = *state else { panic!("block {block} was released twice") };
        *state = if holders > 1 {
            Use::Held(holders - 1)
        } else if self.prefixes.names(block) {
            let since = self.num_releases;
            self.num_releases += 1;
            self.idle.insert(since, block);
            Use::Idle { since }
        } else {
            self.blank.push(block);
            Use::Blank
        };
    }

    /// A block for new contents.
    fn take(&mut self) -> Option<u32> {
        let block = self.blank.pop().or_else(|| {
            let (_, block) = self.idle.pop_first()?;
            self.prefixes.evict(block);
            Some(block)
        })?;
        assert!(!matches!(self.uses[block as usize], Use::Held(_)), "block {block} was handed out twice");
        self.uses[block as usize] = Use::Held(1);
        Some(block)
    }
}

#[cfg(test)]
mod tests;
