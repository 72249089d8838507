//! POST /v1/completions.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineHandle};
use taper_server::{ServerState, Timeouts};

/// A server that continues the prompts one, two, ... with ONE, TWO, ...
fn counting(num: usize, config: EngineConfig) -> (ServerState, EngineHandle) {
    let tokenizer = vocabulary().tokenizer;
    let options = || taper_text::EncodeOptions { parse_special: true, add_bos: true };
    let script = (0..num)
        .map(|index| (tokenizer.encode(&format!("p{index}:"), options()).unwrap(), bytes_of(&format!("R{index}"))))
        .collect();
    state_with(StubRunner::scripted(limits(), script, end_token()), config, Timeouts::default())
}

#[tokio::test]
async fn an_answer_has_the_fields_of_text_completions() {
    let answer = complete(&state(), json!({ "max_tokens": 64 })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"], json!([{ "text": REPLY, "index": 0, "logprobs": null, "finish_reason": "stop" }]));
    assert_eq!(body["usage"]["completion_tokens"], REPLY.len() + 1);
}

#[tokio::test]
async fn sixteen_tokens_are_the_default() {
    let (state, _engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let body = complete(&state, json!({})).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["text"].as_str().unwrap().len(), 16);
}

#[tokio::test]
async fn prompts_may_be_text_ids_or_several_of_either() {
    let (state, _engine) = counting(3, EngineConfig::default());
    let ids = |text: &str| json!(bytes_of(text));
    for (prompt, expected) in [
        (json!("p1:"), vec!["R1"]),
        (json!(["p0:", "p2:"]), vec!["R0", "R2"]),
        (ids("p1:"), vec!["R1"]),
        (json!([ids("p2:"), ids("p0:")]), vec!["R2", "R0"]),
        (json!(["p2:", ids("p1:")]), vec!["R2", "R1"]),
    ] {
        let body = complete(&state, json!({ "prompt": prompt })).await.json();
        let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{body}"));
        let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(texts, expected, "{prompt}");
    }
}

#[tokio::test]
async fn choices_of_a_batch_are_numbered_prompt_by_prompt() {
    let (state, _engine) = counting(2, EngineConfig::default());
    let request = json!({ "prompt": ["p0:", "p1:"], "n": 2 });
    let body = complete(&state, request.clone()).await.json();
    let seen: Vec<(u64, &str)> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [(0, "R0"), (1, "R0"), (2, "R1"), (3, "R1")]);
    assert_eq!(body["usage"]["prompt_tokens"], 6);
    assert_eq!(body["usage"]["completion_tokens"], 12);

    let mut streamed = request;
    streamed["stream"] = true.into();
    let mut texts = vec![String::new(); 4];
    let mut ends = 0;
    for chunk in complete(&state, streamed).await.chunks() {
        assert_eq!(chunk["object"], "text_completion");
        let choice = &chunk["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
        ends += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(texts, ["R0", "R0", "R1", "R1"]);
    assert_eq!(ends, 4);
}

#[tokio::test]
async fn a_batch_larger_than_the_queue_is_worked_off() {
    let (state, _engine) = counting(100, EngineConfig { max_batch: 4, max_queued: 4, ..EngineConfig::default() });
    let prompts: Vec<String> = (0..100).map(|index| format!("p{index}:")).collect();
    let body = complete(&state, json!({ "prompt": prompts })).await.json();
    let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{body}"));
    assert_eq!(choices.len(), 100);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["text"], format!("R{index}"));
    }
}

#[tokio::test]
async fn echo_puts_the_prompt_before_the_answer() {
    let (state, _engine) = counting(2, EngineConfig::default());
    for prompt in [json!(["p0:", "p1:"]), json!([bytes_of("p0:"), bytes_of("p1:")])] {
        let body = complete(&state, json!({ "prompt": prompt, "echo": true })).await.json();
        assert_eq!(body["choices"][0]["text"], "p0:R0", "{body}");
        assert_eq!(body["choices"][1]["text"], "p1:R1");
        let streamed = complete(&state, json!({ "prompt": prompt, "echo": true, "stream": true })).await;
        let second = streamed.chunks();
        let second = second.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == 1);
        assert_eq!(second.filter_map(|choice| choice["text"].as_str()).collect::<String>(), "p1:R1");
    }
}

#[tokio::test]
async fn text_that_some_take_for_several_lines_stays_on_one() {
    let state = state();
    let prompt = "a\u{85}b\u{2028}c\u{2029}d\n\u{b}\u{1e}";
    let streamed = complete(&state, json!({ "prompt": prompt, "echo": true, "stream": true })).await;
    let text: String =
        streamed.chunks().iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert!(text.starts_with(prompt), "{text:?}");
    let body = json!({ "input": "a", "instructions": prompt, "stream": true });
    let events = post(&state, "/v1/responses", &body).await.events();
    assert_eq!(events[0]["response"]["instructions"], prompt);
}

async fn check_refused(prompt: Value, part_of_message: &str) {
    let answer = complete(&state(), json!({ "prompt": prompt })).await;
    assert_eq!(answer.status, 400, "{prompt}: {}", answer.body);
    assert_eq!(answer.error()["param"], "prompt");
    let message = answer.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(part_of_message), "{message}");
}

#[tokio::test]
async fn prompts_that_are_none_are_refused() {
    check_refused(json!(null), "missing").await;
    check_refused(json!([]), "empty array").await;
    check_refused(json!(5), "must be a string").await;
    check_refused(json!(""), "no tokens").await;
    check_refused(json!(["ok", ""]), "no tokens").await;
    check_refused(json!([[]]), "no tokens").await;
    check_refused(json!([1, "two"]), "token id").await;
    check_refused(json!([1, -2]), "token id").await;
    check_refused(json!([1, 4_000_000_000_u32]), "not in the vocabulary").await;
    check_refused(json!([[[1]]]), "token id").await;
    check_refused(json!([{}]), "each prompt").await;
    check_refused(json!(vec!["x"; 513]), "at most 512").await;
}

#[tokio::test]
async fn one_prompt_too_long_refuses_the_batch_before_it_begins() {
    let answer = complete(&state(), json!({ "prompt": ["ok", "x y ".repeat(400)], "stream": true })).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error()["code"], "context_length_exceeded");
}

#[tokio::test]
async fn usage_of_a_stream_is_that_of_the_whole_answer() {
    let (state, _engine) = counting(2, EngineConfig::default());
    let fields = json!({ "prompt": ["p0:", "p1:"], "stream": true, "stream_options": { "include_usage": true } });
    let chunks = complete(&state, fields).await.chunks();
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 12);
}

#[tokio::test]
async fn timings_of_several_prompts_are_told_where_they_are_asked_for() {
    let (state, _engine) = counting(2, EngineConfig::default());
    let fields = |more: Value| {
        let mut fields = json!({ "prompt": ["p0:", "p1:"], "n": 2 });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    assert_eq!(complete(&state, fields(json!({}))).await.json().get("timings"), None);
    let check = |timings: &Value| {
        let timings = timings.as_array().unwrap_or_else(|| panic!("{timings}"));
        let counts: Vec<(&Value, &Value)> =
            timings.iter().map(|timings| (&timings["prompt_n"], &timings["predicted_n"])).collect();
        // Two choices of two letters and an end, of each.
        assert_eq!(counts, [(&json!(3), &json!(6)), (&json!(3), &json!(6))]);
    };
    check(&complete(&state, fields(json!({ "timings": true }))).await.json()["timings"]);
    let chunks = complete(&state, fields(json!({ "timings": true, "stream": true }))).await.chunks();
    check(&chunks.last().unwrap()["timings"]);
}

#[tokio::test]
async fn an_answer_ends_at_a_line_break_when_its_own_time_is_over() {
    // The model waits for ever after some tokens: only the time can end the answer.
    for stream in [false, true] {
        for path in [CHAT, COMPLETIONS] {
            let (runner, gate) = StubRunner::new(limits(), |_| u32::from(b'\n')).with_gate();
            let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
            gate.allow(3);
            let body = json!({
                "prompt": "a", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 100,
                "t_max_predict_ms": 1, "stream": stream, "stream_options": stream.then(|| json!({ "include_usage": true })),
            });
            let answer = post(&state, path, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let (reason, usage) = if stream {
                let chunks = answer.chunks();
                let end =
                    chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).find(|reason| reason.is_string());
                (end.unwrap().clone(), chunks.last().unwrap()["usage"].clone())
            } else {
                (answer.json()["choices"][0]["finish_reason"].clone(), answer.json()["usage"].clone())
            };
            assert_eq!(reason, "length");
            assert!(usage["completion_tokens"].as_u64().unwrap() >= 1, "{usage}");
            gate.open();
            eventually("the sequence is given up", || engine.status().running == 0).await;
        }
    }
    // Without a line break it goes on to its end.
    let body = complete(&state(), json!({ "t_max_predict_ms": 1, "max_tokens": 64 })).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn as_many_choices_are_answered_as_may_be_asked_for() {
    let state = state();
    let body = complete(&state, json!({ "n": 128, "max_tokens": 3, "temperature": 0 })).await.json();
    let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{body}"));
    assert_eq!((choices.len(), &body["usage"]["completion_tokens"]), (128, &json!(3 * 128)));
    assert!(choices.iter().all(|choice| choice["text"] == choices[0]["text"]));
    let answer = complete(&state, json!({ "prompt": vec!["a"; 65], "n": 128 })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("n")));
    assert!(answer.error()["message"].as_str().unwrap().contains("8320 choices"), "{}", answer.body);
}
