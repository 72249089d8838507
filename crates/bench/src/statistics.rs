//! Order statistics of samples, and how long to sample.

use std::time::{Duration, Instant};

/// The `q`-quantile (0 to 1) of `samples`, linear between neighbours; NaN for no samples.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Median of samples and their spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The middle sample.
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
}

impl Summary {
    /// Of at least one sample.
    pub fn of(samples: &[f64]) -> Summary {
        Summary { median: quantile(samples, 0.5), p10: quantile(samples, 0.1), p90: quantile(samples, 0.9) }
    }

    /// With every figure times `factor`.
    pub fn times(self, factor: f64) -> Summary {
        Summary { median: self.median * factor, p10: self.p10 * factor, p90: self.p90 * factor }
    }
}

/// How often a kernel is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// The fewest samples.
    pub samples: usize,
    /// The least time of all samples together.
    pub time: Duration,
}

impl Effort {
    /// Calls of `once` per second, one figure per sample, after one call that is not timed. A sample repeats `once` until
    /// a millisecond has passed, long enough for the clock.
    pub fn rates(self, mut once: impl FnMut()) -> Vec<f64> {
        const LEAST_SAMPLE: Duration = Duration::from_millis(1);
        once();
        let mut rates = Vec::new();
        let begin = Instant::now();
        while rates.len() < self.samples.max(1) || begin.elapsed() < self.time {
            let (start, mut calls) = (Instant::now(), 0);
            let spent = loop {
                once();
                calls += 1;
                let spent = start.elapsed();
                if spent >= LEAST_SAMPLE {
                    break spent;
                }
            };
            rates.push(f64::from(calls) / spent.as_secs_f64());
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&samples, 0.5), 2.5);
        assert_eq!(quantile(&samples, 0.0), 1.0);
        assert_eq!(quantile(&samples, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_summary_scales_with_its_unit() {
        let summary = Summary::of(&[1.0, 2.0, 3.0]).times(10.0);
        assert_eq!((summary.median, summary.p10, summary.p90), (20.0, 12.0, 28.0));
    }

    #[test]
    fn an_effort_gives_at_least_the_samples_that_were_asked_for() {
        let mut calls = 0;
        let rates = Effort { samples: 3, time: Duration::ZERO }.rates(|| calls += 1);
        assert_eq!(rates.len(), 3);
        assert!(calls >= 4, "one call to warm up and at least one a sample: {calls}");
    }
}
