//! GET /metrics: what the engine is doing, in Prometheus' text format. What vLLM measures as well has vLLM's name and bucket
//! bounds, so that dashboards and load balancers made for it work. While the model loads there is nothing to measure, and the
//! answer is empty.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use taper_engine::{EndReason, EngineHandle, EngineMetrics, EngineStatus, Histogram};

use crate::state::{Served, ServerState};

pub(crate) async fn metrics(State(state): State<ServerState>) -> Response {
    let text = state.served().map(|served| text(&served)).unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn text(served: &Served) -> String {
    let model = &served.model;
    // As vLLM labels everything, in the order in which it writes them. There is one engine.
    let labels = [("engine", "0".to_owned()), ("model_name", model.id.clone())];
    let mut registry = Registry::with_labels(labels.into_iter().map(|(name, value)| (name.into(), value.into())));
    registry
        .register_collector(Box::new(Scrape { engine: model.engine.clone(), fingerprint: model.fingerprint.clone() }));
    let mut text = String::new();
    if let Err(error) = encode_registry(&mut text, &registry) {
        tracing::error!(%error, "the metrics could not be written");
    }
    text
}

/// The numbers are the engine's; they are read when they are asked for.
#[derive(Debug)]
struct Scrape {
    engine: EngineHandle,
    fingerprint: String,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (status, metrics) = (self.engine.status(), self.engine.metrics());
        for (name, help, value) in gauges(&status) {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        for (name, help, value) in counters(&status, metrics) {
            counter(&mut encoder, name, help)?.encode_gauge(&value)?;
        }
        let sources =
            [("local_compute", status.prompt_tokens - status.cached_tokens), ("local_cache_hit", status.cached_tokens)];
        let help = "Tokens of prompts that have begun to run, by where their keys and values come from.";
        let mut by_source = counter(&mut encoder, "vllm:prompt_tokens_by_source_total", help)?;
        for (source, value) in sources {
            by_source.encode_family(&[("source", source)])?.encode_gauge(&value)?;
        }
        let help = "Choices that ended, by the reason: stop, length, abort (the client left), error.";
        let mut by_reason = counter(&mut encoder, "vllm:request_success_total", help)?;
        for reason in EndReason::ALL {
            let labels = [("finished_reason", reason.as_str())];
            by_reason.encode_family(&labels)?.encode_gauge(&metrics.num_ended(reason))?;
        }
        for (name, help, histogram) in histograms(metrics) {
            let buckets = histogram.buckets();
            let count = buckets.iter().map(|&(_, count)| count).sum();
            let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            encoder.encode_histogram::<NoLabelSet>(histogram.sum(), count, &buckets, None)?;
        }
        self.encode_infos(encoder)
    }
}

impl Scrape {
    fn encode_infos(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let limits = self.engine.limits();
        let cache = [
            ("block_size", limits.block_size.to_string()),
            ("enable_prefix_caching", "True".to_owned()),
            ("kv_cache_memory_bytes", self.engine.kv_cache_bytes().to_string()),
            ("num_gpu_blocks", limits.num_blocks.to_string()),
        ];
        let help = "The KV cache: tokens per block, blocks and bytes; always 1.";
        let mut info = encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
        info.encode_family(&cache)?.encode_gauge(&1_u64)?;
        let build = [("fingerprint", self.fingerprint.as_str()), ("version", env!("CARGO_PKG_VERSION"))];
        let help = "Which build answers, and with which class of arithmetic; always 1.";
        let mut info = encoder.encode_descriptor("taper:build_info", help, None, MetricType::Gauge)?;
        info.encode_family(&build)?.encode_gauge(&1_u64)
    }
}

/// Begins a counter, whose samples are then written as a gauge's are, under the family's own name: in this format `_total`
/// is part of that. [`MetricEncoder::encode_counter`] writes OpenMetrics, where it is not.
fn counter<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

type Row<T> = (&'static str, &'static str, T);

fn gauges(status: &EngineStatus) -> [Row<f64>; 4] {
    let held_blocks = status.num_blocks - status.free_blocks;
    [
        ("vllm:num_requests_running", "Choices that are being computed.", status.running as f64),
        ("vllm:num_requests_waiting", "Choices that wait to be computed.", status.queued as f64),
        (
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache's blocks that running choices hold; 1 is all of them.",
            held_blocks as f64 / status.num_blocks.max(1) as f64,
        ),
        (
            "taper:kv_blocks_idle",
            "Blocks of the KV cache that nobody holds and whose contents may be used again.",
            status.idle_blocks as f64,
        ),
    ]
}

fn counters(status: &EngineStatus, metrics: &EngineMetrics) -> [Row<u64>; 13] {
    [
        ("vllm:num_preemptions_total", "Times that a choice lost its blocks to an older one.", status.preemptions),
        ("vllm:prompt_tokens_total", "Tokens of prompts that have begun to run.", status.prompt_tokens),
        (
            "vllm:prompt_tokens_cached_total",
            "Tokens of prompts that were not computed because the prefix cache had them.",
            status.cached_tokens,
        ),
        ("vllm:generation_tokens_total", "Tokens generated.", metrics.num_generated()),
        (
            "vllm:prefix_cache_queries_total",
            "Tokens that the prefix cache was asked for: full blocks of prompts.",
            status.cacheable_tokens,
        ),
        ("vllm:prefix_cache_hits_total", "Tokens that the prefix cache had.", status.cached_tokens),
        ("vllm:spec_decode_num_drafts_total", "Times that guesses were verified.", status.guessed_steps),
        ("vllm:spec_decode_num_draft_tokens_total", "Guessed tokens that were verified.", status.guessed_tokens),
        ("vllm:spec_decode_num_accepted_tokens_total", "Guessed tokens that were right.", status.right_guesses),
        ("taper:drafted_tokens_total", "Tokens that the draft model chose, verified or not.", status.drafted_tokens),
        (
            "taper:softmax_recomputed_rows_total",
            "Pairs of row and head in attention computed again because a fixed softmax reference did not fit.",
            status.recomputed_rows,
        ),
        ("taper:kv_blocks_restored_total", "Blocks of the KV cache that were read from disk.", status.restored_blocks),
        ("taper:failed_steps_total", "Steps that failed.", status.failed_steps),
    ]
}

fn histograms(metrics: &EngineMetrics) -> [Row<&Histogram>; 14] {
    [
        (
            "vllm:time_to_first_token_seconds",
            "From submission to the first token of a choice.",
            &metrics.time_to_first_token_s,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "Between the steps that gave a choice tokens.",
            &metrics.inter_token_latency_s,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Per token after the first, by choice.",
            &metrics.time_per_output_token_s,
        ),
        ("vllm:e2e_request_latency_seconds", "From submission to the end of a choice.", &metrics.e2e_latency_s),
        ("vllm:request_queue_time_seconds", "From submission to the first step.", &metrics.queue_time_s),
        ("vllm:request_prefill_time_seconds", "From the first step to the first token.", &metrics.prefill_time_s),
        ("vllm:request_decode_time_seconds", "From the first token to the last.", &metrics.decode_time_s),
        ("vllm:request_prompt_tokens", "Tokens of the prompt, by choice.", &metrics.prompt_tokens),
        ("vllm:request_generation_tokens", "Tokens of the answer, by choice.", &metrics.generation_tokens),
        ("vllm:iteration_tokens_total", "Tokens computed per step.", &metrics.step_tokens),
        ("vllm:request_params_n", "The parameter n, by request.", &metrics.num_choices),
        ("vllm:request_params_max_tokens", "The parameter max_tokens, by request that says it.", &metrics.max_tokens),
        (
            "taper:grammar_mask_seconds",
            "Processor time for what a grammar allows and forces next, beside the step.",
            &metrics.grammar_mask_s,
        ),
        ("taper:grammar_wait_seconds", "Waiting for that after the step.", &metrics.grammar_wait_s),
    ]
}
