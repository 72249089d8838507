//! Sessions against a server that is made here and says what it is told to: streams that end, break, fail and never come.

use super::*;
use crate::load::connections::Connections;
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Longer than anything here takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A request as it arrived.
#[derive(Debug, Clone)]
struct Request {
    /// `POST /v1/completions`.
    what: String,
    /// With names in lower case.
    headers: Vec<String>,
    body: Value,
}

/// A server; its threads end with the test's process.
struct Stub {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
}

impl Stub {
    /// `answer` gives what is written; where it ends in nothing more to come, the connection is closed.
    fn start(answer: impl Fn(&Request) -> String + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        Stub::accepting(url, move || listener.accept().unwrap().0, answer)
    }

    /// The same on a Unix socket.
    fn at_socket(path: &Path, answer: impl Fn(&Request) -> String + Send + Sync + 'static) -> Stub {
        let listener = UnixListener::bind(path).unwrap();
        Stub::accepting(format!("unix:{}", path.display()), move || listener.accept().unwrap().0, answer)
    }

    fn accepting<S: Send + 'static>(
        url: String,
        accept: impl Fn() -> S + Send + 'static,
        answer: impl Fn(&Request) -> String + Send + Sync + 'static,
    ) -> Stub
    where
        for<'a> &'a S: Read + Write,
    {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (seen, accepted, answer) = (Arc::clone(&requests), Arc::clone(&connections), Arc::new(answer));
        std::thread::spawn(move || {
            loop {
                let stream = accept();
                accepted.fetch_add(1, Ordering::SeqCst);
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let (mut reader, mut writer) = (BufReader::new(&stream), &stream);
                    while let Some(request) = read(&mut reader) {
                        seen.lock().unwrap().push(request.clone());
                        let text = answer(&request);
                        if writer.write_all(text.as_bytes()).is_err() || text.contains("Connection: close") {
                            break;
                        }
                    }
                });
            }
        });
        Stub { url, requests, connections }
    }

    /// One with a model `m` and no tokenizer, which answers with `stream`.
    fn with_streams(stream: impl Fn(&Request) -> String + Send + Sync + 'static) -> Stub {
        Stub::start(with_model(stream))
    }

    fn address(&self) -> Address {
        Address::new(&self.url, Some("k")).unwrap()
    }

    /// Bodies of the requests for answers so far.
    fn bodies(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let is_asked = |request: &&Request| request.what.starts_with("POST /v1/");
        requests.iter().filter(is_asked).map(|request| request.body.clone()).collect()
    }
}

/// What a server with a model `m` and no tokenizer says, which answers with `stream`.
fn with_model(stream: impl Fn(&Request) -> String + Send + Sync + 'static) -> impl Fn(&Request) -> String {
    move |request| match request.what.as_str() {
        "GET /v1/models" => respond(200, "", "application/json", r#"{"data":[{"id":"m"},{"id":"other"}]}"#),
        "POST /tokenize" => respond(404, "", "text/plain", "not here"),
        _ => stream(request),
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
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

fn respond(status: u16, headers: &str, kind: &str, body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{headers}Content-Length: {len}\r\n\r\n{body}")
}

fn event(json: &Value) -> String {
    format!("data: {json}\n\n")
}

/// `max_tokens` pieces of text, and the usage: a token for each word of the prompt, and two.
fn streamed(request: &Request) -> String {
    let number = request.body["max_tokens"].as_u64().unwrap();
    let words = request.body["prompt"].as_str().unwrap_or_default().split(' ').count();
    let text = event(&json!({ "choices": [{ "index": 0, "text": " a" }] })).repeat(number as usize);
    let end = event(&json!({ "choices": [{ "index": 0, "text": "", "finish_reason": "length" }] }));
    let usage = event(&json!({ "choices": [], "usage": { "prompt_tokens": words + 2, "completion_tokens": number } }));
    respond(200, "", "text/event-stream; charset=utf-8", &format!("{text}{end}{usage}data: [DONE]\n\n"))
}

fn plan() -> Plan {
    Plan {
        model: None,
        endpoint: Endpoint::Completions,
        temperature: 0.0,
        ignore_eos: false,
        extra: Map::new(),
        source: Source::Words { length: Length::Fixed(16), shared_prefix: 0 },
        output: Length::Fixed(4),
        seed: 1,
        timeout: LIMIT,
        limits: Limits::default(),
    }
}

fn closed(concurrency: usize, requests: u64) -> Level {
    Level { load: Load::Closed { concurrency }, stop: Stop { requests: Some(requests), duration: None }, warmup: 0 }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn open(stub: &Stub, plan: Plan) -> Session {
    match Session::open(stub.address(), &[], plan).await {
        Ok(session) => session,
        Err(failure) => panic!("{failure}"),
    }
}

/// The row of one level.
fn measure(stub: &Stub, plan: Plan, level: &Level) -> (Value, Vec<String>) {
    block_on(async {
        let session = open(stub, plan).await;
        let mut collected = Collected::default();
        session.run(0, level, &mut collected, &mut |_| {}).await;
        let notes = session.notes().iter().cloned().chain(session.notes_of(level, &collected)).collect();
        (session.row(level, &collected, "abc"), notes)
    })
}

#[test]
fn every_request_is_counted_with_its_tokens() {
    let stub = Stub::with_streams(streamed);
    let plan = Plan { ignore_eos: true, ..plan() };
    let (row, notes) = measure(&stub, plan, &Level { warmup: 2, ..closed(3, 7) });
    assert_eq!((&row["requests"], &row["errors"], &row["cut_off"]), (&7.into(), &0.into(), &0.into()), "{row}");
    assert_eq!((&row["completion_tokens"], &row["chunks_per_token"]), (&28.into(), &1.0.into()));
    // 14 words and two tokens beside them.
    assert_eq!((&row["prompt_tokens"], &row["prompt_tokens_mean"]), (&112.into(), &16.0.into()), "{notes:?}");
    assert!(notes[0].contains("1.00 tokens, and 2.0 beside them, by usage"), "{notes:?}");
    assert_eq!(
        (&row["params"]["model"], &row["case"], &row["commit"]),
        (&"m".into(), &"concurrency 3".into(), &"abc".into())
    );
    let bodies = stub.bodies();
    assert_eq!(bodies.len(), 3 + 2 + 7, "one to see that it answers, two to count words, two to warm up");
    let prompts: std::collections::BTreeSet<&str> =
        bodies.iter().map(|body| body["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts.len(), bodies.len(), "no prompt comes twice");
    assert!(bodies.iter().all(|body| body["ignore_eos"] == true && body["stream"] == true), "{bodies:?}");
    let requests = stub.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.headers.contains(&"authorization: bearer k".to_owned())));
    let host = format!("host: {}", stub.url.trim_start_matches("http://").trim_end_matches("/v1"));
    assert!(requests.iter().all(|request| request.headers.contains(&host)), "{requests:?}");
}

#[test]
fn a_user_keeps_the_connection() {
    let stub = Stub::with_streams(streamed);
    let (row, _) = measure(&stub, plan(), &closed(1, 20));
    assert_eq!(row["requests"], 20);
    // On a machine that stands still for longer than connections are kept there are more.
    assert!(stub.connections.load(Ordering::SeqCst) < 20, "{:?}", stub.connections);
}

#[test]
fn a_connection_that_the_server_closes_is_made_again() {
    let stub = Stub::with_streams(|request| streamed(request).replacen("\r\n", "\r\nConnection: close\r\n", 1));
    let (row, _) = measure(&stub, plan(), &closed(2, 6));
    assert_eq!((&row["requests"], &row["errors"]), (&6.into(), &0.into()), "{row}");
}

/// The errors by kind of a level whose first measured request gets `failing`, and whose others are answered.
fn errors_of(failing: impl Fn(&Request) -> String + Send + Sync + 'static) -> (Value, Vec<String>) {
    let begun = AtomicUsize::new(0);
    let stub = Stub::with_streams(move |request| {
        // Three requests come before those that are measured.
        if begun.fetch_add(1, Ordering::SeqCst) == 3 { failing(request) } else { streamed(request) }
    });
    let (row, notes) = measure(&stub, plan(), &closed(1, 3));
    assert_eq!(
        (&row["requests"], &row["errors"], &row["completion_tokens"]),
        (&2.into(), &1.into(), &8.into()),
        "{row}"
    );
    (row["errors_by_kind"].clone(), notes)
}

#[test]
fn failures_are_counted_by_kind() {
    let (errors, notes) =
        errors_of(|_| respond(429, "Retry-After: 0\r\n", "application/json", r#"{"error":{"message":"busy"}}"#));
    assert_eq!(errors, json!({ "HTTP 429": 1 }));
    assert!(notes.iter().any(|note| note.contains("HTTP 429: busy")), "{notes:?}");
    // Two of four pieces, and the connection is gone.
    let cut = |request: &Request| {
        let text = streamed(request).replacen("\r\n", "\r\nConnection: close\r\n", 1);
        text.split_inclusive("\n\n").take(2).collect()
    };
    assert_eq!(errors_of(cut).0, json!({ "broken stream": 1 }));
    let early = |_: &Request| respond(200, "", "text/event-stream", &event(&json!({ "choices": [{ "text": "a" }] })));
    assert_eq!(errors_of(early).0, json!({ "broken stream": 1 }));
    let whole = |_: &Request| respond(200, "", "application/json", r#"{"choices":[{"text":"a"}]}"#);
    let (errors, notes) = errors_of(whole);
    assert_eq!(errors, json!({ "broken stream": 1 }));
    assert!(notes.iter().any(|note| note.contains("no stream of events")), "{notes:?}");
    let told =
        |_: &Request| respond(200, "", "text/event-stream", &event(&json!({ "error": { "message": "no memory" } })));
    let (errors, notes) = errors_of(told);
    assert_eq!(errors, json!({ "error in stream": 1 }));
    assert!(notes.iter().any(|note| note.contains("no memory")), "{notes:?}");
}

#[test]
fn a_stream_without_done_is_whole_once_it_has_finished() {
    let stub = Stub::with_streams(|request| {
        let body = streamed(request).split_once("\r\n\r\n").unwrap().1.replace("data: [DONE]\n\n", "");
        format!("HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}")
    });
    let (row, _) = measure(&stub, plan(), &closed(1, 2));
    assert_eq!((&row["requests"], &row["completion_tokens"]), (&2.into(), &8.into()), "{row}");
}

#[test]
fn an_answer_that_never_comes_is_a_timeout() {
    let begun = AtomicUsize::new(0);
    let stub = Stub::with_streams(move |request| {
        if begun.fetch_add(1, Ordering::SeqCst) == 3 {
            std::thread::park_timeout(LIMIT);
        }
        streamed(request)
    });
    block_on(async {
        let mut session = open(&stub, plan()).await;
        session.be_patient_for(Duration::from_millis(50));
        let mut collected = Collected::default();
        session.run(0, &closed(1, 1), &mut collected, &mut |_| {}).await;
        let errors: Vec<_> = collected.errors().map(|(kind, number, _)| (kind, number)).collect();
        assert_eq!(errors, [("timeout", 1)]);
    });
}

#[test]
fn nobody_there_is_said_at_once() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = Address::new(&format!("http://{closed}/v1"), None).unwrap();
    let plan = Plan { model: Some("m".into()), ..plan() };
    let Err(Failure::Connect(words)) = block_on(Session::open(address, &[], plan)) else { panic!() };
    assert!(words.to_lowercase().contains("refused"), "{words}");
}

#[test]
fn a_socket_is_measured_as_an_address_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let stub = Stub::at_socket(&path, with_model(streamed));
    let (row, _) = measure(&stub, plan(), &closed(2, 6));
    assert_eq!((&row["requests"], &row["errors"]), (&6.into(), &0.into()), "{row}");
    assert_eq!(row["params"]["url"], format!("unix:{}", path.display()));
    let requests = stub.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.headers.contains(&"host: localhost".to_owned())), "{requests:?}");

    let address = Address::new(&format!("unix:{}", folder.path().join("none").display()), None).unwrap();
    let plan = Plan { model: Some("m".into()), ..plan() };
    let Err(Failure::Connect(words)) = block_on(Session::open(address, &[], plan)) else { panic!() };
    assert!(words.contains("No such file"), "{words}");
}

#[test]
fn what_the_server_refuses_by_name_is_left_out_and_said() {
    let stub = Stub::with_streams(|request| {
        let refused = |name: &str| {
            let error = json!({ "error": { "message": format!("unknown field {name}") } }).to_string();
            respond(400, "", "application/json", &error)
        };
        match ["ignore_eos", "stream_options"].iter().find(|name| request.body.get(**name).is_some()) {
            Some(name) => refused(name),
            None => streamed(request),
        }
    });
    let (row, notes) = measure(&stub, Plan { ignore_eos: true, ..plan() }, &closed(1, 2));
    assert_eq!((&row["requests"], &row["params"]["ignore_eos"]), (&2.into(), &false.into()));
    assert!(notes[0].contains("ignore_eos") && notes[1].contains("stream_options"), "{notes:?}");

    let refusing =
        Stub::with_streams(|_| respond(400, "", "application/json", r#"{"error":{"message":"no such thing"}}"#));
    let Err(failure) = block_on(Session::open(refusing.address(), &[], plan())) else { panic!() };
    assert_eq!(failure.to_string(), "HTTP 400: no such thing");
}

#[test]
fn words_are_counted_by_either_tokenizer() {
    // Two tokens a word and one before them; vLLM's shape, then llama.cpp's.
    for name in ["prompt", "content"] {
        let stub = Stub::start(move |request| {
            if request.what != "POST /tokenize" {
                return streamed(request);
            }
            let words = request.body[name].as_str().map(|text| text.split(' ').count());
            let answer = match words {
                Some(words) if name == "prompt" => json!({ "count": 2 * words + 1, "max_model_len": 100 }),
                Some(words) => json!({ "tokens": vec![0; 2 * words + 1] }),
                None => json!({ "tokens": [] }),
            };
            respond(200, "", "application/json", &answer.to_string())
        });
        let source = Source::Words { length: Length::Fixed(41), shared_prefix: 8 };
        let (_, notes) = measure(&stub, Plan { model: Some("m".into()), source, ..plan() }, &closed(1, 2));
        assert!(notes[0].contains("2.00 tokens, and 1.0 beside them, by /tokenize"), "{notes:?}");
        let bodies = stub.bodies();
        let prompts: Vec<Vec<&str>> =
            bodies[1..].iter().map(|body| body["prompt"].as_str().unwrap().split(' ').collect()).collect();
        assert!(prompts.iter().all(|words| words.len() == 4 + 20), "{prompts:?}");
        assert_eq!(prompts[0][..4], prompts[1][..4], "the prefix");
        assert_ne!(prompts[0][4..], prompts[1][4..]);
    }
}

#[test]
fn chat_sends_messages_and_reads_deltas() {
    let stub = Stub::with_streams(|_| {
        let delta = |delta: Value| event(&json!({ "choices": [{ "delta": delta }] }));
        let texts = [
            json!({ "role": "assistant", "content": "" }),
            json!({ "reasoning_content": "hm" }),
            json!({ "content": "x" }),
        ];
        let end = event(&json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] }));
        let events: String = texts.map(delta).into_iter().chain([end, "data: [DONE]\n\n".to_owned()]).collect();
        respond(200, "", "text/event-stream", &events)
    });
    let file =
        File::parse("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 9}", Endpoint::Chat);
    let plan = Plan { endpoint: Endpoint::Chat, source: Source::File(file.unwrap()), ..plan() };
    let (row, notes) = measure(&stub, plan, &closed(1, 2));
    assert_eq!((&row["requests"], &row["completion_tokens"]), (&2.into(), &4.into()), "a thought is text: {row}");
    assert_eq!((&row["max_tokens_mean"], &row["params"]["prompts"]), (&9.0.into(), &1.into()));
    for words in ["events with text", "4 tokens of the 18", "had the 1 prompt of the file"] {
        assert!(notes.iter().any(|note| note.contains(words)), "{words} in {notes:?}");
    }
    assert_eq!(stub.bodies()[1]["messages"][0]["content"], "hi");
}

#[test]
fn messages_and_responses_are_streams_with_named_events() {
    let named = |events: &[Value]| {
        let text: String =
            events.iter().map(|json| format!("event: {}\n{}", json["type"].as_str().unwrap(), event(json))).collect();
        respond(200, "", "text/event-stream", &text)
    };
    let delta = |text: &str| json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": text } });
    let messages = named(&[
        json!({ "type": "message_start", "message": { "usage": { "input_tokens": 9, "output_tokens": 0 } } }),
        delta("a"),
        delta("b"),
        json!({ "type": "message_delta", "delta": { "stop_reason": "max_tokens" }, "usage": { "output_tokens": 3 } }),
        json!({ "type": "message_stop" }),
    ]);
    let delta = |text: &str| json!({ "type": "response.output_text.delta", "delta": text });
    let usage = json!({ "input_tokens": 9, "output_tokens": 3 });
    let responses = named(&[
        json!({ "type": "response.created", "response": { "usage": null } }),
        delta("a"),
        delta("b"),
        json!({ "type": "response.completed", "response": { "usage": usage } }),
    ]);
    for (endpoint, answer) in [(Endpoint::Messages, messages), (Endpoint::Responses, responses)] {
        let stub = Stub::with_streams(move |_| answer.clone());
        let (row, notes) = measure(&stub, Plan { endpoint, ..plan() }, &closed(1, 2));
        assert_eq!((&row["requests"], &row["errors"]), (&2.into(), &0.into()), "{row} {notes:?}");
        assert_eq!((&row["completion_tokens"], &row["prompt_tokens"]), (&6.into(), &18.into()), "{row}");
        assert!(row["ttft_ms"]["p50"].is_number() && row["itl_ms"]["p50"].is_number(), "{row}");
        // Those of requests that fail are not kept, here the two for a tokenizer; of the other six requests all are.
        assert!(stub.connections.load(Ordering::SeqCst) < 6, "{:?}", stub.connections);
    }
}

#[test]
fn embeddings_come_whole_and_have_no_tokens() {
    let stub = Stub::with_streams(|request| {
        let words = request.body["input"].as_str().unwrap().split(' ').count();
        let body =
            json!({ "data": [{ "embedding": [0.5] }], "usage": { "prompt_tokens": words + 2, "total_tokens": 0 } });
        respond(200, "", "application/json", &body.to_string())
    });
    let (row, notes) = measure(&stub, Plan { endpoint: Endpoint::Embeddings, ..plan() }, &closed(2, 5));
    assert_eq!(
        (&row["requests"], &row["errors"], &row["completion_tokens"]),
        (&5.into(), &0.into(), &0.into()),
        "{row}"
    );
    assert_eq!(
        (&row["prompt_tokens_mean"], &row["params"]["output_tokens"]),
        (&16.0.into(), &Value::Null),
        "{notes:?}"
    );
    assert!(
        row["e2e_ms"]["p50"].is_number() && row["ttft_ms"]["p50"].is_null() && row["prompt_tok_s"].is_number(),
        "{row}"
    );
    assert!(stub.bodies().iter().all(|body| body.get("stream").is_none() && body.get("max_tokens").is_none()));
    assert_eq!(notes.len(), 1, "{notes:?}");
}

#[test]
fn as_many_requests_are_under_way_as_was_said() {
    const CONCURRENCY: usize = 3;
    let gate = Arc::new((Mutex::new((0, 0)), Condvar::new()));
    let stub = Stub::with_streams(move |request| {
        if request.body["max_tokens"] == 1 {
            return streamed(request);
        }
        let (counts, changed) = &*gate;
        let mut counts = counts.lock().unwrap();
        counts.0 += 1;
        counts.1 += 1;
        assert!(counts.0 <= CONCURRENCY, "no more than {CONCURRENCY} together");
        changed.notify_all();
        // The first answers wait until so many have asked.
        let (mut counts, waited) = changed.wait_timeout_while(counts, LIMIT, |counts| counts.1 < CONCURRENCY).unwrap();
        counts.0 -= 1;
        if waited.timed_out() { respond(500, "", "text/plain", "nobody else came") } else { streamed(request) }
    });
    let (row, _) = measure(&stub, plan(), &closed(CONCURRENCY, 9));
    assert_eq!((&row["requests"], &row["errors"]), (&9.into(), &0.into()), "{row}");
}

#[test]
fn in_an_open_loop_time_runs_from_when_a_request_was_due() {
    const SERVICE_MS: u64 = 20;
    let stub = Stub::with_streams(|request| {
        if request.body["max_tokens"] != 1 {
            std::thread::sleep(Duration::from_millis(SERVICE_MS));
        }
        streamed(request)
    });
    let load = Load::Open { rate: f64::INFINITY, from: None, arrivals: Arrivals::Poisson, max_concurrency: Some(1) };
    let level = Level { load, ..closed(1, 3) };
    let (row, _) = measure(&stub, Plan { limits: "e2e=60s".parse().unwrap(), ..plan() }, &level);
    let most = |name: &str| row[name]["max"].as_f64().unwrap();
    // All were due at once, and the last one had to wait for two others.
    assert!(most("lateness_ms") >= (2 * SERVICE_MS) as f64, "{row}");
    assert!(most("ttft_ms") >= (3 * SERVICE_MS) as f64 && most("e2e_ms") >= most("lateness_ms"), "{row}");
    assert!(row["e2e_ms"]["min"].as_f64().unwrap() >= SERVICE_MS as f64, "{row}");
    assert_eq!((&row["requests"], &row["good"], &row["params"]["rate"]), (&3.into(), &3.into(), &"inf".into()));
    assert_eq!((&row["params"]["loop"], &row["case"]), (&"open".into(), &"inf requests/s".into()));
}

#[test]
fn a_level_ends_by_the_clock_when_those_under_way_have_ended() {
    let stub = Stub::with_streams(streamed);
    let stop = Stop { requests: None, duration: Some(Duration::from_millis(50)) };
    let (row, _) = measure(&stub, plan(), &Level { stop, ..closed(2, 0) });
    assert_eq!((&row["cut_off"], &row["errors"]), (&0.into(), &0.into()), "{row}");
    assert!(row["requests"].as_u64() >= Some(2), "{row}");
    let load = Load::Open { rate: 100.0, from: None, arrivals: Arrivals::Uniform, max_concurrency: None };
    let (row, _) = measure(&stub, plan(), &Level { load, stop, warmup: 0 });
    assert_eq!(row["requests"], 5, "those due at 0, 10, 20, 30 and 40 ms, however late they are: {row}");
}

#[test]
fn what_was_measured_before_a_break_stays() {
    let (sender, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let begun = AtomicUsize::new(0);
    let stub = Stub::with_streams(move |request| {
        if begun.fetch_add(1, Ordering::SeqCst) == 4 {
            sender.send(()).unwrap();
            std::thread::park_timeout(LIMIT);
        }
        streamed(request)
    });
    block_on(async {
        let session = open(&stub, plan()).await;
        let mut collected = Collected::default();
        let level = closed(1, 9);
        let mut unobserved = |_: &Progress| {};
        tokio::select! {
            () = session.run(0, &level, &mut collected, &mut unobserved) => panic!("it has not ended"),
            Some(()) = arrived.recv() => {}
        }
        let row = session.row(&level, &collected, "abc");
        assert_eq!((&row["requests"], &row["cut_off"]), (&1.into(), &1.into()), "{row}");
        assert!(session.notes_of(&level, &collected)[0].contains("1 request broken off"));
    });
}

#[test]
fn https_needs_certificates() {
    let address = Address::new("https://127.0.0.1:1/v1", None).unwrap();
    let Err(Failure::Setup(words)) = block_on(Connections::new(address, &[])) else { panic!() };
    assert!(words.contains("SSL_CERT_FILE"), "{words}");
}
