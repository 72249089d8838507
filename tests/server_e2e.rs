//! The real binary over HTTP, with the default model.

#[path = "support/malformed.rs"]
#[allow(dead_code, unreachable_pub)]
mod malformed;
#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::{Server, stream};
use std::thread;
use std::time::{Duration, Instant};

fn chat(prompt: &str, max_tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens})
}

fn completion(prompt: &str, max_tokens: usize) -> Value {
    json!({"prompt": prompt, "temperature": 0, "max_tokens": max_tokens})
}

/// The longest that any request, however broken, may take.
const LIMIT: Duration = Duration::from_secs(10);

const PROMPTS: [&str; 8] = [
    "Name three colours.",
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Count from one to ten.",
    "Why is the sky blue?",
    "Tell me a short story about a dog who learns to read the newspaper every morning before breakfast.",
    "Explain recursion.",
    "Hi!",
];

#[test]
fn eight_concurrent_streams_give_the_texts_of_one_after_another() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let alone: Vec<String> = PROMPTS
        .iter()
        .map(|prompt| {
            let streamed = server.stream("/v1/chat/completions", &chat(prompt, 48), |_| true);
            assert!(streamed.done);
            assert_eq!(streamed.finish_reasons().len(), 1);
            assert_eq!(streamed.chunks[0]["choices"][0]["delta"]["role"], "assistant");
            streamed.text()
        })
        .collect();
    assert!(alone.iter().all(|text| !text.is_empty()), "{alone:?}");
    let threads: Vec<_> = PROMPTS
        .iter()
        .map(|prompt| {
            let url = server.url.clone();
            thread::spawn(move || stream(&url, "/v1/chat/completions", &chat(prompt, 48), |_| true).text())
        })
        .collect();
    let together: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(alone, together);
    let whole = server.post("/v1/chat/completions", &chat(PROMPTS[0], 48)).1;
    assert_eq!(whole["choices"][0]["message"]["content"], alone[0].as_str());
}

#[test]
fn a_stop_string_split_over_chunks_never_leaks() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let free = server.stream("/v1/completions", &completion("The capital of France is", 40), |_| true);
    let text = free.text();
    // A stop string that no single chunk holds: it straddles the border of two.
    let pieces: Vec<&str> = free.chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    let at: usize = pieces[..8].iter().map(|piece| piece.len()).sum();
    assert!(text.is_char_boundary(at - 2) && text.is_char_boundary(at + 2), "{text:?}");
    let stop = &text[at - 2..at + 2];
    assert!(!pieces.iter().any(|piece| piece.contains(stop)), "{stop:?} lies within one of {pieces:?}");
    let mut body = completion("The capital of France is", 40);
    body["stop"] = json!([stop]);
    let stopped = server.stream("/v1/completions", &body, |_| true);
    assert_eq!(stopped.text(), &text[..text.find(stop).unwrap()]);
    assert_eq!(stopped.finish_reasons(), ["stop"]);
}

#[test]
fn a_four_byte_character_split_over_tokens_arrives_whole() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let body = completion("Repeat: 😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀", 24);
    let streamed = server.stream("/v1/completions", &body, |_| true);
    assert!(streamed.text().chars().any(|c| c.len_utf8() == 4), "no four-byte character in {:?}", streamed.text());
    assert_eq!(streamed.text(), server.post("/v1/completions", &body).1["choices"][0]["text"].as_str().unwrap());
    for chunk in &streamed.chunks[..streamed.chunks.len() - 2] {
        assert!(!chunk["choices"][0]["text"].as_str().unwrap_or("").contains('\u{FFFD}'), "{chunk}");
    }
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &["--max-batch", "1"]);
    let mut endless = completion("Once upon a time", 8000);
    endless["ignore_eos"] = json!(true);
    let mut seen = 0;
    let cut = server.stream("/v1/completions", &endless, |_| {
        seen += 1;
        seen < 3
    });
    assert!(!cut.done);
    let start = Instant::now();
    let (status, body) = server.post("/v1/completions", &completion("Hello", 4));
    assert_eq!(status, 200, "{body}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the place of a client that left was kept {:?}",
        start.elapsed()
    );
}

#[test]
fn a_prompt_longer_than_the_context_is_a_clear_400() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &["--ctx", "128"]);
    let (status, body) = server.post("/v1/completions", &completion(&"word ".repeat(300), 4));
    assert_eq!(status, 400);
    let error = &body["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["n_ctx"], 128);
    let message = error["message"].as_str().unwrap();
    let prompt_tokens = error["n_prompt_tokens"].as_u64().unwrap();
    assert!(prompt_tokens >= 300);
    assert!(message.contains("128") && message.contains(&prompt_tokens.to_string()), "{message}");
    assert_eq!(server.post("/v1/completions", &completion("Hello", 4)).0, 200);
}

#[test]
fn sigterm_under_load_finishes_the_running_streams() {
    let Some(model) = support::model_or_skip() else { return };
    let mut server = Server::start(&model, &[]);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let url = server.url.clone();
            let mut body = completion("Once upon a time", 300);
            body["ignore_eos"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            thread::spawn(move || stream(&url, "/v1/completions", &body, |_| true))
        })
        .collect();
    thread::sleep(Duration::from_millis(400));
    server.signal("TERM");
    thread::sleep(Duration::from_millis(100));
    let (status, refused) = server.post("/v1/completions", &completion("Hello", 4));
    assert_eq!(status, 503, "{refused}");
    for thread in threads {
        let streamed = thread.join().unwrap();
        assert!(streamed.done, "a running stream was cut");
        assert_eq!(streamed.chunks.last().unwrap()["usage"]["completion_tokens"], 300);
    }
    assert!(server.wait(Duration::from_secs(20)).success());
}

#[test]
fn a_second_signal_stops_at_once() {
    let Some(model) = support::model_or_skip() else { return };
    let mut server = Server::start(&model, &[]);
    let url = server.url.clone();
    let mut endless = completion("Once upon a time", 8000);
    endless["ignore_eos"] = json!(true);
    let _client = thread::spawn(move || ureq::post(format!("{url}/v1/completions")).send_json(&endless));
    thread::sleep(Duration::from_millis(300));
    server.signal("INT");
    thread::sleep(Duration::from_millis(200));
    assert!(server.is_running(), "the first signal must wait for the running request");
    server.signal("INT");
    assert_eq!(server.wait(Duration::from_secs(5)).code(), Some(130));
}

/// What a write beyond `ulimit -f` brings; it would end a program that does not expect it.
#[test]
fn a_limit_on_the_size_of_files_does_not_end_the_server() {
    let Some(model) = support::model_or_skip() else { return };
    let mut server = Server::start(&model, &[]);
    server.signal("XFSZ");
    thread::sleep(Duration::from_millis(200));
    assert!(server.is_running());
    assert_eq!(server.post("/v1/completions", &completion("Hello", 4)).0, 200);
}

#[test]
fn the_server_listens_before_the_weights_are_read() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start_loading(&model, &[]);
    let (status, body) = server.get("/health");
    assert!(status == 200 || (status == 503 && body["reason"].is_string()), "{status} {body}");
}

#[test]
fn malformed_requests_are_never_a_5xx_and_harm_nobody() {
    let Some(model) = support::model_or_skip() else { return };
    let mut server = Server::start(&model, &["--ctx", "512"]);
    let address = server.url.trim_start_matches("http://").parse().unwrap();
    let failures: Vec<String> = malformed::malformed(7, 200)
        .iter()
        .filter_map(|request| malformed::verdict(request, &malformed::send(address, request, LIMIT)).err())
        .collect();
    assert!(failures.is_empty(), "{} of 200: {failures:#?}", failures.len());
    assert!(server.is_running());
    assert_eq!(server.post("/v1/completions", &completion("Hello", 4)).0, 200);
}
