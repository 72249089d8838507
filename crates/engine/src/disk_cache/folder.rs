//! The files of the cache:
//!
//! ```text
//! DIR/lock                        whoever holds its lock may write
//! DIR/32 digits/                  one folder per identity, named by its digest
//! DIR/32 digits/identity.txt      the identity in words, for people
//! DIR/32 digits/HASH-PARENT.kv    a block (64 digits each; the parent of a first block is all zeroes)
//! DIR/32 digits/HASH-PARENT.part  one that is being written, or that a crash left behind
//! ```
//!
//! Files by other names are nobody's business here. A block is written under its `.part` name and renamed when it is whole, so
//! whatever ends in `.kv` was written to its end, as far as the system kept its word; the checksum tells. Nothing is synced:
//! a block lost to a power failure is computed again. When a block was last used is the time of its file.

use super::DiskCacheError;
use super::index::Entry;
use crate::BlockHash;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the names of folders depend on beside the identity; raised when the format changes.
const VERSION: &str = "taper kv cache 1\n";
const NO_PARENT: BlockHash = BlockHash([0; 32]);

/// The cache's folder, and the folder in it for one identity.
#[derive(Debug)]
pub(super) struct Folder {
    own: PathBuf,
    /// Of the identity.
    pub(super) digest: [u8; 32],
    /// Held while this process may write.
    lock: Option<File>,
}

/// What a name says that follows the pattern of blocks.
struct Name {
    hash: BlockHash,
    parent: Option<BlockHash>,
    is_part: bool,
}

impl Name {
    fn parse(name: &OsStr) -> Option<Name> {
        let (stem, extension) = name.to_str()?.split_once('.')?;
        let (hash, parent) = stem.split_once('-')?;
        let parent = BlockHash::from_hex(parent)?;
        let is_part = match extension {
            "kv" => false,
            "part" => true,
            _ => return None,
        };
        Some(Name { hash: BlockHash::from_hex(hash)?, parent: (parent != NO_PARENT).then_some(parent), is_part })
    }
}

impl Folder {
    /// Opens or makes the folder, and takes its lock if it can; otherwise says why not.
    pub(super) fn open(root: &Path, identity: &str) -> Result<(Folder, Option<String>), DiskCacheError> {
        use sha2::Digest;
        let error = |source| DiskCacheError::Folder { path: root.to_owned(), source };
        let digest: [u8; 32] = sha2::Sha256::new_with_prefix(VERSION).chain_update(identity).finalize().into();
        let digits: String = BlockHash(digest).to_string().chars().take(32).collect();
        let own = root.join(digits);
        if let Err(source) = make_private(root) {
            // A folder of a disk that cannot be written to still serves.
            if !root.is_dir() {
                return Err(error(source));
            }
        }
        fs::read_dir(root).map_err(error)?;
        let (lock, mut why) = match take_lock(&root.join("lock")) {
            Ok(lock) => (Some(lock), None),
            Err(why) => (None, Some(why)),
        };
        let mut folder = Folder { own, digest, lock };
        if folder.may_write()
            && let Err(source) = folder.make_own(identity)
        {
            folder.lock = None;
            why = Some(format!("cannot write to it: {source}"));
        }
        Ok((folder, why))
    }

    fn make_own(&self, identity: &str) -> std::io::Result<()> {
        make_private(&self.own)?;
        let words = self.own.join("identity.txt");
        if words.exists() { Ok(()) } else { fs::write(words, format!("{identity}\n")) }
    }

    pub(super) fn may_write(&self) -> bool {
        self.lock.is_some()
    }

    /// Where a block belongs.
    pub(super) fn path(&self, hash: BlockHash, parent: Option<BlockHash>) -> PathBuf {
        self.own.join(format!("{hash}-{}.kv", parent.unwrap_or(NO_PARENT)))
    }

    /// All blocks of all identities, those of this one last. What was never finished is removed.
    pub(super) fn blocks(&self) -> Vec<(BlockHash, Entry)> {
        let root = self.own.parent().unwrap_or(Path::new("."));
        let folders = entries(root).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let is_ours = |path: &PathBuf| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            *path != self.own && name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let others = folders.map(|entry| entry.path()).filter(is_ours);
        let mut blocks = Vec::new();
        for folder in others.chain([self.own.clone()]) {
            for file in entries(&folder) {
                let Some(name) = Name::parse(&file.file_name()) else { continue };
                let Ok(metadata) = file.metadata() else { continue };
                if !metadata.is_file() {
                    continue;
                }
                if name.is_part {
                    self.remove(&file.path());
                    continue;
                }
                let used = metadata.modified().map_or(0, nanos).min(nanos(SystemTime::now()));
                let (parent, path, bytes) = (name.parent, file.path(), metadata.len());
                blocks.push((name.hash, Entry { parent, path, bytes, used, is_touched: false }));
            }
        }
        blocks
    }

    /// Whether a block is of this identity.
    pub(super) fn is_own(&self, path: &Path) -> bool {
        path.parent() == Some(&self.own)
    }

    /// Removes a file of the cache; one that stays does no harm beyond its size.
    pub(super) fn remove(&self, path: &Path) {
        if self.may_write()
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!("{} stays: {error}", path.display());
        }
    }
}

/// Keys and values tell what users wrote: nobody else may read a folder that is made here.
fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn take_lock(path: &Path) -> Result<File, String> {
    let cannot = |error| format!("cannot write to it: {error}");
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another process writes to it".into()),
        Err(TryLockError::Error(error)) => Err(format!("cannot lock it: {error}")),
    }
}

/// What is in a folder, as far as it can be read.
fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// Nanoseconds since 1970.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Opens what is a file. A pipe of that name would keep whoever opens it waiting for its other end, for ever.
pub(super) fn open_file(options: &OpenOptions, path: &Path) -> std::io::Result<File> {
    if fs::metadata(path)?.is_file() {
        options.open(path)
    } else {
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not a file"))
    }
}

/// Gives a file the time of its last use.
pub(super) fn set_used(path: &Path, used: u64) -> std::io::Result<()> {
    open_file(File::options().write(true), path)?.set_modified(UNIX_EPOCH + Duration::from_nanos(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_blocks_are_taken_for_blocks() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let parse = |name: String| Name::parse(OsStr::new(&name));
        let name = parse(format!("{a}-{b}.kv")).unwrap();
        assert_eq!(
            (name.hash.to_string(), name.parent.unwrap().to_string(), name.is_part),
            (a.clone(), b.clone(), false)
        );
        assert!(parse(format!("{a}-{b}.part")).unwrap().is_part);
        assert_eq!(parse(format!("{a}-{}.kv", "0".repeat(64))).unwrap().parent, None);
        for foreign in ["", "lock", "identity.txt", "notes.kv", "-.kv"] {
            assert!(parse(foreign.into()).is_none(), "{foreign}");
        }
        for foreign in [format!("{a}.kv"), format!("{a}-{b}"), format!("{a}-{b}.kv.bak"), format!("{a}-{}.kv", &b[1..])]
        {
            assert!(parse(foreign.clone()).is_none(), "{foreign}");
        }
    }
}
