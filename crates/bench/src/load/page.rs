//! Levels of load for a reader: a table, a line of CSV each, and a page with plots.

use crate::plot::{Plot, Series};
use crate::record::figure;
use crate::report::Page;
use crate::{Error, load::latency::QUANTILES};
use serde_json::Value;

/// Titles of the table's columns, and where a row has what stands there.
const COLUMNS: [(&str, &str); 20] = [
    ("LOAD", "/case"),
    ("REQUESTS", "/requests"),
    ("ERRORS", "/errors"),
    ("CUT OFF", "/cut_off"),
    ("SECONDS", "/wall_s"),
    ("PROMPT", "/prompt_tokens_mean"),
    ("OUTPUT", "/completion_tokens_mean"),
    ("REQ/S", "/req_s"),
    ("GOODPUT", "/goodput_req_s"),
    ("TOK/S", "/tok_s"),
    ("PROMPT TOK/S", "/prompt_tok_s"),
    ("TTFT P50", "/ttft_ms/p50"),
    ("P99", "/ttft_ms/p99"),
    ("ITL P50", "/itl_ms/p50"),
    ("P99", "/itl_ms/p99"),
    ("TPOT P50", "/tpot_ms/p50"),
    ("P99", "/tpot_ms/p99"),
    ("E2E P50", "/e2e_ms/p50"),
    ("P99", "/e2e_ms/p99"),
    ("LATE P99", "/lateness_ms/p99"),
];

/// The titles and the cells of a table; columns that say nothing are left out.
pub fn table(rows: &[Value]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let has_answers = |row: &Value| row["params"]["endpoint"] != "embeddings";
    let says = |pointer: &str| {
        rows.iter().any(|row| match pointer {
            "/cut_off" => row["cut_off"] != 0,
            // Of answers these are nothing new, and embeddings have nothing else.
            "/prompt_tok_s" => !has_answers(row) && !row["prompt_tok_s"].is_null(),
            "/tok_s" | "/completion_tokens_mean" => has_answers(row),
            // In a closed loop a request is never late.
            "/lateness_ms/p99" => row["params"]["loop"] == "open",
            _ => row.pointer(pointer).is_some_and(|value| !value.is_null()),
        })
    };
    let columns: Vec<(&str, &str)> = COLUMNS.into_iter().filter(|(_, pointer)| says(pointer)).collect();
    let cells = |row: &Value| columns.iter().map(|(_, pointer)| cell(row.pointer(pointer))).collect();
    (columns.iter().map(|(title, _)| *title).collect(), rows.iter().map(cells).collect())
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) if value.is_u64() => value.to_string(),
        Some(value) => value.as_f64().map_or_else(|| value.to_string(), figure),
    }
}

/// A head and a line per level. Names within names are joined by `_`; the course of time is left out.
pub fn csv(rows: &[Value]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut cells = Vec::new();
        flatten("", row, &mut cells);
        if index == 0 {
            let names: Vec<&str> = cells.iter().map(|(name, _)| name.as_str()).collect();
            text.push_str(&(names.join(",") + "\n"));
        }
        let cells: Vec<String> = cells.into_iter().map(|(_, cell)| cell).collect();
        text.push_str(&(cells.join(",") + "\n"));
    }
    text
}

fn flatten(name: &str, value: &Value, cells: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !["timeline", "errors_by_kind", "params_extra", "params_limits"].contains(&name) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}_{field}") };
                flatten(&name, value, cells);
            }
        }
        Value::Object(_) if name == "timeline" => {}
        Value::Null => cells.push((name.to_owned(), String::new())),
        Value::String(text) => cells.push((name.to_owned(), quoted(text))),
        // Their names differ from row to row.
        Value::Object(fields) if fields.is_empty() => cells.push((name.to_owned(), String::new())),
        value => cells.push((name.to_owned(), quoted(&value.to_string()))),
    }
}

/// As RFC 4180 has it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Plots over the loads and over time; `axis` is what x is in the former, `amounts` where the rows lie on it.
fn plots(rows: &[Value], axis: &str, amounts: &[f64]) -> Vec<Plot> {
    let series = |name: &str, pointer: &str| Series {
        name: name.to_owned(),
        points: rows.iter().zip(amounts).filter_map(|(row, x)| Some((*x, row.pointer(pointer)?.as_f64()?))).collect(),
    };
    let plot = |title: &str, y: &str, series: Vec<Series>| Plot {
        title: title.to_owned(),
        x: axis.to_owned(),
        y: y.to_owned(),
        series,
        line: None,
    };
    let latency = |title: &str, name: &str| {
        let of = |quantile: &str| series(quantile, &format!("/{name}/{quantile}"));
        plot(title, "ms", ["p50", "p90", "p99"].map(of).into())
    };
    let mut plots = vec![
        latency("Time to first token", "ttft_ms"),
        latency("Between tokens", "itl_ms"),
        latency("Whole requests", "e2e_ms"),
        plot("Throughput", "tokens/s", vec![series("generated", "/tok_s"), series("with prompts", "/total_tok_s")]),
        plot("Requests", "requests/s", vec![series("all", "/req_s"), series("within the limits", "/goodput_req_s")]),
    ];
    for (title, name) in [("Time to first token", "ttft_ms"), ("Between tokens", "itl_ms")] {
        let of_row = |row: &Value| {
            let at = |(quantile, q): (&str, f64)| Some((100.0 * q, row[name][quantile].as_f64()?));
            let ends = QUANTILES.into_iter().chain([("max", 1.0)]);
            Series { name: cell(row.get("case")), points: ends.filter_map(at).collect() }
        };
        plots.push(Plot {
            title: format!("{title}, by percentile"),
            x: "percentile".to_owned(),
            y: "ms".to_owned(),
            series: rows.iter().map(of_row).collect(),
            line: None,
        });
    }
    for row in rows {
        let timeline = &row["timeline"];
        let step = timeline["step_s"].as_f64().unwrap_or(1.0);
        for (name, y) in [("tok_s", "tokens/s"), ("under_way", "requests under way")] {
            let ys = timeline[name].as_array().into_iter().flatten().filter_map(Value::as_f64).enumerate();
            // A tenth is the finest step; more digits are the multiplication's.
            let points = ys.map(|(piece, y)| ((piece as f64 * step * 10.0).round() / 10.0, y)).collect();
            let case = cell(row.get("case"));
            plots.push(Plot {
                title: format!("Over time at {case}"),
                x: "second".to_owned(),
                y: y.to_owned(),
                series: vec![Series { name: case, points }],
                line: None,
            });
        }
    }
    plots
}

/// The page; `command` is what was typed, and `axis` and `amounts` are those of the loads.
///
/// # Errors
/// What drawing says.
pub fn html(command: &str, rows: &[Value], notes: &[String], axis: &str, amounts: &[f64]) -> Result<String, Error> {
    let fact = |name, pointer: &str| (name, cell(rows.first().and_then(|row| row.pointer(pointer))));
    let (titles, cells) = table(rows);
    let page = Page {
        command,
        facts: vec![
            fact("model", "/params/model"),
            fact("server", "/params/url"),
            fact("endpoint", "/params/endpoint"),
            fact("client", "/machine"),
            fact("commit", "/commit"),
        ],
        warnings: Vec::new(),
        notes,
        plots: &plots(rows, axis, amounts),
        titles,
        num_names: 1,
        rows: cells.into_iter().map(|cells| (cells, false)).collect(),
    };
    page.html()
}

#[cfg(test)]
mod tests {
    use super::super::{Collected, Limits};
    use super::*;
    use serde_json::json;

    fn row(case: &str) -> Value {
        let mut row = json!({ "bench": "serve", "case": case, "params": { "loop": "closed", "model": "a,\"b\"", "extra": { "x": 1 } } });
        row.as_object_mut().unwrap().extend(Collected::new(Limits::default()).figures());
        row["ttft_ms"]["p50"] = 12.5.into();
        row["errors_by_kind"] = json!({ "timeout": 2 });
        row
    }

    #[test]
    fn a_table_leaves_out_what_no_row_says() {
        let (titles, cells) = table(&[row("concurrency 1"), row("concurrency 8")]);
        assert!(titles.contains(&"TTFT P50") && !titles.contains(&"GOODPUT") && !titles.contains(&"LATE P99"));
        assert!(!titles.contains(&"CUT OFF"), "{titles:?}");
        assert_eq!((cells.len(), cells[1].len(), cells[1][0].as_str()), (2, titles.len(), "concurrency 8"));
        assert!(cells[0].contains(&"12.50".to_owned()), "{cells:?}");
    }

    #[test]
    fn embeddings_have_tokens_of_prompts_and_no_others() {
        let mut row = row("concurrency 1");
        row["params"]["endpoint"] = "embeddings".into();
        row["prompt_tok_s"] = 5.into();
        let (titles, _) = table(&[row]);
        assert!(
            titles.contains(&"PROMPT TOK/S") && !titles.contains(&"TOK/S") && !titles.contains(&"OUTPUT"),
            "{titles:?}"
        );
    }

    #[test]
    fn csv_has_as_many_cells_in_every_line() {
        let mut other = row("concurrency 8");
        other["errors_by_kind"] = json!({});
        let text = csv(&[row("concurrency 1"), other]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("ttft_ms_p50") && !lines[0].contains("timeline"), "{}", lines[0]);
        assert!(lines[1].contains("\"a,\"\"b\"\"\"") && lines[1].contains("\"{\"\"timeout\"\":2}\""), "{}", lines[1]);
        let commas = |line: &str| line.replace("\"a,\"\"b\"\"\"", "").matches(',').count();
        assert_eq!((commas(lines[1]), commas(lines[2])), (commas(lines[0]), commas(lines[0])), "{text}");
    }

    #[test]
    fn a_page_has_plots_over_loads_and_time() {
        let rows = [row("concurrency 1"), row("concurrency 8")];
        let page = html("taper bench serve", &rows, &["1 < 2".to_owned()], "concurrency", &[1.0, 8.0]).unwrap();
        assert!(page.contains("Time to first token, ms") && page.contains("1 &lt; 2"), "{page}");
        assert!(page.contains("<th>8</th>") && page.contains("concurrency 8"), "{page}");
    }
}
