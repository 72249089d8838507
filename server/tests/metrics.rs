//! GET /metrics: names, labels and format, and that every number moves when it should.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod exposition;
mod support;

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::Request;
use exposition::{Family, Sample, parse};
use serde_json::json;
use support::*;
use taper_engine::{EngineConfig, Speculation};
use taper_server::{ApiKeys, ServedModel, ServerConfig, ServerState, Timeouts};
use tokio::io::AsyncWriteExt;

/// How the metrics of the server begin, which are of no model.
const OF_SERVER: &str = "taper:http_";

type Families = BTreeMap<String, Family>;

async fn scrape(state: &ServerState) -> Families {
    let answer = get(state, "/metrics").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    parse(&answer.body)
}

/// The value of the sample of this name; `label` is one that it must have, as `name=value`.
fn value(families: &Families, name: &str, label: &str) -> f64 {
    let has_label = |sample: &&Sample| match label.split_once('=') {
        Some((name, value)) => sample.labels.get(name).is_some_and(|found| found == value),
        None => true,
    };
    let mut samples = families.values().flat_map(|family| &family.samples);
    let found = samples.by_ref().filter(|sample| sample.name == name).find(has_label);
    found.unwrap_or_else(|| panic!("no {name} {{{label}}} in {:?}", families.keys())).value
}

fn check(families: &Families, expected: &[(&str, f64)]) {
    for &(sample, expected) in expected {
        let (name, label) = sample.split_once(' ').unwrap_or((sample, ""));
        assert_eq!(value(families, name, label), expected, "{sample}");
    }
}

#[tokio::test]
async fn the_names_are_those_that_dashboards_know() {
    let families = scrape(&state()).await;
    let kinds: Vec<String> = families.iter().map(|(name, family)| format!("{} {name}", family.kind)).collect();
    let expected = [
        "gauge taper:build_info",
        "counter taper:drafted_tokens_total",
        "counter taper:failed_steps_total",
        "histogram taper:grammar_mask_seconds",
        "histogram taper:grammar_wait_seconds",
        "gauge taper:http_connections",
        "counter taper:http_refusals_total",
        "histogram taper:http_request_duration_seconds",
        "counter taper:http_requests_total",
        "gauge taper:kv_blocks_idle",
        "counter taper:kv_blocks_restored_total",
        "counter taper:softmax_recomputed_rows_total",
        "counter vllm:admission_rejections_total",
        "gauge vllm:cache_config_info",
        "histogram vllm:e2e_request_latency_seconds",
        "counter vllm:generation_tokens_total",
        "histogram vllm:inter_token_latency_seconds",
        "histogram vllm:iteration_tokens_total",
        "gauge vllm:kv_cache_usage_perc",
        "counter vllm:num_preemptions_total",
        "gauge vllm:num_requests_running",
        "gauge vllm:num_requests_waiting",
        "gauge vllm:num_requests_waiting_by_reason",
        "counter vllm:prefix_cache_hits_total",
        "counter vllm:prefix_cache_queries_total",
        "counter vllm:prompt_tokens_by_source_total",
        "counter vllm:prompt_tokens_cached_total",
        "counter vllm:prompt_tokens_total",
        "histogram vllm:request_decode_time_seconds",
        "histogram vllm:request_generation_tokens",
        "histogram vllm:request_inference_time_seconds",
        "histogram vllm:request_max_num_generation_tokens",
        "histogram vllm:request_num_preemptions",
        "histogram vllm:request_params_max_tokens",
        "histogram vllm:request_params_n",
        "histogram vllm:request_prefill_kv_computed_tokens",
        "histogram vllm:request_prefill_time_seconds",
        "histogram vllm:request_prompt_tokens",
        "histogram vllm:request_queue_time_seconds",
        "counter vllm:request_success_total",
        "histogram vllm:request_time_per_output_token_seconds",
        "counter vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter vllm:spec_decode_num_accepted_tokens_total",
        "counter vllm:spec_decode_num_draft_tokens_total",
        "counter vllm:spec_decode_num_drafts_total",
        "histogram vllm:time_to_first_token_seconds",
    ];
    assert_eq!(kinds, expected);
    let of_models = families.iter().filter(|(name, _)| !name.starts_with(OF_SERVER));
    for sample in of_models.flat_map(|(_, family)| &family.samples) {
        assert_eq!((sample.labels["engine"].as_str(), sample.labels["model_name"].as_str()), ("0", MODEL));
    }
    let [info] = &families["vllm:cache_config_info"].samples[..] else { panic!("one line") };
    assert_eq!((info.labels["block_size"].as_str(), info.labels["num_gpu_blocks"].as_str()), ("16", "64"));
    let [info] = &families["taper:build_info"].samples[..] else { panic!("one line") };
    assert_eq!(info.labels["fingerprint"], FINGERPRINT);
}

#[tokio::test]
async fn every_number_moves_with_what_happens() {
    let config = EngineConfig { speculation: Speculation::Off, ..EngineConfig::default() };
    // Two answers of three tokens take six steps, and the one that fails takes one.
    let (runner, gate) = babbling().failing_at(6..7).with_gate();
    gate.allow(7);
    let (state, engine) = state_with(runner, config, Timeouts::default());
    let prompt = "p".repeat(40);
    for _ in 0..2 {
        assert_eq!(complete(&state, json!({ "prompt": prompt, "max_tokens": 3 })).await.status, 200);
    }
    assert_eq!(complete(&state, json!({ "prompt": "fails", "n": 2 })).await.status, 500);
    drop(engine.submit(taper_engine::Request { prompt_tokens: bytes_of("leaves"), ..Default::default() }));
    gate.open();
    eventually("the request that left is gone", || engine.status().queued + engine.status().running == 0).await;

    let families = scrape(&state).await;
    let prompt_tokens = value(&families, "vllm:prompt_tokens_total", "");
    // The one that left may have begun before it was missed.
    assert!([85.0, 91.0].contains(&prompt_tokens), "{prompt_tokens}");
    check(
        &families,
        &[
            ("vllm:num_requests_running", 0.0),
            ("vllm:num_requests_waiting", 0.0),
            ("vllm:kv_cache_usage_perc", 0.0),
            ("taper:kv_blocks_idle", 2.0),
            ("vllm:num_preemptions_total", 0.0),
            ("vllm:prompt_tokens_cached_total", 32.0),
            ("vllm:prompt_tokens_by_source_total source=local_cache_hit", 32.0),
            ("vllm:prompt_tokens_by_source_total source=local_compute", prompt_tokens - 32.0),
            ("vllm:prefix_cache_hits_total", 32.0),
            ("vllm:prefix_cache_queries_total", 64.0),
            ("vllm:request_success_total finished_reason=stop", 0.0),
            ("vllm:request_success_total finished_reason=length", 2.0),
            ("vllm:request_success_total finished_reason=error", 2.0),
            ("vllm:request_success_total finished_reason=abort", 1.0),
            ("taper:failed_steps_total", 1.0),
            ("vllm:request_prompt_tokens_sum", 80.0),
            ("vllm:request_prompt_tokens_bucket le=50.0", 2.0),
            ("vllm:request_generation_tokens_sum", 6.0),
            ("vllm:e2e_request_latency_seconds_count", 2.0),
            ("vllm:request_prefill_kv_computed_tokens_sum", 48.0),
            ("vllm:request_max_num_generation_tokens_sum", 6.0),
            ("vllm:request_num_preemptions_bucket le=1.0", 2.0),
            ("vllm:request_inference_time_seconds_count", 2.0),
            ("vllm:num_requests_waiting_by_reason reason=capacity", 0.0),
            ("vllm:num_requests_waiting_by_reason reason=deferred", 0.0),
            ("vllm:request_params_n_count", 4.0),
            ("vllm:request_params_n_sum", 5.0),
            ("vllm:request_params_max_tokens_bucket le=5.0", 2.0),
        ],
    );
}

#[tokio::test]
async fn gauges_say_what_runs_what_waits_and_what_is_held() {
    let (runner, gate) = babbling().with_gate();
    let (state, engine) =
        state_with(runner, EngineConfig { max_batch: 1, ..EngineConfig::default() }, Timeouts::default());
    let asked = |length: usize| taper_engine::Request { prompt_tokens: vec![1; length], ..Default::default() };
    let running = engine.submit(asked(250)).unwrap();
    let waiting = engine.submit(asked(9)).unwrap();
    gate.allow(1);
    eventually("one runs", || engine.status().running == 1).await;
    let held = [
        ("vllm:num_requests_running", 1.0),
        ("vllm:num_requests_waiting", 1.0),
        ("vllm:num_requests_waiting_by_reason reason=capacity", 1.0),
        ("vllm:kv_cache_usage_perc", 0.25),
    ];
    check(&scrape(&state).await, &held);
    drop((running, waiting, gate));
    eventually("both are gone", || engine.status().queued + engine.status().running == 0).await;
    check(&scrape(&state).await, &[("vllm:kv_cache_usage_perc", 0.0)]);
}

#[tokio::test]
async fn guesses_that_were_verified_are_counted() {
    let repeating = taper_engine::stub::StubRunner::new(limits(), |_| u32::from(b'x'));
    let (state, engine) = state_with(repeating, EngineConfig::default(), Timeouts::default());
    assert_eq!(complete(&state, json!({ "max_tokens": 100 })).await.status, 200);
    let status = engine.status();
    assert!(status.right_guesses > 0, "{status:?}");
    let expected = [
        ("vllm:generation_tokens_total", 100),
        ("vllm:spec_decode_num_drafts_total", status.guessed_steps),
        ("vllm:spec_decode_num_draft_tokens_total", status.guessed_tokens),
        ("vllm:spec_decode_num_accepted_tokens_total", status.right_guesses),
    ];
    let families = scrape(&state).await;
    check(&families, &expected.map(|(name, value)| (name, value as f64)));
    let by_place = &families["vllm:spec_decode_num_accepted_tokens_per_pos_total"].samples;
    assert_eq!(by_place.iter().map(|sample| sample.value).sum::<f64>(), status.right_guesses as f64);
    let places: Vec<&str> = by_place.iter().map(|sample| sample.labels["position"].as_str()).collect();
    assert_eq!((places.len(), places[0], places[14]), (15, "0", "14"));
}

#[tokio::test]
async fn a_name_with_quotes_and_line_ends_is_read_back_as_it_is() {
    let name = "a\"b\\c\nd,e}";
    let (ready, _engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let Vocabulary { tokenizer, template } = vocabulary();
    let engine = taper_engine::Engine::start(Box::new(babbling()), tokenizer.clone(), EngineConfig::default());
    let (id, fingerprint) = (name.to_owned(), name.to_owned());
    let template = Some(template);
    let (context_len, created_unix, deterministic) = (512, 0, false);
    let model = ServedModel { id, tokenizer, template, engine, context_len, created_unix, fingerprint, deterministic };
    ready.set_ready(model);
    assert_eq!(get(&ready, "/health").await.json()["deterministic"], false);
    let families = scrape(&ready).await;
    let [info] = &families["taper:build_info"].samples[..] else { panic!("one line") };
    assert_eq!((info.labels["model_name"].as_str(), info.labels["fingerprint"].as_str()), (name, name));
}

#[tokio::test]
async fn the_readme_explains_every_metric() {
    let readme = include_str!("../README.md");
    for name in scrape(&state()).await.keys() {
        assert!(readme.contains(&format!("\n| `{name}` | ")), "{name} has no line");
    }
}

#[tokio::test]
async fn before_there_is_a_model_there_are_the_numbers_of_the_server_alone() {
    let state = ServerState::new();
    assert_eq!(complete(&state, json!({})).await.status, 503);
    let families = scrape(&state).await;
    assert!(families.len() == 4 && families.keys().all(|name| name.starts_with(OF_SERVER)), "{:?}", families.keys());
    check(
        &families,
        &[
            ("taper:http_requests_total status=503", 1.0),
            ("taper:http_refusals_total reason=model_loading", 1.0),
            ("taper:http_refusals_total reason=busy", 0.0),
        ],
    );
}

/// The labels of the requests that were counted, and how many they were.
fn requests(families: &Families) -> BTreeMap<(String, String, String), f64> {
    let label = |sample: &Sample, name: &str| sample.labels[name].clone();
    let samples = families["taper:http_requests_total"].samples.iter();
    samples
        .map(|sample| ((label(sample, "route"), label(sample, "method"), label(sample, "status")), sample.value))
        .collect()
}

#[tokio::test]
async fn requests_are_counted_by_route_method_and_status() {
    let state = state();
    assert_eq!(complete(&state, json!({})).await.status, 200);
    assert_eq!(complete(&state, json!({ "stream": true })).await.status, 200);
    assert_eq!(complete(&state, json!({ "n": "many" })).await.status, 400);
    for path in ["/v1/models/tiny", "/v1/models/a/b", "/none", "/none/of/these", "/web/app.mjs", "/web/live.mjs", "/"] {
        get(&state, path).await;
    }
    assert_eq!(get(&state, COMPLETIONS).await.status, 405);
    for method in ["BREW", "PUT"] {
        let request = Request::builder().method(method).uri("/health").body(Body::empty()).unwrap();
        assert_eq!(send(&state, request).await.status, 405);
    }
    let families = scrape(&state).await;
    let expected = [
        (COMPLETIONS, "POST", "200", 2.0),
        (COMPLETIONS, "POST", "400", 1.0),
        (COMPLETIONS, "GET", "405", 1.0),
        ("/v1/models/{id}", "GET", "200", 1.0),
        ("/v1/models/{id}", "GET", "404", 1.0),
        ("other", "GET", "404", 2.0),
        ("/web/{file}", "GET", "200", 2.0),
        ("/", "GET", "200", 1.0),
        ("/health", "other", "405", 1.0),
        ("/health", "PUT", "405", 1.0),
        // This answer is not over yet.
        ("/metrics", "GET", "200", 0.0),
    ];
    let expected = expected
        .map(|(route, method, status, number)| ((route.to_owned(), method.to_owned(), status.to_owned()), number));
    assert_eq!(requests(&families), BTreeMap::from(expected));
    check(
        &families,
        &[
            ("taper:http_request_duration_seconds_count route=/v1/completions", 4.0),
            ("taper:http_request_duration_seconds_count route=other", 2.0),
            ("taper:http_refusals_total reason=invalid_value", 1.0),
            ("taper:http_refusals_total reason=unknown_url", 2.0),
            ("taper:http_refusals_total reason=method_not_allowed", 3.0),
            ("taper:http_refusals_total reason=model_not_found", 1.0),
        ],
    );
    check(&scrape(&state).await, &[("taper:http_requests_total route=/metrics", 1.0)]);
}

#[tokio::test]
async fn refusals_are_counted_in_whatever_words_they_are_told() {
    let state = state();
    for path in [COMPLETIONS, "/v1/messages", "/api/chat", "/completion"] {
        assert_eq!(post_bytes(&state, path, b"{".to_vec()).await.status, 400, "{path}");
    }
    check(&scrape(&state).await, &[("taper:http_refusals_total reason=invalid_json", 4.0)]);
}

#[tokio::test]
async fn who_may_not_ask_and_who_asks_too_often_are_counted() {
    let config = ServerConfig {
        api_keys: ApiKeys::new(&["sesame".to_owned()], None).unwrap(),
        rate_limit: Some("2/h".parse().unwrap()),
        ..ServerConfig::default()
    };
    let (state, _engine) = state_with_config(replying(REPLY), EngineConfig::default(), config);
    let ask = async |key: &str| {
        let request = Request::post("/tokenize").header("x-api-key", key).body(Body::from("{\"content\": \"a\"}"));
        send(&state, request.unwrap()).await.status.as_u16()
    };
    assert_eq!([ask("barley").await, ask("sesame").await, ask("sesame").await], [401, 200, 200]);
    assert_eq!([ask("sesame").await, ask("sesame").await], [429, 429]);
    check(
        &scrape(&state).await,
        &[
            ("taper:http_refusals_total reason=invalid_api_key", 1.0),
            ("taper:http_refusals_total reason=rate_limit_exceeded", 2.0),
            ("taper:http_refusals_total reason=queue_full", 0.0),
            ("vllm:admission_rejections_total reason=max_num_queued_reqs", 0.0),
        ],
    );
}

#[tokio::test]
async fn what_the_queue_refuses_is_counted_by_its_limit() {
    let (runner, gate) = babbling().with_gate();
    let config = EngineConfig { max_batch: 1, max_queued: 1, max_queued_tokens: 9, ..EngineConfig::default() };
    let (state, engine) = state_with(runner, config, Timeouts::default());
    let asked = |length: usize| taper_engine::Request { prompt_tokens: vec![1; length], ..Default::default() };
    let running = engine.submit(asked(2)).unwrap();
    gate.allow(1);
    eventually("one runs", || engine.status().running == 1).await;
    let waiting = engine.submit(asked(8)).unwrap();
    let answer = complete(&state, json!({ "prompt": "a" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (429, &json!("queue_full")));
    check(
        &scrape(&state).await,
        &[
            ("vllm:admission_rejections_total reason=max_num_queued_reqs", 1.0),
            ("vllm:admission_rejections_total reason=max_num_queued_tokens", 0.0),
            ("taper:http_refusals_total reason=queue_full", 1.0),
        ],
    );
    drop((running, waiting, gate));
}

#[tokio::test]
async fn who_leaves_before_the_answer_is_counted() {
    let (runner, gate) = babbling().with_gate();
    let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let asking = state.clone();
    let task = tokio::spawn(async move { complete(&asking, json!({})).await });
    eventually("it is at the engine", || engine.status().running + engine.status().queued == 1).await;
    task.abort();
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    check(&scrape(&state).await, &[("taper:http_requests_total status=499", 1.0)]);
    drop(gate);
}

#[tokio::test]
async fn open_connections_are_counted() {
    let (state, _engine) = state_with_config(
        replying(REPLY),
        EngineConfig::default(),
        ServerConfig { max_connections: 2, ..ServerConfig::default() },
    );
    let server = Running::start(&state).await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = server.connect().await;
        // One that was answered is open for certain.
        connection.write_all(b"GET /live HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
        read_until(&mut connection, "alive").await;
        connections.push(connection);
        if connections.len() == 2 {
            check(&scrape(&state).await, &[("taper:http_connections place=regular", 2.0)]);
        }
    }
    drop(connections);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let families = scrape(&state).await;
        let open =
            ["regular", "spare"].map(|place| value(&families, "taper:http_connections", &format!("place={place}")));
        if open == [0.0, 0.0] {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{open:?} are open");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
