//! Files that are here already, and the rule that chooses one GGUF among several.

use crate::Error;
use std::path::{Path, PathBuf};

/// Weight types in the order of preference: small, good, and all of them run here.
const PREFERRED: &[&str] =
    &["q4_k_m", "q4_k_s", "q4_1", "q4_0", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q6_k", "q8_0", "bf16", "f16", "f32"];

/// A path given by the user: a file as it is, a folder with exactly one GGUF file.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, Error> {
    if path.is_dir() {
        return only_gguf_in(path);
    }
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    let shown = path.to_string_lossy();
    let looks_like_repo =
        shown.split('/').count() == 2 && !shown.starts_with(['.', '/', '~']) && !shown.ends_with(".gguf");
    Err(Error::NoSuchPath { path: path.to_path_buf(), looks_like_repo })
}

fn only_gguf_in(folder: &Path) -> Result<PathBuf, Error> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("cannot read", folder, e))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| is_gguf(path)).collect();
    files.sort();
    match <[PathBuf; 1]>::try_from(files) {
        Ok([file]) => Ok(file),
        Err(files) if files.is_empty() => Err(Error::NoGguf { place: folder.display().to_string(), others: vec![] }),
        Err(files) => Err(Error::Ambiguous {
            place: folder.display().to_string(),
            candidates: files.iter().map(|file| file.display().to_string()).collect(),
        }),
    }
}

/// Whether a name ends in .gguf, in any case.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Every GGUF file in a folder and the folders below it, sorted. What cannot be read is not there.
pub(crate) fn gguf_files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            // Links to folders are not followed, so there is no circle; links to files are what a snapshot consists of.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth < 8 {
                    folders.push((path, depth + 1));
                }
            } else if is_gguf(&path) && path.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Chooses one of the GGUF files of a place: the only one that is a model of its own, else the only one of the most
/// preferred weight type. `full_name` makes of a file the name to give instead, for the error.
pub(crate) fn choose(place: &str, mut files: Vec<String>, full_name: impl Fn(&str) -> String) -> Result<String, Error> {
    files.sort();
    let (usable, others): (Vec<String>, Vec<String>) = files.into_iter().partition(|file| stands_alone(file));
    let preferred = PREFERRED.iter().find_map(|weight_type| {
        let mut matching = usable.iter().filter(|file| has_word(file, weight_type));
        matching.next().filter(|_| matching.next().is_none())
    });
    match (usable.as_slice(), preferred) {
        ([], _) => Err(Error::NoGguf { place: place.to_string(), others }),
        ([only], _) => Ok(only.clone()),
        (_, Some(file)) => Ok(file.clone()),
        (_, None) => Err(Error::Ambiguous {
            place: place.to_string(),
            candidates: usable.iter().map(|file| full_name(file)).collect(),
        }),
    }
}

/// Not a vision projector, not an importance matrix, not one of several pieces.
fn stands_alone(file: &str) -> bool {
    let name = file.to_ascii_lowercase();
    let is_piece = name.rsplit_once("-of-").is_some_and(|(head, tail)| {
        tail.trim_end_matches(".gguf").bytes().all(|b| b.is_ascii_digit())
            && head.bytes().next_back().is_some_and(|b| b.is_ascii_digit())
    });
    !is_piece && !name.contains("mmproj") && !name.contains("imatrix")
}

/// Whether a weight type stands in the name as a word: `q4_0` is not in `q4_0_4_4`.
fn has_word(file: &str, word: &str) -> bool {
    let name = file.to_ascii_lowercase();
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    name.split(['-', '.', '/']).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[&str], expected: &str) {
        let chosen = choose("place", files.iter().map(ToString::to_string).collect(), |f| format!("hf:o/r/{f}"));
        let shown = match chosen {
            Ok(file) => file,
            Err(Error::Ambiguous { candidates, .. }) => format!("ambiguous {}", candidates.join(" ")),
            Err(Error::NoGguf { others, .. }) => format!("none, others {}", others.len()),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(shown, expected, "{files:?}");
    }

    #[test]
    fn the_preferred_weight_type_is_chosen() {
        check(&["only.gguf"], "only.gguf");
        check(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"], "m-Q4_K_M.gguf");
        check(&["m.Q8_0.gguf", "m.Q4_0.gguf", "m.Q4_0_4_4.gguf"], "m.Q4_0.gguf");
        check(&["m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf"], "m-Q8_0.gguf");
    }

    #[test]
    fn no_choice_is_made_between_equals_or_pieces() {
        check(&["a-q4_k_m.gguf", "b-q4_k_m.gguf"], "ambiguous hf:o/r/a-q4_k_m.gguf hf:o/r/b-q4_k_m.gguf");
        check(&["m-q4_k_m-00001-of-00002.gguf", "m-q4_k_m-00002-of-00002.gguf"], "none, others 2");
        check(&[], "none, others 0");
    }

    #[test]
    fn a_folder_must_have_exactly_one_model() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(resolve(dir.path()), Err(Error::NoGguf { .. })));
        std::fs::write(dir.path().join("a.GGUF"), "x").unwrap();
        assert_eq!(resolve(dir.path()).unwrap(), dir.path().join("a.GGUF"));
        std::fs::write(dir.path().join("b.gguf"), "x").unwrap();
        let error = resolve(dir.path()).unwrap_err().to_string();
        assert!(error.contains("a.GGUF") && error.contains("b.gguf"), "{error}");
    }

    #[test]
    fn a_path_that_looks_like_a_repository_says_how_to_name_one() {
        let error = resolve(Path::new("some-org/some-repo")).unwrap_err().to_string();
        assert!(error.contains("hf:some-org/some-repo"), "{error}");
        let error = resolve(Path::new("./missing.gguf")).unwrap_err().to_string();
        assert!(!error.contains("hf:"), "{error}");
    }
}
