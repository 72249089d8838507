//! The spans of a request: one of the server (`POST /v1/chat/completions`), and below it, where a model answered one prompt, `queue`,
//! `prefill` and `decode`.
//!
//! Names of attributes are those of OpenTelemetry's semantic conventions for HTTP servers and for generative AI; latencies, in
//! seconds, and the request's id have the names that vLLM gives them, and what nobody else has begins with `taper.`.
//!
//! A request that comes with a `traceparent` continues that trace, and has no spans if that is not sampled; all others begin a
//! trace of their own.

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use taper_server::{AnswerReport, RequestReport};

/// Makes spans.
#[derive(Debug)]
pub(crate) struct Spans {
    propagator: TraceContextPropagator,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
}

impl Default for Spans {
    fn default() -> Self {
        Self {
            propagator: TraceContextPropagator::new(),
            ids: RandomIdGenerator::default(),
            scope: InstrumentationScope::builder("taper").with_version(env!("CARGO_PKG_VERSION")).build(),
        }
    }
}

/// The headers that say where a request belongs.
struct Headers<'a>(&'a RequestReport);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent.as_deref(),
            "tracestate" => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// What a span is made of besides its place in the trace.
struct Contents {
    name: String,
    kind: SpanKind,
    begin: SystemTime,
    end: SystemTime,
    attributes: Vec<KeyValue>,
    status: Status,
}

impl Spans {
    /// The spans of a request, its own first; none if it belongs to a trace that is not sampled.
    pub(crate) fn of(&self, report: &RequestReport) -> Vec<SpanData> {
        let parent = self.propagator.extract_with_context(&Context::new(), &Headers(report));
        let parent = parent.span().span_context().clone();
        if parent.is_valid() && !parent.is_sampled() {
            return Vec::new();
        }
        let trace_id = if parent.is_valid() { parent.trace_id() } else { self.ids.new_trace_id() };
        let state = parent.trace_state().clone();
        let own = self.span(trace_id, &state, parent.span_id(), request(report));
        let own_id = own.span_context.span_id();
        let mut spans = vec![SpanData { parent_span_is_remote: parent.is_valid(), ..own }];
        spans.extend(phases(report).into_iter().map(|phase| self.span(trace_id, &state, own_id, phase)));
        spans
    }

    fn span(&self, trace_id: TraceId, state: &TraceState, parent_span_id: SpanId, contents: Contents) -> SpanData {
        let Contents { name, kind, begin, end, attributes, status } = contents;
        let (span_id, flags) = (self.ids.new_span_id(), TraceFlags::SAMPLED);
        SpanData {
            span_context: SpanContext::new(trace_id, span_id, flags, false, state.clone()),
            parent_span_id,
            parent_span_is_remote: false,
            span_kind: kind,
            name: name.into(),
            start_time: begin,
            end_time: end,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// The span of the whole request.
fn request(report: &RequestReport) -> Contents {
    let mut attributes = vec![
        KeyValue::new("http.request.method", report.method.clone()),
        KeyValue::new("gen_ai.request.id", report.id.clone()),
        KeyValue::new("taper.complete", report.is_complete),
    ];
    attributes.extend(report.route.clone().map(|route| KeyValue::new("http.route", route)));
    attributes.extend(report.status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
    // What a client did wrong is no error of the server's span.
    let failure = report.status.filter(|status| *status >= 500);
    attributes.extend(failure.map(|status| KeyValue::new("error.type", status.to_string())));
    if let Some(answer) = &report.answer {
        add_answer(&mut attributes, report, answer);
    }
    Contents {
        name: report.route.as_ref().map_or_else(|| report.method.clone(), |route| format!("{} {route}", report.method)),
        kind: SpanKind::Server,
        begin: report.begun,
        end: report.begun + report.took,
        attributes,
        status: if failure.is_some() { Status::error("") } else { Status::Unset },
    }
}

fn add_answer(attributes: &mut Vec<KeyValue>, report: &RequestReport, answer: &AnswerReport) {
    attributes.extend([
        KeyValue::new("gen_ai.operation.name", operation(report.route.as_deref().unwrap_or_default())),
        KeyValue::new("gen_ai.provider.name", "taper"),
        KeyValue::new("gen_ai.request.model", answer.model.clone()),
        KeyValue::new("gen_ai.response.model", answer.model.clone()),
    ]);
    if !answer.finish_reasons.is_empty() {
        let reasons = answer.finish_reasons.iter().map(|reason| StringValue::from(*reason)).collect();
        attributes.push(KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))));
    }
    let Some(totals) = &answer.totals else { return };
    attributes.extend([
        count("gen_ai.usage.input_tokens", totals.prompt_tokens),
        count("gen_ai.usage.output_tokens", totals.completion_tokens),
        count("gen_ai.usage.cache_read.input_tokens", totals.cached_tokens),
        count("taper.drafted_tokens", totals.guessed_tokens),
        count("taper.accepted_tokens", totals.right_guesses),
    ]);
    attributes.extend(totals.recomputed_rows.map(|rows| count("taper.recomputed_rows", rows as usize)));
    let Some(timings) = totals.timings else { return };
    let (queue, prefill, decode) = (timings.queue_s, timings.prefill_s, timings.decode_s);
    attributes.extend([
        KeyValue::new("gen_ai.latency.time_in_queue", queue),
        KeyValue::new("gen_ai.latency.time_in_model_prefill", prefill),
        KeyValue::new("gen_ai.latency.time_in_model_decode", decode),
        KeyValue::new("gen_ai.latency.time_in_model_inference", prefill + decode),
        KeyValue::new("gen_ai.latency.time_to_first_token", queue + prefill),
        KeyValue::new("gen_ai.latency.e2e", queue + prefill + decode),
        KeyValue::new("taper.latency.sample", timings.sample_s),
        KeyValue::new("taper.latency.detokenize", timings.detokenize_s),
    ]);
}

fn count(name: &'static str, count: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

/// What a route does, in the words of the conventions.
fn operation(route: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| route.contains(word));
    match () {
        () if has(&["embed"]) => "embeddings",
        () if has(&["chat", "messages", "responses"]) => "chat",
        () => "text_completion",
    }
}

/// Where the time of the model went, one after another.
fn phases(report: &RequestReport) -> Vec<Contents> {
    let answer = report.answer.as_ref();
    let Some((answer, timings)) = answer.and_then(|answer| Some((answer, answer.totals?.timings?))) else {
        return Vec::new();
    };
    let mut begin = report.begun + answer.submitted;
    let phases = [("queue", timings.queue_s), ("prefill", timings.prefill_s), ("decode", timings.decode_s)];
    let phase = |(name, seconds): (&str, f64)| {
        let end = begin + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let (name, kind, attributes, status) = (name.to_owned(), SpanKind::Internal, Vec::new(), Status::Unset);
        Contents { name, kind, begin: std::mem::replace(&mut begin, end), end, attributes, status }
    };
    phases.map(phase).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use taper_server::Totals;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    /// A request that no model had to do with.
    pub(crate) fn report() -> RequestReport {
        RequestReport {
            id: "an-id".to_owned(),
            method: "POST".to_owned(),
            route: Some("/tokenize".to_owned()),
            traceparent: None,
            tracestate: None,
            begun: SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
            took: Duration::from_secs(10),
            status: Some(200),
            is_complete: true,
            answer: None,
        }
    }

    fn traced(traceparent: &str) -> Vec<SpanData> {
        Spans::default().of(&RequestReport { traceparent: Some(traceparent.to_owned()), ..report() })
    }

    #[test]
    fn a_parent_is_continued_and_one_that_makes_no_sense_is_not() {
        let spans = traced(&format!("00-{TRACE}-{PARENT}-01"));
        assert_eq!(spans[0].span_context.trace_id().to_string(), TRACE);
        assert_eq!(spans[0].parent_span_id.to_string(), PARENT);
        assert!(spans[0].parent_span_is_remote);
        assert!(traced(&format!("00-{TRACE}-{PARENT}-00")).is_empty(), "whoever began the trace does not sample it");
        for wrong in ["", "what?", "00-0-0-01", &format!("ff-{TRACE}-{PARENT}-01"), &format!("00-{PARENT}-{TRACE}-01")]
        {
            let spans = traced(wrong);
            assert_eq!(spans.len(), 1, "{wrong}");
            assert!(spans[0].span_context.is_valid() && spans[0].parent_span_id == SpanId::INVALID, "{wrong}");
            assert_ne!(spans[0].span_context.trace_id().to_string(), TRACE);
        }
        let (one, other) = (Spans::default().of(&report()), Spans::default().of(&report()));
        assert_ne!(one[0].span_context.trace_id(), other[0].span_context.trace_id());
    }

    #[test]
    fn phases_follow_each_other_below_the_request() {
        let timings = taper_engine::Timings { queue_s: 1.0, prefill_s: 2.0, decode_s: 4.0, ..Default::default() };
        let totals = Totals { prompt_tokens: 5, completion_tokens: 7, timings: Some(timings), ..Totals::default() };
        let submitted = Duration::from_millis(500);
        let answer = AnswerReport {
            model: "tiny".to_owned(),
            submitted,
            totals: Some(totals),
            finish_reasons: vec!["stop", "tool_calls"],
        };
        let route = Some("/v1/chat/completions".to_owned());
        let spans = Spans::default().of(&RequestReport { route, answer: Some(answer), ..report() });
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["POST /v1/chat/completions", "queue", "prefill", "decode"]);
        let of = |span: &SpanData| {
            let since = |time: SystemTime| time.duration_since(report().begun).unwrap().as_millis();
            (since(span.start_time), since(span.end_time))
        };
        assert_eq!(spans.iter().map(of).collect::<Vec<_>>(), [(0, 10_000), (500, 1500), (1500, 3500), (3500, 7500)]);
        for phase in &spans[1..] {
            assert_eq!(phase.span_context.trace_id(), spans[0].span_context.trace_id());
            assert_eq!(phase.parent_span_id, spans[0].span_context.span_id());
        }
        let attribute = |name: &str| {
            let found = spans[0].attributes.iter().find(|attribute| attribute.key.as_str() == name);
            found.map(|attribute| attribute.value.to_string())
        };
        for (name, value) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", "tiny"),
            ("gen_ai.request.id", "an-id"),
            ("gen_ai.usage.input_tokens", "5"),
            ("gen_ai.usage.output_tokens", "7"),
            ("gen_ai.response.finish_reasons", "[\"stop\",\"tool_calls\"]"),
            ("gen_ai.latency.time_to_first_token", "3"),
            ("gen_ai.latency.e2e", "7"),
            ("http.route", "/v1/chat/completions"),
            ("http.response.status_code", "200"),
        ] {
            assert_eq!(attribute(name).as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn a_fault_of_the_server_is_one_of_its_span() {
        let of_status = |status| Spans::default().of(&RequestReport { status, ..report() }).remove(0).status;
        assert_eq!(of_status(Some(200)), Status::Unset);
        assert_eq!(of_status(Some(400)), Status::Unset);
        assert_eq!(of_status(None), Status::Unset, "the client left");
        assert_eq!(of_status(Some(503)), Status::error(""));
    }

    #[test]
    fn routes_are_operations() {
        for (route, expected) in [
            ("/v1/chat/completions", "chat"),
            ("/v1/messages", "chat"),
            ("/v1/responses", "chat"),
            ("/v1/completions", "text_completion"),
            ("/completion", "text_completion"),
            ("/v1/embeddings", "embeddings"),
        ] {
            assert_eq!(operation(route), expected, "{route}");
        }
    }
}
