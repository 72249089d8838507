//! The files that conversations are saved in and loaded from, and that messages are read from.
//!
//! As in an editor, a file is replaced without a question only where it still is what this chat left in it or took from it: a
//! name that is taken by something else, or by another conversation meanwhile, costs nobody theirs.

use super::conversation::{Conversation, Loaded};
use anyhow::{Context, Result, bail};
use rustix::fs::{OFlags, fcntl_setfl};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a text may be long in a file, bytes; no context holds more.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// The hash of what each file of this chat had when it was written or read, by its path without links.
#[derive(Debug, Default)]
pub(super) struct KnownFiles(HashMap<PathBuf, [u8; 32]>);

impl KnownFiles {
    /// Whether writing to `path` costs nobody anything: nothing is there, or what this chat left, or what keeps nothing, such as a
    /// device.
    ///
    /// # Errors
    /// When it cannot be found out.
    pub(super) fn may_replace(&self, path: &Path) -> io::Result<bool> {
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        if !meta.is_file() || meta.len() == 0 {
            return Ok(true);
        }
        let Some(known) = self.0.get(&fs::canonicalize(path)?) else { return Ok(false) };
        if meta.len() > MAX_FILE_BYTES {
            return Ok(false);
        }
        Ok(*known == hash(&fs::read(path)?))
    }

    /// Writes a file, for its user only, so that one that was there before stays, whole, where that fails. A device or a pipe is
    /// written to as it is.
    pub(super) fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_fifo() => return write_to_pipe(path, bytes),
            Ok(meta) if !meta.is_file() => return fs::write(path, bytes),
            _ => {}
        }
        // A link stays one: what it points to is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut part = target.clone().into_os_string();
        part.push(format!(".part-{}", std::process::id()));
        // One of a process that had this number before and was killed.
        let _ = fs::remove_file(&part);
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&part, &target)
        };
        write().inspect_err(|_| drop(fs::remove_file(&part)))?;
        self.0.insert(fs::canonicalize(&target)?, hash(bytes));
        Ok(())
    }

    /// Reads a conversation.
    ///
    /// # Errors
    /// When there is none, with the reason in words.
    pub(super) fn read(&mut self, path: &Path) -> Result<Loaded> {
        let text = text(path)?;
        let seen = hash(text.as_bytes());
        let loaded = Conversation::from_json(&text).map_err(anyhow::Error::msg)?;
        // What is left out here would be lost with the file.
        if loaded.left_out.is_empty() {
            self.0.insert(fs::canonicalize(path)?, seen);
        }
        Ok(loaded)
    }
}

/// The text of a file.
///
/// # Errors
/// When there is none, with the reason in words.
pub(super) fn text(path: &Path) -> Result<String> {
    // A pipe may have no end, and a folder no text.
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        bail!("it is a folder");
    }
    if !meta.is_file() {
        bail!("it is not a file");
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("it has more than {} MiB", MAX_FILE_BYTES >> 20);
    }
    String::from_utf8(bytes).context("it is not UTF-8")
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Opened without waiting for a reader, since Ctrl-C does not end the chat; then written to at the reader's pace.
fn write_to_pipe(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let mut pipe = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::NXIO) => io::Error::other("nobody reads from this pipe"),
        _ => error,
    })?;
    fcntl_setfl(&pipe, OFlags::empty())?;
    pipe.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let mut files = KnownFiles::default();
        files.write(&path, b"one").unwrap();
        files.write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(files.write(&folder.path().join("no/such/place"), b"x").is_err());
        assert!(files.write(folder.path(), b"x").is_err());
    }

    #[test]
    fn only_what_this_chat_left_is_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut files = KnownFiles::default();
        assert!(files.may_replace(&path("new")).unwrap());
        fs::write(path("notes"), "dear diary").unwrap();
        fs::write(path("empty"), "").unwrap();
        assert!(!files.may_replace(&path("notes")).unwrap());
        assert!(files.may_replace(&path("empty")).unwrap());
        assert!(files.may_replace(Path::new("/dev/null")).unwrap());

        files.write(&path("talk"), b"[]").unwrap();
        symlink(path("talk"), path("link")).unwrap();
        assert!(files.may_replace(&path("talk")).unwrap() && files.may_replace(&path("link")).unwrap());
        let mut others = KnownFiles::default();
        assert!(!others.may_replace(&path("talk")).unwrap(), "a chat that has not seen it");
        others.read(&path("link")).unwrap();
        assert!(others.may_replace(&path("talk")).unwrap(), "one that has loaded it");
        others.write(&path("talk"), b"[ ]").unwrap();
        assert!(!files.may_replace(&path("talk")).unwrap(), "the other wrote to it since");

        fs::write(path("request"), r#"{"messages":[],"tools":[]}"#).unwrap();
        assert_eq!(files.read(&path("request")).unwrap().left_out, ["tools"]);
        assert!(!files.may_replace(&path("request")).unwrap(), "it has more than would be written");
    }

    #[test]
    fn what_is_no_text_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("good"), "héllo\n").unwrap();
        fs::write(path("bytes"), b"\xff").unwrap();
        // Of no bytes on the disk, and too long all the same.
        File::create(path("large")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert_eq!(text(&path("good")).unwrap(), "héllo\n");
        for (name, words) in [
            ("none", "No such file"),
            ("", "it is a folder"),
            ("bytes", "it is not UTF-8"),
            ("large", "it has more than 64 MiB"),
        ] {
            let refused = format!("{:#}", text(&path(name)).unwrap_err());
            assert!(refused.contains(words), "{name}: {refused}");
        }
        assert!(text(Path::new("/dev/zero")).unwrap_err().to_string().contains("it is not a file"));
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut files = KnownFiles::default();
        assert!(files.may_replace(&path).unwrap());
        let refused = files.write(&path, b"x").unwrap_err().to_string();
        assert!(refused.contains("nobody reads"), "{refused}");
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let mut reader = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).unwrap();
        files.write(&path, b"x").unwrap();
        let mut seen = [0; 2];
        assert_eq!(reader.read(&mut seen).unwrap(), 1);
    }
}
