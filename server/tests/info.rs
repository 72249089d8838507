//! What the server says of itself.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use support::*;
use taper_engine::EngineConfig;
use taper_server::{SamplingDefaults, ServerFacts, ServerState, Timeouts};

fn facts() -> ServerFacts {
    let options = json!({ "max_batch": 16, "ctx": null });
    ServerFacts {
        model_path: Some("/models/tiny.gguf".to_owned()),
        architecture: Some("llama".to_owned()),
        quantization: Some("Q4_1".to_owned()),
        num_params: Some(1_000_000),
        model_bytes: Some(4_000_000),
        trained_context_len: Some(2048),
        sampling: SamplingDefaults::NONE,
        device: Some("cpu".to_owned()),
        options: options.as_object().unwrap().clone(),
    }
}

async fn ask(state: &ServerState, path: &str) -> Value {
    let answer = get(state, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

async fn check_refused(path: &str, param: &str, message: &str) {
    let answer = get(&state(), path).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)), "{path}");
    assert!(answer.error()["message"].as_str().unwrap().contains(message), "{}", answer.body);
}

#[tokio::test]
async fn the_process_is_alive_whatever_the_model_does() {
    let (loading, failed, stopping) = (ServerState::new(), ServerState::new(), state());
    failed.set_failed("no weights");
    stopping.set_draining();
    for state in [&loading, &failed, &stopping] {
        assert_eq!(get(state, "/live").await.status, 200);
        assert_eq!(get(state, "/version").await.status, 200);
        for path in ["/health", "/v1/health", "/ping"] {
            assert_eq!(get(state, path).await.status, 503, "{path}");
        }
    }
    for path in ["/health", "/v1/health", "/ping"] {
        assert_eq!(ask(&state(), path).await["status"], "ok");
    }
    for path in ["/server_info", "/props", "/slots", "/loads", "/v1/loads"] {
        assert_eq!(get(&loading, path).await.error()["code"], "model_loading", "{path}");
    }
}

#[tokio::test]
async fn the_version_comes_with_the_fingerprint_of_what_answers() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(ask(&state(), "/version").await, json!({ "version": version, "fingerprint": FINGERPRINT }));
    assert_eq!(ask(&ServerState::new(), "/version").await, json!({ "version": version, "fingerprint": null }));
}

#[tokio::test]
async fn models_tell_what_is_known_of_them() {
    let state = state();
    let meta = ask(&state, "/v1/models").await["data"][0]["meta"].clone();
    assert_eq!(meta.as_object().unwrap().keys().collect::<Vec<_>>(), ["n_ctx", "n_vocab"]);
    state.set_facts(facts());
    let card = ask(&state, &format!("/v1/models/{MODEL}")).await;
    assert_eq!(card["max_model_len"], 512);
    assert_eq!((&card["root"], &card["owned_by"]), (&json!(MODEL), &json!("taper")));
    assert_eq!(card["aliases"], json!(["tiny"]));
    let meta = &card["meta"];
    assert_eq!(
        (&meta["n_ctx_train"], &meta["n_params"], &meta["size"]),
        (&json!(2048), &json!(1_000_000), &json!(4_000_000))
    );
    let answer = get(&state, "/v1/models/gpt-9").await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn the_server_tells_what_it_was_started_with() {
    let state = state();
    state.set_facts(facts());
    let info = ask(&state, "/server_info").await;
    assert_eq!((&info["fingerprint"], &info["device"]), (&json!(FINGERPRINT), &json!("cpu")));
    assert_eq!(info["model"]["path"], "/models/tiny.gguf");
    assert_eq!((&info["engine"]["max_batch"], &info["engine"]["max_queued"]), (&json!(16), &json!(256)));
    assert_eq!(info["engine"]["block_size"], 16);
    assert_eq!(info["limits"]["max_body_bytes"], taper_server::limits::MAX_BODY_BYTES);
    assert_eq!(info["status"]["running"], 0);
    assert_eq!(info["options"], json!({ "max_batch": 16, "ctx": null }));
}

#[tokio::test]
async fn loads_count_what_runs_and_what_waits() {
    let (runner, gate) = babbling().with_gate();
    let config = EngineConfig { max_batch: 1, ..EngineConfig::default() };
    let (state, engine) = state_with(runner, config, Timeouts::default());
    let idle = ask(&state, "/v1/loads").await["loads"][0].clone();
    assert_eq!(
        (&idle["num_running_reqs"], &idle["num_waiting_reqs"], &idle["num_used_tokens"]),
        (&json!(0), &json!(0), &json!(0))
    );
    assert_eq!((&idle["max_total_num_tokens"], &idle["max_running_requests"]), (&json!(64 * 16), &json!(1)));

    gate.allow(1);
    let requests: Vec<_> = (0..3)
        .map(|_| {
            let state = state.clone();
            tokio::spawn(async move { complete(&state, json!({ "max_tokens": 2 })).await.status })
        })
        .collect();
    eventually("one runs and two wait", || engine.status().running == 1 && engine.status().queued == 2).await;
    for path in ["/loads", "/v1/loads"] {
        let body = ask(&state, path).await;
        assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
        let load = &body["loads"][0];
        assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(1), &json!(2)));
        assert_eq!(load["num_used_tokens"], 16, "a block");
        assert_eq!(load["num_total_tokens"], 16 + 2 * 4, "and two prompts of four tokens");
        assert_eq!(load["token_usage"], 1.0 / 64.0);
        assert_eq!(load["utilization"], 1.0);
        assert_eq!(load["queues"]["waiting"], 2);
    }
    let slots = ask(&state, "/slots").await;
    let told = |field: &str| slots[0][field].clone();
    assert_eq!((told("id"), told("n_ctx"), told("is_processing")), (json!(0), json!(512), json!(true)), "{slots}");
    let answer = get(&state, "/slots?fail_on_no_slot=1").await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("busy")));

    gate.open();
    for request in requests {
        assert_eq!(request.await.unwrap(), 200);
    }
    eventually("nothing runs", || engine.status().running == 0).await;
    assert_eq!(get(&state, "/slots?fail_on_no_slot=1").await.status, 200);
}

#[tokio::test]
async fn loads_have_the_parts_that_are_asked_for() {
    let state = state();
    let parts = |load: &Value| ["memory", "speculative", "queues"].map(|part| load["loads"][0].get(part).is_some());
    assert_eq!(parts(&ask(&state, "/v1/loads").await), [true, true, true]);
    assert_eq!(parts(&ask(&state, "/v1/loads?include=core").await), [false, false, false]);
    assert_eq!(parts(&ask(&state, "/v1/loads?include=core,spec&dp_rank=0&format=json").await), [false, true, false]);
    check_refused("/v1/loads?include=core,all_of_it", "include", "all_of_it").await;
    check_refused("/v1/loads?dp_rank=1", "dp_rank", "one engine").await;
    check_refused("/v1/loads?format=prometheus", "format", "/metrics").await;
    check_refused("/v1/loads?format=xml", "format", "xml").await;
}

#[tokio::test]
async fn props_tell_clients_of_llama_server_what_they_look_for() {
    let state = state();
    state.set_facts(facts());
    let props = ask(&state, "/props").await;
    let Vocabulary { tokenizer, template } = vocabulary();
    assert_eq!((&props["total_slots"], &props["model_path"]), (&json!(16), &json!("/models/tiny.gguf")));
    assert_eq!(props["chat_template"], template.source());
    assert_eq!(
        (&props["bos_token"], &props["eos_token"]),
        (&json!(tokenizer.bos_text()), &json!(tokenizer.eos_text()))
    );
    assert_eq!(props["modalities"], json!({ "vision": false, "audio": false }));
    assert_eq!(props["build_info"], FINGERPRINT);
    let defaults = &props["default_generation_settings"];
    assert_eq!((&defaults["n_ctx"], &defaults["params"]["top_k"]), (&json!(512), &json!(40)));
    assert_eq!(ask(&state, "/slots").await.as_array().unwrap().len(), 16);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_with_what_there_is() {
    for path in ["/v1/nothing", "/slotted"] {
        let answer = post(&state(), path, &json!({})).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("unknown_url")));
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(path) && message.contains("/openapi.json"), "{message}");
    }
    for (method, path, allowed) in [
        ("POST", "/props", "GET,HEAD"),
        ("POST", "/lora-adapters", "GET,HEAD"),
        ("POST", "/live", "GET,HEAD"),
        ("GET", "/tokenize", "POST"),
        ("DELETE", "/completion", "POST"),
    ] {
        let answer = send(&state(), Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await;
        assert_eq!((answer.status.as_u16(), answer.headers["allow"].to_str().unwrap()), (405, allowed), "{path}");
    }
}

#[tokio::test]
async fn what_other_servers_have_is_refused_with_its_reason() {
    for (path, part) in [
        ("/rerank", "reranking model"),
        ("/v1/rerank", "reranking model"),
        ("/infill", "between two texts"),
        ("/slots/0", "--cache-dir"),
        ("/props", "settings of a server"),
        ("/lora-adapters", "no adapters"),
    ] {
        let answer = post(&state(), path, &json!({})).await;
        assert!(answer.status.is_client_error(), "{path}: {}", answer.status);
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(path) && message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn llama_servers_paths_answer_as_those_that_they_stand_for() {
    let state = state();
    assert_eq!(ask(&state, "/models").await, ask(&state, "/v1/models").await);
    assert_eq!(ask(&state, "/lora-adapters").await, json!([]));
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let answer = post(&state, "/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], REPLY);
    let count = |path: &'static str| {
        let (state, body) = (state.clone(), body.clone());
        async move { post(&state, path, &body).await.json() }
    };
    assert_eq!(count("/chat/completions/input_tokens").await, count("/v1/chat/completions/input_tokens").await);
    let answer = post(&state, "/responses", &json!({ "input": "Hi" })).await.json();
    assert_eq!(answer["output"][0]["content"][0]["text"], REPLY);
}

#[tokio::test]
async fn a_running_slot_tells_of_its_request() {
    let (runner, gate) = babbling().with_gate();
    let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let idle = ask(&state, "/slots").await;
    assert!(idle.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false && slot.get("params").is_none()));
    let body = json!({ "prompt": "Once", "max_tokens": 9, "temperature": 0.5, "top_k": 7 });
    let asking = tokio::spawn({
        let state = state.clone();
        async move { post(&state, COMPLETIONS, &body).await }
    });
    gate.allow(2);
    eventually("it runs", || engine.running().iter().any(|running| running.generated_tokens > 0)).await;
    let slots = ask(&state, "/slots").await;
    let slot = &slots[0];
    assert_eq!(
        (&slot["is_processing"], &slot["n_prompt_tokens"], &slot["n_ctx"]),
        (&json!(true), &json!(4), &json!(512))
    );
    assert!(slot["id_task"].is_u64(), "{slot}");
    assert_eq!((&slot["params"]["top_k"], &slot["params"]["n_predict"]), (&json!(7), &json!(9)));
    let next = &slot["next_token"];
    assert_eq!(next["n_decoded"].as_u64().unwrap() + next["n_remain"].as_u64().unwrap(), 9);
    assert_eq!(slots[1]["is_processing"], false);
    gate.open();
    assert_eq!(asking.await.unwrap().status, 200);
    eventually("nothing runs", || engine.running().is_empty()).await;
    assert_eq!(ask(&state, "/slots").await[0]["is_processing"], false);
}

#[tokio::test]
async fn timings_say_why_the_cache_had_no_more() {
    let state = state();
    let reason = |prompt: String| {
        let state = state.clone();
        async move { complete(&state, json!({ "prompt": prompt })).await.json()["timings"]["cache_miss_reason"].clone() }
    };
    assert_eq!(reason("a".repeat(40)).await, "new");
    assert_eq!(reason("a".repeat(40)).await, Value::Null);
    assert_eq!(reason(format!("{}b{}", "a".repeat(20), "a".repeat(20))).await, "departs at token 20");
}
