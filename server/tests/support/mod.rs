//! A server on an engine without weights, and small clients for it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use taper_engine::stub::{StubRunner, stub_limits};
use taper_engine::{Engine, EngineConfig, EngineHandle, Runner as _, RunnerLimits};
use taper_server::{ServedModel, ServerConfig, ServerState, Timeouts, app, run};
use taper_text::{ChatTemplate, Tokenizer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tower::ServiceExt;

pub(crate) const MODEL: &str = "tiny:1m";
pub(crate) const FINGERPRINT: &str = "taper-1.2.3-0123456789ab-stub";
/// What the stub answers to every prompt.
pub(crate) const REPLY: &str = "Ünï §k 42!";
/// Where clients may see a line end: besides the two of the format, those of Python's `splitlines` that JSON lets stand.
const ENDS_OF_LINES: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
/// The longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Vocabulary {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
}

/// The byte vocabulary and ChatML template of the tiny test models: a byte's token has the byte's number.
pub(crate) fn vocabulary() -> Vocabulary {
    vocabulary_of(&taper_testkit::tiny::TinyModel::default())
}

/// A ready server whose conversations are written by `template` and answered by `runner`.
pub(crate) fn state_with_template(runner: StubRunner, template: &str) -> ServerState {
    let tokenizer = vocabulary().tokenizer;
    let context_len = runner.limits().context_len;
    let engine = Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    state.set_ready(ServedModel {
        id: MODEL.to_owned(),
        tokenizer,
        template: Some(ChatTemplate::from_source("test", template).unwrap()),
        engine,
        context_len,
        created_unix: 0,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    state
}

pub(crate) fn vocabulary_of(model: &taper_testkit::tiny::TinyModel) -> Vocabulary {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), model.to_gguf()).unwrap();
    let checkpoint = taper_checkpoint::Checkpoint::open(file.path()).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_metadata(checkpoint.metadata()).unwrap());
    let template = ChatTemplate::from_metadata(checkpoint.metadata()).unwrap().expect("tiny models have a template");
    Vocabulary { tokenizer, template }
}

pub(crate) fn limits() -> RunnerLimits {
    stub_limits(vocabulary().tokenizer.vocab_size())
}

pub(crate) fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

pub(crate) fn end_token() -> u32 {
    vocabulary().tokenizer.end_of_generation()[0]
}

/// A stub that answers every prompt with `reply`, byte by byte.
pub(crate) fn replying(reply: &str) -> StubRunner {
    StubRunner::replying(limits(), bytes_of(reply), end_token())
}

/// A stub that writes this, as far as it may.
pub(crate) fn willing_to_say(limits: RunnerLimits, reply: &'static str) -> StubRunner {
    let end = end_token() as usize;
    let Vocabulary { tokenizer, .. } = vocabulary();
    StubRunner::with_logits(limits, move |tokens, logits| {
        let reply = reply.as_bytes();
        // What a grammar leaves no choice about may be tokens of several bytes.
        let last = &tokens[tokens.len().saturating_sub(reply.len())..];
        let text: Vec<u8> =
            last.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap_or_default()).copied().collect();
        let ends_with = |len: usize| text.ends_with(&reply[..len]);
        let written = (0..=reply.len()).rev().find(|&len| ends_with(len)).unwrap_or(0);
        logits[reply.get(written).map_or(end, |byte| usize::from(*byte))] = 30.0;
        // Otherwise something that ends what is open.
        logits[usize::from(b'}')] += 5.0;
    })
}

/// A stub that thinks for ever: an `m` for each token. Once its thoughts are over, it answers "Yes.".
pub(crate) fn musing(limits: RunnerLimits) -> StubRunner {
    let (tokenizer, end) = (vocabulary().tokenizer, end_token());
    StubRunner::new(limits, move |tokens| {
        let bytes = |token: &u32| tokenizer.token_bytes(*token).unwrap_or_default().to_vec();
        let said: Vec<u8> = tokens.iter().flat_map(bytes).collect();
        let said = String::from_utf8_lossy(&said);
        let answer = said.rsplit("assistant").next().unwrap_or_default().trim_start();
        let next = match answer.split_once("</think>") {
            Some((_, text)) => b"Yes.".get(text.trim().len()),
            None if answer.starts_with("<think>") => Some(&b'm'),
            None => b"<think>".get(answer.len()),
        };
        next.map_or(end, |&byte| byte.into())
    })
}

/// A stub that never ends by itself.
pub(crate) fn babbling() -> StubRunner {
    StubRunner::new(limits(), |tokens| u32::from(b'a') + (tokens.len() % 26) as u32)
}

pub(crate) fn state_with(runner: StubRunner, config: EngineConfig, timeouts: Timeouts) -> (ServerState, EngineHandle) {
    state_of(vocabulary(), runner, config, ServerConfig { timeouts, ..ServerConfig::default() })
}

pub(crate) fn state_with_config(
    runner: StubRunner,
    config: EngineConfig,
    server: ServerConfig,
) -> (ServerState, EngineHandle) {
    state_of(vocabulary(), runner, config, server)
}

/// [`state_with_config`] and another vocabulary.
pub(crate) fn state_of(
    vocabulary: Vocabulary,
    runner: StubRunner,
    config: EngineConfig,
    server: ServerConfig,
) -> (ServerState, EngineHandle) {
    let Vocabulary { tokenizer, template } = vocabulary;
    let context_len = limits().context_len;
    let engine = Engine::start(Box::new(runner), tokenizer.clone(), config);
    let state = ServerState::with_config(server);
    state.set_aliases(vec!["tiny".to_owned()]);
    state.set_ready(ServedModel {
        id: MODEL.to_owned(),
        tokenizer,
        template: Some(template),
        engine: engine.clone(),
        context_len,
        created_unix: 1_700_000_000,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    (state, engine)
}

/// A ready server that answers [`REPLY`].
pub(crate) fn state() -> ServerState {
    state_with(replying(REPLY), EngineConfig::default(), Timeouts::default()).0
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// The content of the `data:` frames, after checking the framing byte by byte.
    pub(crate) fn frames(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let frames = self.body.strip_suffix("\n\n").expect("a stream ends with an empty line").split("\n\n");
        frames
            .map(|frame| {
                assert!(!frame.contains(ENDS_OF_LINES), "a frame has one line: {frame:?}");
                frame.strip_prefix("data: ").unwrap_or_else(|| panic!("not a data frame: {frame:?}")).to_owned()
            })
            .collect()
    }

    /// The events of a stream of named ones, after checking the framing and that each has its name as `type`.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let frames = self.body.strip_suffix("\n\n").expect("a stream ends with an empty line").split("\n\n");
        let event = |frame: &str| {
            let (name, data) = frame.split_once('\n').unwrap_or_else(|| panic!("not an event: {frame:?}"));
            let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("no name: {frame:?}"));
            let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {frame:?}"));
            assert!(!data.contains(ENDS_OF_LINES), "{frame:?}");
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["type"], name);
            event
        };
        frames.map(event).collect()
    }

    /// The lines of a stream of JSON objects.
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/x-ndjson");
        let lines = self.body.strip_suffix('\n').expect("every line ends");
        assert!(!lines.contains(&ENDS_OF_LINES[1..]), "{lines:?}");
        lines.split('\n').map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
    }

    /// The chunks of a stream that must end with `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut frames = self.frames();
        assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
        frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
    }
}

pub(crate) async fn send(state: &ServerState, request: Request<Body>) -> Answer {
    let work = async {
        let response = app(state.clone()).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(bytes.to_vec()).unwrap() }
    };
    tokio::time::timeout(PATIENCE, work).await.expect("an answer in time")
}

pub(crate) async fn get(state: &ServerState, path: &str) -> Answer {
    send(state, Request::get(path).body(Body::empty()).unwrap()).await
}

pub(crate) async fn post(state: &ServerState, path: &str, body: &Value) -> Answer {
    post_bytes(state, path, body.to_string().into_bytes()).await
}

pub(crate) async fn post_bytes(state: &ServerState, path: &str, body: Vec<u8>) -> Answer {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    send(state, request.body(Body::from(body)).unwrap()).await
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// A chat request with these fields besides one user message.
pub(crate) async fn chat(state: &ServerState, fields: Value) -> Answer {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post(state, CHAT, &body).await
}

/// A completion request with these fields; the prompt is "Once" unless given.
pub(crate) async fn complete(state: &ServerState, fields: Value) -> Answer {
    let mut body = json!({ "prompt": "Once" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post(state, COMPLETIONS, &body).await
}

/// A server on a socket.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub(crate) async fn start(state: &ServerState) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            // A sender that is dropped stops the server too.
            let _ = stopped.await;
        };
        let task = tokio::spawn(run(listener, state.clone(), shutdown));
        Running { address, stop, task }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// The bytes of a POST of `body` on a connection of its own.
pub(crate) fn raw_post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Sends bytes and reads the answer to its end.
pub(crate) async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    read_all(stream).await
}

pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("an end in time").unwrap();
    String::from_utf8(answer).unwrap()
}

/// Reads until what was read holds `text`.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut chunk)).await.expect("more in time").unwrap();
        assert_ne!(read, 0, "the connection ended before {text:?}: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&chunk[..read]);
        if String::from_utf8_lossy(&answer).contains(text) {
            return String::from_utf8(answer).unwrap();
        }
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
