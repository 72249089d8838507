//! When requests are sent.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::fmt;
use std::time::Duration;

/// How the requests of an open loop follow each other, at the same mean rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Users who know nothing of each other: exponential gaps.
    Poisson,
    /// Equal gaps.
    Uniform,
    /// As many at once as a second has, once in a second; below one in a second the same as [`Arrivals::Uniform`].
    Burst,
}

/// What decides when the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// So many users, of whom each asks again when it has its answer.
    Closed {
        /// Requests under way at any time.
        concurrency: usize,
    },
    /// Users who ask when it is their time, whatever the server does.
    Open {
        /// Requests per second; infinite: all at once.
        rate: f64,
        /// How they follow each other.
        arrivals: Arrivals,
        /// Requests under way at most: others wait here, and their time runs.
        max_concurrency: Option<usize>,
    },
}

impl Load {
    /// What x is in plots over loads.
    pub fn axis(self) -> &'static str {
        match self {
            Load::Closed { .. } => "concurrency",
            Load::Open { .. } => "requests/s asked for",
        }
    }

    /// Its place on that axis.
    pub fn amount(self) -> f64 {
        match self {
            Load::Closed { concurrency } => concurrency as f64,
            Load::Open { rate, .. } => rate,
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Closed { concurrency } => write!(f, "concurrency {concurrency}"),
            Load::Open { rate, .. } => write!(f, "{rate} requests/s"),
        }
    }
}

impl Arrivals {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Poisson => "poisson",
            Arrivals::Uniform => "uniform",
            Arrivals::Burst => "burst",
        }
    }
}

/// When the requests of an open loop are due, from its beginning; endless, and never back in time.
pub(super) struct Due {
    arrivals: Arrivals,
    rate: f64,
    rng: Xoshiro256PlusPlus,
    index: u64,
    /// Seconds at which the last one was due.
    at: f64,
}

impl Due {
    pub(super) fn new(arrivals: Arrivals, rate: f64, rng: Xoshiro256PlusPlus) -> Due {
        Due { arrivals, rate, rng, index: 0, at: 0.0 }
    }

    pub(super) fn next(&mut self) -> Duration {
        if self.rate.is_finite() {
            let index = self.index as f64;
            self.at = match self.arrivals {
                // The inverse of an exponential's distribution; 1 - u is never 0.
                Arrivals::Poisson => self.at - (1.0 - self.rng.random::<f64>()).ln() / self.rate,
                Arrivals::Uniform => index / self.rate,
                Arrivals::Burst => {
                    let size = self.rate.round().max(1.0);
                    (index / size).floor() * size / self.rate
                }
            };
        }
        self.index += 1;
        Duration::try_from_secs_f64(self.at).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn due(arrivals: Arrivals, rate: f64, number: usize) -> Vec<f64> {
        let mut due = Due::new(arrivals, rate, Xoshiro256PlusPlus::seed_from_u64(3));
        (0..number).map(|_| due.next().as_secs_f64()).collect()
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        const NUMBER: usize = 200_000;
        let times = due(Arrivals::Poisson, 4.0, NUMBER);
        let gaps: Vec<f64> = std::iter::once(times[0]).chain(times.windows(2).map(|pair| pair[1] - pair[0])).collect();
        let mean = gaps.iter().sum::<f64>() / NUMBER as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / NUMBER as f64;
        // Five standard errors: of the mean 1/(4 sqrt n), of the variance sqrt(8)/(16 sqrt n).
        assert!((mean - 0.25).abs() < 5.0 * 0.25 / (NUMBER as f64).sqrt(), "{mean}");
        assert!((variance - 0.0625).abs() < 5.0 * 8.0_f64.sqrt() / 16.0 / (NUMBER as f64).sqrt(), "{variance}");
        let longer = gaps.iter().filter(|gap| **gap > 0.25).count() as f64 / NUMBER as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.006, "a share of 1/e is longer than the mean: {longer}");
    }

    #[test]
    fn a_seed_gives_the_same_times_again() {
        assert_eq!(due(Arrivals::Poisson, 4.0, 50), due(Arrivals::Poisson, 4.0, 50));
    }

    #[test]
    fn uniform_and_burst_keep_the_rate() {
        assert_eq!(due(Arrivals::Uniform, 4.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(due(Arrivals::Burst, 3.0, 7), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
        assert_eq!(due(Arrivals::Burst, 0.5, 3), [0.0, 2.0, 4.0]);
        let two_and_a_half = due(Arrivals::Burst, 2.5, 7);
        assert!((two_and_a_half[6] - 6.0 / 2.5).abs() < 1e-9, "threes at longer gaps: {two_and_a_half:?}");
    }

    #[test]
    fn an_infinite_rate_is_all_at_once() {
        for arrivals in [Arrivals::Poisson, Arrivals::Uniform, Arrivals::Burst] {
            assert_eq!(due(arrivals, f64::INFINITY, 3), [0.0; 3]);
        }
    }
}
