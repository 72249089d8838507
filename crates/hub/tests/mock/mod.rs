//! A model hub on a free port of this machine: as much of the protocol as hf-hub asks for, and every way to fail.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "every test target uses its own part of this, and fails by panicking"
)]

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use taper_hub::HubConfig;

/// The commit that every revision of a mock repository names unless told otherwise.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the mock has and how it misbehaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// `org/repo/revision/file` -> content.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Commits of revisions that are not [`COMMIT`].
    pub(crate) commits: BTreeMap<String, String>,
    /// The token without which everything is refused.
    pub(crate) token: Option<String>,
    /// Body bytes after which each transfer breaks off, first transfer first.
    pub(crate) cuts: Vec<usize>,
    /// After the cuts are used up, transfers are answered with this status.
    pub(crate) then_status: Option<u16>,
    /// What is sent is not what was promised.
    pub(crate) corrupt: bool,
    /// Ranges are ignored, as some proxies do.
    pub(crate) ignores_ranges: bool,
    /// Milliseconds before each transfer.
    pub(crate) delay_ms: u64,
}

/// One request: method and path, and its headers in lower case.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

pub(crate) struct MockHub {
    port: u16,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl MockHub {
    pub(crate) fn start(behaviour: Behaviour) -> MockHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let behaviour = Arc::new(Mutex::new(behaviour));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (shared, log) = (behaviour.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, log) = (shared.clone(), log.clone());
                // A client that hangs up in the middle is no concern of the hub.
                std::thread::spawn(move || serve(&stream.unwrap(), port, &shared, &log).ok());
            }
        });
        MockHub { port, behaviour, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The `range` header of every transfer (probes ask for the first byte only).
    pub(crate) fn transfers(&self) -> Vec<String> {
        let ranges = self.requests().into_iter().filter(|r| r.path.starts_with("/cdn/"));
        ranges.filter_map(|r| r.headers.get("range").cloned()).filter(|range| range != "bytes=0-0").collect()
    }
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes that no compression and no accident reproduces.
pub(crate) fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Caches in a temporary folder, the mock as endpoint.
pub(crate) fn config(folder: &Path, endpoint: &str) -> HubConfig {
    HubConfig {
        taper_cache: folder.join("taper"),
        hf_cache: folder.join("hf"),
        hf_endpoint: endpoint.to_string(),
        hf_token: None,
        offline: false,
        ollama_models: Some(folder.join("ollama")),
        python: "python3".into(),
        pip_env: Vec::new(),
    }
}

fn serve(stream: &TcpStream, port: u16, shared: &Mutex<Behaviour>, log: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_string();
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            match header.trim_end().split_once(':') {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_string()),
                None => break,
            };
        }
        let request = Request { path, headers };
        log.lock().unwrap().push(request.clone());
        if !answer(&request, stream, port, shared)? {
            return Ok(());
        }
    }
}

/// Answers one request; whether the connection is still good.
fn answer(request: &Request, stream: &TcpStream, port: u16, shared: &Mutex<Behaviour>) -> std::io::Result<bool> {
    let mut behaviour = shared.lock().unwrap().clone();
    let token = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let is_cdn = request.path.starts_with("/cdn/");
    if !is_cdn && behaviour.token.is_some() && behaviour.token.as_deref() != token {
        return status(stream, if token.is_some() { 403 } else { 401 });
    }
    if let Some(rest) = request.path.strip_prefix("/api/models/") {
        return info(rest, stream, &behaviour);
    }
    let parts: Vec<&str> = request.path.trim_start_matches('/').splitn(5, '/').collect();
    if let [org, repo, "resolve", revision, file] = parts.as_slice() {
        let Some(bytes) = behaviour.files.get(&format!("{org}/{repo}/{revision}/{file}")) else {
            return status(stream, 404);
        };
        let commit = behaviour.commits.get(*revision).map_or(COMMIT, String::as_str);
        let etag = sha256_hex(bytes);
        // Another name for this machine: as with the real hub, the token must not follow.
        let head = format!(
            "HTTP/1.1 302 Found\r\nx-repo-commit: {commit}\r\nx-linked-etag: \"{etag}\"\r\nlocation: http://localhost:{port}/cdn/{etag}\r\ncontent-length: 0\r\n\r\n"
        );
        return (&*stream).write_all(head.as_bytes()).map(|()| true);
    }
    if let Some(etag) = request.path.strip_prefix("/cdn/") {
        let Some(mut bytes) = behaviour.files.values().find(|bytes| sha256_hex(bytes) == etag).cloned() else {
            return status(stream, 404);
        };
        let is_probe = request.headers.get("range").is_some_and(|range| range == "bytes=0-0");
        let mut cut = None;
        if !is_probe {
            std::thread::sleep(std::time::Duration::from_millis(behaviour.delay_ms));
            let mut shared = shared.lock().unwrap();
            if !shared.cuts.is_empty() {
                cut = Some(shared.cuts.remove(0));
            } else if let Some(code) = shared.then_status {
                return status(stream, code);
            }
        }
        if behaviour.corrupt {
            bytes[0] ^= 1;
        }
        behaviour.ignores_ranges &= !is_probe;
        return transfer(request, stream, &bytes, cut, behaviour.ignores_ranges);
    }
    status(stream, 404)
}

fn info(rest: &str, mut stream: &TcpStream, behaviour: &Behaviour) -> std::io::Result<bool> {
    let Some((repo, revision)) = rest.split_once("/revision/") else { return status(stream, 404) };
    let prefix = format!("{repo}/{revision}/");
    let siblings: Vec<serde_json::Value> = behaviour
        .files
        .keys()
        .filter_map(|key| key.strip_prefix(&prefix))
        .map(|file| serde_json::json!({ "rfilename": file }))
        .collect();
    if siblings.is_empty() {
        return status(stream, 404);
    }
    let body = serde_json::json!({ "siblings": siblings, "sha": COMMIT }).to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).map(|()| true)
}

fn transfer(
    request: &Request,
    mut stream: &TcpStream,
    bytes: &[u8],
    cut: Option<usize>,
    ignores_ranges: bool,
) -> std::io::Result<bool> {
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (start, end) = match range {
        Some((start, end)) if !ignores_ranges => {
            (start.parse().unwrap(), end.parse().map_or(bytes.len(), |end: usize| end + 1))
        }
        _ => (0, bytes.len()),
    };
    if start >= bytes.len() {
        return status(stream, 416);
    }
    let code = if ignores_ranges { "200 OK" } else { "206 Partial Content" };
    let head = format!(
        "HTTP/1.1 {code}\r\ncontent-length: {}\r\ncontent-range: bytes {start}-{}/{}\r\n\r\n",
        end - start,
        end - 1,
        bytes.len()
    );
    stream.write_all(head.as_bytes())?;
    let body = &bytes[start..end];
    let sent = cut.unwrap_or(body.len()).min(body.len());
    stream.write_all(&body[..sent])?;
    Ok(sent == body.len())
}

fn status(mut stream: &TcpStream, code: u16) -> std::io::Result<bool> {
    stream.write_all(format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n").as_bytes()).map(|()| true)
}
