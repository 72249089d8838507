//! GET /metrics: names, labels and format, and that every number moves when it should.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod exposition;
mod support;

use std::collections::BTreeMap;

use exposition::{Family, Sample, parse};
use serde_json::json;
use support::*;
use taper_engine::{EngineConfig, Speculation};
use taper_server::{ServedModel, ServerState, Timeouts};

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
        "gauge taper:kv_blocks_idle",
        "counter taper:kv_blocks_restored_total",
        "counter taper:softmax_recomputed_rows_total",
        "gauge vllm:cache_config_info",
        "histogram vllm:e2e_request_latency_seconds",
        "counter vllm:generation_tokens_total",
        "histogram vllm:inter_token_latency_seconds",
        "histogram vllm:iteration_tokens_total",
        "gauge vllm:kv_cache_usage_perc",
        "counter vllm:num_preemptions_total",
        "gauge vllm:num_requests_running",
        "gauge vllm:num_requests_waiting",
        "counter vllm:prefix_cache_hits_total",
        "counter vllm:prefix_cache_queries_total",
        "counter vllm:prompt_tokens_by_source_total",
        "counter vllm:prompt_tokens_cached_total",
        "counter vllm:prompt_tokens_total",
        "histogram vllm:request_decode_time_seconds",
        "histogram vllm:request_generation_tokens",
        "histogram vllm:request_params_max_tokens",
        "histogram vllm:request_params_n",
        "histogram vllm:request_prefill_time_seconds",
        "histogram vllm:request_prompt_tokens",
        "histogram vllm:request_queue_time_seconds",
        "counter vllm:request_success_total",
        "histogram vllm:request_time_per_output_token_seconds",
        "counter vllm:spec_decode_num_accepted_tokens_total",
        "counter vllm:spec_decode_num_draft_tokens_total",
        "counter vllm:spec_decode_num_drafts_total",
        "histogram vllm:time_to_first_token_seconds",
    ];
    assert_eq!(kinds, expected);
    for sample in families.values().flat_map(|family| &family.samples) {
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
    let held =
        [("vllm:num_requests_running", 1.0), ("vllm:num_requests_waiting", 1.0), ("vllm:kv_cache_usage_perc", 0.25)];
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
    check(&scrape(&state).await, &expected.map(|(name, value)| (name, value as f64)));
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
async fn before_there_is_a_model_there_are_no_metrics() {
    assert!(scrape(&ServerState::new()).await.is_empty());
}
