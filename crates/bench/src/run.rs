//! One run: the read bandwidth before the cases, the cases, and the read bandwidth after them. A row's share is of the better
//! of the two, so that it does not flatter: other programs only ever slow a measurement down.

use crate::bandwidth::{self, STREAMS};
use crate::{Effort, Error, Machine, Measurement, Record, gpu};
use std::fmt;
use std::sync::Arc;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cuda::{Device, Driver};

/// How far a row may read faster than memory was measured to be, before the run is void.
const TOLERANCE: f64 = 1.03;
/// How far the bandwidth after the cases may be from that before, before shares are rough.
const STEADY: f64 = 1.1;

/// What computes in a run, and whose memory is read.
#[derive(Clone)]
pub enum Computes {
    /// The processor.
    Cpu {
        /// Instruction set of the kernels.
        isa: Isa,
        /// Threads that compute.
        threads: usize,
    },
    /// A GPU.
    Gpu(Arc<Driver>),
}

impl fmt::Debug for Computes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.machine(), self.isa())
    }
}

impl Computes {
    /// The model name of the processor or the GPU.
    fn machine(&self) -> String {
        match self {
            Computes::Cpu { .. } => Machine::read().cpu,
            Computes::Gpu(device) => device.properties().name.clone(),
        }
    }

    /// Instruction set of the kernels, or `cuda`.
    fn isa(&self) -> &'static str {
        match self {
            Computes::Cpu { isa, .. } => isa.name(),
            Computes::Gpu(_) => "cuda",
        }
    }

    /// Threads that compute; of a GPU the one that launches.
    fn threads(&self) -> usize {
        match self {
            Computes::Cpu { threads, .. } => *threads,
            Computes::Gpu(_) => 1,
        }
    }
}

/// What all rows of a run have in common.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Commit of the program.
    pub commit: &'static str,
    /// What computes.
    pub computes: Computes,
    /// Memory that one measurement of the bandwidth reads, bytes; 0 leaves it out, and rows have no share.
    pub bandwidth_bytes: usize,
}

/// A run in progress.
#[derive(Debug)]
pub struct Run {
    setup: Setup,
    before: Option<Measurement>,
    measured: Vec<Measurement>,
}

/// A run that is over.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The rows, the read bandwidth before and after among them.
    pub records: Vec<Record>,
    /// The read bandwidth of the run, GB/s.
    pub ceiling: Option<f64>,
    /// The read bandwidth before and after, GB/s.
    pub before_and_after: Option<(f64, f64)>,
    /// Cases that read faster than that, beyond what is noise.
    pub void: Vec<String>,
}

impl Finished {
    /// What a reader must know before believing a share.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.void.is_empty() {
            warnings.push(format!(
                "VOID: {} read more than 3 % faster than memory was measured to be. Their data came from a cache, or other \
                 programs disturbed the measurement of the bandwidth; shares of this run mean nothing.",
                self.void.join(", ")
            ));
        }
        if let Some((before, after)) = self.before_and_after
            && before.max(after) > STEADY * before.min(after)
        {
            warnings.push(format!(
                "The read bandwidth was {before:.1} GB/s before and {after:.1} GB/s after the cases: the machine did not \
                 hold still, and shares of this run are rough."
            ));
        }
        warnings
    }
}

impl Run {
    /// Measures the read bandwidth.
    ///
    /// # Errors
    /// When there is not enough memory for it.
    pub fn start(setup: Setup) -> Result<Run, Error> {
        let before = ceiling(&setup, "before")?;
        Ok(Run { setup, before, measured: Vec::new() })
    }

    /// The read bandwidth before the cases, GB/s.
    pub fn ceiling_before(&self) -> Option<f64> {
        self.before.as_ref().and_then(|measurement| measurement.gbps)
    }

    /// What the rows have in common.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Adds rows.
    pub fn add(&mut self, measured: impl IntoIterator<Item = Measurement>) {
        self.measured.extend(measured);
    }

    /// Measures the read bandwidth again and makes the rows. Where there is no longer enough memory for it, rows are held
    /// against the bandwidth before them.
    pub fn finish(self) -> Finished {
        let after = ceiling(&self.setup, "after").unwrap_or(None);
        self.finish_with(after)
    }

    fn finish_with(self, after: Option<Measurement>) -> Finished {
        let Run { setup, before, measured } = self;
        let (machine, isa, threads) = (setup.computes.machine(), setup.computes.isa(), setup.computes.threads());
        // What `taper bench bandwidth` itself found with this number of threads counts as well.
        let of_run = |row: &&Measurement| row.bench == bandwidth::NAME && row.params["threads"] == threads;
        let ceilings = before.iter().chain(&after).chain(measured.iter().filter(of_run));
        let ceiling = ceilings.filter_map(|row| row.gbps).reduce(f64::max);
        let gbps = |row: &Option<Measurement>| row.as_ref().and_then(|row| row.gbps);
        let before_and_after = gbps(&before).zip(gbps(&after));
        let record = |row: Measurement| {
            let share = row.gbps.zip(ceiling).map(|(gbps, ceiling)| gbps / ceiling);
            Record {
                void: row.bench != bandwidth::NAME && share.is_some_and(|share| share > TOLERANCE),
                bench: row.bench,
                case: row.case,
                median: row.summary.median,
                p10: row.summary.p10,
                p90: row.summary.p90,
                unit: row.unit,
                bytes: row.bytes,
                gbps: row.gbps,
                share,
                commit: setup.commit.to_string(),
                machine: machine.clone(),
                isa: isa.to_string(),
                threads: row.params.get("threads").and_then(serde_json::Value::as_u64).map_or(threads, |n| n as usize),
                params: row.params,
            }
        };
        let records: Vec<Record> = before.into_iter().chain(measured).chain(after).map(record).collect();
        let void = records.iter().filter(|row| row.void).map(|row| row.case.clone()).collect();
        Finished { records, ceiling, before_and_after, void }
    }
}

/// The best of all numbers of streams with all threads; of a GPU there is one.
fn ceiling(setup: &Setup, when: &str) -> Result<Option<Measurement>, Error> {
    let bytes = setup.bandwidth_bytes;
    if bytes == 0 {
        return Ok(None);
    }
    let rows = match &setup.computes {
        Computes::Cpu { isa, threads } => {
            let rows = bandwidth::measure(*isa, bytes, &[*threads], Effort::SHORT, &mut |_| {})?;
            debug_assert_eq!(rows.len(), STREAMS.len());
            rows
        }
        Computes::Gpu(device) => vec![gpu::bandwidth(device, bytes, Effort::SHORT)?],
    };
    let best = rows.into_iter().max_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
    Ok(best.map(|row| Measurement { case: format!("{when}: best, {}", row.case), ..row }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Summary, params};

    fn row(bench: &'static str, case: &str, gbps: f64) -> Measurement {
        let summary = Summary { median: gbps, p10: gbps, p90: gbps };
        let params = params([("threads", 2.into())]);
        Measurement { bench, case: case.into(), params, summary, unit: "GB/s", bytes: Some(1.0), gbps: Some(gbps) }
    }

    fn run(before: Option<f64>, rows: Vec<Measurement>, after: Option<f64>) -> Finished {
        let computes = Computes::Cpu { isa: Isa::Portable, threads: 2 };
        let setup = Setup { commit: "abc", computes, bandwidth_bytes: 0 };
        let ceiling = |when, gbps: Option<f64>| gbps.map(|gbps| row(bandwidth::NAME, when, gbps));
        Run { setup, before: ceiling("before", before), measured: rows }.finish_with(ceiling("after", after))
    }

    #[test]
    fn a_share_is_of_the_better_of_the_two_ceilings() {
        let finished = run(Some(20.0), vec![row("gemm", "a", 10.0)], Some(25.0));
        assert_eq!(finished.ceiling, Some(25.0));
        let shares: Vec<Option<f64>> = finished.records.iter().map(|record| record.share).collect();
        assert_eq!(shares, [Some(0.8), Some(0.4), Some(1.0)]);
        assert!(finished.void.is_empty());
        assert_eq!(finished.before_and_after, Some((20.0, 25.0)));
        assert!(finished.warnings()[0].contains("20.0 GB/s before and 25.0 GB/s after"), "a quarter is not steady");
        assert!(run(Some(24.0), Vec::new(), Some(25.0)).warnings().is_empty());
    }

    #[test]
    fn a_row_faster_than_memory_voids_the_run() {
        let finished = run(Some(20.0), vec![row("gemm", "a", 20.5), row("gemm", "b", 20.7)], None);
        assert_eq!(finished.void, ["b"]);
        assert!(finished.warnings()[0].starts_with("VOID: b read"), "{:?}", finished.warnings());
        let voids: Vec<bool> = finished.records.iter().map(|record| record.void).collect();
        assert_eq!(voids, [false, false, true]);
    }

    #[test]
    fn without_a_ceiling_there_is_no_share_and_nothing_is_void() {
        let finished = run(None, vec![row("gemm", "a", 1e9)], None);
        assert_eq!((finished.ceiling, finished.records[0].share), (None, None));
        assert!(finished.void.is_empty());
    }

    #[test]
    fn a_row_is_one_object_with_the_agreed_names() {
        let finished = run(Some(20.0), vec![row("gemm", "a", 10.0)], None);
        let json = serde_json::to_value(&finished.records[1]).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "bench case params median p10 p90 unit bytes gbps share commit machine isa threads";
        assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
        assert_eq!((&json["share"], &json["commit"], &json["isa"]), (&0.5.into(), &"abc".into(), &"portable".into()));
    }
}
