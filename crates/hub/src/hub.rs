//! From a name to a file.

use crate::hf::HfRepo;
use crate::list::{self, LocalModel};
use crate::pip::PipPackage;
use crate::{Alias, Error, HubConfig, ModelName, Progress, local};
use std::path::PathBuf;

/// A model that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// Its GGUF file.
    pub path: PathBuf,
    /// What it is called in the API: the alias, else the name of the file without its ending.
    pub id: String,
}

/// Finds and fetches models.
#[derive(Debug, Clone)]
pub struct Hub {
    config: HubConfig,
}

impl Hub {
    /// With the caches and endpoints that the environment names.
    pub fn from_env() -> Result<Hub, Error> {
        Ok(Hub::new(HubConfig::from_env()?))
    }

    /// With these settings.
    pub fn new(config: HubConfig) -> Hub {
        Hub { config }
    }

    /// The settings.
    pub fn config(&self) -> &HubConfig {
        &self.config
    }

    /// The model's file, fetched if it is not here. What is in a cache is taken without asking anybody, also for a branch
    /// that has moved on; another revision or version is another name.
    pub fn resolve(&self, name: &ModelName, progress: &dyn Progress) -> Result<ResolvedModel, Error> {
        match name {
            ModelName::Alias(alias) => {
                Ok(ResolvedModel { path: self.resolve_alias(alias, progress)?, id: alias.name.to_string() })
            }
            ModelName::Path(path) => Ok(by_file_name(local::resolve(path)?)),
            name => Ok(by_file_name(self.resolve_source(name, None, progress)?)),
        }
    }

    /// Every model that is here: in our cache, the hub's and Ollama's.
    pub fn list(&self) -> Vec<LocalModel> {
        list::list(&self.config)
    }

    /// The first of an alias's sources that has it here, else the first that answers.
    fn resolve_alias(&self, alias: &Alias, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let names: Vec<ModelName> = alias.sources.iter().map(crate::Source::name).collect();
        if let Some(path) = names.iter().find_map(|name| self.cached(name)) {
            return Ok(path);
        }
        let mut causes = Vec::new();
        for (i, name) in names.iter().enumerate() {
            match self.resolve_source(name, alias.sha256, progress) {
                Ok(path) => return Ok(path),
                // The next source would fill the same disk.
                Err(full @ Error::NoSpace { .. }) => return Err(full),
                Err(cause) => {
                    if let Some(next) = names.get(i + 1) {
                        progress.note(&format!("{}; trying {next}", in_short(&cause)));
                    }
                    causes.push((name.to_string(), cause));
                }
            }
        }
        match <[(String, Error); 1]>::try_from(causes) {
            Ok([(_, cause)]) => Err(cause),
            Err(causes) => Err(Error::AllSourcesFailed { alias: alias.name.to_string(), causes }),
        }
    }

    /// What a name of a hub file or a package has in a cache.
    fn cached(&self, name: &ModelName) -> Option<PathBuf> {
        match name {
            ModelName::Hf { repo, file: Some(file), revision } => {
                HfRepo::new(&self.config, repo, revision).cached(file)
            }
            ModelName::Hf { repo, file: None, revision } => HfRepo::new(&self.config, repo, revision).cached_choice(),
            ModelName::Pip { package, version } => PipPackage::new(&self.config, package, version.as_deref()).cached(),
            ModelName::Alias(_) | ModelName::Path(_) => None,
        }
    }

    fn resolve_source(
        &self,
        name: &ModelName,
        pinned: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Error> {
        // Without a file the hub is asked which one is meant; what is cached may be another weight type.
        let must_ask = matches!(name, ModelName::Hf { file: None, .. }) && !self.config.offline;
        if let Some(path) = self.cached(name).filter(|_| !must_ask) {
            return Ok(path);
        }
        if self.config.offline {
            let cache = match name {
                ModelName::Pip { .. } => &self.config.taper_cache,
                _ => &self.config.hf_cache,
            };
            return Err(Error::Offline { name: name.to_string(), cache: cache.clone() });
        }
        match name {
            ModelName::Hf { repo, file, revision } => {
                self.pull_hf(&HfRepo::new(&self.config, repo, revision), file.as_deref(), pinned, progress)
            }
            ModelName::Pip { package, version } => {
                PipPackage::new(&self.config, package, version.as_deref()).pull(pinned, progress)
            }
            ModelName::Alias(alias) => self.resolve_alias(alias, progress),
            ModelName::Path(path) => local::resolve(path),
        }
    }

    fn pull_hf(
        &self,
        repo: &HfRepo<'_>,
        file: Option<&str>,
        pinned: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Error> {
        if let Some(file) = file {
            return repo.pull(file, pinned, progress);
        }
        match repo.choose_file() {
            Ok(file) => match repo.cached(&file) {
                Some(path) => Ok(path),
                None => repo.pull(&file, pinned, progress),
            },
            // Nobody to ask; one that was pulled before will do.
            Err(unreachable @ Error::NoNetwork { .. }) => repo.cached_choice().ok_or(unreachable),
            Err(other) => Err(other),
        }
    }
}

/// A failure that another source may make good needs no advice.
fn in_short(cause: &Error) -> String {
    match cause {
        Error::NoNetwork { host, .. } => format!("cannot reach {host}"),
        other => other.to_string(),
    }
}

fn by_file_name(path: PathBuf) -> ResolvedModel {
    let id = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    ResolvedModel { path, id }
}
