//! The real binary as a service: its sockets, its log, and how it stops.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;

use serde_json::{Value, json};
use server::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn folder_with_model() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("there is room");
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel::default().to_gguf()).expect("there is room");
    (folder, model)
}

fn completion(max_tokens: usize) -> Value {
    json!({ "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0 })
}

#[test]
fn a_request_is_one_line_of_json_with_what_it_cost() {
    let (_folder, model) = folder_with_model();
    let server = Server::start(&model, &["--ctx", "64", "--log-format", "json"]);
    let (status, answer) = server.post("/v1/completions", &completion(5));
    assert_eq!(status, 200, "{answer}");
    let line = server.log_until("\"path\":\"/v1/completions\"").pop().expect("it is there");
    let line = serde_json::from_str::<Value>(&line).expect("it is JSON")["fields"].clone();
    assert_eq!((&line["message"], &line["method"], &line["status"]), (&json!("request"), &json!("POST"), &json!(200)));
    assert_eq!((&line["completion_tokens"], &line["complete"]), (&json!(5), &json!(true)));
    assert_eq!(line["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 100), "{line}");
    for name in ["seconds", "ttft_s", "queue_s", "prefill_s", "decode_s", "sample_s", "detokenize_s"] {
        assert!(line[name].as_f64().is_some_and(|seconds| seconds >= 0.0), "{name} in {line}");
    }
    assert_eq!(line["cached_tokens"], 0);
    for name in ["drafted_tokens", "accepted_tokens", "recomputed_rows"] {
        assert!(line[name].is_u64(), "{name} in {line}");
    }
    for name in ["cache_n", "draft_n", "draft_n_accepted", "queue_ms", "sample_ms", "detokenize_ms", "recomputed_rows"]
    {
        assert!(answer["timings"][name].is_number(), "{name} in {answer}");
    }
}

#[test]
fn health_turns_before_requests_are_refused_and_the_end_is_a_success() {
    let (_folder, model) = folder_with_model();
    // Long enough for the requests below on any machine: a second signal ends it.
    let mut server = Server::start(&model, &["--ctx", "64", "--drain-delay", "600"]);
    server.signal("TERM");
    let deadline = Instant::now() + PATIENCE;
    while server.get("/health").0 == 200 {
        assert!(Instant::now() < deadline, "health does not turn");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.get("/health").1["status"], "server_draining");
    assert_eq!(server.post("/v1/completions", &completion(5)).0, 200, "still taken");
    server.signal("TERM");
    assert_eq!(server.wait(PATIENCE).code(), Some(130), "a second signal does not wait");

    let mut server = Server::start(&model, &["--ctx", "64", "--drain-delay", "0.1", "--drain-timeout", "30"]);
    server.signal("TERM");
    assert_eq!(server.wait(PATIENCE).code(), Some(0));
}

/// A server on a Unix socket; killed when dropped.
struct OnSocket(Child);

impl OnSocket {
    /// Starts it and waits until it listens.
    fn start(model: &Path, socket: &Path) -> OnSocket {
        OnSocket::with_context(model, socket, "64")
    }

    fn with_context(model: &Path, socket: &Path, ctx: &str) -> OnSocket {
        let mut child = spawn(model, socket, ctx);
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut first = String::new();
        stderr.read_line(&mut first).expect("stderr is text");
        assert!(first.starts_with("listening on unix:"), "{first}");
        // Somebody must read what it writes.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        OnSocket(child)
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
}

impl Drop for OnSocket {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(model: &Path, socket: &Path, ctx: &str) -> Child {
    let mut taper = Command::new(env!("CARGO_BIN_EXE_taper"));
    taper.env_remove("TAPER_HOST").env_remove("TAPER_PORT").env("TAPER_KV_CACHE_SIZE", "64MiB");
    taper.args(["serve", "--ctx", ctx, "--model"]).arg(model).arg("--unix-socket").arg(socket);
    taper.stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null()).spawn().expect("taper starts")
}

fn health(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn a_unix_socket_is_this_users_replaced_when_stale_and_removed_at_the_end() {
    let (folder, model) = folder_with_model();
    let socket = folder.path().join("taper.sock");
    let server = OnSocket::start(&model, &socket);
    assert!(health(&socket).starts_with("HTTP/1.1 "));
    assert_eq!(std::fs::metadata(&socket).expect("it is there").permissions().mode() & 0o777, 0o600);

    let mut second = spawn(&model, &socket, "64");
    let mut said = String::new();
    second.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    assert_eq!(second.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("another program listens there") && said.contains("taper.sock"), "{said}");

    // Killed, so that the file stays.
    drop(server);
    assert!(socket.exists());
    let mut server = OnSocket::start(&model, &socket);
    assert!(health(&socket).starts_with("HTTP/1.1 "));
    server.signal("TERM");
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
    assert!(!socket.exists(), "the file goes with the server");
}

#[test]
fn a_chat_and_a_benchmark_come_through_a_unix_socket() {
    let folder = tempfile::tempdir().expect("there is room");
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel { context: 512, ..TinyModel::default() }.to_gguf()).expect("there is room");
    let socket = folder.path().join("taper.sock");
    let _server = OnSocket::with_context(&model, &socket, "512");
    let deadline = Instant::now() + PATIENCE;
    while !health(&socket).starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < deadline, "it is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    let url = format!("unix:{}", socket.display());
    let command = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taper"));
        command.args(words).args(["--url", &url]).current_dir(folder.path()).env("HOME", folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    let mut child =
        command(&["chat", "--temperature", "0", "--max-tokens", "5", "--ignore-eos"]).spawn().expect("it starts");
    child.stdin.take().expect("it is piped").write_all(b"hi\n/show\n").expect("it reads");
    let chat = child.wait_with_output().expect("it ends");
    let stderr = text(&chat.stderr);
    assert!(chat.status.success() && stderr.contains("5 tokens") && stderr.contains(&format!("at {url}")), "{stderr}");

    let load =
        ["bench", "serve", "-n", "3", "--warmup", "0", "--prompt-tokens", "16", "--output-tokens", "2", "--json"];
    let bench = command(&load).output().expect("it ends");
    let stdout = text(&bench.stdout);
    assert!(bench.status.success(), "{}", text(&bench.stderr));
    let row: Value = serde_json::from_str(&stdout).expect("a row");
    assert_eq!((&row["requests"], &row["errors"], &row["params"]["url"]), (&json!(3), &json!(0), &json!(url)));
}
