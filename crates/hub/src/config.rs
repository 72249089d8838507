//! Where caches are and how sources are reached, read from the environment once.

use crate::Error;
use std::ffi::OsString;
use std::path::PathBuf;

/// Every setting of a [`crate::Hub`]. [`HubConfig::from_env`] is what users get; tests write their own.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Our own cache: `TAPER_CACHE`, else `$XDG_CACHE_HOME/taper`, else `~/.cache/taper`.
    pub taper_cache: PathBuf,
    /// The hub's cache, shared with its Python client: `HF_HUB_CACHE`, else `$HF_HOME/hub`, else
    /// `~/.cache/huggingface/hub`.
    pub hf_cache: PathBuf,
    /// `HF_ENDPOINT`, else the public hub.
    pub hf_endpoint: String,
    /// `HF_TOKEN`, else the content of `HF_TOKEN_PATH` or of the token file in `HF_HOME`.
    pub hf_token: Option<String>,
    /// `HF_HUB_OFFLINE`: nothing is fetched from anywhere.
    pub offline: bool,
    /// Where Ollama keeps its models: `OLLAMA_MODELS`, else `~/.ollama/models`.
    pub ollama_models: Option<PathBuf>,
    /// The interpreter that runs pip.
    pub python: PathBuf,
    /// Variables set for pip on top of our own environment.
    pub pip_env: Vec<(OsString, OsString)>,
}

impl HubConfig {
    /// Reads the environment.
    pub fn from_env() -> Result<HubConfig, Error> {
        Self::from_vars(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Reads variables through a function, so that tests need not touch the process.
    fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<HubConfig, Error> {
        let home = || var("HOME").map(PathBuf::from);
        let user_cache = || var("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home()?.join(".cache")));
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());

        let taper_cache = var("TAPER_CACHE").map(PathBuf::from).or_else(|| Some(user_cache()?.join("taper")));
        let hf_home = var("HF_HOME").map(PathBuf::from).or_else(|| Some(user_cache()?.join("huggingface")));
        let hf_cache = var("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(hf_home.as_ref()?.join("hub")));
        let token_file =
            var("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| hf_home.as_ref().map(|home| home.join("token")));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file?).ok());

        Ok(HubConfig {
            taper_cache: taper_cache.ok_or(Error::NoHome)?,
            hf_cache: hf_cache.ok_or(Error::NoHome)?,
            hf_endpoint: text("HF_ENDPOINT").map_or_else(
                || "https://huggingface.co".to_string(),
                |endpoint| endpoint.trim_end_matches('/').to_string(),
            ),
            hf_token: token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty()),
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            ollama_models: var("OLLAMA_MODELS").map(PathBuf::from).or_else(|| Some(home()?.join(".ollama/models"))),
            python: PathBuf::from("python3"),
            pip_env: Vec::new(),
        })
    }
}

/// The values that the Python client takes for yes.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<HubConfig, Error> {
        HubConfig::from_vars(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn caches_stand_in_the_home_folder_by_default() {
        let config = config(&[("HOME", "/home/u")]).unwrap();
        assert_eq!(config.taper_cache, PathBuf::from("/home/u/.cache/taper"));
        assert_eq!(config.hf_cache, PathBuf::from("/home/u/.cache/huggingface/hub"));
        assert_eq!(config.ollama_models, Some(PathBuf::from("/home/u/.ollama/models")));
        assert!(!config.offline && config.hf_token.is_none());
    }

    #[test]
    fn the_nearest_variable_wins() {
        let vars = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub")];
        assert_eq!(config(&vars).unwrap().hf_cache, PathBuf::from("/hub"));
        assert_eq!(config(&vars[..3]).unwrap().hf_cache, PathBuf::from("/hf/hub"));
        assert_eq!(config(&vars[..2]).unwrap().hf_cache, PathBuf::from("/x/huggingface/hub"));
        assert_eq!(config(&vars[..2]).unwrap().taper_cache, PathBuf::from("/x/taper"));
    }

    #[test]
    fn a_token_comes_from_the_variable_or_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let from_file = config(&[("HOME", "/h"), ("HF_HOME", home)]).unwrap();
        assert_eq!(from_file.hf_token.as_deref(), Some("from-file"));
        let from_variable = config(&[("HOME", "/h"), ("HF_HOME", home), ("HF_TOKEN", "from-variable")]).unwrap();
        assert_eq!(from_variable.hf_token.as_deref(), Some("from-variable"));
    }

    #[test]
    fn without_any_home_the_error_says_what_to_set() {
        assert!(config(&[]).unwrap_err().to_string().contains("TAPER_CACHE"));
    }
}
