//! The endpoints of the tokenizer and the chat template.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::{Engine, EngineConfig};
use taper_server::{ServedModel, ServerState};

/// A server whose model wants a text to begin with BOS.
fn state_with_bos() -> ServerState {
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = taper_testkit::tiny::TinyModel { add_bos: true, ..Default::default() };
    std::fs::write(file.path(), model.to_gguf()).unwrap();
    let checkpoint = taper_checkpoint::Checkpoint::open(file.path()).unwrap();
    let tokenizer = std::sync::Arc::new(taper_text::Tokenizer::from_metadata(checkpoint.metadata()).unwrap());
    let engine = Engine::start(Box::new(replying(REPLY)), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    let template = taper_text::ChatTemplate::from_metadata(checkpoint.metadata()).unwrap();
    state.set_ready(ServedModel {
        id: MODEL.to_owned(),
        tokenizer,
        template,
        context_len: engine.limits().context_len,
        engine,
        created_unix: 0,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    state
}

fn bos() -> u32 {
    vocabulary().tokenizer.bos().unwrap()
}

/// The token that ends a text, written out and as its id.
fn end_of_text() -> (String, u32) {
    let tokenizer = vocabulary().tokenizer;
    (tokenizer.eos_text().to_owned(), tokenizer.eos().unwrap())
}

/// The answer to a request that is good.
async fn ask(state: &ServerState, path: &str, body: Value) -> Value {
    let answer = post(state, path, &body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()
}

async fn check_refused(path: &str, body: Value, param: &str, message: &str) {
    let answer = post(&state(), path, &body).await;
    assert_eq!(answer.status, 400, "{path} {body}: {}", answer.body);
    let error = answer.error();
    assert_eq!(error["param"], param, "{error}");
    assert!(error["message"].as_str().unwrap().contains(message), "{error}");
}

#[tokio::test]
async fn a_prompt_is_tokenized_in_vllms_words() {
    let body = json!({ "model": MODEL, "prompt": "hé", "add_special_tokens": true, "return_token_strs": true });
    for path in ["/tokenize", "/v1/tokenize"] {
        let answer = ask(&state(), path, body.clone()).await;
        assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(3), &json!(512)));
        assert_eq!(answer["tokens"], json!(bytes_of("hé")));
        assert_eq!(answer["token_strs"].as_array().unwrap().len(), 3);
        assert_eq!(answer["token_strs"][0], "h");
    }
    assert_eq!(ask(&state(), "/tokenize", json!({ "prompt": "h" })).await["token_strs"], Value::Null);
    assert_eq!(ask(&state(), "/tokenize", json!({ "prompt": "" })).await["tokens"], json!([]));
    // Control tokens may be spelled out, as in the prompt of /v1/completions.
    let (end, id) = end_of_text();
    assert_eq!(ask(&state(), "/tokenize", json!({ "prompt": end })).await["tokens"], json!([id]));
}

#[tokio::test]
async fn bos_comes_where_the_model_wants_it_and_the_request_does_not_say_no() {
    let state = state_with_bos();
    let (with, without) = (json!([bos(), 104]), json!([104]));
    for (body, expected) in [
        (json!({ "prompt": "h" }), &with),
        (json!({ "prompt": "h", "add_special_tokens": false }), &without),
        (json!({ "content": "h" }), &without),
        (json!({ "content": "h", "add_special": true }), &with),
        (json!({ "content": ["h", 105], "add_special": true }), &json!([bos(), 104, 105])),
        (json!({ "content": [105, "h"], "add_special": true }), &json!([105, 104])),
    ] {
        assert_eq!(ask(&state, "/tokenize", body.clone()).await["tokens"], *expected, "{body}");
    }
}

#[tokio::test]
async fn a_conversation_has_the_tokens_that_the_chat_endpoint_computes() {
    for state in [state(), state_with_bos()] {
        let messages = json!([{ "role": "user", "content": "Hi <|im_end|>" }]);
        let answer = ask(&state, "/tokenize", json!({ "messages": messages })).await;
        let asked = json!({ "messages": messages, "return_token_ids": true });
        let chatted = post(&state, CHAT, &asked).await.json();
        assert_eq!(answer["tokens"], chatted["prompt_token_ids"]);
        assert_eq!(answer["count"], chatted["usage"]["prompt_tokens"]);
        let counted = ask(&state, "/v1/chat/completions/input_tokens", asked).await;
        assert_eq!(counted, json!({ "object": "response.input_tokens", "input_tokens": answer["count"] }));
        let body = json!({ "messages": messages, "add_generation_prompt": false });
        let shorter = ask(&state, "/tokenize", body).await;
        assert!(shorter["count"].as_u64() < answer["count"].as_u64());
    }
}

#[tokio::test]
async fn content_is_tokenized_in_llama_cpps_words() {
    let state = state();
    assert_eq!(ask(&state, "/tokenize", json!({ "content": "hi" })).await, json!({ "tokens": [104, 105] }));
    let answer = ask(&state, "/tokenize", json!({ "content": "hé", "with_pieces": true })).await;
    let expected = json!([{ "id": 104, "piece": "h" }, { "id": 195, "piece": [195] }, { "id": 169, "piece": [169] }]);
    assert_eq!(answer, json!({ "tokens": expected }));
    let end = vocabulary().tokenizer.eos_text().to_owned();
    let body = json!({ "content": end, "parse_special": false });
    assert_eq!(ask(&state, "/tokenize", body).await["tokens"], json!(bytes_of(&end)));
}

#[tokio::test]
async fn tokens_become_text_again_under_both_names() {
    for path in ["/detokenize", "/v1/detokenize"] {
        let (end, id) = end_of_text();
        let tokens = [bytes_of("hé \"x\""), vec![id]].concat();
        let text = format!("hé \"x\"{end}");
        assert_eq!(ask(&state(), path, json!({ "tokens": tokens })).await, json!({ "prompt": text, "content": text }));
    }
    assert_eq!(ask(&state(), "/detokenize", json!({ "tokens": [] })).await["prompt"], "");
    assert_eq!(ask(&state(), "/detokenize", json!({ "tokens": [195] })).await["prompt"], "\u{fffd}");
}

#[tokio::test]
async fn a_template_is_applied_without_an_answer() {
    let messages =
        json!([{ "role": "system", "content": "s" }, { "role": "user", "content": [{ "type": "text", "text": "u" }] }]);
    let state = state();
    let whole = ask(&state, "/apply-template", json!({ "messages": messages })).await;
    let body = json!({ "messages": messages, "add_generation_prompt": false, "chat_template_kwargs": { "x": 1 } });
    let shorter = ask(&state, "/apply-template", body).await;
    let (whole, shorter) = (whole["prompt"].as_str().unwrap(), shorter["prompt"].as_str().unwrap());
    let begin = whole.strip_prefix(shorter).expect("the beginning of an answer is at the end");
    assert!(begin.contains("assistant") && shorter.contains("system\ns") && shorter.contains("user\nu"), "{whole}");
    // What is rendered is what is tokenized.
    let tokens = ask(&state, "/tokenize", json!({ "prompt": whole })).await;
    assert_eq!(tokens["tokens"], ask(&state, "/tokenize", json!({ "messages": messages })).await["tokens"]);
}

#[tokio::test]
async fn what_cannot_be_tokenized_is_refused_by_name() {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let wizard = json!([{ "role": "wizard", "content": "hi" }]);
    for (path, body, param, message) in [
        ("/tokenize", json!({}), "prompt", "nothing to tokenize"),
        ("/tokenize", json!({ "prompt": "a", "messages": messages }), "messages", "beside prompt"),
        ("/tokenize", json!({ "content": "a", "prompt": "a" }), "content", "beside prompt"),
        ("/tokenize", json!({ "prompt": 5 }), "prompt", "must be a string, got 5"),
        ("/tokenize", json!({ "prompt": "a", "return_token_strs": "yes" }), "return_token_strs", "true or false"),
        (
            "/tokenize",
            json!({ "prompt": "a", "add_generation_prompt": false }),
            "add_generation_prompt",
            "not supported",
        ),
        ("/tokenize", json!({ "messages": wizard }), "messages[0].role", "wizard"),
        ("/tokenize", json!({ "content": { "a": 1 } }), "content.prompt_string", "missing"),
        ("/tokenize", json!({ "content": ["a", 5.5] }), "content", "integer"),
        ("/detokenize", json!({}), "tokens", "missing"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens", "must be an array"),
        ("/detokenize", json!({ "tokens": [1, -1] }), "tokens", "from 0"),
        ("/detokenize", json!({ "tokens": [4_000_000] }), "tokens", "4000000"),
        ("/apply-template", json!({}), "messages", "missing"),
        (
            "/apply-template",
            json!({ "messages": messages, "chat_template_kwargs": { "messages": 1 } }),
            "chat_template_kwargs.messages",
            "server",
        ),
        (
            "/v1/chat/completions/input_tokens",
            json!({ "messages": messages, "temperature": 9 }),
            "temperature",
            "between 0 and 2",
        ),
    ] {
        check_refused(path, body, param, message).await;
    }
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let answer = post(&state(), path, &json!({ "model": "gpt-9" })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("model_not_found")));
        assert_eq!(post_bytes(&state(), path, b"{".to_vec()).await.error()["code"], "invalid_json");
    }
}

#[tokio::test]
async fn a_text_longer_than_the_context_is_counted_and_one_that_cannot_fit_is_refused() {
    let state = state();
    assert_eq!(ask(&state, "/tokenize", json!({ "prompt": "x".repeat(600) })).await["count"], 600);
    let answer = post(&state, "/tokenize", &json!({ "content": "x".repeat(1 << 20) })).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        (&answer.error()["code"], &answer.error()["param"]),
        (&json!("context_length_exceeded"), &json!("content"))
    );
    let mut body = br#"{"content": ""#.to_vec();
    body.resize(taper_server::limits::MAX_BODY_BYTES + 1, b'x');
    assert_eq!(post_bytes(&state, "/tokenize", body).await.status, 413);
}

#[tokio::test]
async fn a_conversation_that_cannot_fit_is_counted() {
    let body = json!({ "messages": [{ "role": "user", "content": "x".repeat(100_000) }] });
    let counted = ask(&state(), "/v1/chat/completions/input_tokens", body).await;
    assert!(counted["input_tokens"].as_u64().unwrap() > 100_000, "{counted}");
}

#[tokio::test]
async fn unknown_fields_are_reported() {
    for (path, mut body) in [
        ("/tokenize", json!({ "prompt": "a" })),
        ("/tokenize", json!({ "content": "a" })),
        ("/detokenize", json!({ "tokens": [] })),
        ("/apply-template", json!({ "messages": [{ "role": "user", "content": "hi" }] })),
    ] {
        body["my_ext"] = json!(1);
        let answer = post(&state(), path, &body).await;
        assert_eq!(answer.headers["x-taper-ignored-fields"], "my_ext", "{path}");
    }
}

#[tokio::test]
async fn the_tokenizer_tells_what_renderers_of_templates_need() {
    let answer = get(&state(), "/tokenizer_info").await.json();
    let Vocabulary { tokenizer, template } = vocabulary();
    assert_eq!(answer["chat_template"], template.source());
    assert_eq!(
        (&answer["bos_token"], &answer["eos_token"]),
        (&json!(tokenizer.bos_text()), &json!(tokenizer.eos_text()))
    );
    assert_eq!(answer["vocab_size"], tokenizer.vocab_size());
    assert_eq!(answer["add_bos_token"], false);
    assert!(answer["special_tokens"].as_array().unwrap().contains(&json!("<|im_start|>")));
    assert!(answer["tokenizer_class"].is_string());
}

#[tokio::test]
async fn while_the_model_loads_there_is_nothing_to_tokenize_with() {
    let state = ServerState::new();
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let answer = post(&state, path, &json!({ "prompt": "a" })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("model_loading")));
    }
    assert_eq!(get(&state, "/tokenizer_info").await.status, 503);
}
