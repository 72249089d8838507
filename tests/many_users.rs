//! Many requests at one real server: what they share, what survives a restart, and what leaves their answers as they are.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::{Server, post};
use std::time::Duration;

fn completion(prompt: &Value, max_tokens: usize) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true })
}

fn computed_tokens(usage: &Value) -> u64 {
    let count = |value: &Value| value.as_u64().expect("counts of tokens are integers");
    count(&usage["prompt_tokens"]) - count(&usage["prompt_tokens_details"]["cached_tokens"])
}

#[test]
fn a_common_prefix_is_computed_once_for_requests_of_the_same_moment() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let prefix: Vec<u32> = (0..2048).map(|place| 1000 + place * 7 % 30_000).collect();
    let suffix = |user: usize| vec![2000 + user as u32; 5 + user % 20];
    let url = &server.url;
    let ask = |user: usize| {
        let prompt = json!([prefix.clone(), suffix(user)].concat());
        let (status, answer) = post(url, "/v1/completions", &completion(&prompt, 4));
        assert_eq!(status, 200, "{answer}");
        answer["usage"].clone()
    };
    let usages: Vec<Value> = std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..64).map(|user| scope.spawn(move || ask(user))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let computed: u64 = usages.iter().map(computed_tokens).sum();
    let least = (prefix.len() + (0..64).map(|user| suffix(user).len()).sum::<usize>()) as u64;
    assert!(computed <= least + least / 20, "{computed} prompt tokens were computed where {least} had to be");
}

#[test]
fn a_restart_answers_a_known_prompt_from_disk_with_the_same_text() {
    let Some(model) = support::model_or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--cache-dir", folder.path().to_str().unwrap()];
    let prompt = json!("The quick brown fox jumps over the lazy dog, again and again. ".repeat(20));
    let ask = |server: &Server| {
        let (status, answer) = server.post("/v1/completions", &completion(&prompt, 32));
        assert_eq!(status, 200, "{answer}");
        (answer["choices"][0]["text"].clone(), answer["usage"].clone())
    };
    let mut server = Server::start(&model, &arguments);
    let (text, cold) = ask(&server);
    assert_eq!(cold["prompt_tokens_details"]["cached_tokens"], 0);
    server.signal("TERM");
    assert!(server.wait(Duration::from_secs(30)).success());
    let server = Server::start(&model, &arguments);
    let (same, warm) = ask(&server);
    assert_eq!(same, text);
    assert!(computed_tokens(&warm) <= 64, "{warm}");
}

/// Prompts of different lengths, some that repeat themselves and share their beginnings. Every other one has choices that are
/// drawn, which soon need more memory than was foreseen.
fn bodies() -> Vec<Value> {
    let code = "fn area(width: u32, height: u32) -> u32 {\n    width * height\n}\n";
    let list = "one two three four five six seven eight nine ten ".repeat(12);
    let prompts = [
        format!("Repeat this code and rename width to w:\n{code}\nAnswer:\n{code}"),
        format!("Count: {list}"),
        format!("Count: {list}and once more: one two"),
        "Once upon a time".to_owned(),
        "The quick brown fox jumps over the lazy dog. ".repeat(15),
        format!("Repeat this code:\n{code}"),
    ];
    let body = |(number, prompt): (usize, &String)| {
        let mut body = completion(&json!(prompt), 40);
        if number % 2 == 1 {
            body["n"] = json!(4);
            body["temperature"] = json!(0.7);
            body["seed"] = json!(number);
        }
        // Probabilities tell bits apart that a text does not.
        body["logprobs"] = json!(1);
        body
    };
    prompts.iter().enumerate().map(body).collect()
}

/// The answers when all are asked at once.
fn together(server: &Server) -> Vec<Value> {
    let url = &server.url;
    std::thread::scope(|scope| {
        let ask = |body| scope.spawn(move || post(url, "/v1/completions", &body).1["choices"].clone());
        let threads: Vec<_> = bodies().into_iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A counter of GET /metrics.
fn counter(server: &Server, name: &str) -> f64 {
    let text = server.get_text("/metrics");
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn neither_company_nor_cache_nor_chunks_nor_guesses_nor_threads_change_an_answer() {
    let Some(model) = support::model_or_skip() else { return };
    let plain = Server::start(&model, &["--threads", "2", "--speculation", "off"]);
    let alone = |body: &Value| plain.post("/v1/completions", body).1["choices"].clone();
    let expected: Vec<Value> = bodies().iter().map(alone).collect();
    assert!(expected.iter().all(|choices| choices[0]["text"].is_string()), "{expected:?}");
    assert_eq!(together(&plain), expected, "cached and batched");
    for threads in ["1", "2", "3"] {
        // Memory for fewer tokens than are asked for, and the smallest chunks.
        let small = ["--threads", threads, "--kv-cache-size", "12MB", "--itl-target", "1ms"];
        let server = Server::start(&model, &small);
        assert_eq!(together(&server), expected, "all of it, {threads} threads");
        for name in ["vllm:num_preemptions_total", "vllm:spec_decode_num_accepted_tokens_total"] {
            assert!(counter(&server, name) > 0.0, "{name}, {threads} threads");
        }
    }
}
