//! How long prompts and answers are: all the same, or drawn for each request.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

/// More tokens than any request has.
const MOST: u32 = 1 << 20;

/// Tokens of a prompt or of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// `N`: always so many.
    Fixed(u32),
    /// `MIN..MAX`: any of these, both included, each as likely.
    Uniform {
        /// The fewest.
        min: u32,
        /// The most.
        max: u32,
    },
    /// `normal:MEAN,SD`, rounded; what falls below 1 is 1.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        sd: f64,
    },
    /// `lognormal:MEAN,SD`: a long tail above. Both are of the lengths, not of their logarithms.
    LogNormal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        sd: f64,
    },
}

/// A length that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is no length: expected N, MIN..MAX, normal:MEAN,SD or lognormal:MEAN,SD, in tokens from 1 to {MOST}, such as 128, 64..256 \
     or lognormal:200,80"
)]
pub struct LengthError(String);

impl Length {
    /// A length, at least 1.
    pub fn draw(self, rng: &mut Xoshiro256PlusPlus) -> u32 {
        match self {
            Length::Fixed(tokens) => tokens,
            Length::Uniform { min, max } => rng.random_range(min..=max),
            Length::Normal { mean, sd } => rounded(mean + sd * standard_normal(rng)),
            Length::LogNormal { mean, sd } => {
                // Mean and variance of e^N(mu, s²) are e^(mu + s²/2) and (e^s² - 1) mean².
                let variance = (sd / mean).powi(2).ln_1p();
                rounded((mean.ln() - variance / 2.0 + variance.sqrt() * standard_normal(rng)).exp())
            }
        }
    }
}

fn rounded(tokens: f64) -> u32 {
    tokens.round().clamp(1.0, f64::from(MOST)) as u32
}

/// Box and Muller's transform of two uniform numbers.
pub(super) fn standard_normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
    // 1 - u is never 0.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (TAU * rng.random::<f64>()).cos()
}

impl FromStr for Length {
    type Err = LengthError;

    fn from_str(text: &str) -> Result<Length, LengthError> {
        let tokens = |digits: &str| digits.parse().ok().filter(|tokens| (1..=MOST).contains(tokens));
        let mean_and_sd = |numbers: &str| {
            let (mean, sd) = numbers.split_once(',')?;
            let (mean, sd): (f64, f64) = (mean.parse().ok()?, sd.parse().ok()?);
            ((1.0..=f64::from(MOST)).contains(&mean) && (0.0..=f64::from(MOST)).contains(&sd)).then_some((mean, sd))
        };
        let read = || {
            if let Some(numbers) = text.strip_prefix("normal:") {
                mean_and_sd(numbers).map(|(mean, sd)| Length::Normal { mean, sd })
            } else if let Some(numbers) = text.strip_prefix("lognormal:") {
                mean_and_sd(numbers).map(|(mean, sd)| Length::LogNormal { mean, sd })
            } else if let Some((min, max)) = text.split_once("..") {
                let (min, max) = (tokens(min)?, tokens(max)?);
                (min <= max).then_some(Length::Uniform { min, max })
            } else {
                tokens(text).map(Length::Fixed)
            }
        };
        read().ok_or_else(|| LengthError(text.to_owned()))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Fixed(tokens) => write!(f, "{tokens}"),
            Length::Uniform { min, max } => write!(f, "{min}..{max}"),
            Length::Normal { mean, sd } => write!(f, "normal:{mean},{sd}"),
            Length::LogNormal { mean, sd } => write!(f, "lognormal:{mean},{sd}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    /// Mean and standard deviation of many draws.
    fn moments(length: &str) -> (f64, f64) {
        const DRAWS: u32 = 100_000;
        let length: Length = length.parse().unwrap();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let draws: Vec<f64> = (0..DRAWS).map(|_| f64::from(length.draw(&mut rng))).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / f64::from(DRAWS);
        (mean, variance.sqrt())
    }

    fn check(length: &str, mean: f64, sd: f64) {
        let (found_mean, found_sd) = moments(length);
        assert!((found_mean - mean).abs() < 0.01 * mean, "{length}: mean {found_mean}");
        assert!((found_sd - sd).abs() <= 0.02 * sd, "{length}: standard deviation {found_sd}");
    }

    #[test]
    fn draws_have_the_mean_and_spread_that_were_asked_for() {
        check("128", 128.0, 0.0);
        check("100..300", 200.0, ((201.0_f64.powi(2) - 1.0) / 12.0).sqrt());
        check("normal:500,50", 500.0, 50.0);
        check("lognormal:200,80", 200.0, 80.0);
    }

    #[test]
    fn no_length_is_less_than_one_or_outside_its_bounds() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut draws = |length: &str| -> Vec<u32> {
            let length: Length = length.parse().unwrap();
            (0..2000).map(|_| length.draw(&mut rng)).collect()
        };
        assert_eq!(draws("normal:1,50").iter().min(), Some(&1));
        let within = draws("3..5");
        assert_eq!((within.iter().min(), within.iter().max()), (Some(&3), Some(&5)), "both ends are drawn");
    }

    #[test]
    fn a_length_is_written_as_it_is_read_and_others_are_refused() {
        for text in ["1", "64..256", "7..7", "normal:128,32", "lognormal:200.5,80"] {
            assert_eq!(text.parse::<Length>().unwrap().to_string(), text);
        }
        for text in
            ["", "0", "-1", "5..4", "0..4", "4..", "normal:5", "normal:0,1", "normal:5,-1", "normal:NaN,1", "2e6"]
        {
            let error = text.parse::<Length>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("64..256"), "{error}");
        }
    }
}
