//! `taper chat --url`: a conversation with a server, against one that is made here and says what it is told to, and against `taper
//! serve`. stdin is a pipe, which makes every line a message; only Ctrl-C needs a terminal.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod server;
mod support;

use rexpect::session::spawn_with_options;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use taper_testkit::tiny::TinyModel;

/// Longer than anything here takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A request as it arrived.
#[derive(Debug, Clone)]
struct Request {
    /// `POST /v1/chat/completions`.
    what: String,
    /// With names in lower case.
    headers: Vec<String>,
    body: Value,
}

/// A server that answers with what a function writes.
struct Fake {
    url: String,
    requests: Receiver<Request>,
}

impl Fake {
    fn start(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                let _ = sender.send(request.clone());
                answer(&request, &mut stream);
            }
        });
        Fake { url, requests }
    }

    /// One on a Unix socket that answers with what a function says.
    fn at_socket(path: &Path, answer: impl Fn(&Request) -> String + Send + 'static) -> Fake {
        let listener = UnixListener::bind(path).unwrap();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                let text = answer(&request);
                let _ = sender.send(request);
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Fake { url: format!("unix:{}", path.display()), requests }
    }

    /// One that has the model `m` and answers each message with the next of these streams.
    fn with_streams(streams: &[String]) -> Fake {
        let answer = with_models(&["m"], streams);
        Fake::start(move |request, stream| drop(stream.write_all(answer(request).as_bytes())))
    }

    /// The bodies of the requests for answers so far.
    fn bodies(&self) -> Vec<Value> {
        self.requests
            .try_iter()
            .filter(|request| request.what.starts_with("POST"))
            .map(|request| request.body)
            .collect()
    }
}

/// What a server says that has these models and answers each message with the next of these streams.
fn with_models(models: &[&str], streams: &[String]) -> impl Fn(&Request) -> String + use<> {
    let left = std::sync::Mutex::new(streams.iter().rev().cloned().collect::<Vec<_>>());
    let models: Vec<Value> = models.iter().map(|model| json!({ "id": model })).collect();
    let list = json!({ "data": models }).to_string();
    move |request| match request.what.as_str() {
        "GET /v1/models" => respond(200, "application/json", &list),
        _ => left.lock().unwrap().pop().expect("as many answers as messages"),
    }
}

fn read(stream: impl Read) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0).map(|_| line.trim_end().to_owned())
    };
    let what = line()?.rsplit_once(' ')?.0.to_owned();
    let headers: Vec<String> =
        std::iter::from_fn(|| line().filter(|line| !line.is_empty())).map(|line| line.to_lowercase()).collect();
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request { what, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

fn respond(status: u16, kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A stream of pieces of text, with the end that OpenAI's have.
fn streamed(pieces: &[&str]) -> String {
    let text = |piece: &&str| event(&json!({ "choices": [{ "index": 0, "delta": { "content": piece } }] }));
    let end = event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    let details = json!({ "cached_tokens": 4 });
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": details });
    let usage = event(&json!({ "choices": [], "usage": usage }));
    let events: String = pieces.iter().map(text).collect();
    respond(200, "text/event-stream", &format!(": a comment\n\n{events}{end}{usage}data: [DONE]\n\n"))
}

fn event(json: &Value) -> String {
    format!("data: {json}\n\n")
}

/// `taper chat`, with none of this machine's settings.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = support::taper();
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        if ["TAPER_", "OPENAI_"].iter().any(|prefix| upper.starts_with(prefix))
            || upper.ends_with("_PROXY")
            || upper == "NO_COLOR"
        {
            command.env_remove(&name);
        }
    }
    command.arg("chat").args(arguments).current_dir(home).env("HOME", home).env("XDG_STATE_HOME", home);
    command
}

/// Says lines to a chat and waits for its end.
fn say(mut command: Command, lines: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    child.wait_with_output().unwrap()
}

fn chat(fake: &Fake, arguments: &[&str], lines: &str) -> (String, String) {
    let home = tempfile::tempdir().unwrap();
    let output = say(command(home.path(), &[&["--url", &fake.url], arguments].concat()), lines);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    (stdout, stderr)
}

#[test]
fn a_conversation_goes_to_the_server_message_by_message() {
    let fake = Fake::with_streams(&[streamed(&["Hel", "lo."]), streamed(&["Again."])]);
    let (stdout, stderr) = chat(&fake, &["--system", "Be brief."], "hi\n/set temperature 0.5\ngo \\\non\n/stats\n");
    assert_eq!(stdout, "Hello.\nAgain.\n");
    for words in ["3 tokens", "prompt of 9", "4 of it cached", "temperature is 0.5", "2 answers, 6 tokens"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let bodies = fake.bodies();
    assert_eq!(bodies.len(), 2);
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let mut messages = vec![message("system", "Be brief."), message("user", "hi")];
    let expected = json!({
        "model": "m", "messages": messages, "stream": true, "stream_options": { "include_usage": true },
        "temperature": 0.8, "top_p": 0.95,
    });
    assert_eq!(bodies[0], expected, "the sampler as far as OpenAI knows it, and nothing else that was not asked for");
    messages.extend([message("assistant", "Hello."), message("user", "go \non")]);
    assert_eq!(bodies[1]["messages"], Value::from(messages));
    assert_eq!((&bodies[1]["temperature"], &bodies[1]["top_p"]), (&json!(0.5), &json!(0.95)));
}

/// The fields of the sampler in a request.
fn sampler(body: &Value) -> Value {
    let names = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens"];
    names.iter().filter_map(|name| Some(((*name).to_owned(), body.get(name)?.clone()))).collect()
}

/// A server that lists its models so and answers everything.
fn listing(list: Option<Value>) -> Fake {
    Fake::start(move |request, stream| {
        let text = match (request.what.as_str(), &list) {
            ("GET /v1/models", Some(list)) => respond(200, "application/json", &list.to_string()),
            ("GET /v1/models", None) => respond(404, "application/json", "{}"),
            _ => streamed(&["x"]),
        };
        let _ = stream.write_all(text.as_bytes());
    })
}

#[test]
fn a_server_of_ours_is_asked_for_the_local_sampler_as_far_as_it_has_none_of_its_own() {
    let card = |defaults: Value| json!({ "data": [{ "id": "m", "owned_by": "taper", "aliases": ["n"], "sampling_defaults": defaults }] });
    let local = json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05 });
    let own = json!({
        "temperature": { "value": 0.6, "from": "model" }, "top_k": { "value": 20, "from": "model" },
        "repetition_penalty": { "value": 1.1, "from": "setting" },
    });
    let rest = json!({ "top_p": 0.95, "min_p": 0.05 });
    let asked = |list: Option<Value>, arguments: &[&str]| {
        let fake = listing(list);
        chat(&fake, arguments, "hi\n");
        sampler(&fake.bodies()[0])
    };
    assert_eq!(asked(Some(card(json!({}))), &[]), local);
    assert_eq!(asked(Some(card(json!({}))), &["--model-name", "n"]), local, "by an alias");
    assert_eq!(asked(Some(card(own.clone())), &[]), rest);
    assert_eq!(asked(Some(card(own.clone())), &["--model-name", "other"]), json!({}), "nothing is known of it");
    let set = json!({ "temperature": 0.1, "top_p": 0.95, "min_p": 0.0, "max_tokens": 5 });
    assert_eq!(asked(Some(card(own)), &["--temperature", "0.1", "--min-p", "0", "--max-tokens", "5"]), set);
    // Others get what OpenAI's interface has, and who says nothing of itself gets nothing.
    let other = json!({ "data": [{ "id": "m", "owned_by": "vllm" }] });
    assert_eq!(asked(Some(other.clone()), &[]), json!({ "temperature": 0.8, "top_p": 0.95 }));
    let asked_for = json!({ "temperature": 0.8, "top_k": 7, "top_p": 0.95 });
    assert_eq!(asked(Some(other), &["--top-k", "7"]), asked_for, "and what its user wants");
    assert_eq!(asked(None, &["--model-name", "m"]), json!({}));
}

#[test]
fn a_server_that_takes_no_temperature_gets_none_that_nobody_asked_for() {
    let refusal = r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.8 with this model.","param":"temperature"}}"#;
    let no = || respond(400, "application/json", refusal);
    let fake = Fake::with_streams(&[no(), streamed(&["one"]), streamed(&["two"]), no()]);
    let (stdout, stderr) = chat(&fake, &[], "hi\nhi\n/set temperature 0.3\nhi\n");
    assert_eq!(stdout, "one\ntwo\n", "{stderr}");
    let expected = [json!({ "temperature": 0.8, "top_p": 0.95 }), json!({}), json!({}), json!({ "temperature": 0.3 })];
    assert_eq!(fake.bodies().iter().map(sampler).collect::<Vec<_>>(), expected);
    assert!(stderr.contains("Unsupported value: 'temperature'"), "what the user asks for is the user's: {stderr}");
}

#[test]
fn a_key_and_a_model_are_sent_where_they_are_given() {
    let authorization = |name: &str, arguments: &[&str]| {
        let fake = Fake::with_streams(&[streamed(&["x"])]);
        let home = tempfile::tempdir().unwrap();
        let mut command = command(home.path(), &[&["--url", &fake.url, "--model-name", "big"], arguments].concat());
        command.env(name, "from-the-environment");
        assert!(say(command, "hi\n").status.success());
        let mut requests = std::iter::from_fn(|| fake.requests.recv_timeout(LIMIT).ok());
        let request = requests.find(|request| request.what == "POST /v1/chat/completions").unwrap();
        assert_eq!(request.body["model"], "big");
        request.headers.into_iter().find(|header| header.starts_with("authorization:"))
    };
    assert_eq!(authorization("TAPER_API_KEY", &[]).as_deref(), Some("authorization: bearer from-the-environment"));
    assert_eq!(authorization("OPENAI_API_KEY", &[]).as_deref(), Some("authorization: bearer from-the-environment"));
    assert_eq!(authorization("TAPER_API_KEY", &["--api-key", "k"]).as_deref(), Some("authorization: bearer k"));
    assert_eq!(authorization("OPENAI_API_KEY", &["--api-key", ""]), None);
    assert_eq!(authorization("NOTHING", &[]), None);
}

#[test]
fn thoughts_are_shown_beside_the_answer_and_not_kept() {
    let thought = |text: &str, finish: Value| {
        event(&json!({ "choices": [{ "delta": { "reasoning_content": text }, "finish_reason": finish }] }))
    };
    let text = event(&json!({ "choices": [{ "delta": { "content": "Yes." }, "finish_reason": "stop" }] }));
    let stream = |events: String| respond(200, "text/event-stream", &(events + "data: [DONE]\n\n"));
    let fake = Fake::with_streams(&[
        stream(thought("far too long", json!("length"))),
        stream(thought("hm", Value::Null) + &text),
        streamed(&["x"]),
    ]);
    let (stdout, stderr) = chat(&fake, &[], "hi\nhi\nhi\n");
    assert_eq!(stdout, "\nYes.\nx\n");
    for words in ["far too long\n", "hm\n", "cut at the limit; the conversation is as it was"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let messages: Vec<Value> = fake.bodies().into_iter().map(|body| body["messages"].clone()).collect();
    let lens: Vec<usize> = messages.iter().map(|messages| messages.as_array().unwrap().len()).collect();
    assert_eq!(lens, [1, 1, 3], "what was cut in thought was not said");
    assert_eq!(messages[2][1]["content"], "Yes.");
}

#[test]
fn thoughts_step_back_on_a_terminal() {
    let thought = event(&json!({ "choices": [{ "delta": { "reasoning_content": "hm" } }] }));
    let text = event(&json!({ "choices": [{ "delta": { "content": "Yes." }, "finish_reason": "stop" }] }));
    let fake = Fake::with_streams(&[respond(200, "text/event-stream", &format!("{thought}{text}data: [DONE]\n\n"))]);
    let home = tempfile::tempdir().unwrap();
    let mut command = command(home.path(), &["--url", &fake.url]);
    command.env("TERM", "xterm");
    let options = rexpect::reader::Options::new().timeout_ms(Some(LIMIT.as_millis() as u64));
    let mut terminal = spawn_with_options(command, options).unwrap();
    terminal.exp_string("Ctrl-D leaves").unwrap();
    terminal.exp_string("> ").unwrap();
    terminal.send("hi\r").unwrap();
    terminal.flush().unwrap();
    terminal.exp_string("\u{1b}[2mhm\u{1b}[0m\r\nYes.\r\n").unwrap();
    terminal.exp_string("> ").unwrap();
    terminal.send_control('d').unwrap();
    terminal.exp_eof().unwrap();
}

#[test]
fn figures_are_the_servers_where_it_tells_them() {
    let text = event(&json!({ "choices": [{ "delta": { "content": "Yes." } }] }));
    let end = |timings: Value| {
        let end = event(&json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }], "timings": timings }));
        let usage = json!({ "prompt_tokens": 80, "completion_tokens": 11 });
        let usage = event(&json!({ "choices": [], "usage": usage, "timings": timings }));
        respond(200, "text/event-stream", &format!("{text}{end}{usage}data: [DONE]\n\n"))
    };
    let timings = |guesses: u32, right: u32| {
        end(json!({
            "cache_n": 64, "prompt_n": 16, "predicted_n": 11, "predicted_ms": 500.0, "draft_n": guesses, "draft_n_accepted": right,
        }))
    };
    let fake = Fake::with_streams(&[timings(5, 3), timings(0, 0), timings(7, 7)]);
    let (_, stderr) = chat(&fake, &[], "hi\nhi\nhi\n/stats\n");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("[11 tokens")).collect();
    assert_eq!(lines.len(), 3, "{stderr}");
    for line in &lines {
        assert!(line.starts_with("[11 tokens, 20.0 tokens/s, first token after "), "{line}");
        assert!(line.contains("prompt of 80, 64 of it cached"), "{line}");
    }
    assert!(lines[0].ends_with(", 3 of 5 guesses right]") && lines[2].ends_with(", 7 of 7 guesses right]"), "{stderr}");
    assert!(lines[1].ends_with("cached]"), "who does not guess has nothing right or wrong: {stderr}");
    let total = "3 answers, 33 tokens, 20.0 tokens/s on average, prompts of 240 in all, 192 of them cached, 10 of 12 guesses right";
    assert!(stderr.contains(total), "{stderr}");
    assert!(fake.bodies().iter().all(|body| body.get("timings_per_token").is_none()));
}

#[test]
fn whether_to_think_is_sent_as_variables_of_the_template() {
    let fake = Fake::with_streams(&["a", "b", "c"].map(|text| streamed(&[text])));
    let lines = "hi\n/set think on\n/set think\nhi\n/set think maybe\n/set think auto\nhi\n";
    let (_, stderr) = chat(&fake, &["--think", "off"], lines);
    let told: Vec<Value> = fake.bodies().iter().map(|body| body["chat_template_kwargs"].clone()).collect();
    assert_eq!(told, [json!({ "enable_thinking": false }), json!({ "enable_thinking": true }), Value::Null]);
    for words in ["think is on]", "think is on: whether", "think is on, off or auto, not \"maybe\"", "think is auto]"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}

#[test]
fn files_go_into_the_next_message_and_wait_until_it_is_answered() {
    let error = respond(500, "application/json", r#"{"error":"no"}"#);
    let fake = Fake::with_streams(&[error, streamed(&["one"]), streamed(&["two"]), streamed(&["three"])]);
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(home.path().join(name), text).unwrap();
    write("a b.txt", "alpha\n".as_bytes());
    write("beta", "beta\n\n".as_bytes());
    write("bytes", b"\xff");
    write("empty", b"\n");
    let lines = "/read a\\ b.txt\n/read none\n/read .\n/read bytes\n/read empty\n/read\n/read beta\n/show\nfirst\nsecond\nthird\n\
                 /read beta\n/clear\nfourth\n/read beta\n";
    let output = say(command(home.path(), &["--url", &fake.url]), lines);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "one\ntwo\nthree\n", "{stderr}");
    let said: Vec<String> = fake
        .bodies()
        .iter()
        .map(|body| body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, ["first\nalpha\nbeta", "second\nalpha\nbeta", "third", "fourth"]);
    for words in [
        "behind the next message: a b.txt; 6 bytes",
        "behind the next message: a b.txt, beta; 12 bytes",
        "cannot read none: No such file",
        "cannot read .: it is a folder",
        "cannot read bytes: it is not UTF-8",
        "cannot read empty: nothing is in it",
        "/read needs a FILE",
        "next message with  a b.txt, beta",
        "no message came after /read, so beta was not said",
    ] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}

#[test]
fn the_models_of_a_server_are_listed_and_take_turns() {
    let several = with_models(&["small", "big"], &["a", "b", "c"].map(|text| streamed(&[text])));
    let fake = Fake::start(move |request, stream| drop(stream.write_all(several(request).as_bytes())));
    let lines = "hi\n/model\n/model big\nhi\n/model bug\n/model gpt\n/model\nhi\n";
    let (stdout, stderr) = chat(&fake, &["--model-name", "small"], lines);
    assert_eq!(stdout, "a\nb\nc\n");
    let asked: Vec<(Value, usize)> =
        fake.bodies().iter().map(|body| (body["model"].clone(), body["messages"].as_array().unwrap().len())).collect();
    assert_eq!(asked, [("small".into(), 1), ("big".into(), 3), ("big".into(), 5)], "the conversation goes on");
    for words in [
        "* small\n  big\n",
        "  small\n* big\n",
        "big answers from now on",
        "no model \"bug\", it has small, big; did you mean big?",
        "no model \"gpt\", it has small, big]",
    ] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let silent = Fake::start(|_, stream| drop(stream.write_all(respond(404, "text/plain", "not here").as_bytes())));
    let (_, stderr) = chat(&silent, &["--model-name", "m"], "/model\n/model n\n/show\n");
    assert_eq!(stderr.matches("404").count(), 2, "{stderr}");
    assert!(stderr.contains("m, at http://"), "{stderr}");
}

#[test]
fn a_socket_is_talked_to_as_an_address_is() {
    let home = tempfile::tempdir().unwrap();
    let fake =
        Fake::at_socket(&home.path().join("s"), with_models(&["m"], &[streamed(&["Hel", "lo."]), streamed(&["x"])]));
    // A relative path, and a proxy that is not for it.
    let mut chat = command(home.path(), &["--url", "unix:s"]);
    chat.env("TAPER_API_KEY", "ours").env("HTTP_PROXY", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1");
    let output = say(chat, "hi\n/show\nhi\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("m, at unix:s"), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Hello.\nx\n");
    let requests: Vec<Request> = fake.requests.try_iter().collect();
    let what: Vec<&str> = requests.iter().map(|request| request.what.as_str()).collect();
    assert_eq!(what, ["GET /v1/models", "POST /v1/chat/completions", "POST /v1/chat/completions"]);
    for request in &requests {
        for header in ["host: localhost", "authorization: bearer ours"] {
            assert!(request.headers.iter().any(|sent| sent == header), "{header} in {request:?}");
        }
    }
    for (url, words) in [("unix:none", "cannot reach unix:none"), ("unix:", "has no path of a socket")] {
        let output = say(command(home.path(), &["--url", url]), "");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(words), "{stderr}");
    }
}

#[test]
fn an_error_is_shown_with_the_servers_words_and_the_chat_goes_on() {
    let error = |status, body: &str| respond(status, "application/json", body);
    let half = event(&json!({ "choices": [{ "delta": { "content": "half" } }] }));
    let broken = half.clone() + &event(&json!({ "error": { "message": "the model fell over" } }));
    let fake = Fake::with_streams(&[
        error(400, r#"{"error":{"message":"max_tokens: must be at least 1"}}"#),
        error(401, r#"{"error":"no key"}"#),
        error(502, "<html>bad gateway</html>"),
        respond(200, "text/event-stream", "data: nonsense\n\n"),
        streamed(&["fine"]),
        respond(200, "text/event-stream", &broken),
        respond(200, "text/event-stream", &half),
        streamed(&["at last"]),
    ]);
    let (stdout, stderr) = chat(&fake, &[], &"hi\n".repeat(8));
    assert_eq!(stdout, "fine\nhalf\nhalf\nat last\n");
    for words in [
        "400 Bad Request: max_tokens: must be at least 1",
        "no key (--api-key",
        "<html>bad gateway</html>",
        "not JSON",
        "the model fell over",
        "ended the stream early",
    ] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let said: Vec<usize> = fake.bodies().iter().map(|body| body["messages"].as_array().unwrap().len()).collect();
    assert_eq!(said, [1, 1, 1, 1, 1, 3, 5, 7], "what was not answered was not said; what was answered in part was");
}

#[test]
fn a_server_that_cannot_be_used_is_told_before_anything_is_typed() {
    let home = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| {
        let output = say(command(home.path(), arguments), "");
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (status, stderr) = refused(&["--url", &format!("http://{closed}")]);
    assert!(
        status == Some(1) && stderr.contains("cannot reach http://127.0.0.1") && stderr.contains("--model-name"),
        "{stderr}"
    );
    assert!(refused(&["--url", "localhost:1"]).1.contains("expected an address such as"));
    let several = Fake::start(|_, stream| {
        let models = r#"{"data":[{"id":"a"},{"id":"b"}]}"#;
        stream.write_all(respond(200, "application/json", models).as_bytes()).unwrap();
    });
    assert!(refused(&["--url", &several.url]).1.contains("2 models; --model-name chooses one of a, b"));
    let (status, stderr) = refused(&["--url", &several.url, "--threads", "2"]);
    assert!(status == Some(2) && stderr.contains("--threads"), "{stderr}");
    let (status, stderr) = refused(&["--model-name", "m"]);
    assert!(status == Some(2) && stderr.contains("--url"), "{stderr}");
}

#[test]
fn a_pipe_gets_what_was_said_and_a_look_only_where_it_is_asked_for() {
    let answer = "# T\n**b** `c` \u{1b}[2J\u{9b}m\n";
    let told = |arguments: &[&str]| chat(&Fake::with_streams(&[streamed(&[answer])]), arguments, "hi\n").0;
    assert_eq!(told(&[]), format!("{answer}\n"));
    assert_eq!(told(&["--color", "never"]), format!("{answer}\n"));
    let colored = told(&["--color", "always"]);
    assert!(
        colored.contains("\u{1b}[1mb") && colored.contains("␛[2J") && !colored.contains("\u{1b}[2J"),
        "{colored:?}"
    );
}

#[test]
fn conversations_are_saved_loaded_and_answered_anew() {
    let fake = Fake::with_streams(&[streamed(&["one"]), streamed(&["two"]), streamed(&["three"])]);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("bad.json"), "{\"messages\": [{\"role\": \"user\"}]}").unwrap();
    let lines = "/system S\nhi\n/set seed 7\n/save a.json\n/regen\n/save b.json\n/load bad.json\n/load none.json\n/save\n\
                 /save c.json\n/clear\n/set seed default\n/load a.json\n/save d.json\nmore\n/clear now\n";
    let output = say(command(home.path(), &["--url", &fake.url]), lines);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "one\ntwo\nthree\n", "{stderr}");
    let file = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(home.path().join(name)).unwrap()).unwrap()
    };
    let saved = |answer: &str| {
        json!({
            "model": "m",
            "messages": [
                { "role": "system", "content": "S" },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": answer },
            ],
            "seed": 7,
        })
    };
    assert_eq!(file("a.json"), saved("one"));
    assert_eq!(file("b.json"), saved("two"));
    assert_eq!(file("c.json"), saved("two"), "a file that cannot be loaded changes nothing");
    assert_eq!(file("d.json"), saved("one"), "with its parameters");
    let messages: Vec<usize> = fake.bodies().iter().map(|body| body["messages"].as_array().unwrap().len()).collect();
    assert_eq!(messages, [2, 2, 4]);
    for words in [
        "messages[0] has no `content`",
        "cannot load none.json",
        "/save needs a FILE",
        "/clear takes nothing behind it",
    ] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}

#[test]
fn a_file_that_is_not_the_chats_own_is_replaced_only_where_that_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    std::fs::write(path("notes"), "dear diary").unwrap();
    let fake = Fake::with_streams(&[streamed(&["one"]), streamed(&["two"]), streamed(&["three"])]);
    let told = |lines: &str| {
        let output = say(command(home.path(), &["--url", &fake.url]), lines);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let refusals = |stderr: &str| stderr.matches("not as this chat left it; /save! ").count();

    let stderr = told("hi\n/save notes\n/save talk\n/save talk\n");
    assert_eq!(refusals(&stderr), 1, "{stderr}");
    assert!(
        stderr.contains("cannot write notes: it is there") && stderr.contains("/save! notes replaces it"),
        "{stderr}"
    );
    assert_eq!(std::fs::read_to_string(path("notes")).unwrap(), "dear diary");
    assert_eq!(std::fs::metadata(path("talk")).unwrap().permissions().mode() & 0o777, 0o600, "nobody else reads it");

    let stderr = told("hi\n/save talk\n/save! notes\n/save notes\n");
    assert_eq!(refusals(&stderr), 1, "another chat's conversation is not this one's to replace: {stderr}");
    assert!(std::fs::read_to_string(path("talk")).unwrap().contains("one"));
    assert!(std::fs::read_to_string(path("notes")).unwrap().contains("two"));

    let stderr = told("/load talk\nmore\n/save talk\n");
    assert_eq!(refusals(&stderr), 0, "a conversation goes on in its file: {stderr}");
    assert!(std::fs::read_to_string(path("talk")).unwrap().contains("three"));
}

#[test]
fn a_pipe_whose_reader_leaves_ends_the_saving_and_not_the_chat() {
    let home = tempfile::tempdir().unwrap();
    let pipe = home.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let fake = Fake::with_streams(&[streamed(&["one"]), streamed(&["two"])]);
    // There before anybody writes.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut reader = std::fs::File::options().read(true).custom_flags(nonblocking).open(&pipe).unwrap();
    // More than a pipe holds, so that it is still being written when the reader leaves.
    let message = "a".repeat(1 << 20);
    let lines = format!("{message}\n/save pipe\n/save pipe\nhi\n");
    let command = command(home.path(), &["--url", &fake.url]);
    let chat = std::thread::spawn(move || say(command, &lines));
    let begun = Instant::now();
    while !matches!(reader.read(&mut [0; 1]), Ok(1)) {
        assert!(begun.elapsed() < LIMIT, "nothing is written");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(reader);
    let output = chat.join().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "one\ntwo\n", "{stderr}");
    assert!(stderr.contains("cannot write pipe: Broken pipe") && stderr.contains("nobody reads"), "{stderr}");
}

#[test]
fn a_chat_in_a_pipe_fails_where_nothing_was_answered() {
    let error = || respond(500, "application/json", r#"{"error":"no"}"#);
    let status = |streams: &[String], lines: &str| {
        let fake = Fake::with_streams(streams);
        let home = tempfile::tempdir().unwrap();
        let output = say(command(home.path(), &["--url", &fake.url]), lines);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.contains("taper: no message was answered"), !output.status.success(), "{stderr}");
        output.status.code().unwrap()
    };
    assert_eq!(status(&[error(), error()], "hi\nhi\n"), 1);
    assert_eq!(status(&[error()], "hi\n/exit\n"), 1);
    assert_eq!(status(&[error(), streamed(&["one"])], "hi\nhi\n"), 0, "one of two");
    assert_eq!(status(&[], "/stats\n"), 0, "nothing was said");
}

#[test]
fn a_served_model_answers_as_it_does_over_its_api() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel { context: 256, ..TinyModel::default() }.to_gguf()).unwrap();
    let server = server::Server::start(&model, &["--threads", "1"]);
    let body = json!({
        "messages": [{ "role": "user", "content": "hi" }], "temperature": 0, "max_tokens": 12, "ignore_eos": true,
    });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let arguments = ["--url", &server.url, "--temperature", "0", "--max-tokens", "12", "--ignore-eos"];
    let output = say(command(home.path(), &arguments), "hi\n/set max_tokens 100000\nhi\n");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let expected = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(stdout.starts_with(&format!("{expected}\n")), "{stdout:?} does not begin with {expected:?}");
    assert!(stderr.contains("12 tokens") && stderr.contains("cut at the limit"), "{stderr}");
}

#[test]
fn an_answer_goes_on_where_it_ended() {
    let cut = |text: &str| {
        let cut = event(&json!({ "choices": [{ "delta": { "content": text }, "finish_reason": "length" }] }));
        respond(200, "text/event-stream", &(cut + "data: [DONE]\n\n"))
    };
    let refused = respond(400, "application/json", r#"{"error":"cannot be continued"}"#);
    let fake = Fake::with_streams(&[cut("One,"), refused, cut(" two"), streamed(&[", three."]), streamed(&["Four."])]);
    let home = tempfile::tempdir().unwrap();
    let lines = "/continue\nhi\n/continue\n/continue\n/continue\n/save a.json\nmore\n/continue now\n";
    let output = say(command(home.path(), &["--url", &fake.url]), lines);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "One,\n two\n, three.\nFour.\n", "{stderr}");
    for words in
        ["no answer to go on with", "cannot be continued; the conversation is as it was", "takes nothing behind it"]
    {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let (user, assistant) =
        (json!({ "role": "user", "content": "hi" }), |text| json!({ "role": "assistant", "content": text }));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(home.path().join("a.json")).unwrap()).unwrap();
    assert_eq!(file["messages"], json!([user, assistant("One, two, three.")]));
    let bodies = fake.bodies();
    assert_eq!(bodies.len(), 5);
    for (body, begun) in bodies[1..4].iter().zip(["One,", "One,", "One, two"]) {
        assert_eq!(body["messages"], json!([user, assistant(begun)]));
        assert_eq!((&body["continue_final_message"], &body["add_generation_prompt"]), (&json!(true), &json!(false)));
    }
    assert_eq!((bodies[4]["messages"].as_array().unwrap().len(), bodies[4].get("continue_final_message")), (3, None));
}

#[test]
fn an_answer_goes_on_here_as_it_does_on_a_server() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel { context: 256, ..TinyModel::default() }.to_gguf()).unwrap();
    let server = server::Server::start(&model, &["--threads", "1"]);
    let common = ["--temperature", "0", "--max-tokens", "12", "--ignore-eos"];
    let chat = |arguments: &[&str], file: &str| {
        let lines = format!("hi\n/continue\n/save {file}\n");
        let output = say(command(home.path(), &[&common, arguments].concat()), &lines);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(stderr.matches("12 tokens").count(), 2, "{stderr}");
        let file = std::fs::read_to_string(home.path().join(file)).unwrap();
        let messages = serde_json::from_str::<Value>(&file).unwrap()["messages"].clone();
        assert_eq!(messages.as_array().unwrap().len(), 2, "{messages}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), messages)
    };
    let here = chat(&["--model", model.to_str().unwrap(), "--threads", "1"], "here.json");
    let there = chat(&["--url", &server.url], "there.json");
    assert_eq!(here, there);
}

#[test]
fn ctrl_c_drops_the_stream_and_not_the_chat() {
    let (sender, gone) = channel();
    let sender = std::sync::Mutex::new(sender);
    let begun = event(&json!({ "choices": [{ "delta": { "content": "begun" } }] }));
    let fake = Fake::start(move |request, stream| {
        if request.what.starts_with("GET") {
            stream.write_all(respond(404, "application/json", "{}").as_bytes()).unwrap();
            return;
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        stream.write_all(format!("{head}{begun}").as_bytes()).unwrap();
        // Nothing more comes; the client's end of the connection is what ends it.
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let read = stream.read(&mut [0; 1]);
        sender
            .lock()
            .unwrap()
            .send(matches!(read, Ok(0)) || read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset))
            .unwrap();
    });
    let home = tempfile::tempdir().unwrap();
    let mut command = command(home.path(), &["--url", &fake.url, "--model-name", "m"]);
    command.env("TERM", "xterm");
    let options =
        rexpect::reader::Options::new().timeout_ms(Some(LIMIT.as_millis() as u64)).strip_ansi_escape_codes(true);
    let mut terminal = spawn_with_options(command, options).unwrap();
    terminal.exp_string("Ctrl-D leaves").unwrap();
    terminal.exp_string("\r> \r").unwrap();
    terminal.send("hi\r").unwrap();
    terminal.flush().unwrap();
    terminal.exp_string("begun").unwrap();
    terminal.send_control('c').unwrap();
    terminal.exp_string("[stopped after ").unwrap();
    assert!(gone.recv_timeout(LIMIT).unwrap(), "the server sees the client leave");
    terminal.exp_string("\r> \r").unwrap();
    terminal.send_control('d').unwrap();
    terminal.exp_eof().unwrap();
    assert!(format!("{:?}", terminal.process().wait().unwrap()).ends_with(", 0)"));
}
