//! The softmax schemes by length, on rows in the caches and in memory: where online crosses three passes, and what keeping a
//! running maximum costs.
//!
//! Each length is taken twice. *Cached*: the same rows again and again, which the caches hold while they fit. *Memory*: a ring
//! of rows, scores and outputs larger together than any cache. A call has as many rows for every thread. The schemes take
//! turns. Scores are of a usual size, so the unified schemes recompute nothing; a row that did says so. Its figure is the time of a
//! call over its rows; the bandwidth of rows in memory counts every score read and every probability written once, 8 bytes an
//! element, whatever a scheme reads again.

pub mod on_gpu;
mod words;

use crate::machine::afford;
use crate::plot::{Plot, Series};
use crate::statistics::{ratio, wall_seconds};
use crate::{Column, Effort, Error, Findings, Measurement, Record, Summary, figure, params};
use serde_json::Value;
use std::hint::black_box;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::softmax::{Context, Scheme, Settings};

/// Name of the benchmark.
pub const NAME: &str = "softmax";
/// Bytes of scores and outputs of the ring, unless told otherwise.
pub const DEFAULT_RING_BYTES: usize = 288 << 20;
/// Powers of two that are lengths, unless told otherwise.
pub const DEFAULT_POWERS: [u32; 14] = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];

/// Scores that are made once and repeated: a length of its own, so that rows differ.
const PATTERN: usize = 1009;
/// Fewest scores of one call for each thread: short rows are taken many at a time, as a step of a model has many.
const SCORES_PER_THREAD: usize = 1 << 15;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Cases {
    /// Lengths of rows.
    pub lens: Vec<usize>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Bytes of scores and outputs in memory.
    pub ring_bytes: usize,
    /// How long the schemes of a length are timed together.
    pub effort: Effort,
}

/// Where rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cached,
    Memory,
}

impl Place {
    const ALL: [Place; 2] = [Place::Cached, Place::Memory];

    fn name(self) -> &'static str {
        match self {
            Place::Cached => "cached",
            Place::Memory => "memory",
        }
    }
}

/// Measures all cases; `progress` is told of each length in words.
///
/// # Errors
/// When there is not enough memory.
pub fn measure(isa: Isa, cases: &Cases, progress: &mut dyn FnMut(&str)) -> Result<Vec<Measurement>, Error> {
    let longest = cases.lens.iter().copied().max().unwrap_or(1);
    let threads = cases.threads.iter().copied().max().unwrap_or(1);
    let longest_call = (longest + SCORES_PER_THREAD) * threads;
    let len = (cases.ring_bytes / (2 * size_of::<f32>())).max(longest_call);
    afford(len.saturating_mul(2 * size_of::<f32>()))?;
    let mut ring = Ring {
        x: (0..len).map(|i| ((i * 7919 + 13) % PATTERN) as f32 / 50.0 - 10.0).collect(),
        // Not zeros: pages of zeros would be made by the first writes, within the time that is taken.
        out: vec![1.0; len],
        next: 0,
    };
    let mut measured = Vec::new();
    for &threads in &cases.threads {
        let pool = Pool::new(threads);
        for place in Place::ALL {
            for &len in &cases.lens {
                let rows = ring.one_length(Context::new(isa, &pool), cases.effort, (pool.threads(), place, len));
                let of_row = |row: &Measurement| {
                    format!("{} {:.2}", row.params["scheme"].as_str().unwrap_or_default(), row.summary.median)
                };
                let group = group_name(pool.threads(), place.name());
                progress(&format!("{group}, {len}, us: {}", rows.iter().map(of_row).collect::<Vec<_>>().join(", ")));
                measured.extend(rows);
            }
        }
    }
    Ok(measured)
}

/// Scores, room for probabilities, and where the next call begins.
struct Ring {
    x: Vec<f32>,
    out: Vec<f32>,
    next: usize,
}

impl Ring {
    /// A row per scheme.
    fn one_length(
        &mut self,
        context: Context<'_>,
        effort: Effort,
        (threads, place, len): (usize, Place, usize),
    ) -> Vec<Measurement> {
        let settings = Settings::measured(&self.x[..PATTERN], len);
        let rows_per_call = rows_per_call(len, threads);
        let call_len = rows_per_call * len;
        let mut recomputed = [0; Scheme::ALL.len()];
        let samples = effort.rounds(Scheme::ALL.len(), |index| {
            let seconds = wall_seconds(|| {
                if place == Place::Cached || self.next + call_len > self.x.len() {
                    self.next = 0;
                }
                let rows = self.next..self.next + call_len;
                let (x, out) = (&self.x[rows.clone()], &mut self.out[rows]);
                recomputed[index] += Scheme::ALL[index].run(context, &settings, x, len, out);
                self.next += call_len;
            });
            Ok::<f64, Error>(seconds / rows_per_call as f64)
        });
        black_box(&self.out);
        let samples = samples.unwrap_or_default();
        let of = |scheme: Scheme| Scheme::ALL.iter().zip(&samples).find(|(other, _)| **other == scheme).map(|(_, s)| s);
        let row = |((scheme, seconds), recomputed): ((&Scheme, &Vec<f64>), &usize)| {
            let summary = Summary::of(seconds);
            let bytes = (2 * size_of::<f32>() * len) as f64;
            let mut params = params([
                ("scheme", scheme.name().into()),
                ("len", len.into()),
                ("threads", threads.into()),
                ("place", place.name().into()),
                ("rows_per_call", rows_per_call.into()),
                ("gelements", (len as f64 / summary.median / 1e9).into()),
                ("recomputed_rows", (*recomputed).into()),
            ]);
            if let Some(three_pass) = of(Scheme::ThreePass) {
                params.insert("over_three_pass".into(), ratio(three_pass, seconds).into());
            }
            if let (Scheme::Online, Some(bounded)) = (scheme, of(Scheme::Bounded)) {
                params.insert("time_over_bounded".into(), ratio(seconds, bounded).into());
            }
            Measurement {
                bench: NAME,
                case: format!("{}, {len} {}", group_name(threads, place.name()), scheme.name()),
                params,
                summary: summary.times(1e6),
                unit: "us",
                bytes: Some(bytes),
                // A row in the caches says nothing about memory.
                gbps: (place == Place::Memory).then(|| bytes / summary.median / 1e9),
            }
        };
        Scheme::ALL.iter().zip(&samples).zip(&recomputed).map(row).collect()
    }
}

/// Rows of a call: as many for each thread.
fn rows_per_call(len: usize, threads: usize) -> usize {
    (SCORES_PER_THREAD / len).max(1) * threads
}

fn group_name(threads: usize, place: &str) -> String {
    format!("{threads} thread{} {place}", if threads == 1 { "" } else { "s" })
}

/// Columns of rows of a GPU.
pub fn findings_on_gpu(records: &[Record]) -> Findings {
    Findings { columns: Findings::used(&COLUMNS, records), plots: Vec::new(), notes: Vec::new() }
}

/// What is seen in the rows: speed by length, the crossing of online and three passes, and what running maxima cost.
pub fn findings(records: &[Record]) -> Findings {
    let rows: Vec<&Record> = records.iter().filter(|record| record.bench == NAME).collect();
    let mut groups: Vec<String> = Vec::new();
    for group in rows.iter().map(|row| group_of(row)) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    // A figure of the rows of one scheme and group, by length.
    let points = |group: &str, scheme: Scheme, name: &str| -> Vec<(f64, f64)> {
        let of_both = rows.iter().filter(|row| group_of(row) == group && row.params["scheme"] == scheme.name());
        of_both.filter_map(|row| Some((number(row, "len")?, number(row, name)?))).collect()
    };
    let speeds = groups.iter().map(|group| Plot {
        title: group.clone(),
        x: "length".into(),
        y: "Gelement/s".into(),
        series: Scheme::ALL
            .map(|scheme| Series { name: scheme.name().into(), points: points(group, scheme, "gelements") })
            .into(),
        line: None,
    });
    let by_group = |title: &str, y: &str, (name, line): (&str, &str)| Plot {
        title: title.into(),
        x: "length".into(),
        y: y.into(),
        series: groups
            .iter()
            .map(|group| Series { name: group.clone(), points: points(group, Scheme::Online, name) })
            .collect(),
        line: Some((line.into(), 1.0)),
    };
    let crossing = by_group("Speed of online", "x three-pass", ("over_three_pass", "three-pass"));
    let cost = by_group("Time of online", "x bounded", ("time_over_bounded", "bounded"));
    let notes = groups.iter().flat_map(|group| {
        let crossing = words::crossing(&points(group, Scheme::Online, "over_three_pass"));
        let cost = words::cost(&points(group, Scheme::Online, "time_over_bounded"));
        [format!("{group}: {crossing}"), format!("{group}: {cost}")]
    });
    let notes = notes.collect();
    let plots = [crossing, cost].into_iter().chain(speeds).filter(Plot::has_points).collect();
    Findings { columns: Findings::used(&COLUMNS, records), plots, notes }
}

const COLUMNS: [Column; 4] = [
    Column { title: "GELEMENT/S", cell: |row| number(row, "gelements").map(figure) },
    Column { title: "X THREE-PASS", cell: |row| number(row, "over_three_pass").map(figure) },
    Column {
        title: "OVER BOUNDED",
        cell: |row| number(row, "time_over_bounded").map(|ratio| format!("{:+.0} %", (ratio - 1.0) * 100.0)),
    },
    Column {
        title: "RECOMPUTED",
        cell: |row| number(row, "recomputed_rows").filter(|rows| *rows > 0.0).map(|rows| rows.to_string()),
    },
];

fn number(record: &Record, name: &str) -> Option<f64> {
    record.params.get(name).and_then(Value::as_f64)
}

fn group_of(record: &Record) -> String {
    record.case.split(',').next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_scheme_has_a_row_of_every_length_place_and_number_of_threads() {
        let effort = Effort { samples: 1, time: Duration::ZERO };
        let cases = Cases { lens: vec![128, 40000], threads: vec![1, 2], ring_bytes: 0, effort };
        let rows = measure(Isa::best(), &cases, &mut |_| {}).unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * Scheme::ALL.len());
        assert_eq!(rows[0].case, "1 thread cached, 128 three-pass");
        assert_eq!(rows[rows.len() - 1].case, "2 threads memory, 40000 bounded");
        for row in &rows {
            let gelements = row.params["gelements"].as_f64().unwrap();
            let len = row.params["len"].as_f64().unwrap();
            assert!((gelements * row.summary.median * 1e3 / len - 1.0).abs() < 1e-9, "{row:?}");
            assert_eq!(row.gbps.is_some(), row.params["place"] == "memory", "{row:?}");
            assert_eq!(row.params["recomputed_rows"], 0, "{row:?}");
        }
        assert_eq!(rows[0].params["over_three_pass"], 1.0);
        let with_cost: Vec<&str> = rows
            .iter()
            .filter(|row| row.params.contains_key("time_over_bounded"))
            .map(|row| row.case.as_str())
            .collect();
        assert!(with_cost.len() == 8 && with_cost.iter().all(|case| case.ends_with(" online")), "{with_cost:?}");
    }
}
