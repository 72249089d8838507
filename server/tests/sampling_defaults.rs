//! What requests get that do not say how tokens are chosen: request, setting, the model's file, protocol, in this order.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Map, Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineHandle};
use taper_server::{SamplingDefaults, ServerConfig, ServerFacts, ServerState};

const NONE: SamplingDefaults = SamplingDefaults::NONE;
const COMPLETION: &str = "/completion";

/// A server with these settings, of a model whose file suggests this. The model would say "abcabc..." for ever, with the end of
/// the text as the second best.
fn serve(settings: SamplingDefaults, suggested: SamplingDefaults) -> (ServerState, EngineHandle) {
    let end = end_token() as usize;
    let runner = StubRunner::with_logits(limits(), move |tokens, logits| {
        let last = tokens[tokens.len() - 1];
        let next = if (97..99).contains(&last) { last + 1 } else { 97 };
        logits[next as usize] = 6.0;
        logits[end] = 5.0;
    });
    let config = ServerConfig { sampling: settings, ..ServerConfig::default() };
    let (state, engine) = state_with_config(runner, EngineConfig::default(), config);
    state.set_facts(ServerFacts { sampling: suggested, ..ServerFacts::default() });
    (state, engine)
}

/// Every way to have text generated: the path, a request that gives nothing, and where the answer has its text.
fn protocols() -> [(&'static str, Value, &'static str); 7] {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    [
        (CHAT, json!({ "messages": messages }), "/choices/0/message/content"),
        (COMPLETIONS, json!({ "prompt": "> " }), "/choices/0/text"),
        ("/v1/messages", json!({ "messages": messages }), "/content/0/text"),
        ("/v1/responses", json!({ "input": "Hi" }), "/output/0/content/0/text"),
        (COMPLETION, json!({ "prompt": "> " }), "/content"),
        ("/api/chat", json!({ "messages": messages, "stream": false }), "/message/content"),
        ("/api/generate", json!({ "prompt": "> ", "raw": true, "stream": false }), "/response"),
    ]
}

/// The request with these fields, where its protocol has them.
fn with(path: &str, mut body: Value, fields: &Value) -> Value {
    if path.starts_with("/api/") {
        body["options"] = fields.clone();
    } else {
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    }
    body
}

async fn check_text(state: &ServerState, fields: Value, expected: &str) {
    for (path, body, pointer) in protocols() {
        let answer = post(state, path, &with(path, body, &fields)).await;
        assert_eq!(answer.status, 200, "{path} {fields}: {}", answer.body);
        assert_eq!(answer.json().pointer(pointer), Some(&json!(expected)), "{path} {fields}: {}", answer.body);
    }
}

#[tokio::test]
async fn every_protocol_takes_the_settings_of_the_server() {
    let greedy = SamplingDefaults { temperature: Some(0.0), max_tokens: Some(9), ..NONE };
    for (settings, expected) in [
        (greedy, "abcabcabc"),
        (SamplingDefaults { presence_penalty: Some(1.5), ..greedy }, "abc"),
        (SamplingDefaults { frequency_penalty: Some(0.6), ..greedy }, "abcabc"),
        (SamplingDefaults { temperature: Some(1.0), top_k: Some(1), ..greedy }, "abcabcabc"),
        (SamplingDefaults { temperature: Some(1.0), top_p: Some(0.0), ..greedy }, "abcabcabc"),
        (SamplingDefaults { temperature: Some(1.0), min_p: Some(1.0), ..greedy }, "abcabcabc"),
    ] {
        check_text(&serve(settings, NONE).0, json!({}), expected).await;
    }
}

#[tokio::test]
async fn every_protocol_has_request_before_setting_before_model_before_its_own() {
    let suggested = SamplingDefaults { temperature: Some(0.0), presence_penalty: Some(1.5), ..NONE };
    let limit = SamplingDefaults { max_tokens: Some(9), ..NONE };
    let (state, _engine) = serve(limit, suggested);
    check_text(&state, json!({}), "abc").await;
    let settings = SamplingDefaults { presence_penalty: Some(0.0), ..limit };
    let (state, _engine) = serve(settings, suggested);
    check_text(&state, json!({}), "abcabcabc").await;
    check_text(&state, json!({ "presence_penalty": 1.5 }), "abc").await;
    check_text(&state, json!({ "presence_penalty": null }), "abcabcabc").await;
}

#[tokio::test]
async fn a_default_of_max_tokens_is_for_requests_without_a_limit() {
    let settings = SamplingDefaults { temperature: Some(0.0), max_tokens: Some(4), ..NONE };
    let (state, _engine) = serve(settings, NONE);
    check_text(&state, json!({}), "abca").await;
    check_text(&state, json!({ "max_tokens": 7 }), "abcabca").await;
    check_text(&state, json!({ "max_completion_tokens": 2 }), "ab").await;
    let length = |path: &'static str, fields: Value| {
        let (_, body, pointer) = protocols().into_iter().find(|(other, ..)| *other == path).unwrap();
        let (state, body) = (state.clone(), with(path, body, &fields));
        async move {
            let answer = post(&state, path, &body).await;
            assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
            answer.json().pointer(pointer).and_then(Value::as_str).unwrap().len()
        }
    };
    assert_eq!(length("/v1/responses", json!({ "max_output_tokens": 5 })).await, 5);
    for (path, field) in [(COMPLETION, "n_predict"), ("/api/chat", "num_predict"), ("/api/generate", "num_predict")] {
        assert_eq!(length(path, json!({ field: 5 })).await, 5, "{path}");
        assert_eq!(length(path, json!({ field: 0 })).await, 0, "{path}");
        assert!(length(path, json!({ field: -1 })).await > 100, "{path}: the rest of the context");
    }
    // Without the setting the protocols differ.
    let greedy = SamplingDefaults { max_tokens: None, ..settings };
    let (state, _engine) = serve(greedy, NONE);
    let answer = post(&state, COMPLETIONS, &json!({ "prompt": "> " })).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 16);
    let answer = post(&state, "/v1/messages", &json!({ "messages": [{ "role": "user", "content": "Hi" }] })).await;
    assert_eq!((answer.status.as_u16(), answer.body.contains("max_tokens is missing")), (400, true));
}

/// The names of `generation_settings`, and what llama-server has there.
const NATIVE: [(&str, &str, f64); 9] = [
    ("temperature", "temperature", 0.8),
    ("top_k", "top_k", 40.0),
    ("top_p", "top_p", 0.95),
    ("min_p", "min_p", 0.05),
    ("typical_p", "typical_p", 1.0),
    ("repetition_penalty", "repeat_penalty", 1.0),
    ("presence_penalty", "presence_penalty", 0.0),
    ("frequency_penalty", "frequency_penalty", 0.0),
    ("max_tokens", "max_tokens", -1.0),
];

/// One default; of those that are whole sixteen times the number.
fn one(name: &str, number: f32) -> SamplingDefaults {
    let mut defaults = NONE;
    match name {
        "temperature" => defaults.temperature = Some(number),
        "top_k" => defaults.top_k = Some((number * 16.0) as u32),
        "top_p" => defaults.top_p = Some(number),
        "min_p" => defaults.min_p = Some(number),
        "typical_p" => defaults.typical_p = Some(number),
        "repetition_penalty" => defaults.repetition_penalty = Some(number),
        "presence_penalty" => defaults.presence_penalty = Some(number),
        "frequency_penalty" => defaults.frequency_penalty = Some(number),
        "max_tokens" => defaults.max_tokens = Some((number * 16.0) as usize),
        other => panic!("{other}"),
    }
    defaults
}

async fn settings_of(state: &ServerState, fields: Map<String, Value>) -> Value {
    let mut body = json!({ "prompt": "> " });
    body.as_object_mut().unwrap().extend(fields);
    let answer = post(state, COMPLETION, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["generation_settings"].clone()
}

#[tokio::test]
async fn each_parameter_has_request_before_setting_before_model_before_protocol() {
    for (name, told, protocols) in NATIVE {
        // Each of them is another one.
        let (requested, set, suggested) = (one(name, 0.5), one(name, 0.25), one(name, 0.75));
        let value_of = |defaults: &SamplingDefaults| {
            defaults.fields().into_iter().find(|(other, _)| *other == name).and_then(|(_, value)| value).unwrap()
        };
        let request = Map::from_iter([(name.to_owned(), value_of(&requested))]);
        for (settings, suggestion, fields, expected) in [
            (NONE, NONE, Map::new(), json!(protocols)),
            (NONE, suggested, Map::new(), value_of(&suggested)),
            (set, suggested, Map::new(), value_of(&set)),
            (set, NONE, Map::new(), value_of(&set)),
            (set, suggested, request.clone(), value_of(&requested)),
            (NONE, NONE, request, value_of(&requested)),
        ] {
            let (state, _engine) = serve(settings, suggestion);
            let own = settings_of(&state, fields.clone()).await;
            let number = |value: &Value| value.as_f64().map(|number| number as f32);
            assert_eq!(number(&own[told]), number(&expected), "{name} {settings:?} {suggestion:?} {fields:?}");
            for (_, other, theirs) in NATIVE.iter().filter(|(other, ..)| *other != name) {
                assert_eq!(number(&own[*other]), Some(*theirs as f32), "{other} beside {name}");
            }
        }
    }
}

#[tokio::test]
async fn responses_repeat_what_holds() {
    let settings = SamplingDefaults { temperature: Some(0.6), max_tokens: Some(3), ..NONE };
    let suggested = SamplingDefaults { temperature: Some(0.1), top_p: Some(0.7), ..NONE };
    let (state, _engine) = serve(settings, suggested);
    let answer = post(&state, "/v1/responses", &json!({ "input": "Hi", "presence_penalty": 0.5 })).await.json();
    let told = ["temperature", "top_p", "presence_penalty", "frequency_penalty", "max_output_tokens"];
    assert_eq!(told.map(|name| answer[name].clone()), [json!(0.6), json!(0.7), json!(0.5), json!(0.0), json!(3)]);
}

#[tokio::test]
async fn the_server_tells_its_defaults_and_where_they_are_from() {
    let settings = SamplingDefaults { temperature: Some(0.6), max_tokens: Some(99), ..NONE };
    let suggested = SamplingDefaults { temperature: Some(0.1), top_k: Some(20), ..NONE };
    let (state, _engine) = serve(settings, suggested);
    let expected = json!({
        "temperature": { "value": 0.6, "from": "setting" },
        "top_k": { "value": 20, "from": "model" },
        "max_tokens": { "value": 99, "from": "setting" },
    });
    assert_eq!(get(&state, "/server_info").await.json()["sampling_defaults"], expected);
    assert_eq!(get(&state, "/v1/models").await.json()["data"][0]["sampling_defaults"], expected);
    assert_eq!(get(&state, "/v1/models/default").await.json()["sampling_defaults"], expected);
    let params = get(&state, "/props").await.json()["default_generation_settings"]["params"].clone();
    assert_eq!(params, settings_of(&state, Map::new()).await);
    assert_eq!((&params["top_k"], &params["n_predict"]), (&json!(20), &json!(99)));
    let (plain, _engine) = serve(NONE, NONE);
    assert_eq!(get(&plain, "/server_info").await.json()["sampling_defaults"], json!({}));
}

#[tokio::test]
async fn a_request_turns_default_penalties_off() {
    let penalized = SamplingDefaults {
        temperature: Some(0.0),
        presence_penalty: Some(1.5),
        repetition_penalty: Some(1.3),
        max_tokens: Some(9),
        ..NONE
    };
    let (state, _engine) = serve(penalized, NONE);
    for (path, fields) in [
        (COMPLETION, json!({ "repeat_last_n": 0 })),
        (COMPLETION, json!({ "samplers": ["temperature"] })),
        (COMPLETION, json!({ "repeat_penalty": 1, "presence_penalty": 0, "repeat_last_n": 64 })),
        ("/api/generate", json!({ "repeat_last_n": 0 })),
    ] {
        let (_, body, pointer) = protocols().into_iter().find(|(other, ..)| *other == path).unwrap();
        let answer = post(&state, path, &with(path, body, &fields)).await;
        assert_eq!(answer.json().pointer(pointer), Some(&json!("abcabcabc")), "{path} {fields}: {}", answer.body);
    }
    // They may look at the end of the text alone.
    let answer = post(&state, COMPLETION, &json!({ "prompt": "> ", "repeat_last_n": 64 })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
