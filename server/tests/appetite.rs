//! Requests that want more than their share: of memory, of time.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::json;
use std::time::Duration;
use support::*;
use taper_engine::EngineConfig;
use taper_server::Timeouts;

#[tokio::test]
async fn of_prompts_so_much_is_told_for_all_choices_together() {
    // 10 tokens times 512 prompts times 21 of each token: with 16 choices more than are told, with 1 not.
    let prompts = vec!["0123456789"; 512];
    for (fields, param) in [
        (json!({ "prompt_logprobs": 20 }), "prompt_logprobs"),
        (json!({ "echo": true, "logprobs": 20 }), "logprobs"),
        (json!({ "echo": true, "logprobs": 20, "stream": true }), "logprobs"),
    ] {
        let state = state();
        let ask = |n: usize| {
            let mut body = fields.clone();
            body["prompt"] = json!(prompts);
            body["n"] = json!(n);
            body["max_tokens"] = json!(1);
            body
        };
        let refused = complete(&state, ask(16)).await;
        assert_eq!((refused.status.as_u16(), &refused.error()["param"]), (400, &json!(param)), "{fields}");
        assert!(refused.error()["message"].as_str().unwrap().contains("at most 67108864"), "{}", refused.body);
        assert_eq!(complete(&state, ask(1)).await.status, 200, "{fields}");
    }
    let many = json!({ "prompt": prompts, "n": 16, "max_tokens": 1, "logprobs": 20 });
    assert_eq!(complete(&state(), many).await.status, 200, "nothing is told of the prompts");
}

#[tokio::test]
async fn the_time_limit_is_for_all_prompts_of_a_request_together() {
    // Each of the prompts takes a step of 10 ms, all of them two seconds.
    let config = EngineConfig {
        max_batch: 1,
        max_queued: 1000,
        request_timeout: Some(Duration::from_millis(300)),
        ..EngineConfig::default()
    };
    let (state, engine) = state_with(babbling().with_delay(Duration::from_millis(10)), config, Timeouts::default());
    let prompts: Vec<String> = (0..200).map(|place| format!("p{place}")).collect();
    let answer = complete(&state, json!({ "prompt": prompts, "max_tokens": 1 })).await;
    assert_eq!(answer.status, 408, "{}", answer.body);
    assert!(answer.error()["message"].as_str().unwrap().contains("0.3 s after it arrived"), "{}", answer.body);
    eventually("the rest is cancelled", || engine.status().running + engine.status().queued == 0).await;
    assert_eq!(complete(&state, json!({ "max_tokens": 1 })).await.status, 200);
}

#[tokio::test]
async fn the_time_limit_is_for_the_compilation_of_a_grammar_too() {
    let config = EngineConfig { request_timeout: Some(Duration::from_millis(50)), ..EngineConfig::default() };
    let (state, _engine) = state_with(babbling(), config, Timeouts::default());
    let answer = complete(&state, json!({ "guided_regex": "((a{100}){100}){100}" })).await;
    assert_eq!(answer.status, 408, "{}", answer.body);
    assert_eq!(answer.error()["code"], "request_timeout");
}

#[tokio::test]
async fn a_form_that_cannot_be_followed_is_refused_under_the_name_that_the_client_used() {
    for (field, form) in [
        ("guided_regex", json!("(")),
        ("grammar", json!("root ::= nothing")),
        ("json_schema", json!(false)),
        ("response_format", json!({ "type": "json_schema", "schema": false })),
    ] {
        let answer = complete(&state(), json!({ field: form })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(field)), "{}", answer.body);
    }
    let nested = complete(&state(), json!({ "structured_outputs": { "regex": "(" } })).await;
    assert_eq!(nested.error()["param"], "structured_outputs.regex");
}
