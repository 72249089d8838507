//! Endpoints of other servers that are not here, each with the reason: a client that asks for one shall hear more than that there is
//! nothing. Those of Ollama's that manage models are in `api::ollama`.

use crate::errors::ApiError;

/// Beginnings of paths, each whole or followed by a slash, and why there is nothing.
const PATHS: &[(&[&str], &str)] = &[
    (
        &["/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank", "/score", "/v1/score"],
        "there is no reranking model: the models of this server generate texts and embeddings",
    ),
    (&["/infill"], "the models of this server do not fill in what lies between two texts"),
    (
        &["/slots"],
        "requests have no fixed places here whose cache could be saved; --cache-dir keeps the cache of all prompts across restarts",
    ),
    (&["/v1/audio", "/v1/images"], "the models of this server read and write texts alone"),
    (&["/v1/load_lora_adapter", "/v1/unload_lora_adapter"], NO_ADAPTERS),
];

/// Methods that paths of this server do not take, and why.
const METHODS: &[(&str, &str, &str)] = &[
    ("POST", "/props", "the settings of a server are those it was started with; each request says its own parameters"),
    ("POST", "/lora-adapters", NO_ADAPTERS),
];

const NO_ADAPTERS: &str = "this server has no adapters";

/// The refusal of a path that other servers have.
pub(crate) fn at(path: &str) -> Option<ApiError> {
    let is_below = |base: &&str| path.strip_prefix(*base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let (_, reason) = PATHS.iter().find(|(bases, _)| bases.iter().any(is_below))?;
    Some(ApiError::unsupported("path", format!("{path} is not supported: {reason}")))
}

/// Why a path does not take a method that it has on other servers.
pub(crate) fn why_not(method: &str, path: &str) -> Option<&'static str> {
    METHODS.iter().find(|row| (row.0, row.1) == (method, path)).map(|row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_servers_are_known_with_what_is_below_them() {
        for path in ["/rerank", "/v1/reranking", "/infill", "/slots/0", "/v1/audio/transcriptions"] {
            let error = at(path).unwrap_or_else(|| panic!("{path}"));
            assert!(error.status() == 400 && error.message().contains(path), "{}", error.message());
        }
        for path in ["/reranked", "/v1", "/v1/slots", "/", "/v1/audiobooks"] {
            assert!(at(path).is_none(), "{path}");
        }
        assert!(why_not("POST", "/props").is_some());
        assert!(why_not("GET", "/props").is_none() && why_not("POST", "/live").is_none());
    }
}
