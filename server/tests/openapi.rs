//! The description of the API: complete, and true of what is sent.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use support::*;
use taper_engine::{Engine, EngineConfig};
use taper_server::{
    DeclaredModel, LoadedModel, ModelLimits, ModelLoader, SamplingDefaults, ServedModel, ServerFacts, ServerState, Tell,
};

async fn document(state: &ServerState) -> Value {
    let answer = get(state, "/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()
}

/// Adds the names of a schema's fields.
fn add_fields(document: &Value, schema: &Value, names: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        return add_fields(document, document.pointer(&reference[1..]).unwrap(), names);
    }
    names.extend(schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()));
    for either in ["anyOf", "allOf"].iter().filter_map(|kind| schema[*kind].as_array()).flatten() {
        add_fields(document, either, names);
    }
}

#[tokio::test]
async fn the_readme_names_every_path_and_every_field_of_a_request() {
    let readme = include_str!("../README.md");
    let spans = readme.split('`').skip(1).step_by(2);
    let words: BTreeSet<&str> =
        spans.flat_map(|span| span.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')).collect();
    let document = document(&state()).await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        assert!(readme.contains(&format!("{path}`")), "{path} has no line");
        for operation in methods.as_object().unwrap().values() {
            let mut names = BTreeSet::new();
            add_fields(&document, &operation["requestBody"]["content"]["application/json"]["schema"], &mut names);
            let unnamed: Vec<_> = names.iter().filter(|name| !words.contains(name.as_str())).collect();
            assert_eq!(unnamed, Vec::<&String>::new(), "{path}");
        }
    }
}

/// Requests to every path that is described, each answered by a 200. Streams come where there are some.
fn samples() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = |fields: Value| {
        let mut body = json!({ "messages": messages });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ("post", CHAT, body)
    };
    let everything =
        json!({ "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "n": 2, "prompt_logprobs": 1 });
    let mut samples = vec![
        chat(json!({})),
        chat(everything),
        chat(
            json!({ "stream": true, "stream_options": { "include_usage": true }, "logprobs": true, "return_token_ids": true }),
        ),
        ("post", COMPLETIONS, json!({ "prompt": "Once" })),
        ("post", COMPLETIONS, json!({ "prompt": ["a", "b"], "timings": true })),
        ("post", COMPLETIONS, json!({ "prompt": ["a", "b"], "timings": true, "stream": true })),
        (
            "post",
            COMPLETIONS,
            json!({ "prompt": "Once", "stream": true, "stream_options": { "include_usage": true, "continuous_usage_stats": true } }),
        ),
        (
            "post",
            COMPLETIONS,
            json!({ "prompt": ["a", [98]], "logprobs": 2, "echo": true, "return_token_ids": true, "prompt_logprobs": 1 }),
        ),
        (
            "post",
            COMPLETIONS,
            json!({ "prompt": "Once", "stream": true, "logprobs": 1, "return_token_ids": true, "stream_options": { "include_usage": true } }),
        ),
        chat(json!({ "stream": true, "return_progress": true })),
        ("post", "/v1/embeddings", json!({ "input": ["a", "b"] })),
        ("post", "/v1/embeddings", json!({ "input": [97], "encoding_format": "base64", "dimensions": 2 })),
        ("post", "/embedding", json!({ "content": "a" })),
        ("post", "/embeddings", json!({ "input": ["a", "b"], "embd_normalize": -1 })),
        ("post", "/chat/completions", json!({ "messages": messages })),
        ("post", "/chat/completions/input_tokens", json!({ "messages": messages })),
        ("post", "/responses", json!({ "input": "Hi" })),
        ("post", "/v1/chat/completions/input_tokens", json!({ "messages": messages })),
        ("post", "/apply-template", json!({ "messages": messages })),
    ];
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    samples.extend([
        ("post", "/v1/messages", json!({ "messages": messages, "max_tokens": 4 })),
        ("post", "/v1/messages", json!({ "messages": messages, "max_tokens": 20, "stream": true })),
        ("post", "/v1/messages", json!({ "messages": messages, "max_tokens": 4, "timings": true })),
        ("post", "/v1/messages", json!({ "messages": messages, "max_tokens": 4, "timings": true, "stream": true })),
        ("post", "/v1/responses", json!({ "input": "Hi", "timings": true })),
        ("post", "/v1/messages/count_tokens", json!({ "messages": messages, "tools": tools, "system": "S" })),
        ("post", "/v1/responses", json!({ "input": "Hi", "metadata": { "a": "b" }, "top_logprobs": 1 })),
        ("post", "/v1/responses", json!({ "input": "Hi", "max_output_tokens": 4, "stream": true, "top_logprobs": 1 })),
    ]);
    samples.extend([
        ("post", "/api/chat", json!({ "messages": messages, "logprobs": true, "top_logprobs": 1 })),
        (
            "post",
            "/api/chat",
            json!({ "messages": messages, "stream": false, "options": { "num_predict": 4, "num_gpu": 1 } }),
        ),
        ("post", "/api/chat", json!({})),
        ("post", "/api/generate", json!({ "prompt": "Once", "context": [97], "keep_alive": "5m" })),
        ("post", "/api/generate", json!({ "prompt": "Once", "stream": false, "raw": true })),
        ("post", "/api/embed", json!({ "input": ["a", "b"], "dimensions": 2, "options": { "num_ctx": 5 } })),
        ("post", "/api/embeddings", json!({ "prompt": "a" })),
        ("post", "/api/show", json!({ "model": "tiny" })),
    ]);
    for path in ["/api/tags", "/api/ps", "/api/version"] {
        samples.push(("get", path, Value::Null));
    }
    for path in ["/completion", "/completions"] {
        samples.push((
            "post",
            path,
            json!({ "prompt": "Once", "n_probs": 1, "return_tokens": true, "logit_bias": [["z", false], [65, 1]] }),
        ));
        let probabilities =
            json!({ "prompt": "Once", "n_probs": 2, "post_sampling_probs": true, "mirostat": 2, "dry_multiplier": 1 });
        samples.push(("post", path, probabilities));
        samples.push(("post", path, json!({ "prompt": ["a", "b"], "n_predict": 2 })));
        samples.push(("post", path, json!({ "prompt": "a", "response_fields": ["content", "timings/cache_n"] })));
        samples.push(("post", path, json!({ "prompt": "a", "return_progress": true, "stream": true, "n_indent": 1 })));
        samples.push(("post", path, json!({ "prompt": "Once", "stream": true, "n_probs": 1 })));
    }
    for path in ["/tokenize", "/v1/tokenize"] {
        samples.push(("post", path, json!({ "prompt": "hé", "return_token_strs": true })));
        samples.push(("post", path, json!({ "messages": messages })));
        samples.push(("post", path, json!({ "content": "hé", "with_pieces": true })));
        samples.push(("post", path, json!({ "content": "hé" })));
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        samples.push(("post", path, json!({ "tokens": [104] })));
    }
    let model = "/v1/models/{id}";
    for path in [
        "/tokenizer_info",
        "/v1/models",
        "/models",
        model,
        "/live",
        "/health",
        "/v1/health",
        "/ping",
        "/version",
        "/server_info",
    ] {
        samples.push(("get", path, Value::Null));
    }
    for path in ["/props", "/slots", "/lora-adapters", "/loads", "/v1/loads", "/metrics", "/openapi.json", "/docs"] {
        samples.push(("get", path, Value::Null));
    }
    // Of each two, the second brings back what the first has changed.
    for (unload, load, field) in
        [("/models/unload", "/models/load", "model"), ("/v1/models/unload", "/v1/models/reload", "model_id")]
    {
        samples.extend([unload, load].map(|path| ("post", path, json!({ field: "tiny" }))));
    }
    samples
}

/// Loads the model of the tests as often as somebody asks.
struct Loader;

impl ModelLoader for Loader {
    fn load(&self, _index: usize, _tell: Tell) -> Result<LoadedModel, String> {
        let Vocabulary { tokenizer, template } = vocabulary();
        let runner = replying(REPLY).with_states(4, |tokens, row| row.fill(tokens.len() as f32));
        let model = ServedModel {
            id: MODEL.to_owned(),
            engine: Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default()),
            tokenizer,
            template: Some(template),
            context_len: limits().context_len,
            created_unix: 1_700_000_000,
            fingerprint: FINGERPRINT.to_owned(),
            deterministic: true,
        };
        Ok(LoadedModel { model, facts: ServerFacts::default() })
    }
}

/// A server that unloads its model and loads it again.
fn loading_state() -> ServerState {
    let (id, aliases) = (MODEL.to_owned(), vec!["tiny".to_owned()]);
    let model = DeclaredModel { id, aliases, created_unix: 0, max_bytes: 0, facts: ServerFacts::default() };
    let state = ServerState::new();
    state.declare(vec![model], ModelLimits::default(), Arc::new(Loader));
    state.load_first().unwrap();
    state
}

/// No object has a field that its schema does not name.
fn make_strict(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), json!(false));
            }
            object.values_mut().for_each(make_strict);
        }
        Value::Array(items) => items.iter_mut().for_each(make_strict),
        _ => {}
    }
}

/// A validator of one schema of the document.
fn validator(schema: &Value, document: &Value) -> jsonschema::Validator {
    let mut whole = json!({ "allOf": [schema], "components": document["components"] });
    make_strict(&mut whole);
    jsonschema::validator_for(&whole).unwrap_or_else(|error| panic!("{error}: {schema}"))
}

fn check(value: &Value, validator: &jsonschema::Validator, what: &str) {
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {value}\n{errors:#?}");
}

/// Each event fits the schema, and what its data says fits the schema of that, which validators take for a remark.
fn check_events(answer: &Answer, schema: &Value, document: &Value, what: &str) {
    let event = validator(schema, document);
    let data = &schema["properties"]["data"];
    let forms = data["anyOf"].as_array().map_or(std::slice::from_ref(data), Vec::as_slice);
    let form = forms.iter().find(|form| form["contentMediaType"] == "application/json").expect("data is JSON");
    let content = validator(&form["contentSchema"], document);
    if schema["properties"]["event"].is_object() {
        for said in answer.events() {
            check(&json!({ "event": said["type"], "data": said.to_string() }), &event, what);
            check(&said, &content, what);
        }
        return;
    }
    let frames = answer.frames();
    let ends = forms.iter().any(|form| form["const"] == "[DONE]");
    assert_eq!(frames.last().is_some_and(|frame| frame == "[DONE]"), ends, "{what}");
    for frame in &frames {
        check(&json!({ "data": frame }), &event, what);
        if frame != "[DONE]" {
            check(&serde_json::from_str(frame).unwrap(), &content, what);
        }
    }
}

#[tokio::test]
async fn every_answer_has_the_form_that_is_described() {
    let state = loading_state();
    let document = document(&state).await;
    let mut described: BTreeSet<(String, String)> = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        described.extend(methods.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())));
    }
    for facts in [
        ServerFacts::default(),
        ServerFacts {
            num_params: Some(1),
            architecture: Some("llama".to_owned()),
            device: Some("cpu".to_owned()),
            sampling: SamplingDefaults { temperature: Some(0.5), top_k: Some(9), ..SamplingDefaults::NONE },
            ..Default::default()
        },
    ] {
        state.set_facts(facts);
        for (method, path, body) in samples() {
            let what = format!("{method} {path} {body}");
            let operation = &document["paths"][path][method];
            assert!(operation.is_object(), "{what} is not described");
            described.remove(&(method.to_owned(), path.to_owned()));
            if let Some(request) = operation["requestBody"]["content"]["application/json"].get("schema") {
                check(&body, &validator(request, &document), &format!("the body of {what}"));
            }
            let answer = if method == "post" {
                post(&state, path, &body).await
            } else {
                get(&state, &path.replace("{id}", "tiny")).await
            };
            assert_eq!(answer.status, 200, "{what}: {}", answer.body);
            let content_type = answer.headers["content-type"].to_str().unwrap().split(';').next().unwrap().to_owned();
            let schema = &operation["responses"]["200"]["content"][&content_type]["schema"];
            assert!(schema.is_object(), "{what} is answered by {content_type}");
            let validator = validator(schema, &document);
            match content_type.as_str() {
                "application/json" => check(&answer.json(), &validator, &what),
                "application/x-ndjson" => {
                    answer.lines().iter().for_each(|line| check(line, &validator, &what));
                }
                "text/event-stream" => check_events(&answer, schema, &document, &what),
                _ => assert!(!answer.body.is_empty()),
            }
        }
    }
    assert!(described.is_empty(), "no sample here asks {described:?}");
}

#[tokio::test]
async fn every_error_has_the_form_that_is_described() {
    let (ready, loading) = (state(), ServerState::new());
    let document = document(&ready).await;
    for (state, method, path, body) in [
        (&ready, "post", CHAT, json!({ "messages": 5 })),
        (&ready, "post", COMPLETIONS, json!({ "prompt": "x".repeat(600) })),
        (&ready, "post", "/completion", json!({ "mirostat": 3, "prompt": "a" })),
        (&ready, "post", "/tokenize", json!({})),
        (&loading, "post", "/tokenize", json!({ "prompt": "a" })),
        (&loading, "post", "/v1/messages", json!({})),
        (&ready, "post", "/v1/messages", json!({ "messages": 5 })),
        (&ready, "post", "/v1/messages/count_tokens", json!({ "messages": 5 })),
        (&ready, "post", "/v1/responses", json!({ "input": 5 })),
        (&ready, "post", "/api/chat", json!({ "messages": 5 })),
        (&ready, "post", "/api/embed", json!({ "input": "a" })),
        (&ready, "post", "/models/unload", json!({ "model": "tiny" })),
        (&ready, "post", "/v1/models/reload", json!({ "model": "tiny" })),
        (&loading, "get", "/api/tags", Value::Null),
        (&loading, "get", "/health", Value::Null),
        (&loading, "get", "/v1/loads", Value::Null),
    ] {
        let answer = if method == "post" { post(state, path, &body).await } else { get(state, path).await };
        assert!(!answer.status.is_success());
        let schema = &document["paths"][path][method]["responses"]["default"]["content"]["application/json"]["schema"];
        check(&answer.json(), &validator(schema, &document), path);
    }
}

#[tokio::test]
async fn a_field_that_is_not_described_would_be_noticed() {
    let document = document(&state()).await;
    let schema = &document["paths"]["/live"]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
    let validator = validator(schema, &document);
    assert!(validator.is_valid(&json!({ "status": "alive" })));
    assert!(!validator.is_valid(&json!({ "status": "alive", "more": 1 })));
    assert!(!validator.is_valid(&json!({})));
}

#[tokio::test]
async fn the_description_is_there_before_the_model_is() {
    let loading = ServerState::new();
    let document = document(&loading).await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{path}");
        }
    }
    assert_eq!(get(&loading, "/docs").await.status, 200);
}

#[tokio::test]
async fn the_page_lists_every_path_and_may_load_nothing() {
    let state = state();
    let answer = get(&state, "/docs").await;
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    let policy = answer.headers["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(answer.body.contains(&format!("<style nonce=\"{nonce}\">")));
    let again = get(&state, "/docs").await.headers["content-security-policy"].to_str().unwrap().to_owned();
    assert_ne!(policy, again, "each answer has a word of its own");
    for forbidden in ["<script", "http://", "https://", "src=", "@nonce@", " style=", "onclick"] {
        assert!(!answer.body.contains(forbidden), "{forbidden}");
    }
    for path in document(&state).await["paths"].as_object().unwrap().keys() {
        assert!(answer.body.contains(&format!("</span> {path}</code>")), "{path}");
    }
}
