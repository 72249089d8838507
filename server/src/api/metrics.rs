//! GET /metrics: what the engines of the loaded models are doing, and what was asked of the server, in Prometheus' text format.
//! What vLLM measures as well has vLLM's name and bucket bounds, so that dashboards and load balancers made for it work. While no
//! model is loaded there are the server's own numbers alone; counts of a model that is loaded again begin anew.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use taper_engine::{EndReason, EngineMetrics, EngineStatus, Histogram, QueueLimit};

use crate::http_metrics::HttpMetrics;
use crate::state::{Served, ServedModel, ServerState};

pub(crate) async fn metrics(State(state): State<ServerState>) -> Response {
    let models = state.models().loaded();
    let mut text = String::new();
    if !models.is_empty() {
        write(&engines(models), &mut text);
    }
    write(&server(state.http()), &mut text);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn engines(models: Vec<Arc<Served>>) -> Registry {
    // As vLLM labels everything. A model has one engine.
    let mut registry = Registry::with_labels([("engine".into(), "0".into())].into_iter());
    registry.register_collector(Box::new(Scrape(models)));
    registry
}

fn server(http: &Arc<HttpMetrics>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ServerScrape(Arc::clone(http))));
    registry
}

fn write(registry: &Registry, text: &mut String) {
    if let Err(error) = encode_registry(text, registry) {
        tracing::error!(%error, "the metrics could not be written");
    }
}

/// What is counted of requests, whatever model they are for.
#[derive(Debug)]
struct ServerScrape(Arc<HttpMetrics>);

impl Collector for ServerScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Open connections: within the limit, or among the few beyond it that hear of that.";
        let mut connections = encoder.encode_descriptor("taper:http_connections", help, None, MetricType::Gauge)?;
        for (place, number) in ["regular", "spare"].into_iter().zip(self.0.num_connections()) {
            connections.encode_family(&[("place", place)])?.encode_gauge(&number)?;
        }
        let counts = self.0.counts();
        let help =
            "Requests that are over, by the pattern of their path, method and status; 499: the client left before one.";
        let mut answered = counter(&mut encoder, "taper:http_requests_total", help)?;
        for ((endpoint, status), number) in &counts.answered {
            let status = status.to_string();
            let labels = [("route", &*endpoint.route), ("method", endpoint.method), ("status", status.as_str())];
            answered.encode_family(&labels)?.encode_gauge(number)?;
        }
        let help = "Requests that were answered by an error, by its code.";
        let mut refused = counter(&mut encoder, "taper:http_refusals_total", help)?;
        for (reason, number) in &counts.refused {
            refused.encode_family(&[("reason", *reason)])?.encode_gauge(number)?;
        }
        let help = "From a request's headers to the last byte of its answer.";
        let name = "taper:http_request_duration_seconds";
        let mut durations = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (route, of_route) in &counts.durations {
            let labels = [("route", &**route)];
            let mut sample = durations.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(of_route.sum_s(), of_route.count(), &of_route.buckets(), None)?;
        }
        Ok(())
    }
}

/// The other label of every sample.
const MODEL: &str = "model_name";

/// The numbers are the engines'; they are read when they are asked for. The samples of a metric stand together, model by model.
struct Scrape(Vec<Arc<Served>>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|served| &served.model.id)).finish()
    }
}

/// What is read of one model.
struct Reading<'a> {
    model: &'a ServedModel,
    status: EngineStatus,
    metrics: &'a EngineMetrics,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        fn reading(served: &Arc<Served>) -> Reading<'_> {
            let ServedModel { engine, .. } = &served.model;
            Reading { model: &served.model, status: engine.status(), metrics: engine.metrics() }
        }
        let readings: Vec<Reading<'_>> = self.0.iter().map(reading).collect();
        encode_rows(&mut encoder, MetricType::Gauge, &readings, |reading| gauges(&reading.status))?;
        encode_rows(&mut encoder, MetricType::Counter, &readings, |reading| {
            counters(&reading.status, reading.metrics)
        })?;
        let help = "Tokens of prompts that have begun to run, by where their keys and values come from.";
        let mut by_source = counter(&mut encoder, "vllm:prompt_tokens_by_source_total", help)?;
        for Reading { model, status, .. } in &readings {
            let computed = status.prompt_tokens - status.cached_tokens;
            for (source, value) in [("local_compute", computed), ("local_cache_hit", status.cached_tokens)] {
                by_source.encode_family(&[(MODEL, model.id.as_str()), ("source", source)])?.encode_gauge(&value)?;
            }
        }
        let help = "Choices that wait: for room (capacity), or for blocks that are being computed or read (deferred).";
        let name = "vllm:num_requests_waiting_by_reason";
        let mut by_reason = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for Reading { model, status, .. } in &readings {
            let for_room = status.queued - status.deferred;
            for (reason, value) in [("capacity", for_room), ("deferred", status.deferred)] {
                by_reason.encode_family(&[(MODEL, model.id.as_str()), ("reason", reason)])?.encode_gauge(&value)?;
            }
        }
        let help = "Requests that were refused because as much as may wait does, by the limit.";
        let mut by_reason = counter(&mut encoder, "vllm:admission_rejections_total", help)?;
        for Reading { model, metrics, .. } in &readings {
            for limit in QueueLimit::ALL {
                let labels = [(MODEL, model.id.as_str()), ("reason", limit.as_str())];
                by_reason.encode_family(&labels)?.encode_gauge(&metrics.num_refused(limit))?;
            }
        }
        let help = "Guessed tokens that were right, by their place behind the latest token.";
        let mut by_place = counter(&mut encoder, "vllm:spec_decode_num_accepted_tokens_per_pos_total", help)?;
        for Reading { model, metrics, .. } in &readings {
            for (place, number) in metrics.num_right_by_place().enumerate() {
                let place = place.to_string();
                let labels = [(MODEL, model.id.as_str()), ("position", place.as_str())];
                by_place.encode_family(&labels)?.encode_gauge(&number)?;
            }
        }
        let help = "Choices that ended, by the reason: stop, length, abort (the client left), error.";
        let mut by_reason = counter(&mut encoder, "vllm:request_success_total", help)?;
        for Reading { model, metrics, .. } in &readings {
            for reason in EndReason::ALL {
                let labels = [(MODEL, model.id.as_str()), ("finished_reason", reason.as_str())];
                by_reason.encode_family(&labels)?.encode_gauge(&metrics.num_ended(reason))?;
            }
        }
        encode_histograms(&mut encoder, &readings)?;
        encode_infos(encoder, &readings)
    }
}

/// Rows of numbers, the same ones of each model.
fn encode_rows<T: EncodeGaugeValue, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    readings: &[Reading<'_>],
    rows: impl Fn(&Reading<'_>) -> [Row<T>; N],
) -> fmt::Result {
    let rows: Vec<_> = readings.iter().map(|reading| (reading.model.id.as_str(), rows(reading))).collect();
    for place in 0..N {
        let Some((_, first)) = rows.first() else { break };
        let mut family = encoder.encode_descriptor(first[place].0, first[place].1, None, kind)?;
        for (id, row) in &rows {
            family.encode_family(&[(MODEL, *id)])?.encode_gauge(&row[place].2)?;
        }
    }
    Ok(())
}

fn encode_histograms(encoder: &mut DescriptorEncoder<'_>, readings: &[Reading<'_>]) -> fmt::Result {
    let rows: Vec<_> =
        readings.iter().map(|reading| (reading.model.id.as_str(), histograms(reading.metrics))).collect();
    let num_rows = rows.first().map_or(0, |(_, rows)| rows.len());
    for place in 0..num_rows {
        let (name, help, _) = rows[0].1[place];
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (id, row) in &rows {
            let histogram = row[place].2;
            let buckets = histogram.buckets();
            let count = buckets.iter().map(|&(_, count)| count).sum();
            let labels = [(MODEL, *id)];
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(histogram.sum(), count, &buckets, None)?;
        }
    }
    Ok(())
}

fn encode_infos(mut encoder: DescriptorEncoder<'_>, readings: &[Reading<'_>]) -> fmt::Result {
    let help = "The KV cache: tokens per block, blocks and bytes; always 1.";
    let mut info = encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
    for Reading { model, .. } in readings {
        let limits = model.engine.limits();
        let cache = [
            (MODEL, model.id.clone()),
            ("block_size", limits.block_size.to_string()),
            ("enable_prefix_caching", "True".to_owned()),
            ("kv_cache_memory_bytes", model.engine.kv_cache_bytes().to_string()),
            ("num_gpu_blocks", limits.num_blocks.to_string()),
        ];
        info.encode_family(&cache)?.encode_gauge(&1_u64)?;
    }
    let help = "Which build answers, and with which class of arithmetic; always 1.";
    let mut info = encoder.encode_descriptor("taper:build_info", help, None, MetricType::Gauge)?;
    for Reading { model, .. } in readings {
        let build = [
            (MODEL, model.id.as_str()),
            ("fingerprint", model.fingerprint.as_str()),
            ("version", env!("CARGO_PKG_VERSION")),
        ];
        info.encode_family(&build)?.encode_gauge(&1_u64)?;
    }
    Ok(())
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

fn histograms(metrics: &EngineMetrics) -> [Row<&Histogram>; 18] {
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
        ("vllm:request_inference_time_seconds", "From the first step to the last token.", &metrics.inference_time_s),
        ("vllm:request_prefill_time_seconds", "From the first step to the first token.", &metrics.prefill_time_s),
        ("vllm:request_decode_time_seconds", "From the first token to the last.", &metrics.decode_time_s),
        ("vllm:request_prompt_tokens", "Tokens of the prompt, by choice.", &metrics.prompt_tokens),
        (
            "vllm:request_prefill_kv_computed_tokens",
            "Tokens of the prompt that were computed for the choice, neither cached nor another choice's.",
            &metrics.computed_prompt_tokens,
        ),
        ("vllm:request_generation_tokens", "Tokens of the answer, by choice.", &metrics.generation_tokens),
        (
            "vllm:request_max_num_generation_tokens",
            "Tokens of the longest choice, by request.",
            &metrics.longest_choice,
        ),
        ("vllm:request_num_preemptions", "Times that the choice lost its blocks to another.", &metrics.preemptions),
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
