//! From a request to the spans that a collector gets, and collectors that are none.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

#[path = "../../../server/tests/support/mod.rs"]
mod support;

use std::net::TcpListener;

use axum::body::Body;
use axum::http::Request;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use support::*;
use taper_engine::EngineConfig;
use taper_otlp::Exporter;
use taper_server::{ServerConfig, ServerState};
use taper_testkit::collector::{Taken, collector};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A ready server whose requests `exporter` hears of.
fn server(exporter: &Exporter) -> ServerState {
    let config = ServerConfig { on_request: Some(exporter.listener()), ..ServerConfig::default() };
    state_with_config(replying(REPLY), EngineConfig::default(), config).0
}

async fn ask(state: &ServerState, path: &str, headers: &[(&str, &str)], body: serde_json::Value) -> Answer {
    let request = headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
    send(state, request.body(Body::from(body.to_string())).unwrap()).await
}

/// The spans of a body, and the attributes of what sent them.
fn read(body: &[u8]) -> (Vec<Span>, Vec<String>) {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let resource = &request.resource_spans[0];
    let attributes = resource.resource.iter().flat_map(|resource| &resource.attributes);
    let attributes = attributes.map(|attribute| format!("{}={:?}", attribute.key, value(attribute))).collect();
    let spans = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    (spans.flat_map(|scope| scope.spans.clone()).collect(), attributes)
}

fn value(attribute: &opentelemetry_proto::tonic::common::v1::KeyValue) -> String {
    match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::IntValue(number)) => number.to_string(),
        Some(Any::BoolValue(truth)) => truth.to_string(),
        Some(Any::DoubleValue(number)) => number.to_string(),
        Some(Any::ArrayValue(array)) => {
            let texts = array.values.iter().filter_map(|value| match &value.value {
                Some(Any::StringValue(text)) => Some(text.as_str()),
                _ => None,
            });
            texts.collect::<Vec<_>>().join(",")
        }
        other => panic!("{}: {other:?}", attribute.key),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    span.attributes.iter().find(|attribute| attribute.key == name).map(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_a_request_arrive_below_its_parent() {
    let (endpoint, taken) = collector("200 OK");
    let exporter = Exporter::start(Some(&endpoint)).unwrap();
    assert_eq!(exporter.endpoint(), format!("{endpoint}/v1/traces"));
    let state = server(&exporter);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "a=b"), ("x-request-id", "one")];
    let body = json!({ "messages": [{ "role": "user", "content": "secret" }], "max_tokens": 3 });
    let answer = ask(&state, CHAT, &headers, body).await;
    assert_eq!(answer.status, 200);
    // Not sampled by whoever began it.
    let parent = format!("00-{TRACE}-{PARENT}-00");
    assert_eq!(ask(&state, COMPLETIONS, &[("traceparent", &parent)], json!({ "prompt": "a" })).await.status, 200);
    // Asked every second by others.
    assert_eq!(get(&state, "/health").await.status, 200);
    let refused = ask(&state, COMPLETIONS, &[("x-request-id", "two")], json!({ "prompt": 5 })).await;
    assert_eq!(refused.status, 400);
    drop(exporter);

    // In as many parts as the time between the requests makes of them.
    let mut spans = Vec::new();
    while spans.len() < 5 {
        let Taken { path, body } = taken.recv_timeout(PATIENCE).unwrap();
        assert_eq!(path, "/v1/traces");
        assert!(!String::from_utf8_lossy(&body).contains("secret"), "spans hold nothing of prompts");
        let (more, resource) = read(&body);
        assert!(resource.iter().any(|attribute| attribute.starts_with("service.name=")), "{resource:?}");
        spans.extend(more);
    }
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let chat = format!("POST {CHAT}");
    assert_eq!(names, [&chat, "queue", "prefill", "decode", &format!("POST {COMPLETIONS}")]);
    let own = &spans[0];
    assert_eq!((hex(&own.trace_id), hex(&own.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(own.trace_state, "a=b");
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.response.model", MODEL),
        ("gen_ai.request.id", "one"),
        ("gen_ai.usage.output_tokens", "3"),
        ("gen_ai.response.finish_reasons", "length"),
        ("http.route", CHAT),
        ("http.response.status_code", "200"),
        ("taper.complete", "true"),
    ] {
        assert_eq!(attribute(own, name).as_deref(), Some(value), "{name}");
    }
    let usage = &answer.json()["usage"];
    assert_eq!(attribute(own, "gen_ai.usage.input_tokens").unwrap(), usage["prompt_tokens"].to_string());
    for phase in &spans[1..4] {
        assert_eq!((&phase.trace_id, &phase.parent_span_id), (&own.trace_id, &own.span_id), "{}", phase.name);
        assert!(own.start_time_unix_nano <= phase.start_time_unix_nano, "{}", phase.name);
        assert!(phase.start_time_unix_nano <= phase.end_time_unix_nano, "{}", phase.name);
    }
    let other = &spans[4];
    assert_ne!(other.trace_id, own.trace_id);
    assert!(other.parent_span_id.is_empty());
    assert_eq!(attribute(other, "http.response.status_code").as_deref(), Some("400"));
    assert_eq!(attribute(other, "gen_ai.request.model"), None, "no model was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_or_is_gone_changes_no_answer() {
    let (refusing, _taken) = collector("400 Bad Request");
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for endpoint in [refusing, gone] {
        let exporter = Exporter::start(Some(&endpoint)).unwrap();
        let state = server(&exporter);
        for _ in 0..3 {
            assert_eq!(ask(&state, COMPLETIONS, &[], json!({ "prompt": "a" })).await.status, 200);
        }
    }
}

#[test]
fn a_collector_that_never_answers_is_not_waited_for() {
    // It takes connections, as the operating system does for it, and reads nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let exporter = Exporter::start(Some(&endpoint)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let state = server(&exporter);
    runtime.block_on(async {
        for _ in 0..300 {
            assert_eq!(get(&state, "/v1/nothing").await.status, 404);
        }
    });
    // Waits for a while and not for good: the test would not end.
    drop(exporter);
    drop(listener);
}
