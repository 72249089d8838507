//! Several models in one server: whom a request reaches, when models are loaded and unloaded, and what of it harms whom.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod exposition;
mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::{Gate, StubRunner};
use taper_engine::{Engine, EngineConfig, EngineHandle, Runner};
use taper_server::{
    DeclaredModel, LoadedModel, ModelLimits, ModelLoader, SamplingDefaults, ServedModel, ServerFacts, ServerState,
    Tell, Timeouts,
};
use tokio::task::JoinHandle;

const NAMES: [&str; 3] = ["one", "two", "org/three"];

/// Gives the runner of a model's load: its place, and how many loads there were before, of all models.
type Make = dyn Fn(usize, usize) -> Result<StubRunner, String> + Send + Sync;

/// Loads stubs.
struct StubLoader {
    make: Box<Make>,
    /// Places of the models whose loads have begun, in this order.
    begun: Mutex<Vec<usize>>,
    engines: Mutex<Vec<EngineHandle>>,
}

impl ModelLoader for StubLoader {
    fn load(&self, index: usize, tell: Tell) -> Result<LoadedModel, String> {
        tell("half way");
        let before = {
            let mut begun = self.begun.lock().unwrap();
            begun.push(index);
            begun.len() - 1
        };
        let runner = (self.make)(index, before)?;
        let Vocabulary { tokenizer, template } = vocabulary();
        let engine = Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default());
        self.engines.lock().unwrap().push(engine.clone());
        let model = ServedModel {
            id: NAMES[index].to_owned(),
            tokenizer,
            template: Some(template),
            engine,
            context_len: limits().context_len,
            created_unix: 1_700_000_000,
            fingerprint: format!("{FINGERPRINT}-{index}"),
            deterministic: true,
        };
        Ok(LoadedModel { model, facts: facts(index) })
    }
}

fn facts(index: usize) -> ServerFacts {
    let sampling = SamplingDefaults { top_k: Some(index as u32 + 5), ..SamplingDefaults::NONE };
    ServerFacts { model_bytes: Some(100), num_params: Some(index as u64), sampling, ..ServerFacts::default() }
}

/// A server of the three models, the first of which is loaded.
fn server(
    limits: ModelLimits,
    make: impl Fn(usize, usize) -> Result<StubRunner, String> + Send + Sync + 'static,
) -> (ServerState, Arc<StubLoader>) {
    server_of(NAMES.len(), limits, make)
}

/// A server of so many of them.
fn server_of(
    num_models: usize,
    limits: ModelLimits,
    make: impl Fn(usize, usize) -> Result<StubRunner, String> + Send + Sync + 'static,
) -> (ServerState, Arc<StubLoader>) {
    let loader = Arc::new(StubLoader { make: Box::new(make), begun: Mutex::default(), engines: Mutex::default() });
    let declared = |(index, id): (usize, &&str)| DeclaredModel {
        id: (*id).to_owned(),
        aliases: vec![format!("alias-{index}")],
        created_unix: 1_600_000_000,
        max_bytes: 100,
        facts: facts(index),
    };
    let state = ServerState::new();
    state.declare(NAMES.iter().take(num_models).enumerate().map(declared).collect(), limits, loader.clone());
    state.load_first().unwrap();
    (state, loader)
}

/// A stub that answers with the name of its model.
fn naming(index: usize) -> StubRunner {
    replying(&format!("I am {}.", NAMES[index])).with_states(4, |_, row| row.fill(1.0))
}

/// As many models as there are, each of which names itself.
fn plain(limits: ModelLimits) -> (ServerState, Arc<StubLoader>) {
    server(limits, |index, _| Ok(naming(index)))
}

/// One model at a time.
fn one_at_a_time() -> ModelLimits {
    ModelLimits { max_loaded: 1, ..ModelLimits::default() }
}

impl StubLoader {
    fn begun(&self) -> Vec<usize> {
        self.begun.lock().unwrap().clone()
    }
}

/// Something that waits until a test opens it.
#[derive(Clone, Default)]
struct Held(Arc<(Mutex<bool>, std::sync::Condvar)>);

impl Held {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        let (open, _) = self.0.1.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap();
        assert!(*open, "the test never opens it");
    }
}

async fn text_of(state: &ServerState, model: &str) -> String {
    let answer = chat(state, json!({ "model": model })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// A request that is sent now and answered later.
fn later(state: &ServerState, model: &'static str, fields: Value) -> JoinHandle<Answer> {
    let state = state.clone();
    tokio::spawn(async move {
        let mut body = json!({ "model": model, "prompt": "Once" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(&state, COMPLETIONS, &body).await
    })
}

/// Waits until so many requests are worked on or wait.
async fn requests(state: &ServerState, number: usize) {
    eventually(&format!("{number} requests are there"), || state.active_requests() == number).await;
}

/// Waits until an engine has so many of them.
async fn at_engine(engine: &EngineHandle, number: usize) {
    let has = || {
        let status = engine.status();
        status.running + status.queued == number
    };
    eventually(&format!("{number} requests are at the engine"), has).await;
}

async fn status_of(state: &ServerState, model: &str) -> Value {
    get(state, &format!("/v1/models/{model}")).await.json()["status"].clone()
}

/// Waits until a model is to be unloaded, for which its requests are waited for.
async fn leaving(state: &ServerState, model: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while status_of(state, model).await["reason"] != "it is unloaded once its requests have ended" {
        assert!(tokio::time::Instant::now() < deadline, "{model} stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The models that Ollama's clients see in memory.
async fn in_memory(state: &ServerState) -> Vec<String> {
    let models = get(state, "/api/ps").await.json()["models"].clone();
    models.as_array().unwrap().iter().map(|card| card["name"].as_str().unwrap().to_owned()).collect()
}

/// Every endpoint that takes a model, with a body that asks for little.
fn every_endpoint() -> Vec<(&'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    vec![
        (CHAT, json!({ "messages": messages })),
        (CHAT, json!({ "messages": messages, "stream": true })),
        ("/v1/chat/completions/input_tokens", json!({ "messages": messages })),
        (COMPLETIONS, json!({ "prompt": "Hi" })),
        ("/v1/embeddings", json!({ "input": "Hi" })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 9 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "Hi" })),
        ("/completion", json!({ "prompt": "Hi" })),
        ("/tokenize", json!({ "content": "Hi" })),
        ("/detokenize", json!({ "tokens": [65] })),
        ("/apply-template", json!({ "messages": messages })),
    ]
}

#[tokio::test]
async fn requests_reach_the_model_that_they_name() {
    let (state, loader) = plain(ModelLimits::default());
    for (model, index) in
        [("one", 0), ("default", 0), ("alias-0", 0), ("two", 1), ("alias-1", 1), ("org/three", 2), ("alias-2", 2)]
    {
        assert_eq!(text_of(&state, model).await, format!("I am {}.", NAMES[index]), "{model}");
    }
    for fields in [json!({}), json!({ "model": null }), json!({ "model": "" })] {
        let answer = chat(&state, fields).await.json();
        assert_eq!(
            (&answer["model"], &answer["system_fingerprint"]),
            (&json!("one"), &json!(format!("{FINGERPRINT}-0")))
        );
    }
    let answer = chat(&state, json!({ "model": "alias-1" })).await.json();
    assert_eq!((&answer["model"], &answer["system_fingerprint"]), (&json!("two"), &json!(format!("{FINGERPRINT}-1"))));
    assert_eq!(loader.begun(), [0, 1, 2], "each once");
}

#[tokio::test]
async fn each_model_has_the_sampling_defaults_that_its_file_suggests() {
    let (state, loader) = plain(ModelLimits::default());
    let list = get(&state, "/v1/models").await.json();
    let told: Vec<Value> =
        list["data"].as_array().unwrap().iter().map(|card| card["sampling_defaults"]["top_k"].clone()).collect();
    let expected = |index: usize| json!({ "value": index + 5, "from": "model" });
    assert_eq!(told, [expected(0), expected(1), expected(2)], "also before they are loaded");
    assert_eq!(loader.begun(), [0]);
    for (index, model) in NAMES.iter().enumerate() {
        let body = json!({ "model": model, "prompt": "Hi" });
        let answer = post(&state, "/completion", &body).await.json();
        assert_eq!(answer["generation_settings"]["top_k"], json!(index + 5), "{model}");
        let info = get(&state, &format!("/server_info?model={model}")).await.json();
        assert_eq!(info["sampling_defaults"]["top_k"], expected(index), "{model}");
        let props = get(&state, &format!("/props?model={model}")).await.json();
        assert_eq!(props["default_generation_settings"]["params"]["top_k"], json!(index + 5), "{model}");
    }
}

#[tokio::test]
async fn every_endpoint_goes_by_the_name() {
    let no =
        |index: usize, _: usize| if index == 1 { Err("it is no model at all".to_owned()) } else { Ok(naming(index)) };
    let (state, _) = server(ModelLimits::default(), no);
    for (path, mut body) in every_endpoint() {
        assert_eq!(post(&state, path, &body).await.status, 200, "{path}");
        body["model"] = "org/three".into();
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        body["model"] = "two".into();
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert!(answer.body.contains("it is no model at all"), "{path}: {}", answer.body);
        body["model"] = "four".into();
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn what_names_no_model_is_refused_as_with_one() {
    let (state, loader) = plain(ModelLimits::default());
    let answer = chat(&state, json!({ "model": "gpt-9" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("model_not_found")));
    let message = answer.error()["message"].as_str().unwrap().to_owned();
    assert!(NAMES.iter().all(|name| message.contains(name)) && message.contains("gpt-9"), "{message}");
    let answer = chat(&state, json!({ "model": 5 })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("model")));
    for broken in [&b"{\"model\": \"two\""[..], b"[\"model\", \"two\"]", b"", b"\xff"] {
        let answer = post_bytes(&state, CHAT, broken.to_vec()).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (400, &json!("invalid_json")));
    }
    assert_eq!(loader.begun(), [0]);
}

#[tokio::test]
async fn first_requests_that_come_together_share_one_load_and_others_do_not_wait() {
    let held = Held::default();
    let hold = held.clone();
    let (state, loader) = server(ModelLimits::default(), move |index, _| {
        if index == 1 {
            hold.pass();
        }
        Ok(naming(index))
    });
    assert_eq!(status_of(&state, "two").await, json!({ "value": "unloaded" }));
    let waiting: Vec<_> = (0..5).map(|choice| later(&state, "two", json!({ "stream": choice % 2 == 0 }))).collect();
    requests(&state, 5).await;
    assert_eq!(text_of(&state, "one").await, "I am one.");
    eventually("it has begun", || loader.begun().len() == 2).await;
    assert_eq!(status_of(&state, "two").await, json!({ "value": "loading", "reason": "half way" }));
    assert_eq!(get(&state, "/health").await.status, 200);
    held.open();
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert!(answer.status == 200 && answer.body.contains("\"model\":\"two\""), "{}", answer.body);
    }
    assert_eq!(loader.begun(), [0, 1]);
    assert_eq!(status_of(&state, "two").await, json!({ "value": "loaded" }));
}

#[tokio::test]
async fn a_load_that_fails_is_told_to_those_who_wait_for_it_and_harms_nobody_else() {
    let held = Held::default();
    let hold = held.clone();
    let (state, _) = server(ModelLimits::default(), move |index, _| {
        if index == 1 {
            hold.pass();
            return Err("the file is damaged".to_owned());
        }
        Ok(naming(index))
    });
    let waiting: Vec<_> = (0..3).map(|_| later(&state, "two", json!({}))).collect();
    requests(&state, 3).await;
    held.open();
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("model_failed")));
        assert!(answer.error()["message"].as_str().unwrap().contains("the file is damaged"), "{}", answer.body);
        assert!(answer.headers.contains_key("retry-after"));
    }
    let status = status_of(&state, "two").await;
    assert_eq!(status, json!({ "value": "unloaded", "failed": true, "reason": "the file is damaged" }));
    assert_eq!(text_of(&state, "one").await, "I am one.");
    assert_eq!(get(&state, "/health").await.status, 200);
}

#[tokio::test]
async fn a_load_that_failed_is_tried_again_later() {
    let limits = ModelLimits { retry_after: Duration::ZERO, ..ModelLimits::default() };
    let (state, loader) = server(limits, |index, before| match before {
        1 => Err("there is no memory".to_owned()),
        2 => panic!("a fault of the loader"),
        _ => Ok(naming(index)),
    });
    for reason in ["there is no memory", "crashed"] {
        let answer = chat(&state, json!({ "model": "two" })).await;
        assert!(answer.status == 503 && answer.body.contains(reason), "{}", answer.body);
    }
    assert_eq!(text_of(&state, "two").await, "I am two.");
    assert_eq!(loader.begun(), [0, 1, 1, 1]);
}

#[tokio::test]
async fn soon_after_a_load_that_failed_it_is_not_tried_again() {
    let limits = ModelLimits { retry_after: Duration::from_secs(3600), ..ModelLimits::default() };
    let no = |index: usize, _: usize| if index == 1 { Err("there is no memory".to_owned()) } else { Ok(naming(index)) };
    let (state, loader) = server(limits, no);
    for _ in 0..3 {
        let answer = chat(&state, json!({ "model": "two" })).await;
        assert!(answer.status == 503 && answer.body.contains("there is no memory"), "{}", answer.body);
        let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((3500..=3600).contains(&seconds), "{seconds}");
    }
    assert_eq!(loader.begun(), [0, 1]);
}

#[tokio::test]
async fn a_model_makes_room_once_nobody_uses_it_and_answers_the_same_when_it_is_back() {
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let limits = ModelLimits { patience: Duration::from_secs(3600), ..one_at_a_time() };
    let (state, loader) = server(limits, move |index, before| {
        let runner = naming(index);
        if before > 0 {
            return Ok(runner);
        }
        let (runner, gate) = runner.with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let using = later(&state, "one", json!({}));
    let first = loader.engines.lock().unwrap()[0].clone();
    at_engine(&first, 1).await;
    let waiting = later(&state, "two", json!({}));
    requests(&state, 2).await;
    let more = later(&state, "one", json!({}));
    // The others go on.
    at_engine(&first, 2).await;
    assert_eq!(loader.begun(), [0], "one is used");
    gates.lock().unwrap()[0].open();
    let before = using.await.unwrap().json()["choices"].clone();
    assert_eq!(more.await.unwrap().json()["choices"], before);
    assert_eq!(waiting.await.unwrap().json()["choices"][0]["text"], "I am two.");
    assert!(first.has_ended(), "its memory is free");
    assert_eq!(status_of(&state, "one").await, json!({ "value": "unloaded" }));
    assert_eq!(later(&state, "one", json!({})).await.unwrap().json()["choices"], before);
    assert_eq!(loader.begun(), [0, 1, 0]);
}

#[tokio::test]
async fn the_budget_of_bytes_counts_files_and_caches() {
    let cache_bytes = support::limits().num_blocks * naming(0).block_bytes();
    let two = 2 * (100 + cache_bytes as u64);
    let limits = ModelLimits { max_bytes: two + 99, ..ModelLimits::default() };
    let (state, loader) = plain(limits);
    for (model, loads) in [("two", 2), ("one", 2), ("org/three", 3), ("one", 3), ("two", 4), ("one", 4)] {
        text_of(&state, model).await;
        assert_eq!(loader.begun().len(), loads, "{model}: {:?}", loader.begun());
    }
}

#[tokio::test]
async fn who_is_used_without_a_pause_makes_room_all_the_same() {
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let limits = ModelLimits { patience: Duration::ZERO, ..one_at_a_time() };
    let (state, loader) = server(limits, move |index, _| {
        let (runner, gate) = naming(index).with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let first = later(&state, "one", json!({}));
    let engine = loader.engines.lock().unwrap()[0].clone();
    at_engine(&engine, 1).await;
    let second = later(&state, "two", json!({}));
    requests(&state, 2).await;
    let third = later(&state, "one", json!({}));
    requests(&state, 3).await;
    gates.lock().unwrap()[0].open();
    assert_eq!(first.await.unwrap().status, 200);
    eventually("the second is loaded", || loader.engines.lock().unwrap().len() == 2).await;
    gates.lock().unwrap()[1].open();
    assert_eq!(second.await.unwrap().json()["model"], "two");
    eventually("the first is loaded again", || loader.engines.lock().unwrap().len() == 3).await;
    gates.lock().unwrap()[2].open();
    assert_eq!(third.await.unwrap().json()["model"], "one");
    assert_eq!(loader.begun(), [0, 1, 0]);
}

#[tokio::test]
async fn while_the_first_model_is_away_the_server_is_well_and_tells_of_another() {
    let (state, loader) = plain(one_at_a_time());
    text_of(&state, "two").await;
    assert_eq!(get(&state, "/health").await.json(), json!({ "status": "ok", "deterministic": true }));
    for path in ["/props", "/slots", "/server_info", "/v1/loads", "/tokenizer_info", "/version"] {
        assert_eq!(get(&state, path).await.status, 200, "{path}");
    }
    assert_eq!(get(&state, "/server_info").await.json()["model"]["id"], "two");
    let answer = get(&state, "/server_info?model=one").await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("model_not_loaded")));
    assert_eq!(text_of(&state, "default").await, "I am one.");
    assert_eq!(loader.begun(), [0, 1, 0]);
}

#[tokio::test]
async fn what_tells_of_a_model_tells_of_the_one_that_is_asked_about() {
    let (state, _) = plain(ModelLimits::default());
    text_of(&state, "two").await;
    for path in ["/props", "/slots", "/server_info", "/v1/loads", "/loads", "/tokenizer_info"] {
        for (model, status) in [("one", 200), ("alias-1", 200), ("org%2Fthree", 503), ("four", 404), ("", 200)] {
            let answer = get(&state, &format!("{path}?model={model}")).await;
            assert_eq!(answer.status, status, "{path} {model}: {}", answer.body);
        }
    }
    assert_eq!(get(&state, "/server_info?model=two").await.json()["model"]["n_params"], 1);
    assert_eq!(get(&state, "/props?model=alias-1").await.json()["model_alias"], "two");
    assert_eq!(get(&state, "/props").await.json()["model_alias"], "one");
    let models = get(&state, "/v1/models").await.json();
    let ids: Vec<&str> = models["data"].as_array().unwrap().iter().filter_map(|card| card["id"].as_str()).collect();
    assert_eq!(ids, NAMES);
    let [one, _, three] = &models["data"].as_array().unwrap()[..] else { panic!("three") };
    assert_eq!((&one["max_model_len"], &one["created"]), (&json!(512), &json!(1_700_000_000)));
    assert_eq!((&three["created"], &three["status"]["value"]), (&json!(1_600_000_000), &json!("unloaded")));
    assert_eq!(three["meta"], json!({ "n_params": 2, "size": 100 }));
    assert_eq!(get(&state, "/v1/models/org/three").await.json()["id"], "org/three");
    assert_eq!(get(&state, "/v1/models/default").await.json()["id"], "one");
}

#[tokio::test]
async fn metrics_have_the_samples_of_all_loaded_models_side_by_side() {
    let (state, _) = plain(ModelLimits { max_loaded: 2, ..ModelLimits::default() });
    let labels = async || -> BTreeSet<String> {
        let families = exposition::parse(&get(&state, "/metrics").await.body);
        let of_models = families.iter().filter(|(name, _)| !name.starts_with("taper:http_"));
        let mut of_each = of_models.map(|(_, family)| -> BTreeSet<String> {
            family.samples.iter().map(|sample| sample.labels["model_name"].clone()).collect()
        });
        let first = of_each.next().unwrap();
        assert!(of_each.all(|labels| labels == first));
        first
    };
    let of = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(labels().await, of(&["one"]));
    let usage = chat(&state, json!({ "model": "two" })).await.json()["usage"].clone();
    assert_eq!(labels().await, of(&["one", "two"]));
    let families = exposition::parse(&get(&state, "/metrics").await.body);
    let generated: Vec<(&str, f64)> = families["vllm:generation_tokens_total"]
        .samples
        .iter()
        .map(|sample| (sample.labels["model_name"].as_str(), sample.value))
        .collect();
    assert_eq!(generated, [("one", 0.0), ("two", usage["completion_tokens"].as_f64().unwrap())]);
    text_of(&state, "org/three").await;
    assert_eq!(labels().await, of(&["two", "org/three"]));
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_a_load_and_ends_all_engines() {
    let held = Held::default();
    let hold = held.clone();
    let (state, loader) = server(ModelLimits::default(), move |index, _| {
        if index == 2 {
            hold.pass();
        }
        Ok(naming(index))
    });
    text_of(&state, "two").await;
    let server = Running::start(&state).await;
    let waiting = later(&state, "org/three", json!({}));
    eventually("it is being loaded", || loader.begun().len() == 3).await;
    server.stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, server.task).await.expect("the server ends").unwrap().unwrap();
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("server_draining")));
    assert!(loader.engines.lock().unwrap().iter().all(EngineHandle::has_ended));
    held.open();
    eventually("what comes too late ends too", || {
        let engines = loader.engines.lock().unwrap();
        engines.len() == 3 && engines[2].has_ended()
    })
    .await;
    assert_eq!(chat(&state, json!({ "model": "two" })).await.status, 503);
}

#[tokio::test]
async fn who_waits_may_leave_or_run_out_of_time_and_not_too_many_may_wait() {
    let limits = ModelLimits { max_loaded: 1, max_waiting: 2, ..ModelLimits::default() };
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let (state, loader) = server(limits, move |index, _| {
        let (runner, gate) = naming(index).with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let using = later(&state, "one", json!({}));
    let engine = loader.engines.lock().unwrap()[0].clone();
    at_engine(&engine, 1).await;
    let waiting: Vec<_> = (0..2).map(|_| later(&state, "two", json!({}))).collect();
    requests(&state, 3).await;
    let answer = chat(&state, json!({ "model": "two" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (429, &json!("queue_full")));
    assert!(answer.headers.contains_key("retry-after"));
    waiting.iter().for_each(JoinHandle::abort);
    requests(&state, 1).await;
    gates.lock().unwrap()[0].open();
    assert_eq!(using.await.unwrap().status, 200);
    assert_eq!(text_of(&state, "one").await, "I am one.");
    assert_eq!(loader.begun(), [0], "nobody waits for the other any more");
}

#[tokio::test]
async fn the_time_of_a_request_includes_its_wait() {
    let held = Held::default();
    let hold = held.clone();
    let limits = ModelLimits { request_timeout: Some(Duration::from_millis(50)), ..ModelLimits::default() };
    let (state, loader) = server(limits, move |index, _| {
        if index == 1 {
            hold.pass();
        }
        Ok(naming(index))
    });
    let answer = chat(&state, json!({ "model": "two" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (408, &json!("request_timeout")));
    held.open();
    eventually("it is loaded all the same", || loader.engines.lock().unwrap().len() == 2).await;
}

#[tokio::test]
async fn a_model_whose_engine_crashed_is_loaded_anew() {
    let (state, loader) = server(ModelLimits::default(), |index, before| {
        Ok(if before % 2 == 0 { naming(index).dying_at(2) } else { naming(index) })
    });
    for (index, model) in ["one", "two"].into_iter().enumerate() {
        let crashed = chat(&state, json!({ "model": model })).await;
        assert_eq!(crashed.status, 503, "{}", crashed.body);
        let engine = loader.engines.lock().unwrap()[2 * index].clone();
        eventually("it has ended", || engine.has_ended()).await;
        assert_eq!(text_of(&state, model).await, format!("I am {model}."));
    }
}

#[tokio::test]
async fn before_the_first_model_is_loaded_no_other_is() {
    let loader =
        StubLoader { make: Box::new(|index, _| Ok(naming(index))), begun: Mutex::default(), engines: Mutex::default() };
    let loader = Arc::new(loader);
    let declared = |index: usize| DeclaredModel {
        id: NAMES[index].to_owned(),
        aliases: Vec::new(),
        created_unix: 0,
        max_bytes: 0,
        facts: ServerFacts::default(),
    };
    let state = ServerState::with_timeouts(Timeouts::default());
    state.declare(vec![declared(0), declared(1)], ModelLimits::default(), loader.clone());
    state.set_loading_reason("a third");
    for model in ["one", "two"] {
        let answer = chat(&state, json!({ "model": model })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("model_loading")));
        assert!(answer.body.contains("a third"), "{}", answer.body);
    }
    assert_eq!(get(&state, "/v1/models").await.status, 503);
    assert!(loader.begun().is_empty());
    state.load_first().unwrap();
    assert_eq!(text_of(&state, "two").await, "I am two.");
}

#[tokio::test]
async fn an_unload_waits_for_those_who_use_the_model_and_the_next_request_loads_it_again() {
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let (state, loader) = server(ModelLimits::default(), move |index, before| {
        if before > 0 {
            return Ok(naming(index));
        }
        let (runner, gate) = naming(index).with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let using = later(&state, "one", json!({}));
    let first = loader.engines.lock().unwrap()[0].clone();
    at_engine(&first, 1).await;
    let asking = state.clone();
    let unloading =
        tokio::spawn(async move { post(&asking, "/models/unload", &json!({ "model": "alias-0" })).await.json() });
    leaving(&state, "one").await;
    let next = later(&state, "one", json!({}));
    requests(&state, 3).await;
    assert_eq!(text_of(&state, "two").await, "I am two.", "others go on");
    assert!(!first.has_ended() && !unloading.is_finished());
    gates.lock().unwrap()[0].open();
    assert_eq!(using.await.unwrap().json()["choices"][0]["text"], "I am one.");
    assert_eq!(unloading.await.unwrap(), json!({ "success": true }));
    assert!(first.has_ended(), "its memory is free");
    assert_eq!(next.await.unwrap().json()["choices"][0]["text"], "I am one.");
    assert_eq!(loader.begun(), [0, 1, 0]);
    assert_eq!(status_of(&state, "one").await, json!({ "value": "loaded" }));
}

#[tokio::test]
async fn who_asks_for_an_unload_may_leave() {
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let (state, loader) = server(ModelLimits::default(), move |index, _| {
        let (runner, gate) = naming(index).with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let using = later(&state, "one", json!({}));
    let first = loader.engines.lock().unwrap()[0].clone();
    at_engine(&first, 1).await;
    let asking = state.clone();
    let unloading = tokio::spawn(async move { post(&asking, "/models/unload", &json!({ "model": "one" })).await });
    leaving(&state, "one").await;
    unloading.abort();
    gates.lock().unwrap()[0].open();
    assert_eq!(using.await.unwrap().status, 200);
    eventually("it is unloaded all the same", || first.has_ended()).await;
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_an_unload() {
    let gates: Arc<Mutex<Vec<Gate>>> = Arc::default();
    let kept = Arc::clone(&gates);
    let (state, loader) = server(ModelLimits::default(), move |index, _| {
        let (runner, gate) = naming(index).with_gate();
        kept.lock().unwrap().push(gate);
        Ok(runner)
    });
    let _using = later(&state, "one", json!({}));
    let engine = loader.engines.lock().unwrap()[0].clone();
    at_engine(&engine, 1).await;
    let asking = state.clone();
    let unloading = tokio::spawn(async move { post(&asking, "/models/unload", &json!({ "model": "one" })).await });
    leaving(&state, "one").await;
    state.set_draining();
    let answer = unloading.await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("server_draining")));
    assert_eq!(gates.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_by_requests_of_their_own() {
    let (state, loader) = plain(ModelLimits::default());
    let ways = [
        ("/models/load", "/models/unload", "model", json!({ "success": true }), json!({ "success": true })),
        (
            "/v1/models/reload",
            "/v1/models/unload",
            "model_id",
            json!({ "model_id": "alias-1", "status": "loaded" }),
            json!({ "model_id": "alias-1", "status": "unloaded" }),
        ),
    ];
    for (load, unload, field, loaded, unloaded) in ways {
        // What is so already is no error.
        for _ in 0..2 {
            assert_eq!(post(&state, load, &json!({ field: "alias-1" })).await.json(), loaded);
            assert_eq!(status_of(&state, "two").await, json!({ "value": "loaded" }));
        }
        for _ in 0..2 {
            assert_eq!(post(&state, unload, &json!({ field: "alias-1" })).await.json(), unloaded);
            assert_eq!(status_of(&state, "two").await, json!({ "value": "unloaded" }));
        }
        for path in [load, unload] {
            for (body, status, code) in [
                (json!({}), 400, "missing_required_parameter"),
                (json!({ field: 5 }), 400, "invalid_value"),
                (json!({ field: "four" }), 404, "model_not_found"),
            ] {
                let answer = post(&state, path, &body).await;
                assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (status, &json!(code)), "{path} {body}");
            }
            let answer = post(&state, path, &json!({ field: "org/three", "force": true })).await;
            assert_eq!(answer.headers["x-taper-ignored-fields"], "force");
            assert_eq!(get(&state, path).await.status, 405, "{path}");
        }
    }
    assert_eq!(loader.begun(), [0, 1, 2, 1, 2]);
}

#[tokio::test]
async fn a_load_that_was_asked_for_says_why_it_fails() {
    let (state, _) = server(ModelLimits::default(), |index, _| match index {
        0 => Ok(naming(0)),
        _ => Err("the file is damaged".to_owned()),
    });
    let answer = post(&state, "/models/load", &json!({ "model": "two" })).await;
    assert!(answer.status == 503 && answer.body.contains("the file is damaged"), "{}", answer.body);
    assert_eq!(post(&state, "/models/unload", &json!({ "model": "two" })).await.json(), json!({ "success": true }));
}

#[tokio::test]
async fn ollamas_keep_alive_of_zero_unloads_the_model() {
    let (state, loader) = plain(ModelLimits::default());
    text_of(&state, "two").await;
    assert_eq!(in_memory(&state).await, ["one:latest", "two:latest"]);
    for (path, empty) in [("/api/chat", json!({ "messages": [] })), ("/api/generate", json!({ "prompt": "" }))] {
        let ask = async |fields: Value| {
            let mut body = empty.clone();
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let answer = post(&state, path, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer
        };
        for _ in 0..2 {
            let answer = ask(json!({ "model": "two:latest", "keep_alive": 0 })).await.json();
            assert_eq!((&answer["done_reason"], &answer["model"]), (&json!("unload"), &json!("two:latest")));
            assert_eq!(in_memory(&state).await, ["one:latest"]);
        }
        let before = loader.begun().len();
        let answer = ask(json!({ "model": "two", "keep_alive": "5m" })).await.json();
        assert_eq!(answer["done_reason"], "load");
        assert_eq!(in_memory(&state).await, ["one:latest", "two:latest"]);
        // With more in it the request is read as any other.
        let answer = ask(json!({ "model": "two", "keep_alive": "0s", "more": 1 })).await;
        assert_eq!(
            (answer.json()["done_reason"].as_str(), &answer.headers["x-taper-ignored-fields"]),
            (Some("unload"), &"more".parse().unwrap())
        );
        assert_eq!(in_memory(&state).await, ["one:latest"]);
        assert_eq!(loader.begun().len(), before + 1, "nothing is loaded to be unloaded");
    }
}

#[tokio::test]
async fn a_keep_alive_of_zero_beside_a_prompt_unloads_the_model_after_the_answer() {
    let (state, loader) = plain(ModelLimits::default());
    let streamed = json!({ "model": "two", "prompt": "Hi", "keep_alive": 0 });
    let whole =
        json!({ "model": "two", "messages": [{ "role": "user", "content": "Hi" }], "stream": false, "keep_alive": 0 });
    let embedded = json!({ "model": "two", "input": "Hi", "keep_alive": 0 });
    for (path, body) in [("/api/generate", streamed), ("/api/chat", whole), ("/api/embed", embedded)] {
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let engine = loader.engines.lock().unwrap().last().unwrap().clone();
        eventually("it is unloaded", || engine.has_ended()).await;
        assert_eq!(text_of(&state, "one").await, "I am one.");
    }
    assert_eq!(loader.begun(), [0, 1, 1, 1]);
}

#[tokio::test]
async fn a_single_model_is_unloaded_and_loaded_again_and_that_is_no_crash() {
    let (state, loader) = server_of(1, ModelLimits::default(), |index, before| {
        Ok(if before == 1 { naming(index).dying_at(2) } else { naming(index) })
    });
    let watched = state.clone();
    let mut crashed = tokio::spawn(async move { watched.crashed().await });
    let answer = post(&state, "/api/chat", &json!({ "model": "one", "keep_alive": 0, "messages": [] })).await.json();
    assert_eq!(answer["done_reason"], "unload");
    assert!(loader.engines.lock().unwrap()[0].has_ended());
    assert_eq!(in_memory(&state).await, Vec::<String>::new());
    assert_eq!(status_of(&state, "one").await, json!({ "value": "unloaded" }));
    assert_eq!(get(&state, "/health").await.status, 200);
    assert_eq!(get(&state, "/props").await.error()["code"], "model_not_loaded");
    let loaded = post(&state, "/models/load", &json!({ "model": "one" })).await;
    assert_eq!((loaded.status.as_u16(), loader.begun()), (200, vec![0, 0]));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut crashed).await.is_err(), "nothing has crashed");
    assert_eq!(chat(&state, json!({})).await.status, 503);
    tokio::time::timeout(PATIENCE, crashed).await.expect("now it has").unwrap();
}
