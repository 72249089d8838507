//! A digest of all of a file, kept so that the next start need not read it.
//!
//! The digest is SHA-256 over the file's length and the SHA-256 of each of its pieces of 4 MiB, so that threads share the
//! work: about 1.5 GB/s and core with SHA instructions. A memo in the cache's folder, `files.txt`, has one line per file: its
//! digest, length, times of change in nanoseconds, device, inode and path. A file with the same of all of these was not
//! changed, unless the clock has been turned back and the change was made in the very same nanosecond; a file changed within
//! the last seconds is not noted, because a clock may tick more coarsely than that.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

const MEMO: &str = "files.txt";
/// Lines of the memo: more models than people switch between.
const MAX_LINES: usize = 64;
const PIECE: u64 = 4 << 20;
/// More threads than these find the disk or the memory busy.
const MAX_THREADS: usize = 8;

/// The digest of a file, in hexadecimal: from the memo in `memo_folder`, or computed and noted there. A memo that cannot be
/// read or written only costs time.
///
/// # Errors
/// When the file cannot be read.
pub fn file_digest(path: &Path, memo_folder: &Path) -> io::Result<String> {
    file_digest_at(path, memo_folder, SystemTime::now())
}

fn file_digest_at(path: &Path, memo_folder: &Path, now: SystemTime) -> io::Result<String> {
    let path = path.canonicalize()?;
    let Some(key) = key(&path, now)? else { return digest(&path) };
    let memo = memo_folder.join(MEMO);
    let known = fs::read_to_string(&memo).unwrap_or_default();
    let noted = known.lines().find_map(|line| line.split_once(' ').filter(|(_, rest)| *rest == key));
    if let Some((digest, _)) = noted.filter(|(digest, _)| digest.len() == 64) {
        return Ok(digest.into());
    }
    let digest = digest(&path)?;
    // A file that was changed while it was read has neither digest.
    if self::key(&path, now)?.as_ref() == Some(&key) {
        let older = known.lines().filter(|line| !line.ends_with(&format!(" {}", path.display())));
        let lines: Vec<String> =
            std::iter::once(format!("{digest} {key}")).chain(older.map(String::from)).take(MAX_LINES).collect();
        if let Err(error) = replace(&memo, &(lines.join("\n") + "\n")) {
            tracing::debug!("{} is not noted: {error}", path.display());
        }
    }
    Ok(digest)
}

/// What changes when a file does; none if that cannot be told.
#[cfg(unix)]
fn key(path: &Path, now: SystemTime) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, UNIX_EPOCH};
    /// More than the coarsest clock of a file system in use, FAT's.
    const COARSE: Duration = Duration::from_secs(3);
    let file = fs::metadata(path)?;
    let changed = file.ctime().max(file.mtime());
    let settled = now.checked_sub(COARSE).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let name = path.to_str().filter(|name| !name.contains(['\n', '\r']));
    let (true, Some(name)) = (settled.is_some_and(|time| changed < time.as_secs().cast_signed()), name) else {
        return Ok(None);
    };
    let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    Ok(Some(format!(
        "{} {}.{:09} {}.{:09} {} {} {name}",
        file.len(),
        modified.0,
        modified.1,
        changed.0,
        changed.1,
        file.dev(),
        file.ino(),
    )))
}

#[cfg(not(unix))]
fn key(_: &Path, _: SystemTime) -> io::Result<Option<String>> {
    Ok(None)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension(format!("part-{}", std::process::id()));
    fs::write(&part, text)?;
    fs::rename(&part, path)
}

fn digest(path: &Path) -> io::Result<String> {
    let len = fs::metadata(path)?.len();
    let num_pieces = len.div_ceil(PIECE);
    let next = AtomicU64::new(0);
    let pieces = Mutex::new(vec![[0; 32]; num_pieces as usize]);
    let work = || -> io::Result<()> {
        let mut file = File::open(path)?;
        let mut bytes = Vec::new();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= num_pieces {
                return Ok(());
            }
            bytes.clear();
            file.seek(SeekFrom::Start(piece * PIECE))?;
            file.by_ref().take(PIECE).read_to_end(&mut bytes)?;
            let hash = Sha256::digest(&bytes).into();
            pieces.lock().unwrap_or_else(PoisonError::into_inner)[piece as usize] = hash;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = others.into_iter().map(|thread| thread.join().unwrap_or(Err(io::ErrorKind::Other.into())));
        joined.fold(own, Result::and)
    })?;
    let pieces = pieces.into_inner().unwrap_or_else(PoisonError::into_inner);
    let whole = pieces.iter().fold(Sha256::new_with_prefix(len.to_le_bytes()), Digest::chain_update);
    Ok(whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn write(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn the_digest_is_of_all_of_the_content_and_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let (file, memo) = (folder.path().join("model"), folder.path());
        let mut bytes = vec![7; 2 * PIECE as usize + 5];
        let mut digests = Vec::new();
        let mut digest_of = |bytes: &[u8]| {
            write(&file, bytes);
            digests.push(file_digest(&file, memo).unwrap());
        };
        digest_of(&[]);
        digest_of(&bytes);
        digest_of(&bytes[1..]);
        for at in [0, PIECE as usize, 2 * PIECE as usize + 4] {
            bytes[at] ^= 1;
            digest_of(&bytes);
        }
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
        // SHA-256 of eight zero bytes: the length of an empty file, which has no pieces.
        assert_eq!(digests[0], "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
    }

    #[test]
    #[cfg(unix)]
    fn a_noted_digest_is_taken_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (file, memo) = (folder.path().join("a model"), folder.path().join(MEMO));
        let later = || file_digest_at(&file, folder.path(), SystemTime::now() + Duration::from_secs(60)).unwrap();
        write(&file, b"one");
        let one = later();
        // Only a memo that is read can say this.
        let noted = fs::read_to_string(&memo).unwrap();
        assert!(noted.starts_with(&one), "{noted}");
        write(&memo, noted.replace(&one, &"d".repeat(64)).as_bytes());
        assert_eq!(later(), "d".repeat(64));

        write(&file, b"two");
        let two = later();
        assert!(two != one && two != "d".repeat(64));
        assert_eq!(fs::read_to_string(&memo).unwrap().lines().count(), 1, "what the file was is forgotten");
        write(&memo, &[0xff; 100]);
        assert_eq!(later(), two, "a broken memo is no memo");
        assert_eq!(later(), two);
    }

    #[test]
    fn a_file_changed_just_now_is_not_noted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model");
        write(&file, b"one");
        // A time of change cannot be set, so that only its modification looks old.
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        let one = file_digest(&file, folder.path()).unwrap();
        write(&file, b"two");
        File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        assert_ne!(file_digest(&file, folder.path()).unwrap(), one);
        assert!(!folder.path().join(MEMO).exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(file_digest(&folder.path().join("none"), folder.path()).is_err());
    }
}
