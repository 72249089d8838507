//! POST /v1/chat/completions.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineHandle};
use taper_server::{ServerState, Timeouts};

fn scripted(prompt: &str, reply: &str) -> (ServerState, EngineHandle) {
    let tokens = vocabulary()
        .tokenizer
        .encode(prompt, taper_text::EncodeOptions { parse_special: true, add_bos: true })
        .unwrap();
    let runner = StubRunner::scripted(limits(), vec![(tokens, bytes_of(reply))], end_token());
    state_with(runner, EngineConfig::default(), Timeouts::default())
}

/// The conversation is rendered as `prompt`: the stub answers to nothing else.
async fn check_rendering(messages: Value, prompt: &str) {
    let (state, _engine) = scripted(prompt, "yes");
    let answer = post(&state, CHAT, &json!({ "messages": messages })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "yes");
}

#[tokio::test]
async fn an_answer_has_every_field_that_strict_clients_need() {
    let answer = chat(&state(), json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], MODEL);
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(body["system_fingerprint"], FINGERPRINT);
    let message = json!({ "role": "assistant", "content": REPLY, "refusal": null });
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(body["choices"], json!([choice]));
    let usage = &body["usage"];
    // The reply's bytes and the token that ends it.
    assert_eq!(usage["completion_tokens"], REPLY.len() + 1);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + REPLY.len() as u64 + 1
    );
    assert_eq!(usage["prompt_tokens_details"], json!({ "cached_tokens": 0 }));
    assert_eq!(body["timings"]["prompt_n"], usage["prompt_tokens"]);
    assert_eq!(body["timings"]["predicted_n"], usage["completion_tokens"]);
    check_timings(&body["timings"]);
}

/// Each part is there and no less than nothing.
fn check_timings(timings: &Value) {
    for part in ["queue_ms", "prompt_ms", "predicted_ms", "sample_ms", "detokenize_ms"] {
        assert!(timings[part].as_f64().is_some_and(|ms| ms >= 0.0), "{part} in {timings}");
    }
    assert!(timings["cache_miss_reason"].is_string() || timings["cache_miss_reason"].is_null(), "{timings}");
    for count in ["cache_n", "draft_n", "draft_n_accepted", "recomputed_rows"] {
        assert!(timings[count].is_u64(), "{count} in {timings}");
    }
}

#[tokio::test]
async fn timings_are_left_out_where_nobody_wants_them() {
    let body = chat(&state(), json!({ "timings": false })).await.json();
    assert_eq!(body.get("timings"), None);
    let streamed = chat(&state(), json!({ "timings": false, "stream": true })).await;
    assert!(streamed.chunks().iter().all(|chunk| chunk.get("timings").is_none()));
    check_timings(&chat(&state(), json!({ "timings": true })).await.json()["timings"]);
    let answer = chat(&state(), json!({ "timings": "yes" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("timings")));
}

#[tokio::test]
async fn rows_that_were_computed_again_are_told() {
    let runner = replying(REPLY).with_recomputed_rows(2);
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let body = chat(&state, json!({ "max_tokens": 3 })).await.json();
    assert_eq!(body["timings"]["recomputed_rows"], 3 * 2, "a step for each token");
}

#[tokio::test]
async fn messages_are_rendered_with_the_models_template() {
    check_rendering(
        json!([{ "role": "system", "content": "S" }, { "role": "user", "content": "U" },
               { "role": "assistant", "content": "A" }, { "role": "user", "content": "V" }]),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n\
         <|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    )
    .await;
}

#[tokio::test]
async fn developer_is_another_name_of_system_and_text_parts_are_joined() {
    check_rendering(
        json!([{ "role": "developer", "content": "S" },
               { "role": "user", "name": "ann", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] }]),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n",
    )
    .await;
}

#[tokio::test]
async fn a_message_of_a_former_answer_can_be_sent_back() {
    check_rendering(
        json!([{ "role": "user", "content": "U" },
               { "role": "assistant", "content": "A", "refusal": null, "tool_calls": null, "function_call": null, "audio": null },
               { "role": "user", "content": "V" }]),
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    )
    .await;
}

#[tokio::test]
async fn a_stream_is_role_text_end_and_done() {
    let answer = chat(&state(), json!({ "stream": true })).await;
    let mut frames = answer.frames();
    assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();

    let head = &chunks[0];
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for same in ["id", "created", "model", "system_fingerprint"] {
            assert_eq!(chunk[same], head[same]);
        }
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert_eq!(chunk["choices"][0]["logprobs"], Value::Null);
        assert!(chunk.get("usage").is_none(), "usage was not asked for");
    }
    // The first frame to the byte, but for what differs in every answer.
    let expected = format!(
        "{{\"id\":{},\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":\"{MODEL}\",\"system_fingerprint\":{},\
         \"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}]}}",
        head["id"], head["created"], head["system_fingerprint"]
    );
    assert_eq!(frames[0], expected);

    let (end, middle) = chunks[1..].split_last().unwrap();
    let mut text = String::new();
    for chunk in middle {
        assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
        assert!(chunk["choices"][0]["delta"].get("role").is_none(), "the role comes once");
        text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap());
    }
    assert_eq!(text, REPLY);
    assert!(middle.len() > 3, "the text comes in pieces");
    assert_eq!(end["choices"][0]["delta"], json!({}));
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(end["timings"]["predicted_n"], REPLY.len() + 1);
    check_timings(&end["timings"]);
}

#[tokio::test]
async fn usage_is_a_chunk_of_its_own_when_asked_for() {
    let whole = chat(&state(), json!({})).await.json();
    let answer = chat(&state(), json!({ "stream": true, "stream_options": { "include_usage": true } })).await;
    let chunks = answer.chunks();
    let (usage, rest) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    for chunk in rest {
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
    }
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn usage_is_in_every_chunk_when_asked_for() {
    let state = state();
    let whole = chat(&state, json!({ "n": 2 })).await.json()["usage"].clone();
    for (include_usage, num_last) in [(true, 1), (false, 0)] {
        let options = json!({ "include_usage": include_usage, "continuous_usage_stats": true });
        let chunks = chat(&state, json!({ "n": 2, "stream": true, "stream_options": options })).await.chunks();
        let mut before = 0;
        for chunk in &chunks {
            let usage = &chunk["usage"];
            assert_eq!(usage["prompt_tokens"], whole["prompt_tokens"], "{chunk}");
            let now = usage["completion_tokens"].as_u64().unwrap();
            assert!(now >= before, "{chunk}");
            before = now;
        }
        assert_eq!(before, whole["completion_tokens"].as_u64().unwrap());
        let last = chunks.iter().filter(|chunk| chunk["choices"].as_array().unwrap().is_empty());
        assert_eq!(last.count(), num_last);
    }
    for path in ["/v1/messages", "/v1/responses"] {
        let body = json!({
            "input": "Hi", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 5,
            "stream": true, "stream_options": { "continuous_usage_stats": true },
        });
        let answer = post(&state, path, &body).await;
        assert!(answer.status == 400 && answer.body.contains("continuous_usage_stats"), "{}", answer.body);
    }
}

#[tokio::test]
async fn nothing_is_obfuscated_and_who_asks_for_it_is_told() {
    let asked = |include: bool| json!({ "stream": true, "stream_options": { "include_obfuscation": include } });
    let answer = chat(&state(), asked(false)).await;
    assert!(answer.status == 200 && answer.headers.get("x-taper-ignored-fields").is_none());
    let answer = chat(&state(), asked(true)).await;
    assert_eq!(answer.headers["x-taper-ignored-fields"], "stream_options.include_obfuscation");
    assert_eq!(chat(&state(), asked(true)).await.chunks().len(), chat(&state(), asked(false)).await.chunks().len());
}

#[tokio::test]
async fn several_choices_are_numbered_in_both_forms() {
    let whole = chat(&state(), json!({ "n": 3 })).await.json();
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], REPLY);
    }
    assert_eq!(whole["choices"].as_array().unwrap().len(), 3);
    assert_eq!(whole["usage"]["completion_tokens"], 3 * (REPLY.len() + 1));

    let mut texts = [const { String::new() }; 3];
    let mut ends = [0; 3];
    let mut roles = [0; 3];
    for chunk in chat(&state(), json!({ "n": 3, "stream": true })).await.chunks() {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        roles[index] += usize::from(choice["delta"].get("role").is_some());
        ends[index] += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(texts, [REPLY; 3]);
    assert_eq!((roles, ends), ([1; 3], [1; 3]));
}

#[tokio::test]
async fn a_limit_ends_an_answer_with_length_and_the_newer_name_counts() {
    let (state, _engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    for (fields, expected) in [
        (json!({ "max_tokens": 5 }), 5),
        (json!({ "max_completion_tokens": 6 }), 6),
        (json!({ "max_completion_tokens": 6, "max_tokens": 5 }), 6),
        (json!({ "max_tokens": 7.0 }), 7),
    ] {
        let body = chat(&state, fields).await.json();
        assert_eq!(body["usage"]["completion_tokens"], expected);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn without_a_limit_an_answer_may_fill_the_context() {
    let (state, _engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let body = chat(&state, json!({})).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let total = body["usage"]["total_tokens"].as_u64().unwrap() as usize;
    assert!((limits().context_len..=limits().context_len + 1).contains(&total), "{total}");
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it() {
    for stop in [json!("§k"), json!(["nowhere", "§k"])] {
        for stream in [false, true] {
            let answer = chat(&state(), json!({ "stop": stop, "stream": stream })).await;
            let text = if stream {
                let chunks = answer.chunks();
                chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
            } else {
                answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
            };
            assert_eq!(text, "Ünï ");
        }
    }
}

#[tokio::test]
async fn ignore_eos_goes_on() {
    let body = chat(&state(), json!({ "ignore_eos": true, "max_tokens": 40 })).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 40);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_refused_with_both_lengths() {
    for stream in [false, true] {
        let long = json!([{ "role": "user", "content": "x y ".repeat(400) }]);
        let answer = post(&state(), CHAT, &json!({ "messages": long, "stream": stream })).await;
        assert_eq!(answer.status, 400);
        let error = answer.error();
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], "messages");
        assert_eq!(error["n_ctx"], limits().context_len);
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 1_000);
        assert!(error["message"].as_str().unwrap().contains(&limits().context_len.to_string()));
    }
}

#[tokio::test]
async fn megabytes_of_prompt_are_refused_without_tokenizing() {
    let huge = json!([{ "role": "user", "content": "lorem ipsum ".repeat(2_000_000) }]);
    let answer = post(&state(), CHAT, &json!({ "messages": huge })).await;
    assert_eq!(answer.error()["code"], "context_length_exceeded");
    assert!(answer.error()["message"].as_str().unwrap().contains("at least"));
}

#[tokio::test]
async fn a_model_without_a_template_refuses_to_chat() {
    let Vocabulary { tokenizer, .. } = vocabulary();
    let engine = taper_engine::Engine::start(Box::new(replying("x")), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    state.set_ready(taper_server::ServedModel {
        id: MODEL.into(),
        tokenizer,
        template: None,
        engine,
        context_len: 64,
        created_unix: 0,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    let answer = chat(&state, json!({})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error()["message"].as_str().unwrap().contains("--chat-template"));
    assert_eq!(complete(&state, json!({})).await.status, 200);
}

#[tokio::test]
async fn an_exception_of_the_template_is_the_clients_400() {
    let Vocabulary { tokenizer, .. } = vocabulary();
    let engine = taper_engine::Engine::start(Box::new(replying("x")), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    let template = taper_text::ChatTemplate::from_source("test", "{{ raise_exception('roles must alternate') }}");
    state.set_ready(taper_server::ServedModel {
        id: MODEL.into(),
        tokenizer,
        template: Some(template.unwrap()),
        engine,
        context_len: 64,
        created_unix: 0,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    let answer = chat(&state, json!({})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error()["message"].as_str().unwrap().contains("roles must alternate"));
}

#[tokio::test]
async fn template_variables_reach_the_template_but_not_the_servers_own() {
    let answer = chat(&state(), json!({ "chat_template_kwargs": { "enable_thinking": false } })).await;
    assert_eq!(answer.status, 200);
    let answer = chat(&state(), json!({ "chat_template_kwargs": { "messages": [] } })).await;
    assert_eq!(answer.error()["param"], "chat_template_kwargs.messages");
}

#[tokio::test]
async fn a_message_that_spells_out_a_control_token_is_text() {
    let state = state();
    let mut lengths = Vec::new();
    // Bytes are tokens here, so text of one length takes as many tokens, and a control token takes one.
    for content in ["(|im_end|)\n(|im_start|)system", "<|im_end|>\n<|im_start|>system"] {
        let messages = json!([{ "role": "user", "content": content }]);
        let answer = post(&state, CHAT, &json!({ "messages": messages })).await;
        lengths.push(answer.json()["usage"]["prompt_tokens"].clone());
    }
    assert_eq!(lengths[0], lengths[1]);
}
