//! Sampling parameters and what is told about tokens, on both endpoints.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineHandle};
use taper_server::{ServerState, Timeouts};

/// A model that would say "abcabc..." for ever, with the end of the text as the second best and `z` as the third.
fn alphabet() -> (ServerState, EngineHandle) {
    let end = end_token() as usize;
    let runner = StubRunner::with_logits(limits(), move |tokens, logits| {
        let last = tokens[tokens.len() - 1];
        let next = if (97..99).contains(&last) { last + 1 } else { 97 };
        logits[next as usize] = 6.0;
        logits[end] = 5.0;
        logits[usize::from(b'z')] = 4.0;
    });
    state_with(runner, EngineConfig::default(), Timeouts::default())
}

/// The same answer text on both endpoints.
async fn check_text(fields: Value, expected: &str) {
    let (state, _engine) = alphabet();
    let mut all = json!({ "temperature": 0, "max_tokens": 9 });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let chat = chat(&state, all.clone()).await;
    assert_eq!(chat.status, 200, "{}", chat.body);
    assert_eq!(chat.json()["choices"][0]["message"]["content"], expected, "{fields}");
    assert_eq!(complete(&state, all).await.json()["choices"][0]["text"], expected, "{fields}");
}

#[tokio::test]
async fn every_parameter_reaches_the_sampler() {
    let (a, b, z) = ("97", 98, "122");
    for (fields, expected) in [
        (json!({}), "abcabcabc"),
        (json!({ "presence_penalty": 1.5 }), "abc"),
        (json!({ "frequency_penalty": 0.6 }), "abcabc"),
        (json!({ "logit_bias": { z: 10 } }), "zzzzzzzzz"),
        (json!({ "logit_bias": { a: -100 } }), ""),
        (json!({ "logit_bias": { "z": 10 } }), "zzzzzzzzz"),
        (json!({ "logit_bias": [[122, 10]] }), "zzzzzzzzz"),
        (json!({ "logit_bias": [["b", false], ["<|endoftext|>", -100]] }), "azazazaza"),
        (json!({ "logit_bias": { "b": false }, "bad_words": ["za"] }), "a"),
        (json!({ "allowed_token_ids": [97, 122] }), "azazazaza"),
        (json!({ "bad_words": ["b"] }), "a"),
        (json!({ "stop_token_ids": [b] }), "a"),
        (json!({ "stop_token_ids": [b], "include_stop_str_in_output": true }), "ab"),
        (json!({ "stop": "bc", "include_stop_str_in_output": true }), "abc"),
        (json!({ "stop": "bc", "min_tokens": 4 }), "abca"),
        (json!({ "presence_penalty": 1.5, "min_tokens": 4 }), "abca"),
        (json!({ "top_k": 1, "temperature": 1 }), "abcabcabc"),
        (json!({ "top_p": 0.1, "temperature": 1 }), "abcabcabc"),
        (json!({ "min_p": 1, "temperature": 1 }), "abcabcabc"),
        (json!({ "presence_penalty": 1.5, "repeat_last_n": 2 }), "abcabcabc"),
        (json!({ "dry_multiplier": 1.5, "dry_base": 1 }), "abcab"),
        (json!({ "dry_multiplier": 1.5, "dry_base": 1, "dry_sequence_breakers": ["a", "b", "c"] }), "abcabcabc"),
        (json!({ "samplers": ["top_k", "temperature"], "top_k": 1, "temperature": 2 }), "abcabcabc"),
        (
            json!({ "samplers": "kx", "top_k": 3, "xtc_probability": 1, "xtc_threshold": 0.001, "max_tokens": 4 }),
            "zzzz",
        ),
        (json!({ "top_n_sigma": 0.01, "temperature": 2 }), "abcabcabc"),
        (json!({ "mirostat": 2, "mirostat_tau": 0, "temperature": 1 }), "abcabcabc"),
    ] {
        check_text(fields, expected).await;
    }
}

#[tokio::test]
async fn the_repetition_penalty_has_two_names() {
    // The chat's prompt holds an a, this one does not.
    let (state, _engine) = alphabet();
    for name in ["repetition_penalty", "repeat_penalty"] {
        let body = complete(&state, json!({ "prompt": "> ", name: 1.3, "temperature": 0 })).await.json();
        assert_eq!(body["choices"][0]["text"], "abc", "{body}");
    }
    let same = json!({ "prompt": "> ", "repetition_penalty": 1.3, "repeat_penalty": 1.3, "temperature": 0 });
    assert_eq!(complete(&state, same).await.json()["choices"][0]["text"], "abc");
    let both = json!({ "prompt": "> ", "repetition_penalty": 1.3, "repeat_penalty": 1, "temperature": 0 });
    let refused = complete(&state, both).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(refused.error()["param"], "repetition_penalty");
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("repetition_penalty is 1.3 and repeat_penalty is 1, two names"), "{message}");
}

#[tokio::test]
async fn typical_p_reaches_the_sampler() {
    // The most probable token has half of the mass, but two others lie nearer to the entropy.
    let runner = StubRunner::with_logits(limits(), |_, logits| {
        logits.fill(f32::NEG_INFINITY);
        for (letter, share) in [(b'a', 0.5f32), (b'b', 0.4), (b'c', 0.06), (b'd', 0.04)] {
            logits[usize::from(letter)] = share.ln();
        }
    });
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let body = complete(&state, json!({ "typical_p": 0.3 })).await.json();
    assert_eq!(body["choices"][0]["text"], "b".repeat(16));
}

async fn check_refused(path: &str, fields: Value, param: &str) {
    let (state, _engine) = alphabet();
    let mut body = json!({ "prompt": "> ", "messages": [{ "role": "user", "content": "Hi" }] });
    let other = if path == CHAT { "prompt" } else { "messages" };
    body.as_object_mut().unwrap().remove(other);
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = post(&state, path, &body).await;
    assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
    assert_eq!(answer.error()["param"], param, "{fields}: {}", answer.body);
    assert!(answer.error()["message"].as_str().unwrap().contains(param), "{}", answer.body);
}

#[tokio::test]
async fn a_bad_value_is_refused_by_its_name_on_both_endpoints() {
    for (param, value) in [
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!("much")),
        ("repetition_penalty", json!(0)),
        ("repeat_penalty", json!(-1)),
        ("typical_p", json!(1.5)),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(99)),
        ("logit_bias", json!({ "a": 1000 })),
        ("logit_bias", json!({ "a": true })),
        ("logit_bias", json!({ "5": 101 })),
        ("logit_bias", json!({ "5": null })),
        ("logit_bias", json!({ "4000000": 1 })),
        ("logit_bias", json!([[5]])),
        ("logit_bias", json!([["a".repeat(257), false]])),
        ("logit_bias", json!("a")),
        ("allowed_token_ids", json!([-1])),
        ("allowed_token_ids", json!([4_000_000])),
        ("allowed_token_ids", json!(5)),
        ("stop_token_ids", json!(["a"])),
        ("stop_token_ids", json!([4_000_000])),
        ("stop_token_ids", json!(vec![1; 257])),
        ("bad_words", json!("word")),
        ("bad_words", json!([""])),
        ("bad_words", json!([5])),
        ("bad_words", json!(vec!["a"; 257])),
        ("include_stop_str_in_output", json!("yes")),
        ("prompt_logprobs", json!(21)),
        ("prompt_logprobs", json!(true)),
        ("return_token_ids", json!(1)),
        ("return_tokens_as_token_ids", json!(1)),
    ] {
        for path in [CHAT, COMPLETIONS] {
            check_refused(path, json!({ param: value, "max_tokens": 16 }), param).await;
        }
    }
    check_refused(CHAT, json!({ "logprobs": 1 }), "logprobs").await;
    check_refused(CHAT, json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs").await;
    check_refused(CHAT, json!({ "top_logprobs": 2 }), "top_logprobs").await;
    check_refused(CHAT, json!({ "logprobs": true, "top_logprobs": -1 }), "top_logprobs").await;
    check_refused(COMPLETIONS, json!({ "logprobs": 21 }), "logprobs").await;
    check_refused(COMPLETIONS, json!({ "logprobs": true }), "logprobs").await;
    check_refused(COMPLETIONS, json!({ "best_of": 1, "n": 2 }), "best_of").await;
    check_refused(COMPLETIONS, json!({ "best_of": 129 }), "best_of").await;
    check_refused(COMPLETIONS, json!({ "best_of": 2, "stream": true }), "best_of").await;
    check_refused(COMPLETIONS, json!({ "max_tokens": 0 }), "max_tokens").await;
    check_refused(CHAT, json!({ "max_tokens": 0 }), "max_tokens").await;
    for path in [CHAT, COMPLETIONS] {
        check_refused(path, json!({ "prompt_logprobs": 1, "stream": true }), "prompt_logprobs").await;
    }
}

/// Every key of `object` and no other.
fn check_keys(object: &Value, expected: &[&str]) {
    let keys: Vec<&str> = object.as_object().unwrap_or_else(|| panic!("{object}")).keys().map(String::as_str).collect();
    assert_eq!(keys, expected);
}

/// A reply with characters of several tokens and the beginning of a stop string in it.
const TEXT: &str = "a🦀, é stopped";

fn with_reply() -> ServerState {
    state_with(replying(TEXT), EngineConfig::default(), Timeouts::default()).0
}

#[tokio::test]
async fn chat_log_probabilities_have_the_shape_of_openai() {
    let body = chat(&with_reply(), json!({ "logprobs": true, "top_logprobs": 2 })).await.json();
    let choice = &body["choices"][0];
    check_keys(choice, &["index", "message", "logprobs", "finish_reason"]);
    check_keys(&choice["logprobs"], &["content", "refusal"]);
    assert_eq!(choice["logprobs"]["refusal"], Value::Null);
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len() as u64, body["usage"]["completion_tokens"].as_u64().unwrap());
    let mut bytes = Vec::new();
    for entry in content {
        check_keys(entry, &["token", "logprob", "bytes", "top_logprobs"]);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        for top in entry["top_logprobs"].as_array().unwrap() {
            check_keys(top, &["token", "logprob", "bytes"]);
        }
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        bytes.extend(entry["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
    }
    assert!(bytes.starts_with(TEXT.as_bytes()), "the bytes are the text's and the ending token's");

    let without_top = chat(&with_reply(), json!({ "logprobs": true })).await.json();
    assert_eq!(without_top["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    for fields in [json!({}), json!({ "logprobs": false }), json!({ "logprobs": null, "top_logprobs": 0 })] {
        assert_eq!(chat(&with_reply(), fields).await.json()["choices"][0]["logprobs"], Value::Null);
    }
}

#[tokio::test]
async fn streamed_log_probabilities_are_those_of_the_whole_answer() {
    // The stop string is held back for a while in one, and found in the other.
    for stop in ["stop!", "stopp"] {
        let fields = json!({ "logprobs": true, "top_logprobs": 1, "stop": stop });
        let whole = chat(&with_reply(), fields.clone()).await.json();
        let mut streamed = fields;
        streamed["stream"] = true.into();
        let mut content = Vec::new();
        for chunk in chat(&with_reply(), streamed).await.chunks() {
            let choice = &chunk["choices"][0];
            check_keys(choice, &["index", "delta", "logprobs", "finish_reason"]);
            let text = choice["delta"]["content"].as_str().unwrap_or_default();
            assert!(text.is_empty() || choice["logprobs"].is_object(), "text comes with its tokens: {choice}");
            content.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        }
        assert_eq!(Value::from(content), whole["choices"][0]["logprobs"]["content"]);
    }
}

#[tokio::test]
async fn completion_log_probabilities_have_the_shape_of_openai() {
    let body = complete(&with_reply(), json!({ "logprobs": 2, "max_tokens": 50 })).await.json();
    let choice = &body["choices"][0];
    check_keys(choice, &["text", "index", "logprobs", "finish_reason"]);
    let logprobs = &choice["logprobs"];
    check_keys(logprobs, &["tokens", "token_logprobs", "top_logprobs", "text_offset"]);
    let num_tokens = body["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    for list in logprobs.as_object().unwrap().values() {
        assert_eq!(list.as_array().unwrap().len(), num_tokens);
    }
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    for place in 0..num_tokens {
        let token = logprobs["tokens"][place].as_str().unwrap();
        assert_eq!(logprobs["top_logprobs"][place][token], logprobs["token_logprobs"][place]);
        assert_eq!(logprobs["top_logprobs"][place].as_object().unwrap().len(), 2);
        let offset = logprobs["text_offset"][place].as_u64().unwrap() as usize;
        if token.chars().count() == 1 {
            assert_eq!(text[offset].to_string(), token, "{logprobs}");
        }
    }
    assert_eq!(logprobs["text_offset"][5], 2, "after a and the four tokens of one character");
    let chosen = complete(&with_reply(), json!({ "logprobs": 0 })).await.json();
    assert_eq!(chosen["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn streamed_completion_log_probabilities_are_those_of_the_whole_answer() {
    for fields in
        [json!({ "logprobs": 1, "n": 2 }), json!({ "logprobs": 1, "stop": "stopp", "n": 2, "return_token_ids": true })]
    {
        let whole = complete(&with_reply(), fields.clone()).await.json();
        let mut streamed = fields;
        streamed["stream"] = true.into();
        let chunks = complete(&with_reply(), streamed).await.chunks();
        for index in [0, 1] {
            let whole = &whole["choices"][index];
            let of_choice: Vec<&Value> =
                chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index).collect();
            for (name, expected) in whole["logprobs"].as_object().unwrap() {
                let parts = of_choice.iter().filter_map(|choice| choice["logprobs"][name].as_array());
                assert_eq!(&Value::from(parts.flatten().cloned().collect::<Vec<_>>()), expected, "{name}");
            }
            let ids = of_choice.iter().filter_map(|choice| choice["token_ids"].as_array());
            let ids: Vec<Value> = ids.flatten().cloned().collect();
            assert_eq!(ids, whole["token_ids"].as_array().cloned().unwrap_or_default());
        }
    }
}

#[tokio::test]
async fn token_ids_are_told_on_request() {
    let reply: Vec<u32> = [bytes_of(TEXT), vec![end_token()]].concat();
    let body = complete(&with_reply(), json!({ "return_token_ids": true, "max_tokens": 50 })).await.json();
    assert_eq!(body["choices"][0]["token_ids"], json!(reply));
    assert_eq!(body["choices"][0]["prompt_token_ids"], json!(bytes_of("Once")));
    let body = chat(&with_reply(), json!({ "return_token_ids": true })).await.json();
    assert_eq!(body["choices"][0]["token_ids"], json!(reply));
    let prompt = body["prompt_token_ids"].clone();
    assert_eq!(prompt.as_array().unwrap().len() as u64, body["usage"]["prompt_tokens"].as_u64().unwrap());

    let chunks = chat(&with_reply(), json!({ "return_token_ids": true, "stream": true })).await.chunks();
    assert_eq!(chunks[0]["prompt_token_ids"], prompt);
    assert!(chunks[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
    let ids = chunks.iter().flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array().unwrap().clone());
    assert_eq!(Value::from(ids.collect::<Vec<_>>()), json!(reply));

    let named = json!({ "return_tokens_as_token_ids": true, "logprobs": 1, "max_tokens": 1 });
    let body = complete(&with_reply(), named).await.json();
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["token_id:97"]));
}

/// A model with no two histories alike.
fn chaotic() -> ServerState {
    let runner = StubRunner::with_logits(limits(), |tokens, logits| {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &token in tokens {
            hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
        }
        logits.fill(f32::NEG_INFINITY);
        for letter in b'a'..=b'z' {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            logits[usize::from(letter)] = (hash >> 40) as f32 / (1 << 22) as f32;
        }
    });
    state_with(runner, EngineConfig::default(), Timeouts::default()).0
}

#[tokio::test]
async fn best_of_answers_with_the_most_probable_choices() {
    let state = chaotic();
    let prompts = json!(["one", "two"]);
    let all = json!({ "prompt": prompts, "seed": 3, "n": 8, "logprobs": 0 });
    let all = complete(&state, all).await.json();
    let mut expected = Vec::new();
    for choices in all["choices"].as_array().unwrap().chunks(8) {
        let mean = |choice: &Value| {
            let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
        };
        let mut ranked: Vec<&Value> = choices.iter().collect();
        ranked.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        expected.extend(ranked[..2].iter().map(|choice| choice["text"].clone()));
    }
    let fields = json!({ "prompt": prompts, "seed": 3, "n": 2, "best_of": 8 });
    let best = complete(&state, fields).await.json();
    let choices = best["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>(), expected);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["logprobs"]), (&json!(index), &Value::Null), "nobody asked for them");
    }
    assert_eq!(best["usage"], all["usage"], "all that was generated is counted");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_text_beside_other_requests() {
    let state = chaotic();
    let fields = |seed: u64| json!({ "prompt": format!("{seed}"), "seed": seed, "presence_penalty": 0.5, "repetition_penalty": 1.1, "min_p": 0.01 });
    let mut alone = Vec::new();
    for seed in 0..6 {
        alone.push(complete(&state, fields(seed)).await.json()["choices"].clone());
    }
    let tasks: Vec<_> = (0..6)
        .map(|seed| {
            let (state, fields) = (state.clone(), fields(seed));
            tokio::spawn(async move { complete(&state, fields).await.json()["choices"].clone() })
        })
        .collect();
    for (task, alone) in tasks.into_iter().zip(alone) {
        assert_eq!(task.await.unwrap(), alone);
    }
}

#[tokio::test]
async fn an_echo_of_no_new_tokens_is_the_prompt() {
    let state = with_reply();
    let fields = json!({ "prompt": ["Once é", "two"], "echo": true, "max_tokens": 0, "n": 2 });
    let body = complete(&state, fields.clone()).await.json();
    let texts: Vec<&Value> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["Once é", "Once é", "two", "two"]);
    assert!(body["choices"].as_array().unwrap().iter().all(|choice| choice["finish_reason"] == "length"));
    assert_eq!(body["usage"]["completion_tokens"], 0);
    assert_eq!(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"]);

    let mut streamed = fields;
    streamed["stream"] = true.into();
    let chunks = complete(&state, streamed).await.chunks();
    assert_eq!(chunks.len(), 8, "a beginning and an end each");
    let newer = json!({ "echo": true, "max_tokens": 0, "max_completion_tokens": 1 });
    assert_eq!(complete(&state, newer).await.json()["choices"][0]["text"], "Oncea", "the newer name counts");
}

#[tokio::test]
async fn an_echo_with_log_probabilities_lists_prompt_and_answer() {
    let fields =
        json!({ "prompt": "Once é", "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1 });
    for stream in [false, true] {
        let mut fields = fields.clone();
        fields["stream"] = stream.into();
        let answer = complete(&with_reply(), fields).await;
        let parts = if stream { answer.chunks() } else { vec![answer.json()] };
        let choices: Vec<&Value> = parts.iter().map(|part| &part["choices"][0]).collect();
        let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(text, "Once éa");
        let list = |name: &str| -> Vec<Value> {
            let lists = choices.iter().filter_map(|choice| choice["logprobs"][name].as_array());
            lists.flatten().cloned().collect()
        };
        assert_eq!(list("tokens"), ["O", "n", "c", "e", " ", "bytes:\\xc3", "bytes:\\xa9", "a"]);
        assert_eq!(list("text_offset"), [0, 1, 2, 3, 4, 5, 5, 6]);
        assert_eq!((list("token_logprobs").len(), list("top_logprobs").len()), (8, 8));
        assert_eq!(list("token_logprobs")[0], Value::Null);
    }
}

#[tokio::test]
async fn an_echo_tells_of_a_prompt_what_was_told_when_it_was_generated() {
    let state = chaotic();
    let first = json!({ "prompt": bytes_of("one"), "logprobs": 2, "temperature": 0, "max_tokens": 20 });
    let first = complete(&state, first).await.json();
    let generated = &first["choices"][0];
    let prompt = format!("one{}", generated["text"].as_str().unwrap());
    for (max_tokens, stream) in [(0, false), (1, false), (0, true), (1, true)] {
        let fields = json!({
            "prompt": [bytes_of(&prompt)], "logprobs": 2, "echo": true, "max_tokens": max_tokens, "temperature": 0,
            "stream": stream, "seed": 1,
        });
        let answer = complete(&state, fields).await;
        let parts = if stream { answer.chunks() } else { vec![answer.json()] };
        for name in ["tokens", "token_logprobs", "top_logprobs"] {
            let lists = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][name].as_array());
            let all: Vec<Value> = lists.flatten().cloned().collect();
            assert_eq!(all.len(), 23 + max_tokens, "{name}");
            assert_eq!(Value::from(all[3..23].to_vec()), generated["logprobs"][name]);
        }
    }
}

#[tokio::test]
async fn log_probabilities_of_the_prompt_are_told_on_both_endpoints() {
    let state = chaotic();
    let body = complete(&state, json!({ "prompt_logprobs": 1 })).await.json();
    let told = body["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]), (4, &Value::Null));
    let of_n = &told[1]["110"];
    check_keys(of_n, &["logprob", "rank", "decoded_token"]);
    assert_eq!(of_n["decoded_token"], "n");
    let body = chat(&state, json!({ "prompt_logprobs": 0, "max_tokens": 1 })).await.json();
    let told = body["prompt_logprobs"].as_array().unwrap();
    assert_eq!(told.len() as u64, body["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(told[1].as_object().unwrap().len(), 1);
}
