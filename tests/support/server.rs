//! The real `taper serve` as a child process on a free port, and a small client for it.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A running server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    /// What it wrote to stderr, line by line.
    pub(crate) log: Receiver<String>,
}

/// The frames of a streamed answer.
pub(crate) struct Streamed {
    /// All `data:` frames but the last `[DONE]`.
    pub(crate) chunks: Vec<Value>,
    /// Whether `[DONE]` came.
    pub(crate) done: bool,
}

impl Server {
    /// Starts a server with `arguments` beside the model and a free port, and waits until it is ready.
    pub(crate) fn start(model: &Path, arguments: &[&str]) -> Server {
        Server::start_loading(model, arguments).ready()
    }

    /// As [`Server::start`], with a cache of its own.
    pub(crate) fn start_in(cache: &Path, model: &Path, arguments: &[&str]) -> Server {
        let mut taper = Command::new(env!("CARGO_BIN_EXE_taper"));
        taper.env("TAPER_CACHE", cache);
        Server::spawn(taper, model, arguments).ready()
    }

    /// Waits until it is ready.
    fn ready(self) -> Server {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.get("/health").0 != 200 {
            assert!(Instant::now() < deadline, "the server was not ready within two minutes");
            std::thread::sleep(Duration::from_millis(50));
        }
        self
    }

    /// Starts a server and returns as soon as it listens.
    pub(crate) fn start_loading(model: &Path, arguments: &[&str]) -> Server {
        Server::spawn(Command::new(env!("CARGO_BIN_EXE_taper")), model, arguments)
    }

    fn spawn(mut taper: Command, model: &Path, arguments: &[&str]) -> Server {
        // A server takes the memory of its whole KV cache, and many tests run servers at once.
        let mut child = taper
            .env("TAPER_KV_CACHE_SIZE", "256MiB")
            .args(["serve", "--port", "0", "--model"])
            .arg(model)
            .args(arguments)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("taper starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut first = String::new();
        stderr.read_line(&mut first).expect("stderr is text");
        let url = first.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("the first line names no address: {first}"));
        let url = url.trim_end_matches(',').to_string();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Server { child, url, log }
    }

    /// GET; status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let mut response = agent().get(format!("{}{path}", self.url)).call().expect("the server answers");
        (response.status().as_u16(), response.body_mut().read_json().expect("a JSON body"))
    }

    /// GET of what is not JSON; the body.
    pub(crate) fn get_text(&self, path: &str) -> String {
        let mut response = agent().get(format!("{}{path}", self.url)).call().expect("the server answers");
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.body_mut().read_to_string().expect("a text")
    }

    /// POST of a JSON body; status and body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post(&self.url, path, body)
    }

    /// POST with `stream: true`; reads frames until the stream ends or `keep_going` says no (then the connection is dropped).
    pub(crate) fn stream(&self, path: &str, body: &Value, keep_going: impl FnMut(&Value) -> bool) -> Streamed {
        stream(&self.url, path, body, keep_going)
    }

    /// Reads the log until a line holds `text`; all that was read, that line last.
    pub(crate) fn log_until(&self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|error| panic!("{error}: no {text:?} in {lines:#?}"));
            let is_last = line.contains(text);
            lines.push(line);
            if is_last {
                return lines;
            }
        }
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server still runs after {limit:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the process is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A POST, free of the server's lifetime so that threads can use it; status and body.
pub(crate) fn post(url: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut response = agent().post(format!("{url}{path}")).send_json(body).expect("the server answers");
    (response.status().as_u16(), response.body_mut().read_json().expect("a JSON body"))
}

/// A streamed POST, free of the server's lifetime so that threads can use it.
pub(crate) fn stream(url: &str, path: &str, body: &Value, mut keep_going: impl FnMut(&Value) -> bool) -> Streamed {
    let mut body = body.clone();
    body["stream"] = Value::Bool(true);
    let response = agent().post(format!("{url}{path}")).send_json(&body).expect("the server answers");
    assert_eq!(response.status().as_u16(), 200, "{body}");
    let mut streamed = Streamed { chunks: Vec::new(), done: false };
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line.expect("the stream is UTF-8 and ends well");
        let Some(data) = line.strip_prefix("data: ") else {
            assert!(line.is_empty() || line.starts_with(':'), "not an event-stream line: {line}");
            continue;
        };
        if data == "[DONE]" {
            streamed.done = true;
            continue;
        }
        assert!(!streamed.done, "a frame after [DONE]: {data}");
        let chunk: Value = serde_json::from_str(data).expect("frames are JSON");
        let more = keep_going(&chunk);
        streamed.chunks.push(chunk);
        if !more {
            return streamed;
        }
    }
    streamed
}

impl Streamed {
    /// The text of choice 0, for both endpoints.
    pub(crate) fn text(&self) -> String {
        let piece = |chunk: &Value| {
            let choice = &chunk["choices"][0];
            choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()).unwrap_or("").to_string()
        };
        self.chunks.iter().map(piece).collect()
    }

    /// All finish reasons that were sent.
    pub(crate) fn finish_reasons(&self) -> Vec<String> {
        let reason = |chunk: &Value| chunk["choices"][0]["finish_reason"].as_str().map(str::to_string);
        self.chunks.iter().filter_map(reason).collect()
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(300)))
        .build()
        .into()
}
