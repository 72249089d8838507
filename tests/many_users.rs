//! Many requests at one real server: what they share, what survives a restart, what guessing leaves as it is.

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

#[test]
fn guesses_change_no_text() {
    let Some(model) = support::model_or_skip() else { return };
    let plain = Server::start(&model, &["--speculation", "off"]);
    let guessing = Server::start(&model, &["--speculation", "lookup"]);
    let code = "fn area(width: u32, height: u32) -> u32 {\n    width * height\n}\n";
    let prompts = [
        format!("Repeat this code and rename width to w:\n{code}\nAnswer:\n{code}"),
        "Count: one two three four five six seven eight nine ten one two three".to_owned(),
        "Once upon a time".to_owned(),
    ];
    for (number, prompt) in prompts.iter().enumerate() {
        for temperature in [0.0, 0.7] {
            let mut body = completion(&json!(prompt), 120);
            body["temperature"] = json!(temperature);
            body["seed"] = json!(number);
            let [one, other] = [&plain, &guessing].map(|server| server.post("/v1/completions", &body).1);
            assert_eq!(one["choices"][0]["text"], other["choices"][0]["text"], "{prompt} at {temperature}");
        }
    }
}
