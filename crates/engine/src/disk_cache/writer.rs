//! The thread that writes.

use super::folder::{nanos, set_used};
use super::index::Entry;
use super::{Shared, record};
use crate::BlockHash;
use memmap2::MmapMut;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, SystemTime};

/// How long the times of files may lag behind: all that a crash can lose of the order of use.
const TIMES_LAG: Duration = Duration::from_secs(30);
/// Most blocks passed over after a write that failed, twice as many after each one in a row: a full disk is not asked anew
/// for every block.
const MAX_PASSED_OVER: u32 = 256;

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes a block.
    Store { hash: BlockHash, parent: Option<BlockHash>, bytes: MmapMut },
    /// Answers when all before it is done.
    Flush(SyncSender<()>),
}

/// Works until nobody can ask any more.
pub(super) fn run(shared: &Shared, jobs: &Receiver<Job>) {
    let mut patience = Patience::default();
    make_room(shared, 0, None);
    loop {
        match jobs.recv_timeout(TIMES_LAG) {
            Ok(Job::Store { hash, parent, bytes }) => {
                let is_served = parent.is_none_or(|parent| shared.state().index.get(parent).is_some());
                let size = (record::HEADER + bytes.len()) as u64;
                if is_served && patience.is_over() && make_room(shared, size, parent) {
                    patience.note(store(shared, hash, parent, &bytes));
                } else {
                    shared.state().stats.dropped += 1;
                }
                shared.state().waiting.remove(&hash);
            }
            Ok(Job::Flush(done)) => {
                save_times(shared);
                // Who no longer waits needs no answer.
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => save_times(shared),
            Err(RecvTimeoutError::Disconnected) => return save_times(shared),
        }
    }
}

/// Which blocks are not even tried.
#[derive(Debug, Default)]
struct Patience {
    to_pass_over: u32,
    after_next_error: u32,
}

impl Patience {
    /// Whether the next block is tried.
    fn is_over(&mut self) -> bool {
        self.to_pass_over = self.to_pass_over.saturating_sub(1);
        self.to_pass_over == 0
    }

    fn note(&mut self, is_written: bool) {
        self.after_next_error = if is_written { 0 } else { (2 * self.after_next_error).clamp(1, MAX_PASSED_OVER) };
        self.to_pass_over = if is_written { 0 } else { self.after_next_error + 1 };
    }
}

/// Removes blocks until so many bytes fit, but neither the parent of what is to come nor those before it. Whether they do.
fn make_room(shared: &Shared, bytes: u64, parent: Option<BlockHash>) -> bool {
    loop {
        let mut state = shared.state();
        if state.index.bytes() + bytes <= shared.max_bytes {
            return true;
        }
        let victim = state.index.victim(parent).and_then(|victim| state.index.remove(victim));
        let Some(Entry { path, .. }) = victim else { return false };
        state.stats.evicted += 1;
        // The system takes its time to remove a file, and nobody else should wait for it.
        drop(state);
        shared.folder.remove(&path);
    }
}

/// Writes a block and makes it known; whether that worked.
fn store(shared: &Shared, hash: BlockHash, parent: Option<BlockHash>, bytes: &[u8]) -> bool {
    let path = shared.folder.path(hash, parent);
    let part = path.with_extension("part");
    let result = write(shared, hash, bytes, &part).and_then(|()| std::fs::rename(&part, &path));
    let mut state = shared.state();
    if let Err(error) = result {
        shared.folder.remove(&part);
        state.stats.dropped += 1;
        state.stats.write_errors += 1;
        if state.stats.write_errors == 1 {
            tracing::warn!("cannot write {}: {error}; later failures are only counted", part.display());
        }
        return false;
    }
    let (used, bytes) = (nanos(SystemTime::now()), (record::HEADER + bytes.len()) as u64);
    state.index.insert(hash, Entry { parent, path, bytes, used, is_touched: false });
    state.stats.stored += 1;
    true
}

fn write(shared: &Shared, hash: BlockHash, bytes: &[u8], part: &Path) -> io::Result<()> {
    let mut file = (shared.create)(part)?;
    shared.expected(hash).write(bytes, &mut file)
}

/// Gives the files that were used the time of it.
fn save_times(shared: &Shared) {
    let touched = shared.state().index.take_touched();
    for (path, used) in touched {
        if let Err(error) = set_used(&path, used) {
            tracing::debug!("the time of {} stays: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_errors_in_a_row_ever_more_blocks_are_passed_over_until_one_is_written() {
        let mut patience = Patience::default();
        let mut tries_until_next = || {
            let mut passed_over = 0;
            while !patience.is_over() {
                passed_over += 1;
            }
            patience.note(false);
            passed_over
        };
        let passed_over: Vec<u32> = (0..12).map(|_| tries_until_next()).collect();
        assert_eq!(passed_over, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        patience.note(true);
        assert!(patience.is_over() && patience.is_over());
    }
}
