//! When requests are sent.

use super::lengths::standard_normal;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::fmt;
use std::time::Duration;

/// How the requests of an open loop follow each other, at the same mean rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Users who know nothing of each other: exponential gaps.
    Poisson,
    /// Gaps of a gamma distribution of this shape, vLLM's burstiness: 1 is [`Arrivals::Poisson`], below it requests come in bunches,
    /// above it at gaps that differ less.
    Gamma(f64),
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
        /// Requests per second at the beginning, where the rate grows to the other by its end.
        from: Option<f64>,
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
            Load::Open { rate, from: Some(from), .. } => write!(f, "{from} to {rate} requests/s"),
            Load::Open { rate, .. } => write!(f, "{rate} requests/s"),
        }
    }
}

impl Arrivals {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Poisson => "poisson",
            Arrivals::Gamma(_) => "gamma",
            Arrivals::Uniform => "uniform",
            Arrivals::Burst => "burst",
        }
    }
}

/// How far a rate that grows has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Growth {
    /// By requests: with the last of so many it is there.
    Requests(u64),
    /// By seconds.
    Seconds(f64),
}

/// A rate that grows evenly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ramp {
    pub(super) from: f64,
    pub(super) growth: Growth,
}

/// When the requests of an open loop are due, from its beginning; endless, and never back in time.
pub(super) struct Due {
    arrivals: Arrivals,
    rate: f64,
    ramp: Option<Ramp>,
    rng: Xoshiro256PlusPlus,
    index: u64,
    /// Seconds at which the last one was due.
    at: f64,
}

impl Due {
    pub(super) fn new(arrivals: Arrivals, rate: f64, ramp: Option<Ramp>, rng: Xoshiro256PlusPlus) -> Due {
        Due { arrivals, rate, ramp, rng, index: 0, at: 0.0 }
    }

    /// The rate at the next request, or, of one that grows by seconds, at the last one.
    fn rate(&self) -> f64 {
        let Some(Ramp { from, growth }) = self.ramp else { return self.rate };
        let share = match growth {
            Growth::Requests(number) => self.index as f64 / number.saturating_sub(1).max(1) as f64,
            Growth::Seconds(seconds) => self.at / seconds,
        };
        from + (self.rate - from) * share.min(1.0)
    }

    /// When the next request is due whose gap at one request per second is `gap`.
    fn after(&self, gap: f64) -> f64 {
        let rate = self.rate();
        let Some(Ramp { from, growth: Growth::Seconds(seconds) }) = self.ramp else { return self.at + gap / rate };
        // Until the integral of the rate has grown by the gap: at the rate of the last request, the first gap of a ramp that begins
        // near nothing is longer than all of it.
        let left = (seconds - self.at).max(0.0);
        let until_end = (rate + self.rate) / 2.0 * left;
        if gap > until_end {
            return self.at + left + (gap - until_end) / self.rate;
        }
        let slope = (self.rate - from) / seconds;
        // (sqrt(rate^2 + 2 slope gap) - rate) / slope, in a form that a slope of nothing leaves whole. Rounding alone is below 0.
        let then = (rate * rate + 2.0 * slope * gap).max(0.0).sqrt();
        self.at + 2.0 * gap / (then + rate)
    }

    pub(super) fn next(&mut self) -> Duration {
        if self.rate.is_finite() {
            let index = self.index as f64;
            self.at = match self.arrivals {
                // The inverse of an exponential's distribution; 1 - u is never 0.
                Arrivals::Poisson => {
                    let gap = -(1.0 - self.rng.random::<f64>()).ln();
                    self.after(gap)
                }
                Arrivals::Gamma(shape) => {
                    let gap = standard_gamma(shape, &mut self.rng) / shape;
                    self.after(gap)
                }
                Arrivals::Uniform if self.ramp.is_none() => index / self.rate,
                Arrivals::Uniform if self.index == 0 => 0.0,
                Arrivals::Uniform => self.after(1.0),
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

/// A number of the gamma distribution of this shape, whose mean is the shape: Marsaglia and Tsang's method, which takes shapes from 1
/// on. A smaller one is made of one more by a power of a uniform number.
fn standard_gamma(shape: f64, rng: &mut Xoshiro256PlusPlus) -> f64 {
    if shape < 1.0 {
        return standard_gamma(shape + 1.0, rng) * (1.0 - rng.random::<f64>()).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = standard_normal(rng);
        let v = (1.0 + c * x).powi(3);
        // 1 - u is never 0.
        if v > 0.0 && (1.0 - rng.random::<f64>()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn due(arrivals: Arrivals, rate: f64, number: usize) -> Vec<f64> {
        due_with(arrivals, rate, None, number)
    }

    fn due_with(arrivals: Arrivals, rate: f64, ramp: Option<Ramp>, number: usize) -> Vec<f64> {
        let mut due = Due::new(arrivals, rate, ramp, Xoshiro256PlusPlus::seed_from_u64(3));
        (0..number).map(|_| due.next().as_secs_f64()).collect()
    }

    #[test]
    fn gaps_of_a_gamma_distribution_have_its_mean_and_variance() {
        const NUMBER: usize = 200_000;
        for shape in [0.25, 0.5, 1.0, 4.0] {
            let times = due(Arrivals::Gamma(shape), 4.0, NUMBER);
            let gaps: Vec<f64> =
                std::iter::once(times[0]).chain(times.windows(2).map(|pair| pair[1] - pair[0])).collect();
            let mean = gaps.iter().sum::<f64>() / NUMBER as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / NUMBER as f64;
            // Five standard errors: of the mean sd / sqrt n, of the variance sd^2 sqrt((2 + 6 / shape) / n).
            let sd = 0.25 / shape.sqrt();
            assert!((mean - 0.25).abs() < 5.0 * sd / (NUMBER as f64).sqrt(), "{shape}: {mean}");
            let error = sd * sd * ((2.0 + 6.0 / shape) / NUMBER as f64).sqrt();
            assert!((variance - sd * sd).abs() < 5.0 * error, "{shape}: {variance}");
        }
    }

    #[test]
    fn a_ramp_grows_evenly_by_requests_or_by_time() {
        let by_requests = Some(Ramp { from: 1.0, growth: Growth::Requests(5) });
        // At 1, 2, 3, 4 and 5 in a second, and no more than that.
        let times = due_with(Arrivals::Uniform, 5.0, by_requests, 7);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (gap, expected) in gaps.iter().zip([1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0, 1.0 / 5.0, 1.0 / 5.0, 1.0 / 5.0]) {
            assert!((gap - expected).abs() < 1e-9, "{gaps:?}");
        }
        let by_time = Some(Ramp { from: 10.0, growth: Growth::Seconds(10.0) });
        let times = due_with(Arrivals::Poisson, 30.0, by_time, 4000);
        let within = |from: f64, to: f64| times.iter().filter(|at| (from..to).contains(*at)).count() as f64;
        // The integral of the rate; five standard deviations of its Poisson number.
        for (from, to, expected) in [(0.0, 2.0, 24.0), (0.0, 10.0, 200.0), (10.0, 20.0, 300.0)] {
            let number = within(from, to);
            assert!((number - expected).abs() < 5.0 * f64::sqrt(expected), "{number} from {from} to {to}");
        }
    }

    // The first gap was drawn at the rate of the beginning: from 0.01 it took a hundred seconds.
    #[test]
    fn a_ramp_from_near_nothing_has_as_many_requests_as_its_integral() {
        for (from, to) in [(0.01, 10.0), (10.0, 0.01), (5.0, 5.0)] {
            let ramp = Some(Ramp { from, growth: Growth::Seconds(8.0) });
            let expected = (from + to) / 2.0 * 8.0;
            let number = |arrivals: Arrivals| {
                let times = due_with(arrivals, to, ramp, 200);
                assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{arrivals:?}: {times:?}");
                times.iter().filter(|at| **at < 8.0).count() as f64
            };
            let uniform = number(Arrivals::Uniform);
            assert!((uniform - expected).abs() <= 1.0, "{uniform} of {expected} from {from} to {to}");
            for arrivals in [Arrivals::Poisson, Arrivals::Gamma(4.0)] {
                let number = number(arrivals);
                assert!(
                    (number - expected).abs() < 5.0 * expected.sqrt(),
                    "{number} of {expected} from {from} to {to}"
                );
            }
        }
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
        for arrivals in [Arrivals::Poisson, Arrivals::Gamma(0.5), Arrivals::Uniform, Arrivals::Burst] {
            assert_eq!(due(arrivals, f64::INFINITY, 3), [0.0; 3]);
        }
    }
}
