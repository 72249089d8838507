//! GET /metrics: what the engine is doing, in Prometheus' text format. What vLLM measures as well has vLLM's name, so that
//! dashboards made for it work. While the model loads there is nothing to measure, and the answer is empty.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use taper_engine::EngineStatus;

use crate::state::ServerState;

pub(crate) async fn metrics(State(state): State<ServerState>) -> Response {
    let text = state.served().map(|served| text(&served.model.id, &served.model.engine.status())).unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn text(model: &str, status: &EngineStatus) -> String {
    let metrics = [
        ("vllm:num_requests_running", "gauge", "Sequences that are being computed.", status.running as u64),
        ("vllm:num_requests_waiting", "gauge", "Sequences that wait to be computed.", status.queued as u64),
        (
            "taper:softmax_recomputed_rows_total",
            "counter",
            "Pairs of row and head in attention computed again because a fixed softmax reference did not fit.",
            status.recomputed_rows,
        ),
    ];
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let lines = metrics.map(|(name, kind, help, value)| {
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{model_name=\"{model}\"}} {value}\n")
    });
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_type_and_a_value_and_names_are_escaped() {
        let status = EngineStatus { running: 2, queued: 3, recomputed_rows: 7, ..EngineStatus::default() };
        let text = text("a\"b", &status);
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{model_name=\"a\\\"b\"} 2",
            "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 3",
            "# TYPE taper:softmax_recomputed_rows_total counter",
            "taper:softmax_recomputed_rows_total{model_name=\"a\\\"b\"} 7",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
    }
}
