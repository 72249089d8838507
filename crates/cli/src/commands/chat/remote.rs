//! A server with OpenAI's interface as the one who answers.
//!
//! The answer is streamed by a thread of its own, since the client blocks; Ctrl-C shuts its connection down, which ends the answer
//! on the server too.

use super::listed;
use super::roots::root_certificates;
use super::talker::{Cost, End, Reply, Talker};
use super::unix;
use crate::answer::Said;
use crate::generate::Generator;
use crate::parameters::{Parameters, nearest};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taper_text::ChatMessage;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// How long a server may take to accept a connection. What comes after it may take as long as a model computes.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take to say which models it has; and what it says of one that is named, which a chat can do without.
const MODELS_LIMIT: Duration = Duration::from_secs(30);
const NAMED_LIMIT: Duration = Duration::from_secs(5);
/// Longest line of a stream, and of an error's body: a server that sends more is none.
const MAX_LINE_BYTES: u64 = 16 << 20;
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// What an address begins with that is a path of a Unix socket.
const UNIX: &str = "unix:";

/// Where a server is, and what it asks to know.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// Up to and with the version: `http://host:port/v1`.
    base: String,
    /// What is connected to instead of the host.
    socket: Option<PathBuf>,
    key: Option<String>,
}

impl Server {
    /// From what was typed: an address, with or without a path.
    ///
    /// # Errors
    /// When it is not one.
    pub(super) fn new(url: &str, key: Option<String>) -> Result<Server> {
        let expected =
            "expected an address such as http://localhost:8080, https://api.example.com/v1 or unix:/run/taper.sock";
        if key.as_ref().is_some_and(|key| key.contains(|c: char| c.is_control() || !c.is_ascii())) {
            bail!("the API key has characters that a header cannot hold");
        }
        if let Some(path) = url.strip_prefix(UNIX) {
            if path.is_empty() {
                bail!("--url {url:?} has no path of a socket; {expected}");
            }
            return Ok(Server { base: "http://localhost/v1".to_owned(), socket: Some(path.into()), key });
        }
        if authority(url).contains('@') {
            bail!("--url has a user or a password in it; --api-key gives a key; {expected}");
        }
        // Where an address is mistyped, what stands before an `@` may still be a password.
        let shown = if url.contains('@') { "--url".to_owned() } else { format!("--url {url:?}") };
        let uri: Uri = url.parse().map_err(|error| anyhow!("{shown}: {error}; {expected}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            bail!("{shown}: {expected}");
        }
        if uri.query().is_some() {
            bail!("{shown} has a query; {expected}");
        }
        let base = url.trim_end_matches('/');
        let base = ["/chat/completions", "/completions"].iter().find_map(|end| base.strip_suffix(*end)).unwrap_or(base);
        let base = if uri.path().trim_matches('/').is_empty() { format!("{base}/v1") } else { base.to_owned() };
        Ok(Server { base, socket: None, key })
    }

    /// As people name it.
    fn name(&self) -> String {
        match &self.socket {
            Some(path) => format!("{UNIX}{}", path.display()),
            None => self.base.clone(),
        }
    }

    fn authorization(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("Bearer {key}"))
    }

    /// The list of its models.
    fn models(&self, agent: &Agent, limit: Duration) -> Result<Value> {
        let mut request = agent.get(format!("{}/models", self.base)).config().timeout_global(Some(limit)).build();
        if let Some(authorization) = self.authorization() {
            request = request.header("Authorization", authorization);
        }
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        let text = read_limited(succeeded(response)?.into_body(), MAX_LINE_BYTES)?;
        let list: Value = serde_json::from_str(&text).context("the list of models is not JSON")?;
        list["data"].as_array().context("the list of models has no `data`")?;
        Ok(list)
    }

    /// Asks for an answer.
    fn ask(&self, agent: &Agent, body: &Value) -> Result<Body> {
        let mut request = agent.post(format!("{}/chat/completions", self.base)).header("Accept", "text/event-stream");
        if let Some(authorization) = self.authorization() {
            request = request.header("Authorization", authorization);
        }
        let response = request.send_json(body).map_err(|error| self.unreachable(&error))?;
        Ok(succeeded(response)?.into_body())
    }

    fn unreachable(&self, error: &ureq::Error) -> anyhow::Error {
        anyhow!("cannot reach {}: {error}", self.name())
    }
}

/// The address of a server up to and with its version, or its socket, from what was typed.
///
/// # Errors
/// When it is no address, or the key cannot be sent.
pub(crate) fn base_of(url: &str, key: Option<&str>) -> Result<String> {
    Server::new(url, key.map(str::to_owned)).map(|server| server.name())
}

/// The part of an address that names the host, with whatever stands before the host and behind it.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

/// Whether an address can only be this machine's.
pub(super) fn is_on_this_machine(url: &str) -> bool {
    if url.starts_with(UNIX) {
        return true;
    }
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// A server's no, in its own words.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { status, message } = self;
        let colon = if message.is_empty() { "" } else { ": " };
        let hint = match status.as_u16() {
            401 | 403 => " (--api-key, OPENAI_API_KEY or, on this machine, TAPER_API_KEY gives a key)",
            _ => "",
        };
        write!(f, "the server answered {status}{colon}{message}{hint}")
    }
}

impl std::error::Error for Refusal {}

/// Whether a server does not take a parameter that was sent though nobody asked for it.
fn refuses_assumed(error: &anyhow::Error, assumed: &Map<String, Value>, parameters: &Parameters) -> bool {
    let Some(Refusal { status, message }) = error.downcast_ref::<Refusal>() else { return false };
    let is_blamed = |name: &String| parameters.shown(name).is_none() && message.contains(name.as_str());
    matches!(status.as_u16(), 400 | 422) && assumed.keys().any(is_blamed)
}

/// An answer that is no error; an error with the server's own words.
fn succeeded(response: Response<Body>) -> Result<Response<Body>> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = read_limited(response.into_body(), MAX_ERROR_BYTES).unwrap_or_default();
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = message_of(&json).unwrap_or_else(|| text.trim().chars().take(500).collect());
    Err(Refusal { status, message }.into())
}

/// The words of an error, as OpenAI, vLLM and others wrap them.
fn message_of(json: &Value) -> Option<String> {
    let error = json.get("error").unwrap_or(json);
    let text = error.as_str().or_else(|| error["message"].as_str()).or_else(|| error["detail"].as_str());
    text.map(str::to_owned)
}

fn read_limited(body: Body, limit: u64) -> Result<String> {
    let mut bytes = Vec::new();
    body.into_reader().take(limit).read_to_end(&mut bytes).context("the connection broke")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the thread tells the chat.
#[derive(Debug, PartialEq)]
enum Piece {
    Thought(String),
    Text(String),
    Finish(String),
    Usage(Value),
    Timings(Value),
}

/// The chat's side of a server.
pub(super) struct Remote {
    server: Server,
    model: String,
    /// What is sent where the user says nothing else.
    assumed: Map<String, Value>,
    roots: RootCerts,
    agent: Agent,
    generator: Arc<Generator>,
}

impl Remote {
    /// Asks the server for its model, and for what it says of one that is named.
    ///
    /// # Errors
    /// When no model is named, and the server cannot be reached or has several.
    pub(super) fn connect(server: Server, model: Option<String>, generator: Arc<Generator>) -> Result<Remote> {
        let roots = if server.base.starts_with("https") { root_certificates()? } else { RootCerts::WebPki };
        let agent = new_agent(&server, &roots);
        let list = server.models(&agent, if model.is_some() { NAMED_LIMIT } else { MODELS_LIMIT });
        let (model, assumed) = match model {
            // A server that says nothing of itself is sent what was asked for, and nothing else.
            Some(model) => {
                let assumed = list.map(|list| listed::assumed(&list, &model)).unwrap_or_default();
                (model, assumed)
            }
            None => {
                let list = list.context("cannot ask for the model; --model-name names one")?;
                let model = only(listed::names(&list))?;
                let assumed = listed::assumed(&list, &model);
                (model, assumed)
            }
        };
        Ok(Remote { server, model, assumed, roots, agent, generator })
    }

    /// Breaks off what the agent does, on the server too; there is a new one then.
    fn break_off(&mut self) {
        std::mem::replace(&mut self.agent, new_agent(&self.server, &self.roots)).shutdown();
    }
}

fn only(mut models: Vec<String>) -> Result<String> {
    match models.len() {
        0 => bail!("the server names no model; --model-name names one"),
        1 => Ok(models.remove(0)),
        number => bail!("the server has {number} models; --model-name chooses one of {}", enumerated(&models)),
    }
}

/// Names in a sentence, so many of them at most.
fn enumerated(names: &[String]) -> String {
    const MOST: usize = 10;
    let more = if names.len() > MOST { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}

fn new_agent(server: &Server, roots: &RootCerts) -> Agent {
    let tls = TlsConfig::builder().root_certs(roots.clone()).build();
    let config =
        Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT_LIMIT)).tls_config(tls);
    let config = config.user_agent(concat!("taper/", env!("CARGO_PKG_VERSION")));
    match &server.socket {
        // No proxy reaches a path of this machine.
        Some(path) => unix::agent(config.proxy(None).build(), path.clone()),
        None => config.build().into(),
    }
}

impl Talker for Remote {
    fn model(&self) -> &str {
        &self.model
    }

    fn place(&self) -> String {
        format!("at {}", self.server.name())
    }

    fn models(&mut self) -> Result<Vec<String>> {
        Ok(listed::names(&self.list()?))
    }

    fn choose(&mut self, model: &str) -> Result<()> {
        let list = self.list()?;
        let models = listed::names(&list);
        if !models.iter().any(|name| name == model) {
            let near = nearest(model, models.iter().map(String::as_str));
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            bail!("the server has no model {model:?}, it has {}{near}", enumerated(&models));
        }
        self.assumed = listed::assumed(&list, model);
        self.model = model.to_owned();
        Ok(())
    }

    fn check(&self, _: &Parameters) -> Result<()> {
        // It is the server that knows.
        Ok(())
    }

    fn answer(
        &mut self,
        prompt: &[ChatMessage],
        parameters: &Parameters,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<Reply> {
        match self.ask(prompt, parameters, show) {
            // Some models of OpenAI's take no temperature.
            Err(error) if refuses_assumed(&error, &self.assumed, parameters) => {
                self.assumed.clear();
                self.ask(prompt, parameters, show)
            }
            reply => reply,
        }
    }
}

impl Remote {
    /// What the server says of its models; Ctrl-C ends the wait for it.
    fn list(&mut self) -> Result<Value> {
        let (server, agent) = (self.server.clone(), self.agent.clone());
        let (sender, list) = oneshot::channel();
        let thread = std::thread::Builder::new().name("taper-remote".to_owned());
        // Nobody listens any more where Ctrl-C came first.
        let ask = move || drop(sender.send(server.models(&agent, MODELS_LIMIT)));
        thread.spawn(ask).context("cannot start a thread")?;
        match self.generator.unless_stopped(list)? {
            Some(list) => list.context("asking for the models crashed")?,
            None => {
                self.break_off();
                bail!("stopped")
            }
        }
    }

    /// One request, and its answer as it comes.
    fn ask(
        &mut self,
        prompt: &[ChatMessage],
        parameters: &Parameters,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<Reply> {
        let body = body(&self.model, prompt, parameters, &self.assumed)?;
        let (sender, mut pieces) = unbounded_channel();
        let (server, agent) = (self.server.clone(), self.agent.clone());
        let thread = std::thread::Builder::new().name("taper-remote".to_owned());
        let thread = thread.spawn(move || stream(&server, &agent, &body, &sender)).context("cannot start a thread")?;
        let mut answer = Answer::new();
        let ended = self.generator.unless_stopped(answer.follow(&mut pieces, show));
        if matches!(ended, Ok(Some(Ok(())))) {
            // The thread has dropped its sender: it is at its end.
            let outcome = thread.join().unwrap_or_else(|_| Err(anyhow!("reading the answer crashed")));
            return answer.ended(outcome);
        }
        // Stopped, or nobody reads: what the server still computes is for nobody.
        self.break_off();
        match ended? {
            Some(outcome) => outcome.map(|()| answer.stopped()),
            None => Ok(answer.stopped()),
        }
    }
}

/// The request, with what somebody asked for and what is assumed beside it, and no more: not every server knows every parameter.
/// To go on with an answer is asked for in vLLM's words; llama.cpp's server does so by itself.
fn body(model: &str, prompt: &[ChatMessage], parameters: &Parameters, assumed: &Map<String, Value>) -> Result<Value> {
    let mut body = json!({
        "model": model,
        "messages": prompt,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let (Value::Object(body), Value::Object(parameters)) = (&mut body, serde_json::to_value(parameters)?) {
        body.extend(parameters);
        for (name, value) in assumed {
            body.entry(name.as_str()).or_insert_with(|| value.clone());
        }
    }
    if prompt.last().is_some_and(|last| last.role == "assistant") {
        body["add_generation_prompt"] = false.into();
        body["continue_final_message"] = true.into();
    }
    Ok(body)
}

/// Asks, and passes on what comes until the end, or until nobody listens. Runs on a thread of its own.
fn stream(server: &Server, agent: &Agent, body: &Value, sender: &UnboundedSender<Piece>) -> Result<()> {
    let mut reader = BufReader::new(server.ask(agent, body)?.into_reader());
    let mut is_finished = false;
    loop {
        let Some(line) = read_line(&mut reader)? else {
            // Some servers end with the last piece and no more.
            return if is_finished { Ok(()) } else { Err(anyhow!("the server ended the stream early")) };
        };
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            return Ok(());
        }
        for piece in pieces(data)? {
            is_finished |= matches!(piece, Piece::Finish(_));
            if sender.send(piece).is_err() {
                return Ok(());
            }
        }
    }
}

/// A line without its end; `None` at the end of the stream.
fn read_line(reader: &mut impl BufRead) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes).context("the connection broke")?;
    if bytes.len() as u64 == MAX_LINE_BYTES {
        bail!("the server sent a line of more than {} MiB", MAX_LINE_BYTES >> 20);
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let line = String::from_utf8(bytes).context("the server's stream is not UTF-8")?;
    Ok(Some(line.trim_end_matches(['\n', '\r']).to_owned()))
}

/// What an event of the stream says.
fn pieces(data: &str) -> Result<Vec<Piece>> {
    let event: Value = serde_json::from_str(data).context("the server sent an event that is not JSON")?;
    if event.get("error").is_some_and(|error| !error.is_null()) {
        bail!("the server failed: {}", message_of(&event).unwrap_or_else(|| event["error"].to_string()));
    }
    let choice = &event["choices"][0];
    let delta = |name: &str| choice["delta"][name].as_str().filter(|text| !text.is_empty());
    // DeepSeek's and vLLM's name, and OpenRouter's.
    let thought = delta("reasoning_content").or_else(|| delta("reasoning"));
    let text = delta("content");
    let finish = choice["finish_reason"].as_str();
    let object = |name: &str| Some(&event[name]).filter(|value| value.is_object()).cloned();
    Ok([
        thought.map(|text| Piece::Thought(text.to_owned())),
        text.map(|text| Piece::Text(text.to_owned())),
        finish.map(|reason| Piece::Finish(reason.to_owned())),
        object("usage").map(Piece::Usage),
        object("timings").map(Piece::Timings),
    ]
    .into_iter()
    .flatten()
    .collect())
}

/// An answer as it comes.
struct Answer {
    begun: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    num_pieces: usize,
    text: String,
    finish_reason: Option<String>,
    usage: Value,
    /// As llama-server and `taper serve` tell them with their last chunks.
    timings: Value,
}

impl Answer {
    fn new() -> Answer {
        Answer {
            begun: Instant::now(),
            first: None,
            last: None,
            num_pieces: 0,
            text: String::new(),
            finish_reason: None,
            usage: Value::Null,
            timings: Value::Null,
        }
    }

    async fn follow(
        &mut self,
        pieces: &mut UnboundedReceiver<Piece>,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<()> {
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Thought(text) => {
                    self.count();
                    show(Said::Thought(&text))?;
                }
                Piece::Text(text) => {
                    self.count();
                    self.text.push_str(&text);
                    show(Said::Answer(&text))?;
                }
                Piece::Finish(reason) => self.finish_reason = Some(reason),
                Piece::Usage(usage) => self.usage = usage,
                Piece::Timings(timings) => self.timings = timings,
            }
        }
        Ok(())
    }

    /// A thought is of tokens too.
    fn count(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.num_pieces += 1;
    }

    fn stopped(self) -> Reply {
        Reply { end: End::Stopped, cost: self.cost(), text: self.text }
    }

    /// What the end of the stream makes of it. What came before an error was said, and is kept.
    fn ended(self, outcome: Result<()>) -> Result<Reply> {
        let end = match (outcome, self.finish_reason.as_deref()) {
            (Err(error), _) if self.text.is_empty() => return Err(error),
            (Err(error), _) => End::Other(format!("{error:#}")),
            (Ok(()), Some("stop") | None) => End::Complete,
            (Ok(()), Some("length")) => End::Limit,
            (Ok(()), Some(other)) => End::Other(format!("ended by {other}")),
        };
        Ok(Reply { end, cost: self.cost(), text: self.text })
    }

    /// Tokens and the time they took as the server counts them, else the pieces of text by the clock of this machine. The wait for
    /// the first is always the reader's own.
    fn cost(&self) -> Cost {
        let used = |pointer: &str| self.usage.pointer(pointer).and_then(Value::as_u64).map(|count| count as usize);
        let timed = |name: &str| self.timings[name].as_u64().map(|count| count as usize);
        let seconds = self.timings["predicted_ms"].as_f64().map(|ms| ms / 1e3);
        // OpenAI's names.
        let right = used("/completion_tokens_details/accepted_prediction_tokens");
        let wrong = used("/completion_tokens_details/rejected_prediction_tokens");
        Cost {
            tokens: used("/completion_tokens").or_else(|| timed("predicted_n")).unwrap_or(self.num_pieces),
            prompt_tokens: used("/prompt_tokens"),
            cached_tokens: used("/prompt_tokens_details/cached_tokens").or_else(|| timed("cache_n")),
            first_token_s: self.first.map(|first| first.duration_since(self.begun).as_secs_f64()),
            decode_s: seconds
                .filter(|seconds| *seconds > 0.0)
                .or_else(|| self.first.zip(self.last).map(|(first, last)| last.duration_since(first).as_secs_f64())),
            right_guesses: timed("draft_n_accepted").or(right),
            guesses: timed("draft_n").or_else(|| Some(right? + wrong?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_path_or_none() {
        for (url, base) in [
            ("http://localhost:8080", "http://localhost:8080/v1"),
            ("http://localhost:8080/", "http://localhost:8080/v1"),
            ("https://api.openai.com/v1", "https://api.openai.com/v1"),
            ("https://host/openai/v2/", "https://host/openai/v2"),
            ("http://host/v1/chat/completions", "http://host/v1"),
            ("http://host/v1/completions", "http://host/v1"),
            ("http://[::1]:80", "http://[::1]:80/v1"),
        ] {
            assert_eq!(Server::new(url, None).unwrap().base, base, "{url}");
        }
        for url in ["localhost:8080", "ftp://host", "", "http://", "/v1", "http://host/?a=b", "a b"] {
            let refused = Server::new(url, None).unwrap_err().to_string();
            assert!(refused.contains("--url") && refused.contains("http://localhost:8080"), "{url}: {refused}");
        }
        for url in ["http://host", "unix:/s"] {
            assert!(Server::new(url, Some("a\nb".into())).is_err());
        }
    }

    #[test]
    fn an_address_may_be_a_path_of_a_socket() {
        let server = Server::new("unix:/run/a b@c.sock", None).unwrap();
        assert_eq!((server.base.as_str(), server.name()), ("http://localhost/v1", "unix:/run/a b@c.sock".to_owned()));
        assert_eq!(server.socket, Some(PathBuf::from("/run/a b@c.sock")));
        assert_eq!(base_of("unix:s", None).unwrap(), "unix:s");
        let refused = Server::new("unix:", None).unwrap_err().to_string();
        assert!(refused.contains("no path") && refused.contains("unix:/run/taper.sock"), "{refused}");
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_shown() {
        for url in ["http://me:secret@host", "me:secret@host", "http://me:sec ret@host/v1"] {
            let refused = Server::new(url, None).unwrap_err().to_string();
            assert!(refused.contains("--url") && !refused.contains("sec"), "{refused}");
        }
        assert!(Server::new("http://host/@org/v1", None).is_ok());
    }

    #[test]
    fn only_loopback_is_this_machine() {
        for url in [
            "http://localhost:8080",
            "http://LOCALHOST",
            "http://127.0.0.1:1/v1",
            "http://127.9.9.9",
            "http://[::1]:80",
            "unix:/run/taper.sock",
        ] {
            assert!(is_on_this_machine(url), "{url}");
        }
        for url in [
            "https://api.example.com/v1",
            "http://localhost.example.com",
            "http://10.0.0.1",
            "http://127.0.0.1.example",
        ] {
            assert!(!is_on_this_machine(url), "{url}");
        }
    }

    #[test]
    fn the_request_has_what_was_asked_for_and_no_more() {
        let mut parameters = Parameters::default();
        parameters.set("max_tokens", "7").unwrap();
        parameters.set("top_p", "0.5").unwrap();
        let prompt = [ChatMessage::new("user", "hi")];
        let asked = body("m", &prompt, &parameters, &Map::new()).unwrap();
        let keys: Vec<&String> = asked.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["model", "messages", "stream", "stream_options", "top_p", "max_tokens"]);
        let assumed = Map::from_iter([("top_p".to_owned(), json!(0.95)), ("top_k".to_owned(), json!(40))]);
        let both = body("m", &prompt, &parameters, &assumed).unwrap();
        assert_eq!((&both["top_p"], &both["top_k"]), (&json!(0.5), &json!(40)), "what was asked for counts");
        let begun = [ChatMessage::new("user", "hi"), ChatMessage::new("assistant", "he")];
        let body = body("m", &begun, &parameters, &assumed).unwrap();
        assert_eq!((&body["add_generation_prompt"], &body["continue_final_message"]), (&json!(false), &json!(true)));
    }

    #[test]
    fn a_refusal_of_what_nobody_asked_for_is_told_from_others() {
        let refused = |status: u16, message: &str, set: Option<&str>| {
            let mut parameters = Parameters::default();
            if let Some(name) = set {
                parameters.set(name, "0.5").unwrap();
            }
            let status = StatusCode::from_u16(status).unwrap();
            let error = Refusal { status, message: message.to_owned() }.into();
            let assumed = Map::from_iter([("temperature".to_owned(), json!(0.8)), ("top_p".to_owned(), json!(0.95))]);
            refuses_assumed(&error, &assumed, &parameters)
        };
        assert!(refused(400, "Unsupported value: 'temperature' does not support 0.8 with this model.", None));
        assert!(refused(422, r#"{"detail":[{"loc":["body","top_p"]}]}"#, Some("temperature")));
        assert!(!refused(400, "temperature must be 1", Some("temperature")), "that is the user's");
        assert!(!refused(400, "max_tokens is too large", None));
        assert!(!refused(500, "temperature", None));
        assert!(!refuses_assumed(&anyhow!("temperature"), &Map::new(), &Parameters::default()));
    }

    #[test]
    fn events_are_text_ends_usage_or_errors() {
        let text = r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}],"usage":null}"#;
        assert_eq!(pieces(text).unwrap(), [Piece::Text("hi".into()), Piece::Finish("stop".into())]);
        assert_eq!(pieces(r#"{"choices":[{"delta":{"role":"assistant"}}]}"#).unwrap(), []);
        let last = r#"{"choices":[],"usage":{"a":1},"timings":{"b":2}}"#;
        assert_eq!(pieces(last).unwrap(), [Piece::Usage(json!({ "a": 1 })), Piece::Timings(json!({ "b": 2 }))]);
        for name in ["reasoning_content", "reasoning"] {
            let event = json!({ "choices": [{ "delta": { name: "hm", "content": "" } }] }).to_string();
            assert_eq!(pieces(&event).unwrap(), [Piece::Thought("hm".into())]);
        }
        for (event, words) in [
            (r#"{"error":{"message":"out of memory"}}"#, "out of memory"),
            (r#"{"error":"busy"}"#, "busy"),
            ("nonsense", "not JSON"),
        ] {
            assert!(format!("{:#}", pieces(event).unwrap_err()).contains(words), "{event}");
        }
    }

    /// The cost of an answer of two pieces by what its last chunk says.
    fn cost(usage: Value, timings: Value) -> Cost {
        let mut answer = Answer::new();
        answer.count();
        answer.count();
        (answer.usage, answer.timings) = (usage, timings);
        answer.cost()
    }

    #[test]
    fn a_server_counts_better_than_the_reader_of_its_pieces() {
        let timings = json!({
            "cache_n": 4, "prompt_n": 9, "predicted_n": 7, "predicted_ms": 500.0, "draft_n": 5, "draft_n_accepted": 3,
        });
        let told = cost(Value::Null, timings.clone());
        assert_eq!((told.tokens, told.cached_tokens, told.decode_s), (7, Some(4), Some(0.5)));
        assert_eq!((told.right_guesses, told.guesses), (Some(3), Some(5)));
        let details = json!({ "accepted_prediction_tokens": 1, "rejected_prediction_tokens": 1 });
        let usage = json!({ "prompt_tokens": 9, "completion_tokens": 8, "completion_tokens_details": details });
        let both = cost(usage.clone(), timings);
        assert_eq!((both.tokens, both.prompt_tokens, both.guesses), (8, Some(9), Some(5)));
        let openai = cost(usage, Value::Null);
        assert_eq!((openai.right_guesses, openai.guesses), (Some(1), Some(2)));
    }

    #[test]
    fn without_the_servers_count_there_is_the_clock() {
        for timings in [Value::Null, json!({ "predicted_ms": 0.0, "draft_n": "many" })] {
            let cost = cost(Value::Null, timings);
            assert_eq!((cost.tokens, cost.cached_tokens, cost.right_guesses, cost.guesses), (2, None, None, None));
            assert!(cost.decode_s.is_some() && cost.first_token_s.is_some());
        }
    }

    #[test]
    fn errors_are_found_wherever_servers_put_them() {
        for body in
            [json!({"error": {"message": "x"}}), json!({"error": "x"}), json!({"message": "x"}), json!({"detail": "x"})]
        {
            assert_eq!(message_of(&body).as_deref(), Some("x"), "{body}");
        }
        assert_eq!(message_of(&Value::Null), None);
    }

    #[test]
    fn one_model_is_taken_and_several_are_named() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(only(names(&["a"])).unwrap(), "a");
        assert!(only(names(&[])).unwrap_err().to_string().contains("--model-name"));
        assert!(only(names(&["a", "b"])).unwrap_err().to_string().contains("one of a, b"));
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut endless = BufReader::new(std::io::repeat(b'a'));
        assert!(read_line(&mut endless).unwrap_err().to_string().contains("16 MiB"));
    }
}
