//! The real binary with the feature `otlp`: traces reach a collector.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;

use serde_json::json;
use server::Server;
use std::time::Duration;
use taper_testkit::collector::{Taken, collector};
use taper_testkit::tiny::TinyModel;

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn holds(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[test]
fn traces_arrive_at_the_collector() {
    let folder = tempfile::tempdir().expect("there is room");
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, TinyModel::default().to_gguf()).expect("there is room");
    let (endpoint, taken) = collector("200 OK");
    let mut server = Server::start(&model, &["--ctx", "64", "--otlp-endpoint", &endpoint]);
    server.log_until(&format!("traces are sent to {endpoint}/v1/traces"));
    let trace: [u8; 16] = std::array::from_fn(|place| place as u8 + 1);
    let id: String = trace.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = ureq::post(format!("{}/v1/completions", server.url))
        .header("traceparent", format!("00-{id}-00f067aa0ba902b7-01"))
        .send_json(json!({ "prompt": "Once", "max_tokens": 3 }));
    assert_eq!(answer.expect("the server answers").status(), 200);
    let Taken { path, body } = taken.recv_timeout(PATIENCE).expect("they came");
    assert_eq!(path, "/v1/traces");
    assert!(holds(&body, &trace), "the trace goes on");
    for part in ["taper", "POST /v1/completions", "queue", "prefill", "decode", "gen_ai.usage.input_tokens"] {
        assert!(holds(&body, part.as_bytes()), "{part}");
    }
    server.signal("TERM");
    assert_eq!(server.wait(PATIENCE).code(), Some(0));
}
