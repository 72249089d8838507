//! Files that were read and go into the next message, behind what is typed.

use super::files::{self, MAX_FILE_BYTES};
use crate::piped;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Texts by the names of their files, in the order in which they were read.
#[derive(Debug, Default)]
pub(super) struct ReadFiles(Vec<(String, String)>);

impl ReadFiles {
    /// Reads one more; the bytes of all texts together.
    ///
    /// # Errors
    /// When it has no text, or too much of it; nothing is changed then.
    pub(super) fn read(&mut self, path: &Path) -> Result<usize> {
        let name = path.display().to_string();
        let text = files::text(path).with_context(|| format!("cannot read {name}"))?;
        if text.trim().is_empty() {
            bail!("cannot read {name}: nothing is in it");
        }
        let all = self.0.iter().map(|(_, text)| text.len()).sum::<usize>() + text.len();
        if all as u64 > MAX_FILE_BYTES {
            bail!("cannot read {name}: a message would have more than {} MiB", MAX_FILE_BYTES >> 20);
        }
        self.0.push((name, text));
        Ok(all)
    }

    /// A message with these texts behind it.
    pub(super) fn behind(&self, message: &str) -> String {
        let texts = self.0.iter().map(|(_, text)| text.as_str());
        let whole = piped::joined(std::iter::once(message).chain(texts));
        // As of `taper run --file`: the last line end is none of the message.
        if self.0.is_empty() { whole } else { whole.trim_end_matches('\n').to_owned() }
    }

    /// The names of the files.
    pub(super) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn texts_come_behind_the_message_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = ReadFiles::default();
        assert_eq!(files.behind("hi\n"), "hi\n");
        for (name, text) in [("one", "a\n"), ("two", "b\n\n"), ("empty", " \n")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(files.read(&folder.path().join("one")).unwrap(), 2);
        assert_eq!(files.read(&folder.path().join("two")).unwrap(), 5);
        let refused = files.read(&folder.path().join("empty")).unwrap_err().to_string();
        assert!(refused.contains("nothing is in it"), "{refused}");
        assert_eq!(files.behind("hi"), "hi\na\nb");
        assert_eq!(files.names().len(), 2);
        files.clear();
        assert_eq!(files.behind("hi"), "hi");
    }

    #[test]
    fn several_files_are_no_way_around_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        fs::write(&path, vec![b'a'; (MAX_FILE_BYTES as usize) / 2 + 1]).unwrap();
        let mut files = ReadFiles::default();
        files.read(&path).unwrap();
        let refused = files.read(&path).unwrap_err().to_string();
        assert!(refused.contains("more than 64 MiB"), "{refused}");
        assert_eq!(files.names().len(), 1);
    }
}
