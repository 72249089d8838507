//! Files that are whole or not there: locks, durable renames, hashes while writing.

use crate::{Error, Progress};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes moved between two reports of progress.
const CHUNK: usize = 1 << 20;

/// Holds a lock file until dropped. The file itself stays: removing it would let a third process lock another one.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process (or thread) holds the lock at `path`, and says so if that takes any time.
    pub(crate) fn acquire(path: &Path, what: &str, progress: &dyn Progress) -> Result<Lock, Error> {
        create_parent(path, "TAPER_CACHE")?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|e| Error::write(path, "a lock file", "TAPER_CACHE", e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!("another process is pulling {what}; waiting for it"));
                file.lock().map_err(|e| Error::io("cannot lock", path, e))?;
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock", path, e)),
        }
        Ok(Lock { _file: file })
    }
}

/// Creates the folder that a file will stand in. `variable` moves the cache, if the disk is full.
pub(crate) fn create_parent(path: &Path, variable: &'static str) -> Result<(), Error> {
    match path.parent() {
        Some(parent) => std::fs::create_dir_all(parent).map_err(|e| Error::write(parent, "a folder", variable, e)),
        None => Ok(()),
    }
}

/// Gives a finished file its name: its bytes and then its name reach the disk, in this order.
pub(crate) fn publish(file: &File, temporary: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    std::fs::rename(temporary, path)?;
    if let Some(parent) = path.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// SHA-256 that grows with what is written.
#[derive(Clone, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    /// Takes in more bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The hash in lowercase hex.
    pub(crate) fn hex(self) -> String {
        to_hex(&self.0.finalize())
    }
}

/// Lowercase hex.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Which side of a copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The source.
    Read(io::Error),
    /// The target.
    Write(io::Error),
}

/// Copies to the end of `from`, hashing and reporting on the way; returns the number of bytes.
pub(crate) fn copy_hashed(
    from: &mut dyn Read,
    to: &mut dyn Write,
    hasher: &mut Hasher,
    progress: &dyn Progress,
) -> Result<u64, CopyError> {
    let mut buffer = vec![0u8; CHUNK];
    let mut total = 0;
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(CopyError::Read(e)),
        };
        to.write_all(&buffer[..len]).map_err(CopyError::Write)?;
        hasher.update(&buffer[..len]);
        progress.advance(len as u64);
        total += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_copy_counts_and_hashes_what_it_moves() {
        let mut hasher = Hasher::default();
        let mut out = Vec::new();
        let moved = copy_hashed(&mut &b"hello world"[..], &mut out, &mut hasher, &Quiet).unwrap();
        assert_eq!((moved, out.as_slice()), (11, &b"hello world"[..]));
        assert_eq!(hasher.hex(), "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9");
    }

    #[test]
    fn a_full_disk_is_told_from_a_broken_line() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let failed = copy_hashed(&mut &b"x"[..], &mut Full, &mut Hasher::default(), &Quiet).unwrap_err();
        let CopyError::Write(error) = failed else { panic!("{failed:?}") };
        let error = Error::write(Path::new("/cache/x"), "98 bytes", "TAPER_CACHE", error);
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    }

    #[test]
    fn a_second_holder_waits_for_the_first_and_says_so() {
        struct Notes(Mutex<Vec<String>>);
        impl Progress for Notes {
            fn start(&self, _: &str, _: Option<u64>) {}
            fn advance(&self, _: u64) {}
            fn finish(&self) {}
            fn note(&self, line: &str) {
                self.0.lock().unwrap().push(line.to_string());
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/x.lock");
        let first = Lock::acquire(&path, "x", &Quiet).unwrap();
        let released = AtomicBool::new(false);
        let notes = Notes(Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let lock = Lock::acquire(&path, "x", &notes);
                assert!(released.load(Ordering::SeqCst), "the second holder did not wait");
                lock.map(drop)
            });
            while notes.0.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            released.store(true, Ordering::SeqCst);
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
