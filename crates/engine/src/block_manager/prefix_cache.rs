//! Which block has which contents: full blocks by the hash of all tokens up to their end.

use super::NamedBlock;
use crate::BlockHash;
use std::collections::{HashMap, HashSet, VecDeque};

/// Why the next block of a prompt was not found, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// Nobody has been here before, or longer ago than is remembered.
    New,
    /// Another prompt has the same tokens so far, and so many more of this block; then they differ.
    Departs {
        /// Tokens in common.
        common: usize,
    },
    /// The block was here, and its memory was needed for another.
    Evicted,
}

#[derive(Debug)]
struct Entry {
    hash: BlockHash,
    parent: BlockHash,
    tokens: Box<[u32]>,
}

/// The index of published blocks.
#[derive(Debug)]
pub(super) struct PrefixCache {
    by_hash: HashMap<BlockHash, u32>,
    by_block: Vec<Option<Entry>>,
    /// Blocks by the hash of the block before them.
    children: HashMap<BlockHash, Vec<u32>>,
    /// The names evicted last, as many as there are blocks.
    evicted: HashSet<BlockHash>,
    evictions: VecDeque<BlockHash>,
}

impl PrefixCache {
    pub(super) fn new(num_blocks: usize) -> Self {
        PrefixCache {
            by_hash: HashMap::new(),
            by_block: (0..num_blocks).map(|_| None).collect(),
            children: HashMap::new(),
            evicted: HashSet::new(),
            evictions: VecDeque::new(),
        }
    }

    pub(super) fn get(&self, hash: &BlockHash) -> Option<u32> {
        self.by_hash.get(hash).copied()
    }

    /// Whether `block` has a name.
    pub(super) fn names(&self, block: u32) -> bool {
        self.by_block[block as usize].is_some()
    }

    /// Names `block`, unless it has a name or the name has a block.
    pub(super) fn insert(&mut self, block: u32, named: NamedBlock<'_>) {
        let NamedBlock { parent, hash, tokens } = named;
        if self.names(block) || self.by_hash.contains_key(&hash) {
            return;
        }
        self.by_hash.insert(hash, block);
        self.children.entry(parent).or_default().push(block);
        self.by_block[block as usize] = Some(Entry { hash, parent, tokens: tokens.into() });
    }

    /// Forgets the contents of `block`.
    pub(super) fn evict(&mut self, block: u32) {
        let Some(Entry { hash, parent, .. }) = self.by_block[block as usize].take() else { return };
        self.by_hash.remove(&hash);
        if let Some(siblings) = self.children.get_mut(&parent) {
            siblings.retain(|&sibling| sibling != block);
            if siblings.is_empty() {
                self.children.remove(&parent);
            }
        }
        if self.evicted.insert(hash) {
            self.evictions.push_back(hash);
        }
        if self.evictions.len() > self.by_block.len()
            && let Some(oldest) = self.evictions.pop_front()
        {
            self.evicted.remove(&oldest);
        }
    }

    pub(super) fn why_missed(&self, parent: &BlockHash, hash: &BlockHash, tokens: &[u32]) -> Miss {
        if self.evicted.contains(hash) {
            return Miss::Evicted;
        }
        let siblings = self.children.get(parent).into_iter().flatten();
        let in_common = |&block: &u32| {
            let entry = self.by_block[block as usize].as_ref()?;
            Some(entry.tokens.iter().zip(tokens).take_while(|(theirs, ours)| theirs == ours).count())
        };
        match siblings.filter_map(in_common).max() {
            Some(common) if common > 0 => Miss::Departs { common },
            _ => Miss::New,
        }
    }
}
