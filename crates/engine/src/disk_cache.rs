//! The prefix cache on disk: blocks of the KV cache outlive the process, so that a restart answers a known prompt without
//! computing it.
//!
//! A block is one file, named by its hash and its parent's ([`mod@folder`]), written by a thread of its own. What a file says
//! is believed only after its checksum ([`mod@record`]): a crash, a power failure, a full disk, a bit that flipped or a hand
//! that meddled costs a block, never an answer. Opening reads names, sizes and times, not blocks. All identities together keep
//! to one size; beyond it the least recently used ends of chains go first ([`mod@index`]).
//!
//! Two processes may share a folder: the first to come writes, the other reads what was there when it started.

mod file_digest;
mod folder;
mod index;
mod record;
mod writer;

pub use file_digest::file_digest;

use crate::BlockHash;
use folder::{Folder, nanos};
use index::Index;
use memmap2::MmapMut;
use record::Expected;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;
use writer::Job;

/// Memory of blocks that wait to be written; the disk's slowness must not become the engine's.
const QUEUE_BYTES: usize = 64 << 20;
/// Fewest blocks that may wait, however large they are.
const MIN_QUEUE_BLOCKS: usize = 8;

/// Why there is no cache on disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskCacheError {
    /// The folder cannot be used.
    #[error("cannot use the cache folder {path}: {source}", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not one block fits.
    #[error("a cache of {max_bytes} bytes cannot hold one block of {block_bytes} bytes")]
    TooSmall {
        /// Bytes that the cache may have.
        max_bytes: u64,
        /// Bytes of a file of one block.
        block_bytes: u64,
    },
    /// The system gives no thread to write with.
    #[error("cannot start the thread that writes the cache: {0}")]
    Thread(io::Error),
}

/// What the cache holds and did since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskCacheStats {
    /// Blocks on disk, of all identities.
    pub blocks: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Blocks read.
    pub loaded: u64,
    /// Blocks written.
    pub stored: u64,
    /// Blocks not written, because the queue was full, the disk refused, there was no room, or their parent was not there.
    pub dropped: u64,
    /// Blocks removed to make room.
    pub evicted: u64,
    /// Files of blocks that were not what they should be.
    pub damaged: u64,
    /// Writes that failed.
    pub write_errors: u64,
}

/// Makes the file that a block is written to.
type Create = fn(&Path) -> io::Result<Box<dyn Write>>;

/// Blocks on disk. All methods may be called from any thread; dropping it writes what waits and ends the thread.
#[derive(Debug)]
pub struct DiskCache {
    shared: Arc<Shared>,
    /// None in a cache that only reads.
    writer: Option<(SyncSender<Job>, JoinHandle<()>)>,
    read_only: Option<String>,
}

#[derive(Debug)]
struct Shared {
    folder: Folder,
    block_bytes: usize,
    max_bytes: u64,
    create: Create,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    index: Index,
    /// Blocks that wait to be written.
    waiting: HashSet<BlockHash>,
    stats: DiskCacheStats,
}

impl DiskCache {
    /// Opens the folder `dir`, and makes it if need be, for blocks of `block_bytes` bytes by a [`crate::Runner::identity`].
    /// All blocks in it, of all identities, are to take at most `max_bytes`.
    ///
    /// # Errors
    /// When the folder can neither be read nor made. One that cannot be written, or that another process writes, serves the
    /// blocks it has: [`DiskCache::read_only`].
    pub fn open(dir: &Path, identity: &str, block_bytes: usize, max_bytes: u64) -> Result<DiskCache, DiskCacheError> {
        DiskCache::open_with(dir, identity, (block_bytes, max_bytes), |path| Ok(Box::new(File::create(path)?)))
    }

    fn open_with(
        dir: &Path,
        identity: &str,
        (block_bytes, max_bytes): (usize, u64),
        create: Create,
    ) -> Result<DiskCache, DiskCacheError> {
        let file_bytes = (record::HEADER + block_bytes) as u64;
        if max_bytes < file_bytes {
            return Err(DiskCacheError::TooSmall { max_bytes, block_bytes: file_bytes });
        }
        let (folder, read_only) = Folder::open(dir, identity)?;
        if let Some(why) = &read_only {
            tracing::warn!("the cache in {} is only read: {why}", dir.display());
        }
        let mut state = State::default();
        for (hash, entry) in folder.blocks() {
            if folder.is_own(&entry.path) && entry.bytes != file_bytes {
                state.stats.damaged += 1;
                folder.remove(&entry.path);
            } else {
                state.index.insert(hash, entry);
            }
        }
        if state.stats.damaged > 0 {
            tracing::warn!("{} damaged blocks in {} are dropped", state.stats.damaged, dir.display());
        }
        let shared = Arc::new(Shared { folder, block_bytes, max_bytes, create, state: Mutex::new(state) });
        let writer = shared.folder.may_write().then(|| {
            let (sender, jobs) = sync_channel((QUEUE_BYTES / block_bytes.max(1)).max(MIN_QUEUE_BLOCKS));
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("disk-cache".into());
            thread.spawn(move || writer::run(&shared, &jobs)).map(|thread| (sender, thread))
        });
        let writer = writer.transpose().map_err(DiskCacheError::Thread)?;
        Ok(DiskCache { shared, writer, read_only })
    }

    /// Why this cache is only read, if it is.
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Whether there is a file of this block. It may yet turn out to be damaged.
    pub fn contains(&self, hash: BlockHash) -> bool {
        self.shared.path(hash).is_some()
    }

    /// Marks a block as used, without reading it: one that is served from memory should not leave the disk for it.
    pub fn touch(&self, hash: BlockHash) {
        self.shared.state().index.touch(hash, nanos(SystemTime::now()));
    }

    /// The bytes of a block, exactly as they were stored. A file that is not what it should be is removed and counted.
    pub fn load(&self, hash: BlockHash) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.load_into(hash, &mut bytes).then_some(bytes)
    }

    /// [`DiskCache::load`] into a buffer that has room for it already: false, and of no use, where there is no such block.
    pub fn load_into(&self, hash: BlockHash, bytes: &mut Vec<u8>) -> bool {
        let Some(path) = self.shared.path(hash) else { return false };
        let expected = self.shared.expected(hash);
        match folder::open_file(File::options().read(true), &path).and_then(|mut file| expected.read(&mut file, bytes))
        {
            Ok(true) => {
                let mut state = self.shared.state();
                state.stats.loaded += 1;
                state.index.touch(hash, nanos(SystemTime::now()));
                true
            }
            // The process that writes has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.shared.state().index.remove(hash);
                false
            }
            Ok(false) => self.shared.forget(hash, &path, "its checksum does not agree"),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.shared.forget(hash, &path, &error.to_string())
            }
            // Nothing is known of the block: the process may have no file descriptor left.
            Err(error) => {
                tracing::debug!("{} cannot be read: {error}", path.display());
                false
            }
        }
    }

    /// Hands a block to the thread that writes, with the hash of the block before it: none for the first of a chain. Never
    /// waits: a block that finds the queue full is dropped, and so is one whose parent is not on disk, because it could serve
    /// nobody.
    ///
    /// # Panics
    /// When the bytes are not as many as a block has.
    pub fn store(&self, hash: BlockHash, parent: Option<BlockHash>, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.shared.block_bytes, "a block has the bytes of every block");
        let Some((sender, _)) = &self.writer else { return };
        {
            let mut state = self.shared.state();
            if state.index.get(hash).is_some() || !state.waiting.insert(hash) {
                return;
            }
        }
        // Pages of their own: of the heap, as many as ever waited together would stay.
        let job = MmapMut::map_anon(bytes.len()).map(|mut pages| {
            pages.copy_from_slice(bytes);
            Job::Store { hash, parent, bytes: pages }
        });
        let is_taken = job.is_ok_and(|job| sender.try_send(job).is_ok());
        if !is_taken {
            let mut state = self.shared.state();
            state.waiting.remove(&hash);
            state.stats.dropped += 1;
        }
    }

    /// Waits until all blocks that were stored so far are files.
    pub fn flush(&self) {
        if let Some((sender, _)) = &self.writer {
            let (done, is_done) = sync_channel(1);
            // A thread that is gone has nothing left to write.
            if sender.send(Job::Flush(done)).is_ok() {
                let _ = is_done.recv();
            }
        }
    }

    /// What it holds and did.
    pub fn stats(&self) -> DiskCacheStats {
        let state = self.shared.state();
        DiskCacheStats { blocks: state.index.len(), bytes: state.index.bytes(), ..state.stats }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What is in there is whole between any two statements, so a thread that panicked left nothing to repair.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a block of this identity.
    fn path(&self, hash: BlockHash) -> Option<PathBuf> {
        let state = self.state();
        state.index.get(hash).map(|entry| entry.path.clone()).filter(|path| self.folder.is_own(path))
    }

    fn expected(&self, hash: BlockHash) -> Expected {
        Expected { folder: self.folder.digest, hash, len: self.block_bytes }
    }

    /// Drops a file that is of no use; false, for it has nothing to load.
    fn forget(&self, hash: BlockHash, path: &Path, why: &str) -> bool {
        let mut state = self.state();
        state.index.remove(hash);
        state.stats.damaged += 1;
        if state.stats.damaged == 1 {
            tracing::warn!("{} is dropped: {why}; later ones are only counted", path.display());
        }
        self.folder.remove(path);
        false
    }
}

#[cfg(test)]
mod tests;
