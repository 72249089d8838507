//! POST /v1/embeddings.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EmbeddingRequest, EndReason, EngineConfig, EngineHandle, Pooling};
use taper_server::{ServerConfig, ServerState, Timeouts};
use taper_testkit::gguf;
use taper_testkit::tiny::TinyModel;
use taper_text::{EncodeOptions, Tokenizer};
use tokio::io::AsyncWriteExt;

const EMBEDDINGS: &str = "/v1/embeddings";
/// Width of the stub's hidden states.
const SIZE: usize = 4;

/// The state of the last token: how many there are, the last one, something of all of them, and a constant.
fn hidden(tokens: &[u32], row: &mut [f32]) {
    let hash = tokens.iter().fold(7, |hash: u32, &token| (hash ^ token).wrapping_mul(0x0100_0193));
    row[0] = tokens.len() as f32 / 10.0;
    row[1] = tokens[tokens.len() - 1] as f32 / 100.0;
    row[2] = (hash >> 20) as f32 / 1000.0;
    row[3] = -1.0;
}

fn runner() -> StubRunner {
    babbling().with_states(SIZE, hidden)
}

fn state_for(runner: StubRunner, config: EngineConfig) -> (ServerState, EngineHandle) {
    state_with(runner, config, Timeouts::default())
}

fn plain() -> ServerState {
    state_for(runner(), EngineConfig::default()).0
}

/// As the tiny vocabulary has it, which knows a few pairs of letters.
fn tokens_of(text: &str) -> Vec<u32> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| vocabulary().tokenizer);
    TOKENIZER.encode(text, EncodeOptions { parse_special: true, add_bos: true }).unwrap()
}

/// The vector of some tokens, not normalised.
fn raw(tokens: &[u32], pooling: Pooling) -> Vec<f32> {
    let row = |end| {
        let mut row = [0.0; SIZE];
        hidden(&tokens[..end], &mut row);
        row
    };
    match pooling {
        Pooling::Last => row(tokens.len()).to_vec(),
        Pooling::Mean => {
            let mut sums = [0.0_f64; SIZE];
            for end in 1..=tokens.len() {
                sums.iter_mut().zip(row(end)).for_each(|(sum, x)| *sum += f64::from(x));
            }
            sums.iter().map(|sum| (sum / tokens.len() as f64) as f32).collect()
        }
    }
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    vector.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

/// What an input is answered with when nothing else is asked for.
fn usual(tokens: &[u32]) -> Vec<f32> {
    normalized(&raw(tokens, Pooling::Mean))
}

async fn embed(state: &ServerState, fields: Value) -> Answer {
    post(state, EMBEDDINGS, &fields).await
}

fn floats(embedding: &Value) -> Vec<f32> {
    let items = embedding.as_array().unwrap_or_else(|| panic!("{embedding}"));
    items.iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn decoded(embedding: &Value) -> Vec<f32> {
    let bytes = STANDARD.decode(embedding.as_str().unwrap_or_else(|| panic!("{embedding}"))).unwrap();
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    chunks.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// The vectors of an answer, in the order of their numbers, which is that of the answer.
async fn vectors(state: &ServerState, fields: Value) -> Vec<Vec<f32>> {
    let answer = embed(state, fields.clone()).await;
    assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
    let body = answer.json();
    let data = body["data"].as_array().unwrap();
    data.iter()
        .enumerate()
        .map(|(index, item)| {
            assert_eq!(item["index"], index);
            assert_eq!(item["object"], "embedding");
            floats(&item["embedding"])
        })
        .collect()
}

#[tokio::test]
async fn every_form_of_input_gives_its_vectors_in_order() {
    let state = plain();
    let [a, b] = ["a first text", "and quite another"].map(tokens_of);
    for (input, expected) in [
        (json!("a first text"), vec![&a]),
        (json!(["a first text"]), vec![&a]),
        (json!(["a first text", "and quite another"]), vec![&a, &b]),
        (json!(b), vec![&b]),
        (json!([b, a]), vec![&b, &a]),
        (json!(["and quite another", a, b]), vec![&b, &a, &b]),
    ] {
        let expected: Vec<Vec<f32>> = expected.into_iter().map(|tokens| usual(tokens)).collect();
        assert_eq!(vectors(&state, json!({ "input": input })).await, expected, "{input}");
    }
}

#[tokio::test]
async fn an_answer_has_the_fields_of_openais() {
    let fields = json!({ "input": ["one", "three"], "model": "tiny", "user": "somebody", "my_field": 1 });
    let answer = embed(&plain(), fields).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["x-taper-ignored-fields"], "my_field");
    let mut body = answer.json();
    let data = body.as_object_mut().unwrap().shift_remove("data").unwrap();
    assert_eq!(data.as_array().unwrap().len(), 2);
    let num_tokens = tokens_of("one").len() + tokens_of("three").len();
    let usage = json!({ "prompt_tokens": num_tokens, "total_tokens": num_tokens });
    assert_eq!(body, json!({ "object": "list", "model": MODEL, "usage": usage }));
    let names: Vec<&String> = data[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["object", "index", "embedding"]);
}

#[tokio::test]
async fn base64_holds_the_bits_of_the_numbers() {
    let state = plain();
    for more in [json!({}), json!({ "normalize": false }), json!({ "dimensions": 3, "pooling": "last" })] {
        let mut fields = json!({ "input": ["some text", "another one", [1, 2, 3]] });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let numbers = vectors(&state, fields.clone()).await;
        fields["encoding_format"] = "base64".into();
        let body = embed(&state, fields.clone()).await.json();
        let texts: Vec<Vec<f32>> =
            body["data"].as_array().unwrap().iter().map(|item| decoded(&item["embedding"])).collect();
        assert_eq!(texts, numbers, "{more}");
        fields["encoding_format"] = "float".into();
        assert_eq!(vectors(&state, fields).await, numbers);
    }
}

#[tokio::test]
async fn vectors_are_pooled_cut_and_normalised_as_asked() {
    let state = plain();
    let text = "a text of several tokens";
    let (mean, last) = (raw(&tokens_of(text), Pooling::Mean), raw(&tokens_of(text), Pooling::Last));
    for (fields, expected) in [
        (json!({}), normalized(&mean)),
        (json!({ "pooling": "mean" }), normalized(&mean)),
        (json!({ "pooling": "last" }), normalized(&last)),
        (json!({ "pooling": "last", "normalize": false }), last.clone()),
        (json!({ "normalize": false }), mean.clone()),
        (json!({ "normalize": true, "dimensions": SIZE }), normalized(&mean)),
        (json!({ "dimensions": 2 }), normalized(&mean[..2])),
        (json!({ "dimensions": 1 }), vec![1.0]),
        (json!({ "dimensions": 3, "normalize": false }), mean[..3].to_vec()),
        (json!({ "pooling": null, "dimensions": null, "normalize": null, "encoding_format": null }), normalized(&mean)),
    ] {
        let mut request = json!({ "input": text });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(vectors(&state, request).await, [expected], "{fields}");
    }
}

#[tokio::test]
async fn truncation_keeps_the_last_tokens() {
    let state = plain();
    let text = "x".repeat(600) + "the end";
    let tokens = tokens_of(&text);
    for (truncate, kept) in [(7, 7), (1, 1), (512, 512), (-1, 512)] {
        let expected = usual(&tokens[tokens.len() - kept..]);
        for input in [json!(text), json!(tokens)] {
            let fields = json!({ "input": input, "truncate_prompt_tokens": truncate });
            assert_eq!(vectors(&state, fields).await, std::slice::from_ref(&expected), "{truncate}");
        }
    }
    // A short input is whole.
    let fields = json!({ "input": "short", "truncate_prompt_tokens": 100 });
    assert_eq!(vectors(&state, fields).await, [usual(&tokens_of("short"))]);
    // Far beyond what can fit, too.
    let fields = json!({ "input": "y".repeat(1 << 20), "truncate_prompt_tokens": 3 });
    assert_eq!(vectors(&state, fields).await, [usual(&tokens_of("yyy"))]);
}

#[tokio::test]
async fn what_the_file_wants_around_a_text_is_added_unless_it_is_not_wanted() {
    let extra = vec![("tokenizer.ggml.add_eos_token".to_owned(), gguf::Value::Bool(1))];
    let vocabulary = vocabulary_of(&TinyModel { add_bos: true, extra, ..TinyModel::default() });
    let (bos, eos) = (vocabulary.tokenizer.bos().unwrap(), vocabulary.tokenizer.eos().unwrap());
    let (state, _engine) = state_of(vocabulary, runner(), EngineConfig::default(), ServerConfig::default());
    let text = tokens_of("text");
    let around = [&[bos], text.as_slice(), &[eos]].concat();
    assert_eq!(vectors(&state, json!({ "input": "text" })).await, [usual(&around)]);
    assert_eq!(vectors(&state, json!({ "input": "text", "add_special_tokens": true })).await, [usual(&around)]);
    assert_eq!(vectors(&state, json!({ "input": "text", "add_special_tokens": false })).await, [usual(&text)]);
    // Token ids are what they are.
    assert_eq!(vectors(&state, json!({ "input": text })).await, [usual(&text)]);
    // What was added to a text is not cut off: its own beginning is.
    for (truncate, kept) in [(6, &around[..]), (4, &[bos, text[2], text[3], eos]), (2, &[bos, eos]), (1, &[eos])] {
        let fields = json!({ "input": "text", "truncate_prompt_tokens": truncate });
        assert_eq!(vectors(&state, fields).await, [usual(kept)], "{truncate}");
    }
    let fields = json!({ "input": "text", "truncate_prompt_tokens": 2, "add_special_tokens": false });
    assert_eq!(vectors(&state, fields).await, [usual(&text[2..])]);
    let fields = json!({ "input": around, "truncate_prompt_tokens": 2 });
    assert_eq!(vectors(&state, fields).await, [usual(&around[4..])]);
}

#[tokio::test]
async fn a_wrong_field_is_refused_by_its_name() {
    let state = plain();
    for (fields, param, message) in [
        (json!({}), "input", "input is missing"),
        (json!({ "input": null }), "input", "input is missing"),
        (json!({ "input": 3 }), "input", "a string, token ids, or an array of either, got 3"),
        (json!({ "input": { "text": "a" } }), "input", "got an object"),
        (json!({ "input": "" }), "input", "input is empty"),
        (json!({ "input": [] }), "input", "empty array"),
        (json!({ "input": ["a", ""] }), "input[1]", "input[1] is empty"),
        (json!({ "input": [[1], []] }), "input[1]", "input[1] is empty"),
        (json!({ "input": ["a", null] }), "input[1]", "a string or token ids, got null"),
        (json!({ "input": ["a", 3] }), "input[1]", "a string or token ids, got 3"),
        (json!({ "input": [1, "a"] }), "input", "integer from 0, got \"a\""),
        (json!({ "input": [1, -1] }), "input", "integer from 0, got -1"),
        (json!({ "input": ["a", [1, 2.5]] }), "input[1]", "integer from 0, got 2.5"),
        (json!({ "input": ["a", [1, 1_000_000]] }), "input[1]", "token id 1000000 is not in the vocabulary"),
        (json!({ "input": vec!["a"; 2049] }), "input", "2049 inputs; at most 2048"),
        (
            json!({ "input": "a", "encoding_format": "int8" }),
            "encoding_format",
            "\"float\" or \"base64\", got \"int8\"",
        ),
        (json!({ "input": "a", "encoding_format": 1 }), "encoding_format", "a string"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions", "between 1 and 4, got 0"),
        (json!({ "input": "a", "dimensions": 5 }), "dimensions", "between 1 and 4, got 5"),
        (json!({ "input": "a", "dimensions": "2" }), "dimensions", "between 1 and 4, got \"2\""),
        (json!({ "input": "a", "pooling": "cls" }), "pooling", "\"mean\" or \"last\", got \"cls\""),
        (json!({ "input": "a", "normalize": "yes" }), "normalize", "true or false"),
        (json!({ "input": "a", "add_special_tokens": 1 }), "add_special_tokens", "true or false"),
        (json!({ "input": "a", "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens", "between 1 and 512"),
        (json!({ "input": "a", "truncate_prompt_tokens": -2 }), "truncate_prompt_tokens", "got -2"),
        (json!({ "input": "a", "truncate_prompt_tokens": 513 }), "truncate_prompt_tokens", "between 1 and 512"),
        (json!({ "input": "a", "priority": 1.5 }), "priority", "integer"),
        (json!({ "input": "a", "cache_salt": "" }), "cache_salt", "1 to 1024 bytes"),
        (json!({ "input": "a", "messages": [] }), "messages", "not supported"),
        (json!({ "input": "a", "embed_dtype": "float16" }), "embed_dtype", "not supported"),
        (json!({ "input": "a", "embd_normalize": -1 }), "embd_normalize", "not supported"),
        (json!({ "input": "a", "model": 3 }), "model", "a string"),
    ] {
        let answer = embed(&state, fields.clone()).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
        let error = answer.error();
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
    let answer = embed(&state, json!({ "input": "a", "model": "another" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("model_not_found")));
    assert_eq!(embed(&state, json!({ "input": "a", "embed_dtype": "float32" })).await.status, 200);
}

#[tokio::test]
async fn an_input_may_fill_the_context_and_no_more() {
    let state = plain();
    let tokens: Vec<u32> = (0..512).map(|place| place % 256).collect();
    assert_eq!(vectors(&state, json!({ "input": tokens })).await, [usual(&tokens)]);
    let long = "z".repeat(513);
    for (input, param, tokens) in
        [(json!(vec![1; 513]), "input", 513), (json!(long), "input", 513), (json!(["a", long]), "input[1]", 513)]
    {
        let error = embed(&state, json!({ "input": input })).await.error();
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(param)));
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(tokens), &json!(512)));
        assert!(error["message"].as_str().unwrap().contains("513 tokens and the context of this model holds 512"));
    }
    let error = embed(&state, json!({ "input": "z".repeat(1 << 20) })).await.error();
    assert!(error["message"].as_str().unwrap().contains("at least"), "{error}");
}

#[tokio::test]
async fn a_model_without_hidden_states_says_so() {
    let answer = embed(&state(), json!({ "input": "a" })).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error()["code"], "unsupported_parameter");
    assert!(answer.error()["message"].as_str().unwrap().contains("tiny:1m gives no embeddings"));
}

#[tokio::test]
async fn more_inputs_than_the_queue_holds_are_worked_off() {
    let config = EngineConfig { max_batch: 4, max_queued: 4, ..EngineConfig::default() };
    let (state, engine) = state_for(runner(), config);
    let inputs: Vec<String> = (0..100).map(|number| format!("input {number} {}", "x".repeat(number % 17))).collect();
    let expected: Vec<Vec<f32>> = inputs.iter().map(|input| usual(&tokens_of(input))).collect();
    assert_eq!(vectors(&state, json!({ "input": inputs })).await, expected);
    assert_eq!(engine.metrics().num_ended(EndReason::Stop), 100);
    let num_tokens: usize = inputs.iter().map(|input| tokens_of(input).len()).sum();
    assert_eq!(engine.status().prompt_tokens, num_tokens as u64);
    let metrics = get(&state, "/metrics").await.body;
    let of_prompts = metrics.lines().find(|line| line.starts_with("vllm:prompt_tokens_total{")).unwrap();
    assert!(of_prompts.ends_with(&format!(" {num_tokens}")), "{of_prompts}");
}

#[tokio::test]
async fn vectors_come_beside_answers_as_they_come_alone() {
    let (state, _engine) = state_for(runner(), EngineConfig { token_budget: Some(16), ..EngineConfig::default() });
    let inputs: Vec<String> = (0..20).map(|number| format!("input {number} {}", "x".repeat(7 * number))).collect();
    let expected: Vec<Vec<f32>> = inputs.iter().map(|input| usual(&tokens_of(input))).collect();
    let answers = complete(&state, json!({ "max_tokens": 100, "ignore_eos": true }));
    let (vectors, answer) = tokio::join!(vectors(&state, json!({ "input": inputs })), answers);
    assert_eq!(vectors, expected);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
}

#[tokio::test]
async fn a_full_queue_refuses_a_request_that_has_not_begun() {
    let (runner, gate) = runner().with_gate();
    let config = EngineConfig { max_batch: 1, max_queued: 0, ..EngineConfig::default() };
    let (state, engine) = state_for(runner, config);
    let asked = EmbeddingRequest {
        prompt_tokens: vec![1, 2, 3],
        pooling: Pooling::Mean,
        priority: 0,
        cache_salt: None,
        timeout: None,
    };
    let held = engine.embed(asked).unwrap();
    let answer = embed(&state, json!({ "input": "a" })).await;
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert!(answer.headers.contains_key("retry-after"));
    drop(held);
    gate.open();
    eventually("there is room", || engine.status().queued + engine.status().running == 0).await;
    assert_eq!(embed(&state, json!({ "input": "a" })).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_all_its_inputs() {
    let (runner, gate) = runner().with_gate();
    let config = EngineConfig { token_budget: Some(16), max_batch: 16, ..EngineConfig::default() };
    let (state, engine) = state_for(runner, config);
    let running = Running::start(&state).await;
    let mut client = running.connect().await;
    let inputs: Vec<String> = (0..40).map(|number| format!("{number}{}", "x".repeat(100))).collect();
    client.write_all(&raw_post(EMBEDDINGS, &json!({ "input": inputs }))).await.unwrap();
    gate.allow(1);
    eventually("it runs", || engine.status().running > 0).await;
    drop(client);
    // The engine waits at its gate until the server has noticed.
    eventually("the request is over", || state.active_requests() == 0).await;
    gate.open();
    eventually("nobody is left", || engine.status().queued + engine.status().running == 0).await;
    assert_eq!(engine.status().free_blocks, limits().num_blocks);
    assert_eq!(engine.metrics().num_ended(EndReason::Abort), 32, "those that were at the engine");
    assert_eq!(engine.metrics().num_ended(EndReason::Stop), 0);
    // The server goes on.
    assert_eq!(vectors(&state, json!({ "input": "a" })).await, [usual(&tokens_of("a"))]);
}

#[tokio::test]
async fn an_input_that_fails_fails_the_request_and_frees_the_others() {
    let config = EngineConfig { token_budget: Some(16), max_batch: 16, ..EngineConfig::default() };
    let (state, engine) = state_for(runner().failing_at(3..4), config);
    let inputs: Vec<String> = (0..40).map(|number| format!("{number}{}", "x".repeat(100))).collect();
    let answer = embed(&state, json!({ "input": inputs })).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(answer.error()["message"].as_str().unwrap().contains("the stub fails at step 3"));
    eventually("nobody is left", || engine.status().queued + engine.status().running == 0).await;
    assert_eq!(engine.status().free_blocks, limits().num_blocks);
    assert_eq!(vectors(&state, json!({ "input": "a" })).await, [usual(&tokens_of("a"))]);
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_a_408() {
    let config = EngineConfig {
        token_budget: Some(16),
        max_batch: 16,
        request_timeout: Some(Duration::from_millis(30)),
        ..EngineConfig::default()
    };
    // Thirty steps, of which two take the time.
    let (state, engine) = state_for(runner().with_delay(Duration::from_millis(20)), config);
    let answer = embed(&state, json!({ "input": ["x".repeat(500)] })).await;
    assert_eq!(answer.status, 408, "{}", answer.body);
    eventually("nobody is left", || engine.status().queued + engine.status().running == 0).await;
}

#[tokio::test]
async fn a_server_that_stops_takes_no_inputs() {
    let state = plain();
    state.set_draining();
    let answer = embed(&state, json!({ "input": "a" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("server_draining")));
}

/// The vectors of llama-server's answer.
async fn native(state: &ServerState, path: &str, fields: Value) -> Vec<Vec<f32>> {
    let answer = post(state, path, &fields).await;
    assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
    let body = answer.json();
    let items = body.as_array().unwrap_or_else(|| panic!("{body}"));
    let vector = |(index, item): (usize, &Value)| {
        assert_eq!((&item["index"], item["embedding"].as_array().map(Vec::len)), (&json!(index), Some(1)));
        floats(&item["embedding"][0])
    };
    items.iter().enumerate().map(vector).collect()
}

#[tokio::test]
async fn llama_servers_paths_answer_in_its_words() {
    let state = plain();
    let [a, b] = ["a first text", "and quite another"].map(tokens_of);
    for path in ["/embedding", "/embeddings"] {
        assert_eq!(native(&state, path, json!({ "content": "a first text" })).await, [usual(&a)]);
        let both = json!({ "input": ["a first text", b], "embd_normalize": 2 });
        assert_eq!(native(&state, path, both).await, [usual(&a), usual(&b)]);
        let as_it_is = json!({ "content": "a first text", "embd_normalize": -1, "pooling": "last" });
        assert_eq!(native(&state, path, as_it_is).await, [raw(&a, Pooling::Last)]);
    }
    for (fields, param) in [
        (json!({}), "input"),
        (json!({ "content": "a", "input": "b" }), "content"),
        (json!({ "content": ["a", 5] }), "content[1]"),
        (json!({ "content": "a", "embd_normalize": 0 }), "embd_normalize"),
        (json!({ "content": "a", "encoding_format": "base64" }), "encoding_format"),
    ] {
        let answer = post(&state, "/embedding", &fields).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)), "{fields}");
    }
}
