//! Order statistics of samples, and how long to sample.

use crate::Error;
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
    /// Calls of `once` per second, one figure per sample of a millisecond, after one call that is not timed.
    pub fn rates(self, mut once: impl FnMut()) -> Vec<f64> {
        once();
        let mut rates = Vec::new();
        let begin = Instant::now();
        while self.wants(rates.len(), begin) {
            rates.push(1.0 / wall_seconds(&mut once));
        }
        rates
    }

    /// Calls per second by a clock that gives the mean seconds of a call, after a sample that is not kept.
    ///
    /// # Errors
    /// The clock's.
    pub fn rates_by(self, mut seconds: impl FnMut() -> Result<f64, Error>) -> Result<Vec<f64>, Error> {
        seconds()?;
        let mut rates = Vec::new();
        let begin = Instant::now();
        while self.wants(rates.len(), begin) {
            rates.push(1.0 / seconds()?);
        }
        Ok(rates)
    }

    /// Rounds in which each of `num_arms` gives one sample, so that a busy moment of the machine meets all of them; who begins
    /// changes from round to round. The samples of each arm, round by round, after a round that is not kept.
    ///
    /// # Errors
    /// The first that an arm gives.
    pub fn rounds<E>(self, num_arms: usize, mut arm: impl FnMut(usize) -> Result<f64, E>) -> Result<Vec<Vec<f64>>, E> {
        for index in 0..num_arms {
            arm(index)?;
        }
        let mut samples = vec![Vec::new(); num_arms];
        let (begin, mut round) = (Instant::now(), 0);
        while self.wants(round, begin) {
            for turn in 0..num_arms {
                let index = (turn + round) % num_arms;
                samples[index].push(arm(index)?);
            }
            round += 1;
        }
        Ok(samples)
    }

    fn wants(self, samples: usize, begin: Instant) -> bool {
        samples < self.samples.max(1) || begin.elapsed() < self.time
    }
}

/// Mean seconds of a call of `once`, over the calls that fill a millisecond: long enough for the clock.
pub fn wall_seconds(mut once: impl FnMut()) -> f64 {
    const LEAST: Duration = Duration::from_millis(1);
    let (start, mut calls) = (Instant::now(), 0);
    loop {
        once();
        calls += 1;
        let spent = start.elapsed();
        if spent >= LEAST {
            return spent.as_secs_f64() / f64::from(calls);
        }
    }
}

/// Median of `above / below`, round by round.
pub(crate) fn ratio(above: &[f64], below: &[f64]) -> f64 {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    quantile(&ratios, 0.5)
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

    #[test]
    fn in_rounds_every_arm_gives_one_sample_and_another_begins() {
        let mut order = Vec::new();
        let samples = Effort { samples: 2, time: Duration::ZERO }.rounds(3, |arm| {
            order.push(arm);
            Ok::<f64, ()>((10 * order.len() + arm) as f64)
        });
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 1, 2, 0]);
        assert_eq!(samples.unwrap(), [[40.0, 90.0], [51.0, 71.0], [62.0, 82.0]]);
        assert_eq!(Effort { samples: 1, time: Duration::ZERO }.rounds(2, Err::<f64, usize>), Err(0));
    }

    #[test]
    fn a_ratio_is_of_samples_of_the_same_round() {
        assert_eq!(ratio(&[2.0, 30.0, 8.0], &[1.0, 10.0, 2.0]), 3.0);
    }
}
