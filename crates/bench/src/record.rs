//! The row that every benchmark gives, one JSON object each.

use crate::Summary;
use serde::Serialize;
use serde_json::{Map, Value};

/// What a benchmark measured, before the run around it is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Name of the benchmark: `bandwidth`, `gemm`, `attention`.
    pub bench: &'static str,
    /// What was measured, short and unique within the benchmark.
    pub case: String,
    /// What the case was made of: shapes, types, files.
    pub params: Map<String, Value>,
    /// The figure.
    pub summary: Summary,
    /// Its unit.
    pub unit: &'static str,
    /// Memory that one unit of work (a product, a token) reads at least, by count: what the file stores.
    pub bytes: Option<f64>,
    /// `bytes` times units of work per second at the median, in GB/s.
    pub gbps: Option<f64>,
}

/// A [`Measurement`] with the run that it was made in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// What was measured.
    pub case: String,
    /// What the case was made of.
    pub params: Map<String, Value>,
    /// Median of the samples.
    pub median: f64,
    /// Their 10th percentile.
    pub p10: f64,
    /// Their 90th percentile.
    pub p90: f64,
    /// Unit of the three.
    pub unit: &'static str,
    /// Bytes that one unit of work reads at least.
    pub bytes: Option<f64>,
    /// Bandwidth that makes at the median, GB/s.
    pub gbps: Option<f64>,
    /// `gbps` as a share of the read bandwidth measured in the same run.
    pub share: Option<f64>,
    /// Commit of the program.
    pub commit: String,
    /// The processor's model name.
    pub machine: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Threads that compute.
    pub threads: usize,
    /// This row reads faster than memory was measured to be; the run says nothing about shares.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub void: bool,
}

/// Parameters of a case from `(name, value)` pairs.
pub fn params<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

impl Record {
    /// Names of [`Record::cells`].
    pub const COLUMNS: [&str; 8] = ["BENCH", "CASE", "MEDIAN", "P10", "P90", "UNIT", "GB/S", "SHARE"];

    /// The row for a reader.
    pub fn cells(&self) -> [String; 8] {
        let share = self.share.map_or_else(String::new, |share| {
            format!("{:.0} %{}", share * 100.0, if self.void { " void" } else { "" })
        });
        [
            self.bench.to_string(),
            self.case.clone(),
            figure(self.median),
            figure(self.p10),
            figure(self.p90),
            self.unit.to_string(),
            self.gbps.map_or_else(String::new, figure),
            share,
        ]
    }
}

/// Four digits that mean something, without exponents.
pub fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        assert_eq!([figure(12345.6), figure(123.45), figure(1.234)], ["12346", "123.5", "1.23"].map(String::from));
    }
}
