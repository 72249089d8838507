//! Malformed requests from a seed: broken JSON, wrong types, huge numbers, deep nesting, invalid UTF-8, wrong methods and
//! paths, bodies that end early, and requests that are not HTTP.
//!
//! Shared between the tests of the server and those of the whole program by `#[path]`; it uses `std` only. What a server
//! must do with each: answer within the time limit or close the connection, never with a 5xx; where `must_refuse` is set,
//! never with a success.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// One malformed request, as the bytes that go over the wire.
#[derive(Debug, Clone)]
pub(crate) struct Malformed {
    /// What is wrong with it, for the message of a failed test.
    pub(crate) what: String,
    /// The request.
    pub(crate) bytes: Vec<u8>,
    /// Whether the sender closes its side after the bytes, because the request promises more than there is.
    pub(crate) ends_early: bool,
    /// Whether an answer must be a 4xx. Without it a success is fine too (a mutation may have left a good request).
    pub(crate) must_refuse: bool,
}

/// `count` malformed requests, all kinds in turn; the same for the same seed.
pub(crate) fn malformed(seed: u64, count: usize) -> Vec<Malformed> {
    let mut random = Random(seed);
    let kinds: [fn(&mut Random) -> Malformed; 10] = [
        broken_json,
        wrong_type,
        huge_number,
        deep_nesting,
        invalid_utf8,
        wrong_method_or_path,
        truncated_body,
        not_http,
        wrong_messages,
        wrong_prompt,
    ];
    (0..count).map(|index| kinds[index % kinds.len()](&mut random)).collect()
}

/// Sends the request and returns the status of the answer, or `None` when the connection was closed without one. An error
/// is a server that did not answer in time.
pub(crate) fn send(server: SocketAddr, request: &Malformed, limit: Duration) -> Result<Option<u16>, String> {
    let begun = Instant::now();
    let connect = TcpStream::connect_timeout(&server, limit);
    let mut stream = connect.map_err(|error| format!("{}: no connection: {error}", request.what))?;
    let set = stream.set_read_timeout(Some(limit)).and_then(|()| stream.set_write_timeout(Some(limit)));
    set.map_err(|error| error.to_string())?;
    // A server may refuse and close while we still write; what it said before counts.
    let _ = stream.write_all(&request.bytes);
    if request.ends_early {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                return Err(format!("{}: no end of the answer after {:?}", request.what, begun.elapsed()));
            }
            Err(_) => break,
        }
        if begun.elapsed() > limit {
            return Err(format!("{}: the answer goes on after {:?}", request.what, begun.elapsed()));
        }
    }
    let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    Ok(line.split(' ').nth(1).and_then(|status| status.parse().ok()))
}

/// What is wrong with the outcome of [`send`], if anything.
pub(crate) fn verdict(request: &Malformed, outcome: &Result<Option<u16>, String>) -> Result<(), String> {
    match outcome {
        Err(message) => Err(message.clone()),
        Ok(Some(status)) if *status >= 500 => Err(format!("{}: answered with {status}", request.what)),
        Ok(Some(status)) if request.must_refuse && *status < 400 => {
            Err(format!("{}: accepted with {status}", request.what))
        }
        Ok(_) => Ok(()),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GOOD_CHAT: &str = r#"{"model":"default","messages":[{"role":"user","content":"Say \"hi\" é"}],"max_tokens":4,"temperature":0.5,"stop":["x"],"stream":false}"#;
const GOOD_COMPLETION: &str =
    r#"{"prompt":["one two","three"],"max_tokens":3,"temperature":0,"n":1,"seed":7,"top_p":0.9}"#;

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    post_of_length(path, body, body.len())
}

fn post_of_length(path: &str, body: &[u8], length: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn complete(what: &str, path: &str, body: &[u8], must_refuse: bool) -> Malformed {
    Malformed { what: format!("{what} to {path}"), bytes: post(path, body), ends_early: false, must_refuse }
}

/// A good body of either endpoint with one field set to `value`, which is JSON text.
fn with_field(path: &str, field: &str, value: &str) -> String {
    let rest = match (path, field) {
        (CHAT, "messages") | (COMPLETIONS, "prompt") => "\"max_tokens\":2".to_owned(),
        (CHAT, _) => r#""messages":[{"role":"user","content":"hi"}]"#.to_owned(),
        _ => r#""prompt":"hi""#.to_owned(),
    };
    let limit = if field.starts_with("max_") { "" } else { ",\"max_tokens\":2" };
    let limit = if rest.contains("max_tokens") { "" } else { limit };
    format!("{{{rest}{limit},\"{field}\":{value}}}")
}

fn broken_json(random: &mut Random) -> Malformed {
    let (path, good) = random.pick(&[(CHAT, GOOD_CHAT), (COMPLETIONS, GOOD_COMPLETION)]);
    let mut body = good.as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(body.len());
        match random.below(5) {
            0 => drop(body.remove(at)),
            1 => body.insert(at, random.pick(b"{}[]\",:\\0-eE\n\0")),
            2 => body.truncate(at.max(1)),
            3 => body[at] = random.next() as u8,
            _ => {
                let other = random.below(body.len());
                body.swap(at, other);
            }
        }
    }
    complete(&format!("broken JSON {:?}", String::from_utf8_lossy(&body)), path, &body, false)
}

fn wrong_type(random: &mut Random) -> Malformed {
    const FIELDS: [&str; 16] = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "stream",
        "stream_options",
        "ignore_eos",
        "model",
        "messages",
        "prompt",
        "echo",
    ];
    const VALUES: [&str; 6] = ["{\"a\":1}", "[[1]]", "\"\\ud83d\\ude00\"", "[null]", "-3.5", "{}"];
    let path = random.pick(&[CHAT, COMPLETIONS]);
    let (field, value) = (random.pick(&FIELDS), random.pick(&VALUES));
    let body = with_field(path, field, value);
    // A string is a fine stop string and prompt, ids are a fine prompt, and the prompt means nothing to the chat. Options of a
    // stream need one.
    let fits = matches!((field, value), ("stop" | "prompt", "\"\\ud83d\\ude00\"") | ("prompt", "[[1]]"));
    let foreign = matches!((path, field), (CHAT, "prompt") | (COMPLETIONS, "messages"));
    complete(&format!("{field} of a wrong type ({value})"), path, body.as_bytes(), !fits && !foreign)
}

fn huge_number(random: &mut Random) -> Malformed {
    const FIELDS: [&str; 8] = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "n", "logprobs"];
    const VALUES: [&str; 8] = [
        "1e308",
        "-1e308",
        "1e999",
        "99999999999999999999999999999999",
        "-9223372036854775809",
        "18446744073709551616",
        "1.7976931348623157e308",
        "4.9e+400",
    ];
    let path = random.pick(&[CHAT, COMPLETIONS]);
    let (field, value) = (random.pick(&FIELDS), random.pick(&VALUES));
    complete(&format!("{field} = {value}"), path, with_field(path, field, value).as_bytes(), true)
}

fn deep_nesting(random: &mut Random) -> Malformed {
    let depth = random.pick(&[200, 1_000, 20_000, 300_000]);
    let (open, close) = random.pick(&[("[", "]"), ("{\"a\":", "}")]);
    let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let path = random.pick(&[CHAT, COMPLETIONS]);
    let field = random.pick(&["messages", "prompt", "metadata", "tools", "stop", ""]);
    let body = if field.is_empty() { nested } else { with_field(path, field, &nested) };
    complete(&format!("{depth} levels of {open} in {field:?}"), path, body.as_bytes(), true)
}

fn invalid_utf8(random: &mut Random) -> Malformed {
    const BYTES: [&[u8]; 6] = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xf5\x80\x80\x80"];
    let (path, good) = random.pick(&[(CHAT, GOOD_CHAT), (COMPLETIONS, GOOD_COMPLETION)]);
    let at = good.find(random.pick(&["\"}],", "o t", "max_", "model", "seed"])).unwrap_or(good.len() - 1);
    let body = [&good.as_bytes()[..at], random.pick(&BYTES), &good.as_bytes()[at..]].concat();
    complete(&format!("invalid UTF-8 at {at}"), path, &body, true)
}

fn wrong_method_or_path(random: &mut Random) -> Malformed {
    let method = random.pick(&["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "post"]);
    let (method, path) = match random.below(4) {
        0 => (method, random.pick(&[CHAT, COMPLETIONS])),
        1 => ("POST", random.pick(&["/v1/models", "/health", "/"])),
        2 => (
            "GET",
            random.pick(&["/v1", "/v1/", "//", "/v1/models/%ff", "/v1/models/x%00y", "/%2e%2e/etc/passwd", "/v1/../x"]),
        ),
        _ => ("POST", random.pick(&["/v1/embeddings", "/v1/chat/completions/", "/v2/completions", "/%", "/?a=b"])),
    };
    let mut bytes = post(path, GOOD_CHAT.as_bytes());
    bytes.splice(..4, method.bytes());
    Malformed { what: format!("{method} {path}"), bytes, ends_early: false, must_refuse: true }
}

fn truncated_body(random: &mut Random) -> Malformed {
    let (path, good) = random.pick(&[(CHAT, GOOD_CHAT), (COMPLETIONS, GOOD_COMPLETION)]);
    let sent = random.below(good.len());
    let mut bytes = post_of_length(path, &good.as_bytes()[..sent], good.len());
    if random.below(3) == 0 {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
            good.len()
        );
        bytes = [head.as_bytes(), &good.as_bytes()[..sent]].concat();
    }
    Malformed { what: format!("{sent} of {} bytes to {path}", good.len()), bytes, ends_early: true, must_refuse: true }
}

fn not_http(random: &mut Random) -> Malformed {
    let with_header = |header: &str| {
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n{GOOD_CHAT}")
            .into_bytes()
    };
    let (what, bytes) = match random.below(11) {
        0 => ("random bytes", (0..200).map(|_| random.next() as u8).collect()),
        1 => ("no version", b"POST /v1/completions\r\n\r\n".to_vec()),
        2 => ("version 9.9", b"GET /health HTTP/9.9\r\n\r\n".to_vec()),
        3 => ("a length that is no number", with_header("Content-Length: many")),
        4 => ("a negative length", with_header("Content-Length: -1")),
        5 => ("two lengths", with_header("Content-Length: 5\r\nContent-Length: 6")),
        6 => ("a length beyond 64 bits", with_header("Content-Length: 99999999999999999999999")),
        7 => ("an unknown transfer encoding", with_header("Transfer-Encoding: gzip, nonsense")),
        8 => ("a chunk size that is no number", with_header("Transfer-Encoding: chunked\r\nX: y")),
        9 => ("a header of a megabyte", with_header(&format!("X-Long: {}", "y".repeat(1 << 20)))),
        _ => ("a NUL in a header", with_header("X-Nul: a\0b\r\nContent-Length: 4")),
    };
    Malformed { what: what.to_owned(), bytes, ends_early: true, must_refuse: true }
}

fn wrong_messages(random: &mut Random) -> Malformed {
    const MESSAGES: [&str; 14] = [
        "[]",
        "[null]",
        "[\"hi\"]",
        "[{}]",
        "{\"role\":\"user\",\"content\":\"hi\"}",
        r#"[{"role":"user"}]"#,
        r#"[{"role":"user","content":null}]"#,
        r#"[{"role":"user","content":5}]"#,
        r#"[{"role":"wizard","content":"hi"}]"#,
        r#"[{"role":["user"],"content":"hi"}]"#,
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"text"}]}]"#,
        r#"[{"role":"user","content":[["text"]]}]"#,
        r#"[{"role":"tool","content":"hi"}]"#,
    ];
    let messages = random.pick(&MESSAGES);
    let body = with_field(CHAT, "messages", messages);
    complete(&format!("messages = {messages}"), CHAT, body.as_bytes(), true)
}

fn wrong_prompt(random: &mut Random) -> Malformed {
    let (what, prompt) = match random.below(8) {
        0 => ("no prompts", "[]".to_owned()),
        1 => ("an id beyond the vocabulary", "[1, 4294967295]".to_owned()),
        2 => ("a negative id", "[1, -1]".to_owned()),
        3 => ("half an id", "[[1, 2.5]]".to_owned()),
        4 => ("prompts three levels deep", "[[[1]]]".to_owned()),
        5 => ("ids and strings in one prompt", "[1, \"two\"]".to_owned()),
        6 => ("no ids in a prompt", "[[1], []]".to_owned()),
        _ => ("two million ids", format!("[{}1]", "1,".repeat(2_000_000))),
    };
    let body = with_field(COMPLETIONS, "prompt", &prompt);
    complete(&format!("a prompt with {what}"), COMPLETIONS, body.as_bytes(), true)
}
