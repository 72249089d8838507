//! `taper bench serve` through the real binary, on `taper serve` with a tiny model and on a server that is made here: what is counted,
//! what is written, and how it ends. No figure of speed is judged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod server;
mod support;

use serde_json::Value;
use server::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

/// Longer than anything here takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// `taper bench serve`, with none of this machine's settings.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = support::taper();
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        if ["TAPER_", "OPENAI_"].iter().any(|prefix| upper.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.args(["bench", "serve"]).args(arguments).current_dir(folder).env("HOME", folder).stdin(Stdio::null());
    command
}

fn bench(folder: &TempDir, arguments: &[&str]) -> Output {
    command(folder.path(), arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A server with a tiny model, in a folder of its own.
fn served(arguments: &[&str]) -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel { context: 2048, ..TinyModel::default() }.to_gguf()).unwrap();
    let server = Server::start(&model, &[&["--threads", "1"], arguments].concat());
    (folder, server)
}

/// What every level on a server that answers everything must add up to.
fn check(row: &Value, requests: u64, output_tokens: u64) {
    assert_eq!((&row["requests"], &row["errors"], &row["cut_off"]), (&requests.into(), &0.into(), &0.into()), "{row}");
    assert_eq!(row["completion_tokens"], requests * output_tokens, "{row}");
    let figure =
        |pointer: &str| row.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} in {row}"));
    let near = |found: f64, expected: f64| {
        assert!((found - expected).abs() <= 0.02 * expected + 2e-3, "{found} and {expected} in {row}");
    };
    near(figure("/tok_s") * figure("/wall_s"), (requests * output_tokens) as f64);
    near(figure("/prompt_tokens_mean") * requests as f64, figure("/prompt_tokens"));
    // Tokens that are no whole characters have no text, and an answer of them no first text.
    for name in ["ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"].into_iter().filter(|name| !row[*name]["p50"].is_null()) {
        let at = |quantile: &str| figure(&format!("/{name}/{quantile}"));
        assert!(at("min") <= at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{name} in {row}");
        assert!(at("min") <= at("mean") && at("mean") <= at("max"), "{name} in {row}");
    }
    assert!(row["ttft_ms"]["max"].as_f64() <= row["e2e_ms"]["max"].as_f64(), "{row}");
    assert!(figure("/e2e_ms/max") <= 1e3 * figure("/wall_s") + 0.01, "{row}");
}

#[test]
fn a_served_model_is_measured_at_every_load() {
    let (folder, server) = served(&[]);
    let files = ["--json", "rows.jsonl", "--csv", "rows.csv", "--html", "page.html"];
    let load =
        ["--concurrency", "1,4", "--requests", "6", "--warmup", "1", "--prompt-tokens", "64", "--output-tokens", "8"];
    let how = ["--url", &server.url, "--ignore-eos", "--limit", "e2e=1000s", "--seed", "7"];
    let output = bench(&folder, &[&files[..], &load, &how].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["LOAD", "TTFT P50", "GOODPUT", "concurrency 1", "concurrency 4", "by /tokenize"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let rows = rows(&file("rows.jsonl"));
    assert_eq!(rows.len(), 2);
    let model = server.get("/v1/models").1["data"][0]["id"].clone();
    for row in &rows {
        check(row, 6, 8);
        assert_eq!((&row["good"], &row["params"]["seed"], &row["bench"]), (&6.into(), &7.into(), &"serve".into()));
        assert_eq!((&row["params"]["model"], &row["params"]["loop"]), (&model, &"closed".into()));
        // As many words as make so many tokens.
        let prompt = row["prompt_tokens_mean"].as_f64().unwrap();
        assert!((48.0..=80.0).contains(&prompt), "{row}");
    }
    let csv = file("rows.csv");
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3);
    let at =
        |name: &str| lines[0].iter().position(|column| *column == name).unwrap_or_else(|| panic!("{name} in {csv}"));
    assert!(at("ttft_ms_p99") > at("requests"));
    let page = file("page.html");
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() >= 4, "{page}");
    assert!(page.contains("Time to first token, ms") && page.contains("Over time at concurrency 4"), "{page}");
    assert!(!page.contains("src=") && !page.contains("href="), "self-contained");
}

#[test]
fn chat_in_an_open_loop_takes_lengths_as_they_are_drawn() {
    let (folder, server) = served(&[]);
    let load = ["--rate", "200", "--arrivals", "burst", "--max-concurrency", "3", "--requests", "5", "--warmup", "0"];
    let how = ["--endpoint", "chat", "--output-tokens", "4..9", "--prompt-tokens", "normal:60,5", "--ignore-eos"];
    let output =
        bench(&folder, &[&["--url", &server.url, "--json", "--shared-prefix", "20"][..], &load, &how].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows(text(&output.stdout));
    let row = &rows[0];
    assert_eq!((&row["requests"], &row["errors"], rows.len()), (&5.into(), &0.into(), 1), "{row}");
    let tokens = row["completion_tokens"].as_u64().unwrap();
    assert!((20..=45).contains(&tokens) && row["max_tokens_mean"].as_f64() == Some(tokens as f64 / 5.0), "{row}");
    let params = &row["params"];
    assert_eq!(
        (&params["loop"], &params["rate"], &params["arrivals"]),
        (&"open".into(), &200.0.into(), &"burst".into())
    );
    assert!(row["lateness_ms"]["max"].as_f64() <= row["e2e_ms"]["max"].as_f64(), "{row}");
    assert!(text(&output.stderr).contains("beside them"), "what is no row goes to stderr");
}

#[test]
fn every_endpoint_is_measured() {
    let (folder, server) = served(&[]);
    let load = ["--url", &server.url, "-n", "4", "--warmup", "0", "--prompt-tokens", "48", "--json"];
    for endpoint in ["messages", "responses", "embeddings"] {
        let has_answer = endpoint != "embeddings";
        let answer: &[&str] = if has_answer { &["--output-tokens", "5", "--ignore-eos"] } else { &[] };
        let output = bench(&folder, &[&load[..], &["--endpoint", endpoint], answer].concat());
        assert!(output.status.success(), "{endpoint}: {}", text(&output.stderr));
        let row = &rows(text(&output.stdout))[0];
        check(row, 4, if has_answer { 5 } else { 0 });
        assert_eq!(row["params"]["endpoint"], endpoint);
        let prompt = row["prompt_tokens_mean"].as_f64().unwrap();
        assert!((32.0..=64.0).contains(&prompt), "{row}");
    }
    let refused = bench(&folder, &["--url", &server.url, "--endpoint", "embeddings", "--ignore-eos"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("embeddings have no tokens of answers"), "{}", text(&refused.stderr));
}

#[test]
fn a_rate_may_grow_and_come_in_bunches() {
    let (folder, server) = served(&[]);
    let load =
        ["--ramp-up", "linear:50-400", "--burstiness", "0.5", "-n", "6", "--warmup", "0", "--output-tokens", "2"];
    let output = bench(&folder, &[&["--url", &server.url, "--ignore-eos", "--json"][..], &load].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = &rows(text(&output.stdout))[0];
    check(row, 6, 2);
    let params = &row["params"];
    assert_eq!((&params["ramp_from"], &params["rate"]), (&50.0.into(), &400.0.into()));
    assert_eq!((&params["arrivals"], &params["burstiness"]), (&"gamma".into(), &0.5.into()));
    assert_eq!(row["case"], "50 to 400 requests/s");
}

#[test]
fn prompts_of_a_file_are_asked_in_their_order() {
    let (folder, server) = served(&[]);
    let lines = "{\"prompt\": \"one\", \"max_tokens\": 3}\n{\"prompt\": [1, 2, 3, 4], \"max_tokens\": 5}\n";
    std::fs::write(folder.path().join("prompts.jsonl"), lines).unwrap();
    let arguments =
        ["--url", &server.url, "--prompts", "prompts.jsonl", "-n", "4", "--warmup", "0", "--ignore-eos", "--json"];
    let output = bench(&folder, &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = &rows(text(&output.stdout))[0];
    assert_eq!((&row["completion_tokens"], &row["params"]["prompts"]), (&16.into(), &2.into()), "{row}");
    assert!(text(&output.stderr).contains("had the 2 prompts of the file"), "{}", text(&output.stderr));

    std::fs::write(folder.path().join("prompts.jsonl"), "{\"prompt\": \"one\"}\n{\"text\": \"two\"}\n").unwrap();
    let output = bench(&folder, &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("prompts.jsonl: line 2"), "{}", text(&output.stderr));
}

#[test]
fn a_key_is_sent_and_written_nowhere() {
    let (folder, server) = served(&["--api-key", "secret-key"]);
    let load = ["--url", &server.url, "-n", "2", "--warmup", "0", "--output-tokens", "2", "--prompt-tokens", "40"];
    let files = ["--json", "rows.jsonl", "--csv", "rows.csv", "--html", "page.html"];
    let refused = bench(&folder, &load);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("HTTP 401"), "{}", text(&refused.stderr));
    let output = bench(&folder, &[&load[..], &files, &["--api-key", "secret-key"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written =
        ["rows.jsonl", "rows.csv", "page.html"].map(|name| std::fs::read_to_string(folder.path().join(name)).unwrap());
    let all = [text(&output.stdout), text(&output.stderr), &written[0], &written[1], &written[2]].concat();
    assert!(!all.contains("secret"), "{all}");
    let by_variable = command(folder.path(), &load).env("TAPER_API_KEY", "secret-key,other").output().unwrap();
    assert!(by_variable.status.success(), "{}", text(&by_variable.stderr));
}

#[test]
fn what_cannot_be_is_told_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{closed}");
    for (arguments, words) in [
        (&["--url", &nobody][..], "cannot connect"),
        (&["--url", "localhost:1"][..], "http://localhost:8080"),
        (&["--url", "http://me:secret@host"][..], "--api-key"),
        (&["--url", &nobody, "--csv", "missing/file"][..], "cannot write missing/file"),
        (&["--url", &nobody, "--rate", "inf", "--duration", "1"][..], "--requests"),
        (&["--url", &nobody, "--prompts", "missing"][..], "cannot read missing"),
    ] {
        let output = bench(&folder, arguments);
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words) && !stderr.contains("secret"), "{arguments:?}: {stderr}");
    }
}

/// A server that answers `healthy` requests, after which each is answered by `then`.
fn fake(healthy: usize, then: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Ends with the test's process.
    std::thread::spawn(move || {
        let mut answered = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let path = read(&stream);
            let respond = |kind: &str, body: &str| {
                format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{body}")
            };
            let text = match path.as_str() {
                "/v1/models" => respond("application/json", "{\"data\": [{\"id\": \"m\\u001b[2J\"}]}"),
                "/v1/completions" if answered < healthy => {
                    answered += 1;
                    let events = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n\
                                  data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
                    respond("text/event-stream", events)
                }
                "/v1/completions" => {
                    then(&mut stream);
                    continue;
                }
                _ => "HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(text.as_bytes());
        }
    });
    url
}

/// The path of a request, all of which is read.
fn read(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let _ = reader.read_exact(&mut vec![0; length]);
    path
}

#[test]
fn the_status_is_1_where_no_request_succeeds_and_0_where_any_does() {
    let folder = tempfile::tempdir().unwrap();
    let busy = |stream: &mut TcpStream| {
        let body = "{\"error\": {\"message\": \"too \\u001b[2Jbusy\"}}";
        let head =
            format!("HTTP/1.1 429 X\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all((head + body).as_bytes());
    };
    // One shows that requests are answered, two count words.
    let run = |healthy: usize| {
        let url = fake(3 + healthy, busy);
        bench(&folder, &["--url", &url, "-n", "3", "--warmup", "0", "--output-tokens", "1", "--json", "rows.jsonl"])
    };
    let output = run(0);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("no request succeeded") && stderr.contains("HTTP 429"), "{stderr}");
    assert!(!stderr.contains('\u{1b}') && !text(&output.stdout).contains('\u{1b}'), "nothing steers the terminal");
    let row = &rows(&std::fs::read_to_string(folder.path().join("rows.jsonl")).unwrap())[0];
    assert_eq!((&row["requests"], &row["errors_by_kind"]["HTTP 429"]), (&0.into(), &3.into()), "written all the same");

    let output = run(1);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("2 failed (HTTP 429), the first by: HTTP 429: too \\u{1b}[2Jbusy"), "{table}");
}

#[test]
fn ctrl_c_ends_it_with_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (sender, stuck) = channel::<()>();
    let held = std::sync::Mutex::new(Vec::new());
    // Three come before, one is measured, and the next is never answered.
    let url = fake(4, move |stream| {
        held.lock().unwrap().push(stream.try_clone().unwrap());
        tell(&sender);
    });
    let arguments = ["--url", &url, "--concurrency", "1,2", "-n", "5", "--warmup", "0", "--output-tokens", "1"];
    let child = command(folder.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    stuck.recv_timeout(LIMIT).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["CUT OFF", "1 request broken off", "stopped by Ctrl-C at concurrency 1; 1 further not begun"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
}

fn tell(sender: &Sender<()>) {
    let _ = sender.send(());
}
