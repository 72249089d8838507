//! Models that are on this machine already: in our cache, the hub's, and Ollama's.

use crate::name::ModelName;
use crate::{HubConfig, aliases, local, pip};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Whose cache a model is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Ours, filled from the Python package index.
    Taper,
    /// The hub's, shared with its Python client.
    Hub,
    /// Ollama's; its files have no ending and are named by their path.
    Ollama,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocalModel {
    /// A name that can be given to `--model`: an alias, `hf:...`, `pip:...`, or for Ollama's the path.
    pub name: String,
    /// What people call it: the file's name, or Ollama's `name:tag`.
    pub title: String,
    /// Its file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
    /// Whose cache it is in.
    pub source: Cache,
}

/// Everything that is here, ours first, each cache sorted by name. What cannot be read is left out.
pub(crate) fn list(config: &HubConfig) -> Vec<LocalModel> {
    let mut models = Vec::new();
    for (source, mut found) in [
        (Cache::Taper, in_taper_cache(&config.taper_cache.join("pip"))),
        (Cache::Hub, in_hf_cache(&config.hf_cache)),
        (Cache::Ollama, config.ollama_models.as_deref().map(in_ollama).unwrap_or_default()),
    ] {
        found.sort();
        let found = found.into_iter().filter_map(|Found { name, title, path }| {
            let bytes = std::fs::metadata(&path).ok()?.len();
            Some(LocalModel { name, title, path, bytes, source })
        });
        models.extend(found);
    }
    models
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    name: String,
    title: String,
    path: PathBuf,
}

impl Found {
    fn new(name: String, path: PathBuf) -> Found {
        let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Found { name, title, path }
    }
}

/// `<package>/<version>/<file>.gguf`
fn in_taper_cache(folder: &Path) -> Vec<Found> {
    let files = local::gguf_files_below(folder).into_iter().filter(|path| !pip::in_staging(path));
    let named = files.filter_map(|path| {
        let parts = parts_below(&path, folder)?;
        let [package, version, _file] = parts.as_slice() else { return None };
        let name = ModelName::Pip { package: package.clone(), version: Some(version.clone()) };
        Some(Found::new(alias_or_name(&name), path))
    });
    named.collect()
}

/// `models--org--repo/snapshots/<commit>/<file>.gguf`
fn in_hf_cache(folder: &Path) -> Vec<Found> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let Ok(entry_name) = entry.file_name().into_string() else { continue };
        let Some(repo) = entry_name.strip_prefix("models--").map(|repo| repo.replacen("--", "/", 1)) else { continue };
        let main = std::fs::read_to_string(entry.path().join("refs/main")).unwrap_or_default();
        let snapshots = entry.path().join("snapshots");
        for path in local::gguf_files_below(&snapshots) {
            let Some(parts) = parts_below(&path, &snapshots) else { continue };
            let Some((commit, file)) = parts.split_first() else { continue };
            let file = Some(file.join("/"));
            let pinned = ModelName::Hf { repo: repo.clone(), file: file.clone(), revision: commit.clone() };
            let name = match alias_of(&pinned) {
                Some(alias) => alias.to_string(),
                None if main.trim() == commit => {
                    alias_or_name(&ModelName::Hf { repo: repo.clone(), file, revision: "main".into() })
                }
                None => pinned.to_string(),
            };
            models.push(Found::new(name, path));
        }
    }
    models
}

/// What an Ollama manifest says of its parts.
#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
}

/// `manifests/<host>/<owner>/<name>/<tag>` names a layer in `blobs/sha256-<hash>`.
fn in_ollama(folder: &Path) -> Vec<Found> {
    let mut models = Vec::new();
    let mut folders = vec![(folder.join("manifests"), 0)];
    while let Some((current, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&current).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth < 4 {
                    folders.push((path, depth + 1));
                }
                continue;
            }
            let manifest = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
            let layers = manifest.into_iter().flat_map(|manifest| manifest.layers);
            let weights = layers.filter(|layer| layer.media_type == "application/vnd.ollama.image.model");
            for layer in weights {
                let blob = folder.join("blobs").join(layer.digest.replace(':', "-"));
                if crate::name::is_safe(&layer.digest.replace(':', "-")) && blob.is_file() {
                    let title = ollama_title(&path);
                    models.push(Found { name: blob.display().to_string(), title, path: blob });
                }
            }
        }
    }
    models
}

/// `.../<name>/<tag>` is `name:tag`.
fn ollama_title(manifest: &Path) -> String {
    let part = |path: Option<&Path>| path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    format!("{}:{}", part(manifest.parent()), part(Some(manifest)))
}

fn parts_below(path: &Path, folder: &Path) -> Option<Vec<String>> {
    let below = path.strip_prefix(folder).ok()?;
    below.components().map(|part| part.as_os_str().to_str().map(str::to_string)).collect()
}

fn alias_of(name: &ModelName) -> Option<&'static str> {
    let is_source = |alias: &&crate::Alias| alias.sources.iter().any(|source| source.name() == *name);
    aliases().iter().find(is_source).map(|alias| alias.name)
}

fn alias_or_name(name: &ModelName) -> String {
    alias_of(name).map_or_else(|| name.to_string(), str::to_string)
}
