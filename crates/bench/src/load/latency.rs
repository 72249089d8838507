//! Percentiles of latencies, in memory that does not grow with their number.

use hdrhistogram::Histogram;
use serde_json::{Map, Value};
use std::time::Duration;

/// Names and quantiles that are reported.
pub(super) const QUANTILES: [(&str, f64); 7] =
    [("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

/// Nanoseconds that a histogram tells apart, 39 hours; what is longer counts as that, but for the mean and the maximum.
const LONGEST: u64 = 1 << 47;

/// Durations, to a thousandth of each; their mean and their ends are exact.
pub(super) struct Latency {
    /// Nanoseconds.
    histogram: Histogram<u64>,
    sum: f64,
    sum_of_squares: f64,
    least: f64,
    most: f64,
}

impl Latency {
    pub(super) fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and digits that there are");
        Latency { histogram, sum: 0.0, sum_of_squares: 0.0, least: f64::INFINITY, most: 0.0 }
    }

    pub(super) fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanos);
        let ms = latency.as_secs_f64() * 1e3;
        self.sum += ms;
        self.sum_of_squares += ms * ms;
        self.least = self.least.min(ms);
        self.most = self.most.max(ms);
    }

    /// Milliseconds below which the share `q` lies, linear between neighbours; `None` for no latencies.
    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        let last = self.histogram.len().checked_sub(1)?;
        let at = q * last as f64;
        let (low, high) = (self.in_order(at.floor()), self.in_order(at.ceil()));
        Some(low + (high - low) * at.fract())
    }

    /// Milliseconds of the latency at a place in their order, from 0.
    fn in_order(&self, place: f64) -> f64 {
        // The half keeps rounding on the right side of the next whole place.
        let nanos = self.histogram.value_at_quantile((place + 0.5) / self.histogram.len() as f64);
        (self.histogram.median_equivalent(nanos) as f64 / 1e6).clamp(self.least, self.most)
    }

    /// Milliseconds by name; every name is there, also for no latencies.
    pub(super) fn to_json(&self) -> Value {
        let number = self.histogram.len() as f64;
        let some = |ms: f64| (number > 0.0).then_some(rounded(ms));
        let mean = self.sum / number;
        let sd = (self.sum_of_squares / number - mean * mean).max(0.0).sqrt();
        let mut json = Map::new();
        let mut add = |name: &str, ms: Option<f64>| json.insert(name.to_owned(), ms.into());
        add("mean", some(mean));
        add("sd", some(sd));
        add("min", some(self.least));
        for (name, q) in QUANTILES {
            add(name, self.quantile(q).map(rounded));
        }
        add("max", some(self.most));
        Value::Object(json)
    }
}

/// To a microsecond.
fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantile;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn of(ms: &[f64]) -> Latency {
        let mut latency = Latency::new();
        ms.iter().for_each(|ms| latency.record(Duration::from_secs_f64(ms / 1e3)));
        latency
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_samples() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(8);
        for number in [1, 2, 3, 7, 100, 5000] {
            // From microseconds to a minute.
            let samples: Vec<f64> = (0..number).map(|_| (rng.random::<f64>() * 18.0 - 7.0).exp()).collect();
            let latency = of(&samples);
            for q in [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0] {
                let (found, exact) = (latency.quantile(q).unwrap(), quantile(&samples, q));
                assert!((found / exact - 1.0).abs() < 1e-3, "{number} samples, {q}: {found} and not {exact}");
            }
        }
    }

    #[test]
    fn few_latencies_lie_between_neighbours_as_many_do() {
        let json = of(&[4.0, 1.0, 3.0, 2.0]).to_json();
        assert_eq!((&json["mean"], &json["min"], &json["max"]), (&2.5.into(), &1.0.into(), &4.0.into()));
        assert!((json["p50"].as_f64().unwrap() - 2.5).abs() < 2.5e-3, "{json}");
        assert!((json["sd"].as_f64().unwrap() - 1.25_f64.sqrt()).abs() < 1e-3, "{json}");
    }

    #[test]
    fn no_latencies_have_every_name_and_no_figure() {
        let json = Latency::new().to_json();
        assert_eq!(json.as_object().unwrap().len(), QUANTILES.len() + 4);
        assert!(json.as_object().unwrap().values().all(Value::is_null), "{json}");
    }
}
