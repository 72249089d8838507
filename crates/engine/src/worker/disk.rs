//! Blocks to disk when they are full, and back when a prompt needs them.

use super::Worker;
use crate::scheduler::{Arrival, SequenceId};
use crate::{BlockHash, NamedBlock};
use std::ops::Range;

/// Blocks that are read in one step while others run: each takes about a millisecond.
const BLOCKS_PER_STEP: usize = 8;

/// A sequence some of whose blocks may be on disk.
pub(super) struct Restoring {
    pub(super) id: SequenceId,
    tokens: Vec<u32>,
    root: BlockHash,
    priority: i32,
    all_logits: bool,
    /// Names of the blocks that could be restored.
    names: Vec<BlockHash>,
    /// How many of them are in memory or given up.
    num_done: usize,
}

impl Worker {
    /// Puts a sequence into the scheduler's queue, after its blocks were looked for on disk.
    pub(super) fn arrive(
        &mut self,
        id: SequenceId,
        root: BlockHash,
        tokens: Vec<u32>,
        (priority, all_logits): (i32, bool),
    ) {
        if self.disk.is_none() || all_logits {
            self.scheduler.add(id, Arrival { tokens: &tokens, root, priority, all_logits });
            return;
        }
        // The last token is computed in any case, because its logits are wanted.
        let blocks = tokens[..tokens.len() - 1].chunks_exact(self.scheduler.blocks().block_size());
        let names = blocks.scan(root, |name, tokens| {
            *name = name.child(tokens);
            Some(*name)
        });
        let names = names.collect();
        self.restoring.push_back(Restoring { id, tokens, root, priority, all_logits, names, num_done: 0 });
    }

    /// Reads blocks that waiting sequences need: all, when nobody else is held up by it.
    pub(super) fn restore(&mut self) {
        let mut left = if self.scheduler.num_running() == 0 { usize::MAX } else { BLOCKS_PER_STEP };
        while let Some(mut next) = self.restoring.pop_front() {
            while next.num_done < next.names.len() && left > 0 {
                left -= 1;
                if !self.restore_block(&next) {
                    next.num_done = next.names.len();
                    break;
                }
                next.num_done += 1;
            }
            if next.num_done < next.names.len() {
                self.restoring.push_front(next);
                return;
            }
            let Restoring { id, tokens, root, priority, all_logits, .. } = next;
            self.scheduler.add(id, Arrival { tokens: &tokens, root, priority, all_logits });
        }
    }

    /// Makes sure that the next block of a sequence is in memory. False when it cannot be, and then those after it are of no
    /// use either.
    fn restore_block(&mut self, restoring: &Restoring) -> bool {
        let (Some(disk), index) = (&self.disk, restoring.num_done) else { return false };
        let hash = restoring.names[index];
        let blocks = self.scheduler.blocks_mut();
        if blocks.contains(&hash) {
            blocks.refresh(&hash);
            return true;
        }
        let Some(bytes) = disk.load(hash) else { return false };
        let parent = index.checked_sub(1).map_or(restoring.root, |before| restoring.names[before]);
        let size = blocks.block_size();
        let tokens = &restoring.tokens[index * size..][..size];
        let Some(block) = blocks.adopt(NamedBlock { parent, hash, tokens }) else { return false };
        if let Err(error) = self.runner.import_block(block, &bytes) {
            tracing::error!(%error, "a block from disk cannot be used");
            self.scheduler.blocks_mut().forget(block);
            return false;
        }
        self.shared.status().restored_blocks += 1;
        true
    }

    /// Hands blocks of a sequence that are full to the disk.
    pub(super) fn save(&mut self, id: SequenceId, full: Range<usize>) {
        let Some(disk) = &self.disk else { return };
        for index in full {
            let names = self.scheduler.block_names(id);
            let (hash, parent) = (names[index], index.checked_sub(1).map(|before| names[before]));
            if disk.contains(hash) {
                continue;
            }
            let mut bytes = Vec::with_capacity(self.runner.block_bytes());
            match self.runner.export_block(self.scheduler.block_table(id)[index], &mut bytes) {
                Ok(()) => disk.store(hash, parent, bytes),
                Err(error) => tracing::error!(%error, "a block cannot be written to disk"),
            }
        }
    }
}
