//! Attention of generated tokens, by keys, batch and heads: our ways to compute it and candle's tensors, in turns.
//!
//! Calls walk a ring of layers, larger together than any cache, so keys and values come from memory as they do in a model.
//! A row gives microseconds per call of one layer, and beside them the bandwidth at which keys and values were read once. As
//! many bytes are read by plain loads in the same rounds, because memory's speed may change between one second and the next.

mod arm;
mod heads;
mod kv_ring;
mod meter;
mod plain_reads;

pub use arm::Arm;
pub use heads::{Heads, Shape};
pub use meter::{CpuMeter, GpuMeter, Meter};

use crate::candle::Candle;
use crate::plot::{Plot, Series};
use crate::statistics::ratio;
use crate::{Column, Effort, Error, Findings, Measurement, Record, Summary, figure, params};
use kv_ring::KvRing;
use serde_json::Value;
use taper_kernels::{Backend, KvDtype};

/// Name of the benchmark.
pub const NAME: &str = "attention";
/// Bytes of keys and values that calls walk through, unless told otherwise.
pub const DEFAULT_RING_BYTES: usize = 288 << 20;
/// Keys, unless told otherwise.
pub const DEFAULT_LENS: [usize; 6] = [512, 2048, 4096, 8192, 32768, 65536];
/// Heads, unless told otherwise: those of a Llama of 1B, of one of 8B and of SmolLM2-135M.
pub const DEFAULT_HEADS: [Heads; 3] = [Heads::new(32, 8, 64), Heads::new(32, 8, 128), Heads::new(9, 3, 64)];
/// Most keys that candle is asked for, unless told otherwise: beyond, it takes tens of milliseconds a call and gigabytes.
pub const DEFAULT_CANDLE_KEYS: usize = 32768;

/// What is measured: all heads with all batches and all lengths.
#[derive(Debug, Clone)]
pub struct Cases {
    /// Heads.
    pub heads: Vec<Heads>,
    /// Sequences.
    pub batches: Vec<usize>,
    /// Keys of each sequence.
    pub lens: Vec<usize>,
    /// Last rows of each sequence that are computed: 1 for a generated token, more for a piece of a prompt.
    pub rows: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Bytes of keys and values to walk through.
    pub ring_bytes: usize,
    /// Most keys that candle is asked for.
    pub candle_keys: usize,
    /// How long the arms of a case are timed together.
    pub effort: Effort,
}

/// Measures all cases; `progress` is told of each in words.
///
/// # Errors
/// When there is not enough memory, or candle's program fails, and the device's.
pub fn measure<B: Backend, M: Meter>(
    (backend, meter): (&B, &mut M),
    cases: &Cases,
    mut candle: Option<Candle>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>, Error> {
    let mut measured = Vec::new();
    for &heads in &cases.heads {
        for &batch in &cases.batches {
            for &len in &cases.lens {
                let shape = Shape { heads, batch, len };
                // Candle's tensors know no causal mask here, and a generated token needs none.
                let candle = candle.as_mut().filter(|_| len <= cases.candle_keys && cases.rows == 1);
                let rows = one_shape((backend, &mut *meter), cases, shape, candle)?;
                let of_row = |row: &Measurement| format!("{} {:.0}", row.case, row.summary.median);
                progress(&format!("us per call: {}", rows.iter().map(of_row).collect::<Vec<_>>().join(", ")));
                measured.extend(rows);
            }
        }
    }
    Ok(measured)
}

fn one_shape<B: Backend, M: Meter>(
    (backend, meter): (&B, &mut M),
    cases: &Cases,
    shape: Shape,
    mut candle: Option<&mut Candle>,
) -> Result<Vec<Measurement>, Error> {
    let mut ring = KvRing::new(backend, shape, cases, (meter.ring_bytes(cases.ring_bytes), M::CALLS))?;
    let is_here = |arm: &Arm| match arm {
        Arm::Candle => candle.is_some(),
        Arm::OnlineThreshold => M::HAS_THRESHOLD,
        _ => true,
    };
    let arms: Vec<Arm> = Arm::ALL.into_iter().filter(is_here).collect();
    let mut recomputed = vec![0; arms.len()];
    let mut theirs = None;
    if M::CALLS > 1 {
        // A lap runs as it comes, is recorded, and is replayed from then on: only that is what is timed.
        for (index, way) in arms.iter().enumerate().filter_map(|(index, arm)| Some((index, arm.ours()?))) {
            (0..2 * ring.laps()).for_each(|_| ring.attend(index, way));
        }
    }
    let seconds = cases.effort.rounds(arms.len(), |index| match (&mut candle, arms[index].ours()) {
        (_, Some(way)) => {
            let before = ring.recomputed();
            let seconds = meter.seconds(&mut || ring.attend(index, way))?;
            recomputed[index] += ring.recomputed() - before;
            Ok::<f64, Error>(seconds / ring.calls() as f64)
        }
        (_, None) if arms[index] == Arm::Reads => meter.read_seconds(ring.bytes_per_call()),
        (Some(candle), None) => {
            let answer = candle.attention(shape)?;
            let seconds = answer.median;
            theirs = Some(answer);
            Ok(seconds)
        }
        (None, None) => Ok(f64::NAN),
    })?;
    let of = |arm: Arm| arms.iter().position(|other| *other == arm).map(|index| &seconds[index]);
    let row = |(index, &arm): (usize, &Arm)| {
        let mut params = params([
            ("arm", arm.name().into()),
            ("heads", shape.heads.to_string().into()),
            ("batch", shape.batch.into()),
            ("keys", shape.len.into()),
            ("rows", cases.rows.into()),
            ("kv", format!("{:?}", cases.dtype).into()),
            ("ring_bytes", ring.bytes().into()),
        ]);
        let mut bytes = ring.bytes_per_call();
        match (arm.ours(), &theirs) {
            (Some(way), _) => {
                if let Some(bytes) = ring.working_bytes(way) {
                    params.insert("working_bytes".into(), bytes.into());
                }
                params.insert(
                    "gflops".into(),
                    (ring.flops_per_call() / Summary::of(&seconds[index]).median / 1e9).into(),
                );
            }
            (None, Some(answer)) if arm == Arm::Candle => {
                params.insert("kv".into(), answer.kv.clone().into());
                params.insert("working_bytes".into(), answer.working_bytes.into());
                bytes *= if answer.kv == "F32" { 2.0 } else { 1.0 };
            }
            (None, _) => {}
        }
        if let Some(reads) = of(Arm::Reads) {
            params.insert("of_reads".into(), ratio(reads, &seconds[index]).into());
        }
        if arm.is_unified() {
            params.insert("recomputed_rows".into(), recomputed[index].into());
        }
        if let Some(candle) = of(Arm::Candle) {
            params.insert("over_candle".into(), ratio(candle, &seconds[index]).into());
        }
        if let (Arm::Online, Some(bounded)) = (arm, of(Arm::Bounded)) {
            params.insert("time_over_bounded".into(), ratio(&seconds[index], bounded).into());
        }
        let summary = Summary::of(&seconds[index]);
        Measurement {
            bench: NAME,
            case: format!("{shape} {}", arm.name()),
            params,
            summary: summary.times(1e6),
            unit: "us",
            bytes: Some(bytes),
            gbps: Some(bytes / summary.median / 1e9),
        }
    };
    Ok(arms.iter().enumerate().map(row).collect())
}

/// What is seen in the rows: columns of their own, per heads and batch the bandwidth and the speed over candle against keys,
/// and what running maxima cost, in words.
pub fn findings(records: &[Record], ceiling: Option<f64>) -> Findings {
    let rows: Vec<&Record> = records.iter().filter(|record| record.bench == NAME).collect();
    let mut groups: Vec<String> = Vec::new();
    for group in rows.iter().map(|row| group_of(row)) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let plots = groups.iter().flat_map(|group| {
        let of_group: Vec<&Record> = rows.iter().copied().filter(|row| group_of(row) == *group).collect();
        let plot = |title: &str, y: &str, line, value: &dyn Fn(&Record) -> Option<f64>| {
            let series = Arm::ALL.map(|arm| {
                let of_arm = of_group.iter().filter(|row| row.params["arm"] == arm.name());
                let points = of_arm.filter_map(|row| Some((number(row, "keys")?, value(row)?))).collect();
                Series { name: arm.name().into(), points }
            });
            Plot { title: format!("{group}{title}"), x: "keys".into(), y: y.into(), series: series.into(), line }
        };
        let line = ceiling.map(|ceiling| ("read bandwidth".to_string(), ceiling));
        [
            plot(", keys and values read", "GB/s", line, &|row| row.gbps),
            plot(", speed", "x candle", None, &|row| number(row, "over_candle")),
        ]
    });
    let notes = groups.iter().filter_map(|group| {
        let of_group = rows.iter().filter(|row| group_of(row) == *group);
        let cost = |row: &&Record| Some((number(row, "keys")?, number(row, "time_over_bounded")?));
        let costs: Vec<String> = of_group
            .filter_map(cost)
            .map(|(keys, ratio)| format!("{:+.1} % at {keys}", (ratio - 1.0) * 100.0))
            .collect();
        let costs = (!costs.is_empty()).then(|| costs.join(", "))?;
        Some(format!("{group}: running maxima cost, time of online over bounded, by keys: {costs}"))
    });
    Findings {
        columns: Findings::used(&COLUMNS, records),
        plots: plots.filter(Plot::has_points).collect(),
        notes: notes.collect(),
    }
}

const COLUMNS: [Column; 4] = [
    Column { title: "OF READS", cell: |row| number(row, "of_reads").map(|share| format!("{:.0} %", share * 100.0)) },
    Column { title: "X CANDLE", cell: |row| number(row, "over_candle").map(figure) },
    Column { title: "RECOMPUTED", cell: |row| number(row, "recomputed_rows").map(|rows| rows.to_string()) },
    Column {
        title: "WORKS IN",
        cell: |row| number(row, "working_bytes").map(|bytes| format!("{:.0} KiB", bytes / 1024.0)),
    },
];

fn number(record: &Record, name: &str) -> Option<f64> {
    record.params.get(name).and_then(Value::as_f64)
}

fn group_of(record: &Record) -> String {
    record.case.split('@').next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::recorder;
    use std::sync::Arc;
    use std::time::Duration;
    use taper_kernels::cuda::{Cuda, Kernel};
    use taper_kernels::{Cpu, CpuConfig};

    fn cases(lens: &[usize], rows: usize) -> Cases {
        Cases {
            heads: vec![Heads::new(4, 2, 16)],
            batches: vec![1, 3],
            lens: lens.into(),
            rows,
            dtype: KvDtype::F16,
            ring_bytes: 1 << 16,
            candle_keys: 0,
            effort: Effort { samples: 2, time: Duration::ZERO },
        }
    }

    fn measured(cases: &Cases) -> Vec<Measurement> {
        let cpu = Cpu::new(CpuConfig { threads: Some(2), isa: None }).unwrap();
        let mut meter = CpuMeter::new(&cpu, cases.ring_bytes).unwrap();
        measure((&cpu, &mut meter), cases, None, &mut |_| {}).unwrap()
    }

    #[test]
    fn every_arm_of_every_shape_has_a_row() {
        let rows = measured(&cases(&[7, 300], 1));
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(names.len(), 2 * 2 * 5);
        assert_eq!(names[0], "4/2x16 b1@7 online");
        assert_eq!(names[18], "4/2x16 b3@300 naive");
        // Two bytes of keys and of values for 300 x 2 x 16 elements of each of three sequences.
        assert_eq!(rows[18].bytes, Some(2.0 * 2.0 * 300.0 * 32.0 * 3.0));
        assert!(rows.iter().all(|row| row.params["ring_bytes"].as_u64() >= Some(1 << 16)));
        let unified: Vec<bool> = rows[..5].iter().map(|row| row.params.contains_key("recomputed_rows")).collect();
        assert_eq!(unified, [false, true, true, false, false]);
        assert!(rows[1].params["recomputed_rows"] == 0 && rows[2].params["recomputed_rows"] == 0);
    }

    #[test]
    fn a_piece_of_a_prompt_sees_fewer_keys_than_its_length_times_its_rows() {
        let rows = measured(&cases(&[100], 8));
        let seconds = rows[0].summary.median / 1e6;
        let flops = rows[0].params["gflops"].as_f64().unwrap() * 1e9 * seconds;
        let pairs: usize = (93..=100).sum();
        assert!((flops / (4 * pairs * 64) as f64 - 1.0).abs() < 1e-9, "two products of two operations: {flops}");
    }

    #[test]
    fn scores_of_the_naive_arm_grow_with_the_keys() {
        let rows = measured(&cases(&[64, 6400], 1));
        let bytes = |case: &str| {
            rows.iter().find(|row| row.case == case).map(|row| row.params["working_bytes"].as_u64().unwrap()).unwrap()
        };
        let grown = bytes("4/2x16 b1@6400 naive") - bytes("4/2x16 b1@64 naive");
        assert_eq!(grown, 2 * 4 * (6400 - 64), "a score of four bytes per key for each of two threads");
    }

    #[test]
    fn a_gpu_has_the_rows_of_the_processor_and_attends_to_each_layer_of_its_ring() {
        let cuda = Cuda::new(Arc::new(recorder())).unwrap();
        let cases = Cases { batches: vec![2], dtype: KvDtype::BF16, ..cases(&[100], 1) };
        let mut meter = GpuMeter::new(&cuda, cases.ring_bytes).unwrap();
        cuda.device().take();
        let rows = measure((&cuda, &mut meter), &cases, None, &mut |_| {}).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.params["arm"].as_str().unwrap()).collect();
        assert_eq!(names, ["online", "calibrated", "bounded", "online-threshold", "naive", "reads"]);
        assert_eq!(rows[0].bytes, Some(2.0 * 2.0 * 100.0 * 32.0 * 2.0));
        assert!(rows[4].params["working_bytes"].as_u64() == Some(2 * 4 * 100 * 4), "a score per row, head and key");
        let launches = cuda.device().take();
        let of = |kernel| launches.iter().filter(|launch| launch.kernel == kernel).count();
        // Four blocks of two heads with keys and values of 64 positions, 2 bytes an element, and a bound per head and position.
        let layer_bytes = 4 * 2 * (2 * 64 * 16 * 2 + 64 * 4);
        let layers = cases.ring_bytes.div_ceil(layer_bytes);
        assert!(rows[0].params["ring_bytes"] == layers * layer_bytes, "{rows:?}");
        let naive = of(Kernel::AttentionNaiveBf16);
        assert!(naive > 0 && naive.is_multiple_of(layers), "{naive}: whole laps");
        assert!(of(Kernel::ReadStream) > 0 && of(Kernel::AttentionPlainBf16) >= 4 * 2 * layers);
    }
}
