//! Which requests are refused, with what, and which are not.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use support::*;
use taper_engine::EngineConfig;
use taper_server::{ServerConfig, Timeouts};

async fn check_chat_refused(fields: Value, param: &str, message: &str) {
    let answer = chat(&state(), fields.clone()).await;
    assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
    let error = answer.error();
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["param"], param, "{error}");
    assert!(error["message"].as_str().unwrap().contains(message), "{error}");
}

#[tokio::test]
async fn a_value_of_the_wrong_type_or_size_is_refused_by_name() {
    for (field, value, message) in [
        ("temperature", json!("hot"), "temperature must be a number between 0 and 2, got \"hot\""),
        ("temperature", json!(-0.1), "between 0 and 2"),
        ("temperature", json!(2.1), "between 0 and 2"),
        ("top_p", json!(1.5), "between 0 and 1"),
        ("top_k", json!(1.5), "integer"),
        ("top_k", json!(-2), "integer"),
        ("min_p", json!(-1), "between 0 and 1"),
        ("seed", json!(1.5), "integer of 64 bits"),
        ("seed", json!("7"), "integer of 64 bits"),
        ("n", json!(0), "between 1 and 128"),
        ("n", json!(129), "between 1 and 128, got 129"),
        ("max_tokens", json!(0), "at least 1"),
        ("max_tokens", json!(-1), "at least 1"),
        ("max_completion_tokens", json!("many"), "at least 1, got \"many\""),
        ("stream", json!("yes"), "true or false"),
        ("stream_options", json!(true), "object"),
        ("ignore_eos", json!(1), "true or false"),
        ("stop", json!(5), "string or an array"),
        ("stop", json!(""), "1 to 1024 bytes"),
        ("stop", json!(["a", ""]), "1 to 1024 bytes"),
        ("stop", json!(vec!["a"; 17]), "at most 16"),
        ("stop", json!(["a", null]), "1 to 1024 bytes"),
        ("model", json!(3), "string"),
    ] {
        check_chat_refused(json!({ field: value }), field, message).await;
    }
    check_chat_refused(json!({ "stream_options": { "include_usage": true } }), "stream_options", "stream to be true")
        .await;
    check_chat_refused(json!({ "stream_options": { "include_usage": 1 } }), "stream_options.include_usage", "true")
        .await;
}

#[tokio::test]
async fn a_bad_message_is_refused_by_its_place() {
    let user = json!({ "role": "user", "content": "hi" });
    for (messages, param, message) in [
        (json!(null), "messages", "missing"),
        (json!("hi"), "messages", "array"),
        (json!([]), "messages", "at least one"),
        (json!([user, "hi"]), "messages[1]", "object"),
        (json!([user, {}]), "messages[1].role", "missing"),
        (json!([{ "role": "wizard", "content": "" }]), "messages[0].role", "got \"wizard\""),
        (json!([{ "role": "user" }]), "messages[0].content", "missing"),
        (json!([{ "role": "user", "content": 7 }]), "messages[0].content", "got 7"),
        (json!([{ "role": "user", "content": ["a"] }]), "messages[0].content[0]", "object"),
        (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content[0].type", "text only"),
        (json!([{ "role": "user", "content": [{ "type": "text" }] }]), "messages[0].content[0].text", "missing"),
        (
            json!([{ "role": "user", "content": [{ "type": "input_audio" }] }]),
            "messages[0].content[0].type",
            "text only",
        ),
    ] {
        check_chat_refused(json!({ "messages": messages }), param, message).await;
    }
}

#[tokio::test]
async fn what_is_not_there_yet_is_refused_by_its_name() {
    for (field, value) in [
        ("functions", json!([{}])),
        ("function_call", json!({ "name": "f" })),
        ("web_search_options", json!({})),
        ("store", json!(true)),
        ("service_tier", json!("flex")),
        ("verbosity", json!("low")),
        ("reasoning_effort", json!("high")),
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("audio", json!({})),
        ("modalities", json!(["text", "audio"])),
        ("length_penalty", json!(1.1)),
        ("n_predict", json!(5)),
        ("stop_regex", json!("a+")),
        ("structural_tag", json!("{}")),
        ("separate_reasoning", json!(false)),
        ("custom_params", json!({ "a": 1 })),
        ("response_fields", json!(["content"])),
        ("thinking", json!({ "type": "enabled" })),
        ("adapters", json!(["a"])),
    ] {
        check_chat_refused(json!({ field: value }), field, field).await;
        let answer = chat(&state(), json!({ field: value })).await;
        assert_eq!(answer.error()["code"], "unsupported_parameter");
    }
    for (field, value) in [
        ("top_logprobs", json!(2)),
        ("suffix", json!("end")),
        ("tools", json!([{ "type": "function" }])),
        ("tool_choice", json!("required")),
    ] {
        let answer = complete(&state(), json!({ field: value })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(field)));
    }
}

#[tokio::test]
async fn clients_that_send_everything_at_its_default_are_served() {
    let fields = json!({
        "model": "default", "tools": [], "tool_choice": "auto", "response_format": { "type": "text" }, "logprobs": false,
        "top_logprobs": null, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "modalities": ["text"],
        "n": 1, "stop": null, "seed": -5, "stream": false, "stream_options": null, "temperature": 1, "top_p": 1, "top_k": -1,
        "user": "u", "store": false, "metadata": { "a": "b" }, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "parallel_tool_calls": true, "max_tokens": null, "include_reasoning": true,
        "reasoning_effort": "medium", "verbosity": "medium", "function_call": "auto", "functions": [], "audio": null,
        "prediction": { "type": "content", "content": "A guess." },
    });
    let answer = chat(&state(), fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.get("x-taper-ignored-fields").is_none());
}

#[tokio::test]
async fn unknown_fields_are_accepted_and_reported() {
    for stream in [false, true] {
        let answer = chat(&state(), json!({ "stream": stream, "my_ext": 1, "other": {} })).await;
        assert_eq!(answer.status, 200);
        let reported = answer.headers["x-taper-ignored-fields"].to_str().unwrap();
        assert_eq!(reported, "my_ext, other");
        // A header has no place for most of Unicode.
        let answer = chat(&state(), json!({ "stream": stream, "größe": 1 })).await;
        assert_eq!(answer.headers["x-taper-ignored-fields"], "gr%C3%B6%C3%9Fe");
    }
}

#[tokio::test]
async fn a_server_may_insist_on_the_name_of_the_model() {
    let config = ServerConfig { require_model: true, ..ServerConfig::default() };
    let (strict, _engine) = state_with_config(replying("ok"), EngineConfig::default(), config);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }] })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/api/generate", json!({ "prompt": "a", "stream": false })),
    ] {
        let mut named = body.clone();
        named["model"] = "default".into();
        assert_eq!(post(&strict, path, &named).await.status, 200, "{path}");
        let mut empty = body.clone();
        empty["model"] = "".into();
        for unnamed in [body, empty] {
            assert_eq!(post(&state(), path, &unnamed).await.status, 200, "{path}");
            let answer = post(&strict, path, &unnamed).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            assert!(answer.body.contains("model is missing"), "{path}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn an_empty_name_of_the_model_is_as_good_as_none() {
    let messages = json!([{ "role": "user", "content": "a" }]);
    let runner = replying(REPLY).with_states(4, |_, row| row.fill(1.0));
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    for (path, body) in [
        (CHAT, json!({ "messages": messages })),
        (COMPLETIONS, json!({ "prompt": "a" })),
        ("/completion", json!({ "prompt": "a" })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 3 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/tokenize", json!({ "prompt": "a" })),
        ("/detokenize", json!({ "tokens": [97] })),
        ("/apply-template", json!({ "messages": messages })),
        ("/api/chat", json!({ "messages": messages, "stream": false })),
        ("/api/generate", json!({ "prompt": "a", "stream": false })),
        ("/api/embed", json!({ "input": "a" })),
        ("/api/show", json!({})),
    ] {
        let mut body = body;
        body["model"] = "".into();
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(!answer.body.contains("\"model\":\"\""), "{path}: {}", answer.body);
    }
}

/// A body of unknown fields inside its objects, and how they are named.
async fn check_reported(path: &str, body: Value, names: &str) {
    let answer = post(&state(), path, &body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    assert_eq!(answer.headers["x-taper-ignored-fields"], names, "{path}");
}

#[tokio::test]
async fn unknown_fields_inside_messages_blocks_and_tools_are_reported_by_their_place() {
    let function = |name: &str| json!({ "name": name, "parameters": { "any": "thing" }, "returns": "x" });
    let body = json!({
        "top": 1,
        "messages": [
            { "role": "user", "mood": "good", "content": [{ "type": "text", "text": "a", "shade": "dark", "annotations": [] }] },
            { "role": "user", "mood": "bad", "name": null, "tone": null, "content": "b" },
        ],
        "tools": [{ "type": "function", "function": function("f") }, { "type": "function", "function": function("g"), "n\u{e4}he": 1 }],
        "tool_choice": "none", "stream_options": { "include_usage": true, "chunked": 1 }, "stream": true,
    });
    let names = "top, messages[].content[].shade, messages[].mood, stream_options.chunked, tools[].function.returns, \
                 tools[].n%C3%A4he";
    check_reported(CHAT, body, names).await;

    let cached = json!({ "type": "ephemeral" });
    let block = json!({ "type": "text", "text": "a", "shade": "dark", "cache_control": cached });
    let body = json!({
        "max_tokens": 3, "system": [block], "messages": [{ "role": "user", "content": [block], "mood": "good" }],
        "tools": [{ "name": "f", "input_schema": {}, "cache_control": cached, "defer_loading": true, "input_examples": [{}] }],
        "output_config": { "task_budget": { "type": "tokens", "total": 9 } }, "metadata": { "user_id": "u" },
        "tool_choice": { "type": "none" },
    });
    let names = "messages[].content[].shade, messages[].mood, output_config.task_budget, system[].shade, \
                 tools[].defer_loading, tools[].input_examples";
    check_reported("/v1/messages", body, names).await;

    let part = json!({ "type": "input_text", "text": "a", "shade": "dark" });
    let body = json!({ "input": [{ "role": "user", "id": "i", "status": "completed", "content": [part], "mood": 1 }] });
    check_reported("/v1/responses", body, "input[].content[].shade, input[].mood").await;
}

#[tokio::test]
async fn answers_that_are_sent_back_have_no_unknown_fields() {
    let reply = chat(&state(), json!({ "logprobs": true })).await.json()["choices"][0]["message"].clone();
    let again = json!([{ "role": "user", "content": "a" }, reply, { "role": "user", "content": "b" }]);
    let answer = chat(&state(), json!({ "messages": again })).await;
    assert!(answer.headers.get("x-taper-ignored-fields").is_none(), "{:?}", answer.headers);

    let output =
        post(&state(), "/v1/responses", &json!({ "input": "a", "top_logprobs": 1 })).await.json()["output"].clone();
    let answer = post(&state(), "/v1/responses", &json!({ "input": output })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.get("x-taper-ignored-fields").is_none(), "{:?}", answer.headers);

    let first = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "a" }] });
    let content = post(&state(), "/v1/messages", &first).await.json()["content"].clone();
    let again = json!([{ "role": "assistant", "content": content }, { "role": "user", "content": "b" }]);
    let answer = post(&state(), "/v1/messages", &json!({ "max_tokens": 9, "messages": again })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.get("x-taper-ignored-fields").is_none(), "{:?}", answer.headers);
}

#[tokio::test]
async fn the_model_may_be_absent_default_an_id_or_an_alias() {
    for model in [json!(null), json!("default"), json!(MODEL), json!("tiny")] {
        let answer = chat(&state(), json!({ "model": model })).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["model"], MODEL);
    }
    let answer = chat(&state(), json!({ "model": "gpt-9" })).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.error()["code"], "model_not_found");
    assert_eq!(answer.error()["param"], "model");
    let message = answer.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("gpt-9") && message.contains(MODEL), "{message}");
}

async fn check_malformed(body: &[u8], message: &str) {
    for path in [CHAT, COMPLETIONS] {
        let answer = post_bytes(&state(), path, body.to_vec()).await;
        assert_eq!(answer.status, 400);
        let error = answer.error();
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused_with_its_position() {
    check_malformed(b"{\"messages\": [}", "line 1 column 15").await;
    check_malformed(b"", "empty").await;
    check_malformed(b"[1, 2]", "JSON object").await;
    check_malformed(b"{\"prompt\": \"\xff\"}", "offset 12").await;
    check_malformed("[".repeat(200_000).as_bytes(), "recursion").await;
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    for content_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let body = json!({ "prompt": "Once" }).to_string();
        let request = Request::post(COMPLETIONS).header("content-type", content_type).body(Body::from(body)).unwrap();
        assert_eq!(send(&state(), request).await.status, 200);
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_413() {
    let mut body = br#"{"prompt": ""#.to_vec();
    body.resize(taper_server::limits::MAX_BODY_BYTES + 1, b'x');
    let answer = post_bytes(&state(), COMPLETIONS, body).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.error()["code"], "request_too_large");
}

#[tokio::test]
async fn unknown_paths_and_methods_get_openai_errors() {
    let answer = get(&state(), "/v1/nothing").await;
    assert_eq!(answer.status, 404);
    assert!(answer.error()["message"].as_str().unwrap().contains("/v1/nothing"));
    for (method, path, allowed) in [
        (Method::GET, CHAT, "POST"),
        (Method::DELETE, COMPLETIONS, "POST"),
        (Method::POST, "/v1/models", "GET,HEAD"),
        (Method::PUT, "/health", "GET,HEAD"),
    ] {
        let answer = send(&state(), Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 405);
        assert_eq!(answer.headers["allow"], allowed);
        assert_eq!(answer.error()["code"], "method_not_allowed");
    }
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let list = get(&state(), "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(list["data"][0]["created"], 1_700_000_000);
    assert_eq!(list["data"][0]["max_model_len"], limits().context_len);
    assert_eq!(get(&state(), &format!("/v1/models/{MODEL}")).await.json(), list["data"][0]);
    assert_eq!(get(&state(), "/v1/models/tiny").await.status, 200);
    for other in ["gpt-9", "org/name/file.gguf"] {
        let answer = get(&state(), &format!("/v1/models/{other}")).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.error()["code"], "model_not_found");
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let with_id = |id: &str| Request::get("/health").header("x-request-id", id).body(Body::empty()).unwrap();
    assert_eq!(send(&state(), with_id("abc-1")).await.headers["x-request-id"], "abc-1");
    assert_eq!(send(&state(), with_id(&"a".repeat(500))).await.headers["x-request-id"].len(), 32);
    assert_eq!(get(&state(), "/v1/nothing").await.headers["x-request-id"].len(), 32);
}
