//! What lies on disk, and what goes first: the least recently used of the blocks that no other block there follows. A block
//! serves nobody without those before it, so chains are eaten from their ends.

use crate::BlockHash;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The block before it.
    pub(super) parent: Option<BlockHash>,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// When it was last used, in nanoseconds since 1970.
    pub(super) used: u64,
    /// Whether the file's own time is older than that.
    pub(super) is_touched: bool,
}

/// All files, in memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<BlockHash, Entry>,
    /// Blocks that follow a block, which need not be here itself.
    num_children: HashMap<BlockHash, usize>,
    /// Blocks that none here follows, by their last use.
    leaves: BTreeSet<(u64, BlockHash)>,
    bytes: u64,
    last_used: u64,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn get(&self, hash: BlockHash) -> Option<&Entry> {
        self.entries.get(&hash)
    }

    /// Adds a file, in place of an earlier one of the same block.
    pub(super) fn insert(&mut self, hash: BlockHash, entry: Entry) {
        self.remove(hash);
        self.bytes += entry.bytes;
        self.last_used = self.last_used.max(entry.used);
        if let Some(parent) = entry.parent {
            *self.num_children.entry(parent).or_default() += 1;
            if let Some(entry) = self.entries.get(&parent) {
                self.leaves.remove(&(entry.used, parent));
            }
        }
        let used = entry.used;
        self.entries.insert(hash, entry);
        if !self.num_children.contains_key(&hash) {
            self.leaves.insert((used, hash));
        }
    }

    pub(super) fn remove(&mut self, hash: BlockHash) -> Option<Entry> {
        let entry = self.entries.remove(&hash)?;
        self.bytes -= entry.bytes;
        self.leaves.remove(&(entry.used, hash));
        if let Some(parent) = entry.parent {
            let left = self.num_children.get(&parent).map_or(0, |num| num - 1);
            if left > 0 {
                self.num_children.insert(parent, left);
            } else {
                self.num_children.remove(&parent);
                if let Some(entry) = self.entries.get(&parent) {
                    self.leaves.insert((entry.used, parent));
                }
            }
        }
        Some(entry)
    }

    /// Marks a block as used now, or just after the last one if the clock went back.
    pub(super) fn touch(&mut self, hash: BlockHash, now: u64) {
        let Some(entry) = self.entries.get_mut(&hash) else { return };
        self.last_used = now.max(self.last_used + 1);
        let before = std::mem::replace(&mut entry.used, self.last_used);
        entry.is_touched = true;
        if self.leaves.remove(&(before, hash)) {
            self.leaves.insert((self.last_used, hash));
        }
    }

    /// The block that goes first, but neither `keep` nor those before it.
    pub(super) fn victim(&self, keep: Option<BlockHash>) -> Option<BlockHash> {
        if self.leaves.is_empty() {
            // Files that were renamed by hand follow each other in a circle.
            return self.entries.keys().copied().find(|&hash| Some(hash) != keep);
        }
        self.leaves.iter().map(|&(_, hash)| hash).find(|&hash| Some(hash) != keep)
    }

    /// The files whose own time is behind, with the time they should have; they count as told.
    pub(super) fn take_touched(&mut self) -> Vec<(PathBuf, u64)> {
        let told = |entry: &mut Entry| std::mem::take(&mut entry.is_touched).then(|| (entry.path.clone(), entry.used));
        self.entries.values_mut().filter_map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(number: u8) -> BlockHash {
        BlockHash([number; 32])
    }

    fn entry(parent: Option<u8>, bytes: u64, used: u64) -> Entry {
        Entry { parent: parent.map(hash), path: PathBuf::new(), bytes, used, is_touched: false }
    }

    /// The order in which blocks go.
    fn order(mut index: Index) -> Vec<BlockHash> {
        std::iter::from_fn(|| {
            let victim = index.victim(None)?;
            index.remove(victim).map(|_| victim)
        })
        .collect()
    }

    #[test]
    fn chains_are_eaten_from_their_ends_and_the_least_recently_used_first() {
        let mut index = Index::default();
        // Read from disk in any order; 1 - 2 - 3 were used long ago but for the beginning, 4 - 5 lately.
        for (number, parent, used) in
            [(2, Some(1), 11), (5, Some(4), 31), (1, None, 10), (3, Some(2), 12), (4, None, 30)]
        {
            index.insert(hash(number), entry(parent, 1, used));
        }
        index.touch(hash(1), 40);
        assert_eq!(order(index), [3, 2, 5, 4, 1].map(hash));
    }

    #[test]
    fn a_block_that_was_used_stays_longer_even_when_the_clock_goes_back() {
        let mut index = Index::default();
        (1..=3).for_each(|number| index.insert(hash(number), entry(None, 1, u64::from(number))));
        index.touch(hash(1), 0);
        index.touch(hash(2), 0);
        let mut touched = index.take_touched();
        touched.sort();
        assert_eq!(touched.iter().map(|(_, used)| *used).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(index.take_touched(), []);
        assert_eq!(order(index), [3, 1, 2].map(hash));
    }

    #[test]
    fn what_is_to_be_kept_is_no_victim_and_circles_end() {
        let mut index = Index::default();
        index.insert(hash(1), entry(None, 1, 1));
        assert_eq!(index.victim(Some(hash(1))), None);
        index.insert(hash(2), entry(Some(3), 1, 2));
        index.insert(hash(3), entry(Some(2), 1, 3));
        index.insert(hash(4), entry(Some(4), 1, 3));
        assert_eq!(order(index).len(), 4);
    }

    proptest! {
        #[test]
        fn sizes_and_leaves_are_those_of_the_entries(
            operations in prop::collection::vec((0..3, 0..12_u8, prop::option::of(0..12_u8), 1..9_u64), 0..200),
        ) {
            let mut index = Index::default();
            for (now, (operation, number, parent, bytes)) in (0..).zip(operations) {
                match operation {
                    0 => index.insert(hash(number), entry(parent, bytes, now)),
                    1 => drop(index.remove(hash(number))),
                    _ => index.touch(hash(number), now),
                }
                prop_assert_eq!(index.bytes(), index.entries.values().map(|entry| entry.bytes).sum::<u64>());
                let is_leaf = |hash: &BlockHash| index.entries.values().all(|entry| entry.parent != Some(*hash));
                let leaves: BTreeSet<_> =
                    index.entries.iter().filter(|(hash, _)| is_leaf(hash)).map(|(hash, entry)| (entry.used, *hash)).collect();
                prop_assert_eq!(&index.leaves, &leaves);
            }
            let len = index.len();
            prop_assert_eq!(order(index).len(), len);
        }
    }
}
