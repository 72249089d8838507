//! Who may ask: API keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
//!
//! With no key configured everyone may. Keys are compared in constant time, and no log, error or `Debug` output holds one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::body;
use crate::errors::ApiError;
use crate::hosts::HostGuard;
use crate::rate_limit::Allowance;
use crate::state::ServerState;
use crate::web;

/// Paths that need no key: what supervisors, load balancers and dashboards ask. So does the page, which holds nothing
/// of this server. Everything else needs one where there are keys.
const OPEN_ROUTES: &[&str] = &["/health", "/v1/health", "/ping", "/live", "/version", "/metrics"];

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Bytes of a key; longer ones are refused when the server starts.
const MAX_KEY_BYTES: usize = 512;

/// Whether a path needs no key, and is answered however busy the server is.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN_ROUTES.contains(&path) || web::is_page(path)
}

/// A key, which nothing prints.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ApiKey(Arc<str>);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(***)")
    }
}

/// Why keys cannot be used. It never says what a key is.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// The file cannot be read.
    #[error("the file of API keys {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A key cannot be sent in a header.
    #[error("{place} is not an API key: {reason}")]
    Invalid {
        /// Which key: a line of the file, or its place among those that were given.
        place: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file without keys would lock everyone out.
    #[error(
        "the file of API keys {path} has no keys; one stands on each line, and lines that begin with # are comments"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The keys of a server: those it was given, and those of a file that can be read again.
#[derive(Default)]
pub struct ApiKeys {
    given: Vec<ApiKey>,
    file: Option<PathBuf>,
    current: RwLock<Arc<[ApiKey]>>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeys").field("num", &self.all().len()).field("file", &self.file).finish()
    }
}

impl ApiKeys {
    /// Keys that were given, and the ones that stand in `file`.
    ///
    /// # Errors
    /// When the file cannot be read or has no keys, or a key could not be sent in a header.
    pub fn new(given: &[String], file: Option<PathBuf>) -> Result<Self, ApiKeysError> {
        let given = given.iter().enumerate().map(|(place, key)| checked(key, || format!("key {} given", place + 1)));
        let keys = Self { given: given.collect::<Result<_, _>>()?, file, current: RwLock::default() };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the file again; how many keys there are then.
    ///
    /// # Errors
    /// As [`ApiKeys::new`]; the keys stay as they were.
    pub fn reload(&self) -> Result<usize, ApiKeysError> {
        let mut keys = self.given.clone();
        if let Some(path) = &self.file {
            keys.extend(read(path)?);
        }
        let num = keys.len();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
        Ok(num)
    }

    /// Whether there is a file to read again.
    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether there are none. Reading the file again does not change that: a file without keys is refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> Arc<[ApiKey]> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whose request this is: `None` where no keys are asked for.
    fn caller(&self, headers: &HeaderMap) -> Result<Option<ApiKey>, ApiError> {
        let keys = self.all();
        if keys.is_empty() {
            return Ok(None);
        }
        let mut sent = sent_keys(headers).peekable();
        if sent.peek().is_none() {
            return Err(ApiError::no_api_key());
        }
        sent.find_map(|sent| find(&keys, sent)).map(Some).ok_or_else(ApiError::wrong_api_key)
    }
}

/// The keys that a request carries.
fn sent_keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearers = headers.get_all(header::AUTHORIZATION).into_iter().filter_map(|value| {
        let (scheme, rest) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
    });
    bearers.chain(headers.get_all(X_API_KEY).into_iter().map(|value| value.as_bytes().trim_ascii()))
}

/// Every key is compared with, to its end, whichever it is.
fn find(keys: &[ApiKey], sent: &[u8]) -> Option<ApiKey> {
    let mut found = None;
    for key in keys {
        if bool::from(key.0.as_bytes().ct_eq(sent)) {
            found = Some(key.clone());
        }
    }
    found
}

fn read(path: &Path) -> Result<Vec<ApiKey>, ApiKeysError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ApiKeysError::Unreadable { path: path.to_owned(), source })?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys = lines.map(|(index, line)| checked(line, || format!("line {} of {}", index + 1, path.display())));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    if keys.is_empty() { Err(ApiKeysError::Empty { path: path.to_owned() }) } else { Ok(keys) }
}

fn checked(key: &str, place: impl Fn() -> String) -> Result<ApiKey, ApiKeysError> {
    let reason = if key.is_empty() {
        "it is empty"
    } else if key.len() > MAX_KEY_BYTES {
        "it has more than 512 bytes"
    } else if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        "it holds a space, or something else that is no visible ASCII character"
    } else {
        return Ok(ApiKey(key.into()));
    };
    Err(ApiKeysError::Invalid { place: place(), reason })
}

/// How long the rest of a request may take that is refused for want of room.
const CROWDED_PATIENCE: Duration = Duration::from_secs(1);

/// Marks requests on connections beyond `max_connections`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowded;

/// How long the body of a request that is refused is read on. A connection too many does not stay for long.
pub(crate) fn patience(parts: &Parts, state: &ServerState) -> Duration {
    let is_crowded = parts.extensions.get::<Crowded>().is_some();
    if is_crowded { CROWDED_PATIENCE } else { state.timeouts().body_pause }
}

/// Lets a request through that may be answered: its path is open, or it calls the server by one of its names, its key is right,
/// there is room, and the key has requests left.
pub(crate) async fn check(State(state): State<ServerState>, request: Request, next: Next) -> Response {
    if is_open(request.uri().path()) {
        return next.run(request).await;
    }
    match may_ask(&state, &request) {
        Ok(left) => {
            let mut response = next.run(request).await;
            if let Some(left) = left {
                left.write_to(response.headers_mut());
            }
            response
        }
        Err(refusal) => {
            let (parts, body) = request.into_parts();
            body::linger(&parts.headers, body, state.work(), patience(&parts, &state));
            *refusal
        }
    }
}

/// What is left of the caller's rate after this request, if there is one; otherwise the answer that refuses it.
fn may_ask(state: &ServerState, request: &Request) -> Result<Option<Allowance>, Box<Response>> {
    let refused = |error: ApiError| Box::new(error.into_response());
    if let Some(guard) = request.extensions().get::<HostGuard>() {
        guard.check(request.uri(), request.headers()).map_err(refused)?;
        guard.check_origin(request.headers(), state.config().cors.as_ref()).map_err(refused)?;
    }
    let caller = state.config().api_keys.caller(request.headers()).map_err(refused)?;
    if request.extensions().get::<Crowded>().is_some() {
        return Err(refused(ApiError::busy("the server has as many connections as it takes; ask again in a moment")));
    }
    let Some(limiter) = state.rate_limiter() else { return Ok(None) };
    limiter.take(caller.as_ref(), Instant::now()).map(Some).map_err(|allowance| {
        let mut response = refused(ApiError::too_many_requests(limiter.rate(), allowance.retry_after));
        allowance.write_to(response.headers_mut());
        response
    })
}

#[cfg(test)]
pub(crate) fn test_keys(keys: &[&str]) -> Vec<ApiKey> {
    keys.iter().map(|&key| ApiKey(key.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn status(keys: &ApiKeys, pairs: &[(&'static str, &'static str)]) -> u16 {
        keys.caller(&headers(pairs)).map_or_else(|error| error.status().as_u16(), |_| 200)
    }

    #[test]
    fn either_header_brings_a_key() {
        let keys = ApiKeys::new(&["one".to_owned(), "two".to_owned()], None).unwrap();
        for good in [("authorization", "Bearer one"), ("authorization", "bearer  two "), ("x-api-key", "two")] {
            assert_eq!(status(&keys, &[good]), 200, "{good:?}");
        }
        for wrong in [
            ("authorization", "one"),
            ("authorization", "Basic one"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer on"),
            ("authorization", "Bearer onee"),
            ("x-api-key", ""),
            ("api-key", "one"),
        ] {
            assert_eq!(status(&keys, &[wrong]), 401, "{wrong:?}");
        }
        assert_eq!(status(&keys, &[("authorization", "Basic proxy"), ("x-api-key", "one")]), 200);
    }

    #[test]
    fn without_keys_everyone_may_ask() {
        assert_eq!(status(&ApiKeys::default(), &[]), 200);
        assert_eq!(status(&ApiKeys::default(), &[("x-api-key", "any")]), 200);
    }

    #[test]
    fn a_file_is_read_again_and_a_broken_one_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# of the team\n  first  \n\nsecond\n").unwrap();
        let keys = ApiKeys::new(&["given".to_owned()], Some(file.path().to_owned())).unwrap();
        assert_eq!(keys.all().len(), 3);
        std::fs::write(file.path(), "third\n").unwrap();
        assert_eq!(keys.reload().unwrap(), 2);
        for (key, expected) in [("first", 401), ("third", 200), ("given", 200)] {
            assert_eq!(status(&keys, &[("x-api-key", key)]), expected, "{key}");
        }
        for broken in ["", "# nothing\n", "two words\n", "fourth\n\u{fc}\n"] {
            std::fs::write(file.path(), broken).unwrap();
            let error = keys.reload().unwrap_err().to_string();
            assert!(error.contains(&file.path().display().to_string()) && !error.contains("words"), "{error}");
            assert_eq!(status(&keys, &[("x-api-key", "third")]), 200);
        }
    }

    #[test]
    fn nothing_prints_a_key() {
        let keys = ApiKeys::new(&["very-secret".to_owned()], None).unwrap();
        assert!(!format!("{keys:?} {:?}", keys.all()).contains("secret"));
        let error = ApiKeys::new(&["very secret".to_owned()], None).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
}
