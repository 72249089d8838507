//! Files of hub repositories, through hf-hub and in the cache layout of the hub's Python client:
//! `models--org--repo/{blobs/<etag>, refs/<revision>, snapshots/<commit>/<file> -> ../../blobs/<etag>}`.
//!
//! hf-hub knows the layout and lists a repository; the transfer is ours, see `download`.

use crate::download::{self, Download};
use crate::local;
use crate::name::is_safe;
use crate::store::{self, Lock};
use crate::{Error, HubConfig, ModelName, Progress};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for a small answer. A blocked network often swallows packets, and the next source should have its turn.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// One repository at one revision.
pub(crate) struct HfRepo<'a> {
    config: &'a HubConfig,
    id: &'a str,
    revision: &'a str,
}

impl<'a> HfRepo<'a> {
    pub(crate) fn new(config: &'a HubConfig, id: &'a str, revision: &'a str) -> Self {
        HfRepo { config, id, revision }
    }

    /// The file in the cache, without asking anybody.
    pub(crate) fn cached(&self, file: &str) -> Option<PathBuf> {
        let path = self.cached_snapshot()?.join(file);
        // A link whose blob was removed does not exist.
        path.exists().then_some(path)
    }

    /// The one file that the rule of [`local::choose`] takes among those in the cache.
    pub(crate) fn cached_choice(&self) -> Option<PathBuf> {
        let snapshot = self.cached_snapshot()?;
        let files = local::gguf_files_below(&snapshot);
        let names = files.iter().filter_map(|path| path.strip_prefix(&snapshot).ok()?.to_str().map(str::to_string));
        let choice = local::choose(self.id, names.collect(), str::to_string).ok()?;
        self.cached(&choice)
    }

    /// Names of the repository's GGUF files; asks the hub.
    pub(crate) fn choose_file(&self) -> Result<String, Error> {
        let api = self.api()?.repo(self.repo());
        let info = within_limit(move || api.info()).map_err(|e| self.explain(e, None))?;
        let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
        let names = names.filter(|name| name.to_ascii_lowercase().ends_with(".gguf")).collect();
        local::choose(&format!("hf:{}", self.id), names, |file| self.name(Some(file)))
    }

    /// Fetches a file that is not in the cache. `pinned` is a SHA-256 that it must have whatever the hub says.
    pub(crate) fn pull(&self, file: &str, pinned: Option<&str>, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let name = self.name(Some(file));
        let url = self.api()?.repo(self.repo()).url(file);
        let token = self.config.hf_token.as_deref();
        let answer = download::probe(&url, &name, self.host(), token)?;
        let (etag, commit) = (answer.etag.as_str(), answer.commit.as_str());
        // Both become names of files.
        if !is_safe(etag) || !is_safe(commit) {
            return Err(Error::BadAnswer { name, reason: format!("etag {etag:?} and commit {commit:?}") });
        }
        // Large files are stored by their SHA-256, and it is their etag; small ones have a git hash.
        let published = (etag.len() == 64).then_some(etag);
        if let (Some(pinned), Some(published)) = (pinned, published)
            && !pinned.eq_ignore_ascii_case(published)
        {
            return Err(Error::WrongHash { name, expected: pinned.into(), actual: published.into() });
        }

        let cache = self.cache_repo();
        let blob = cache.blob_path(etag);
        let folder = Repo::model(self.id.to_string()).folder_name();
        // The Python client locks the same file in the same way.
        let lock_path = self.config.hf_cache.join(".locks").join(folder).join(format!("{etag}.lock"));
        let lock = Lock::acquire(&lock_path, &name, progress)?;
        store::create_parent(&blob, "HF_HUB_CACHE")?;
        if !blob.exists() {
            let part = blob.with_file_name(format!("{etag}.part"));
            let download = Download {
                name: &name,
                url: &url,
                host: self.host(),
                token,
                size: answer.size,
                sha256: pinned.or(published),
            };
            download::fetch(&download::agent(), &download, &part, &blob, progress)?;
        }
        let path = cache.pointer_path(commit).join(file);
        self.link(&blob, &path, file)?;
        if self.revision != commit {
            cache.create_ref(commit).map_err(|e| Error::io("cannot write", &self.config.hf_cache, e))?;
        }
        drop(lock);
        Ok(path)
    }

    /// `snapshots/<commit>/<file>` becomes a relative link to the blob.
    fn link(&self, blob: &Path, path: &Path, file: &str) -> Result<(), Error> {
        store::create_parent(path, "HF_HUB_CACHE")?;
        let up = "../".repeat(file.matches('/').count() + 2);
        let target = PathBuf::from(format!("{up}blobs")).join(blob.file_name().unwrap_or_default());
        if std::fs::read_link(path).is_ok_and(|existing| existing == target) {
            return Ok(());
        }
        let temporary = path.with_extension(format!("link-{}", std::process::id()));
        std::os::unix::fs::symlink(&target, &temporary)
            .and_then(|()| std::fs::rename(&temporary, path))
            .map_err(|e| Error::write(path, "a link", "HF_HUB_CACHE", e))
    }

    /// The folder of the commit that the revision names, as far as the cache knows.
    fn cached_snapshot(&self) -> Option<PathBuf> {
        let cache = self.cache_repo();
        let by_commit = cache.pointer_path(self.revision);
        if by_commit.is_dir() {
            return Some(by_commit);
        }
        let refs = self.config.hf_cache.join(self.repo().folder_name()).join("refs").join(self.revision);
        let commit = std::fs::read_to_string(refs).ok()?;
        is_safe(commit.trim()).then(|| cache.pointer_path(commit.trim()))
    }

    fn repo(&self) -> Repo {
        Repo::with_revision(self.id.to_string(), RepoType::Model, self.revision.to_string())
    }

    fn cache_repo(&self) -> CacheRepo {
        Cache::new(self.config.hf_cache.clone()).repo(self.repo())
    }

    fn api(&self) -> Result<Api, Error> {
        ApiBuilder::from_cache(Cache::new(self.config.hf_cache.clone()))
            .with_endpoint(self.config.hf_endpoint.clone())
            .with_token(self.config.hf_token.clone())
            .with_user_agent("taper", env!("CARGO_PKG_VERSION"))
            .with_progress(false)
            .build()
            .map_err(|e| self.explain(Failed::Api(e), None))
    }

    fn name(&self, file: Option<&str>) -> String {
        let file = file.map(str::to_string);
        ModelName::Hf { repo: self.id.to_string(), file, revision: self.revision.to_string() }.to_string()
    }

    fn host(&self) -> &str {
        &self.config.hf_endpoint
    }

    fn explain(&self, failed: Failed, file: Option<&str>) -> Error {
        let name = self.name(file);
        match failed {
            Failed::Api(ApiError::RequestError(error)) => {
                download::from_http(&error, &name, self.host(), self.config.hf_token.is_some())
            }
            Failed::Api(error) => Error::BadAnswer { name, reason: error.to_string() },
            Failed::TooLate => Error::NoNetwork {
                host: self.host().to_string(),
                reason: format!("no answer within {} seconds", ANSWER_LIMIT.as_secs()),
            },
        }
    }
}

/// Why a small question got no answer.
enum Failed {
    Api(ApiError),
    TooLate,
}

/// Runs a call that has no time limit of its own on a thread that is left behind when it takes too long.
fn within_limit<T: Send + 'static>(call: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, Failed> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(ANSWER_LIMIT).map_err(|_| Failed::TooLate)?.map_err(Failed::Api)
}
