//! Who holds which block of the KV cache. A block stores `block_size` consecutive positions of one sequence; a
//! [`BlockTable`] lists a sequence's blocks in order, so position p lives in block `table[p / block_size]`.
//!
//! The manager conserves blocks: each is either free or in exactly one table, and the asserts here say so on every
//! release. What the blocks contain is the backend's business.

/// The blocks of one sequence, in the order of its positions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BlockTable(Vec<u32>);

impl BlockTable {
    /// The block ids, as a step hands them to the model.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

/// Hands out blocks and takes them back.
#[derive(Debug)]
pub struct BlockManager {
    block_size: usize,
    // A stack: the block released last is used next, while some of it may still be in a cache.
    free: Vec<u32>,
    is_held: Vec<bool>,
}

impl BlockManager {
    /// All of `num_blocks` blocks free.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        assert!(block_size > 0, "a block stores at least one position");
        let last = u32::try_from(num_blocks).expect("block ids are 32 bits wide");
        BlockManager { block_size, free: (0..last).rev().collect(), is_held: vec![false; num_blocks] }
    }

    /// Blocks in all.
    pub fn num_blocks(&self) -> usize {
        self.is_held.len()
    }

    /// Blocks that nobody holds.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that `num_tokens` positions need.
    pub fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.block_size)
    }

    /// Makes `table` cover `num_tokens` positions. When there are not enough free blocks, nothing changes and the answer is
    /// false.
    #[must_use]
    pub fn grow(&mut self, table: &mut BlockTable, num_tokens: usize) -> bool {
        let missing = self.blocks_for(num_tokens).saturating_sub(table.0.len());
        let Some(rest) = self.free.len().checked_sub(missing) else {
            return false;
        };
        for block in self.free.drain(rest..).rev() {
            assert!(!self.is_held[block as usize], "block {block} was handed out twice");
            self.is_held[block as usize] = true;
            table.0.push(block);
        }
        true
    }

    /// Takes all blocks of `table` back.
    pub fn release(&mut self, table: &mut BlockTable) {
        // Last blocks first, so that the next sequence gets them in the same order.
        for block in table.0.drain(..).rev() {
            assert!(self.is_held[block as usize], "block {block} was released twice");
            self.is_held[block as usize] = false;
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_grows_by_whole_blocks_and_only_when_needed() {
        let mut blocks = BlockManager::new(4, 8);
        let mut table = BlockTable::default();
        for (num_tokens, held) in [(0, 0), (1, 1), (8, 1), (9, 2), (3, 2)] {
            assert!(blocks.grow(&mut table, num_tokens));
            assert_eq!(table.as_slice().len(), held, "after growing to {num_tokens}");
            assert_eq!(blocks.num_free(), 4 - held);
        }
    }

    #[test]
    fn growing_beyond_the_free_blocks_changes_nothing() {
        let mut blocks = BlockManager::new(2, 8);
        let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
        assert!(blocks.grow(&mut first, 8));
        assert!(!blocks.grow(&mut second, 9));
        assert_eq!((second.as_slice().len(), blocks.num_free()), (0, 1));
    }

    proptest! {
        #[test]
        fn every_block_is_free_or_in_one_table(actions in prop::collection::vec((0usize..5, 0usize..70), 1..200)) {
            let mut blocks = BlockManager::new(16, 4);
            let mut tables: Vec<BlockTable> = (0..5).map(|_| BlockTable::default()).collect();
            for (owner, num_tokens) in actions {
                if num_tokens == 0 {
                    blocks.release(&mut tables[owner]);
                } else {
                    let _ = blocks.grow(&mut tables[owner], num_tokens);
                }
                let mut held: Vec<u32> = tables.iter().flat_map(BlockTable::as_slice).copied().collect();
                held.extend(&blocks.free);
                held.sort_unstable();
                prop_assert_eq!(held, (0..16).collect::<Vec<u32>>());
            }
        }
    }
}
