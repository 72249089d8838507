//! The known tokens of a sequence, with the names of the blocks that they fill.

use crate::{BlockHash, NamedBlock};

/// Tokens from the left, and a name for every full block of them.
#[derive(Debug, Clone)]
pub struct BlockChain {
    root: BlockHash,
    block_size: usize,
    tokens: Vec<u32>,
    names: Vec<BlockHash>,
}

impl BlockChain {
    /// `tokens` in blocks of `block_size`, whose names begin with `root`. Sequences share blocks only under the same root.
    pub fn new(root: BlockHash, block_size: usize, tokens: Vec<u32>) -> Self {
        let names = Vec::with_capacity(tokens.len() / block_size);
        let mut chain = BlockChain { root, block_size, tokens, names };
        chain.name_blocks();
        chain
    }

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.name_blocks();
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Names of all full blocks.
    pub fn names(&self) -> &[BlockHash] {
        &self.names
    }

    /// Names of the blocks that a cache may provide: at least one token is left to compute, because its logits are wanted.
    pub fn cacheable(&self) -> &[BlockHash] {
        &self.names[..self.tokens.len().saturating_sub(1) / self.block_size]
    }

    /// Full block `index`.
    pub fn block(&self, index: usize) -> NamedBlock<'_> {
        let parent = index.checked_sub(1).map_or(self.root, |before| self.names[before]);
        let tokens = &self.tokens[index * self.block_size..][..self.block_size];
        NamedBlock { parent, hash: self.names[index], tokens }
    }

    fn name_blocks(&mut self) {
        while let Some(tokens) = self.tokens[self.names.len() * self.block_size..].get(..self.block_size) {
            let parent = self.names.last().unwrap_or(&self.root);
            let name = parent.child(tokens);
            self.names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_blocks_have_names_and_the_last_token_is_left_to_compute() {
        let root = BlockHash::root("test", None);
        let mut chain = BlockChain::new(root, 2, vec![1, 2, 3]);
        let first = root.child(&[1, 2]);
        assert_eq!((chain.names(), chain.cacheable()), ([first].as_slice(), [first].as_slice()));
        chain.push(4);
        let second = first.child(&[3, 4]);
        assert_eq!((chain.names(), chain.cacheable()), ([first, second].as_slice(), [first].as_slice()));
        assert_eq!(chain.block(0), NamedBlock { parent: root, hash: first, tokens: &[1, 2] });
        assert_eq!(chain.block(1), NamedBlock { parent: first, hash: second, tokens: &[3, 4] });
        assert_eq!(chain.tokens(), [1, 2, 3, 4]);
    }
}
