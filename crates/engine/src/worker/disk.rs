//! Blocks to disk when they are full, and back when a prompt needs them.

use super::Worker;
use crate::scheduler::{Arrival, KnownRows, SequenceId};
use std::ops::Range;

/// Blocks that are read in one step while others run: each takes about a millisecond.
const BLOCKS_PER_STEP: usize = 8;

/// A sequence some of whose blocks may be on disk.
pub(super) struct Restoring {
    pub(super) id: SequenceId,
    arrival: Arrival,
    /// How many of its blocks are in memory or given up.
    num_done: usize,
}

impl Worker {
    /// Puts a sequence into the scheduler's queue, after its blocks were looked for on disk.
    pub(super) fn arrive(&mut self, id: SequenceId, arrival: Arrival) {
        if self.disk.is_none() || arrival.rows != KnownRows::Last {
            self.scheduler.add(id, arrival);
        } else {
            self.restoring.push_back(Restoring { id, arrival, num_done: 0 });
        }
    }

    /// Reads blocks that waiting sequences need: all, when nobody else is held up by it.
    pub(super) fn restore(&mut self) {
        let mut left = if self.scheduler.num_running() == 0 { usize::MAX } else { BLOCKS_PER_STEP };
        while let Some(mut next) = self.restoring.pop_front() {
            let num_blocks = next.arrival.chain.cacheable().len();
            while next.num_done < num_blocks && left > 0 {
                left -= 1;
                // Blocks after one that cannot be had are of no use either.
                next.num_done = if self.restore_block(&next) { next.num_done + 1 } else { num_blocks };
            }
            if next.num_done < num_blocks {
                self.restoring.push_front(next);
                return;
            }
            self.scheduler.add(next.id, next.arrival);
        }
    }

    /// Makes sure that the next block of a sequence is in memory. False when it cannot be.
    fn restore_block(&mut self, restoring: &Restoring) -> bool {
        let Some(disk) = &self.disk else { return false };
        let named = restoring.arrival.chain.block(restoring.num_done);
        let blocks = self.scheduler.blocks_mut();
        if blocks.contains(&named.hash) {
            blocks.refresh(&named.hash);
            return true;
        }
        if !disk.load_into(named.hash, &mut self.block_bytes) {
            return false;
        }
        let Some(block) = blocks.adopt(named) else { return false };
        if let Err(error) = self.runner.import_block(block, &self.block_bytes) {
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
            let names = self.scheduler.chain(id).names();
            let (hash, parent) = (names[index], index.checked_sub(1).map(|before| names[before]));
            if disk.contains(hash) {
                continue;
            }
            self.block_bytes.clear();
            match self.runner.export_block(self.scheduler.block_table(id)[index], &mut self.block_bytes) {
                Ok(()) => disk.store(hash, parent, &self.block_bytes),
                Err(error) => tracing::error!(%error, "a block cannot be written to disk"),
            }
        }
    }
}
