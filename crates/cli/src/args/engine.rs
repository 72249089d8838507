//! What the engine is told: how much it may remember, and how it shares the machine.

use crate::args::Cli;
use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Error, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use taper_engine::{ItlTarget, Speculation};

/// How the engine works, whoever asks.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArgs {
    /// Memory for the keys and values of prompts and answers, such as 2GiB or 500MB [default: four full contexts, as far as
    /// a quarter of the free memory holds them].
    #[arg(long, value_name = "SIZE", value_parser = size, env = "TAPER_KV_CACHE_SIZE")]
    pub(crate) kv_cache_size: Option<usize>,

    /// Folder where keys and values of prompts outlive this program, so that the next start answers known ones sooner.
    #[arg(long, value_name = "DIR", env = "TAPER_CACHE_DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Most bytes in that folder, of all models together.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8GiB", env = "TAPER_CACHE_DIR_SIZE")]
    pub(crate) cache_dir_size: usize,

    /// Where guesses of next tokens come from; it changes how soon tokens come and never which.
    #[arg(long, value_enum, default_value_t = Guesses::Auto, env = "TAPER_SPECULATION")]
    pub(crate) speculation: Guesses,

    /// A smaller model with the same vocabulary, named as --model is: what it would say is what the large one verifies. It
    /// remembers as many positions as the large one, in memory on top of --kv-cache-size.
    #[arg(long, value_name = "NAME", env = "TAPER_DRAFT_MODEL")]
    pub(crate) draft_model: Option<String>,
}

impl EngineArgs {
    /// Refuses a size that was typed for a folder that nobody names. What variables and a file say of it may wait for a folder.
    pub(crate) fn check(matches: &ArgMatches) -> Result<(), Error> {
        let Some(("serve" | "chat" | "run", command)) = matches.subcommand() else { return Ok(()) };
        let is_typed = command.value_source("cache_dir_size") == Some(ValueSource::CommandLine);
        if is_typed && !command.contains_id("cache_dir") {
            let message = "--cache-dir-size is about the folder of --cache-dir, which is not given";
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(())
    }

    /// What the engine is told of guesses, if the arguments agree.
    pub(crate) fn speculation(&self) -> Result<Speculation> {
        match (self.speculation, &self.draft_model) {
            (Guesses::Off | Guesses::Lookup, Some(_)) => {
                bail!("--draft-model has nothing to do with --speculation off or lookup: leave out one of the two")
            }
            (Guesses::Draft, None) => bail!("--speculation draft needs a --draft-model"),
            (Guesses::Off, None) => Ok(Speculation::Off),
            (Guesses::Lookup, None) => Ok(Speculation::Lookup),
            (Guesses::Draft, Some(_)) => Ok(Speculation::Draft),
            (Guesses::Auto, _) => Ok(Speculation::All),
        }
    }
}

/// Where guesses of next tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Guesses {
    /// Nowhere.
    Off,
    /// What followed the same tokens before, in the prompt or the answer, while that pays.
    Lookup,
    /// The draft model, while that pays.
    Draft,
    /// Whichever of these there is and is surer.
    Auto,
}

/// Bytes with a unit: `512MiB`, `2GB`, `1.5G`; K, M and G alone are powers of 1024.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "k" | "kib" => 1024.0,
        "kb" => 1e3,
        "m" | "mib" => 1024.0 * 1024.0,
        "mb" => 1e6,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "gb" => 1e9,
        _ => return Err("expected a number and a unit, such as 512MiB or 2GB".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(number) if number * factor >= 1.0 => Ok((number * factor) as usize),
        _ => Err("expected a number above 0 and a unit, such as 512MiB or 2GB".to_owned()),
    }
}

/// A bound on the time between tokens: `100ms`, `4x` (times the undisturbed time) or both, `50ms,3x`, of which the larger
/// counts. A bound that is asked for is kept down to chunks of 4 tokens: on a processor with AVX2 a chunk of 16 takes longer than
/// some that one may want.
pub(crate) fn itl_target(text: &str) -> Result<ItlTarget, String> {
    let expected = || format!("expected milliseconds, a factor, or both, such as 100ms, 4x or 50ms,3x, not {text:?}");
    let mut target = ItlTarget { at_least: Duration::ZERO, times_decode: 0.0, least_tokens: 4 };
    for part in text.split(',') {
        if let Some(ms) = part.trim().strip_suffix("ms") {
            let ms: f64 = ms.parse().ok().filter(|ms| (1.0..=3.6e6).contains(ms)).ok_or_else(expected)?;
            target.at_least = Duration::from_secs_f64(ms / 1e3);
        } else if let Some(times) = part.trim().strip_suffix('x') {
            target.times_decode =
                times.parse().ok().filter(|times| (1.0..=1e6).contains(times)).ok_or_else(expected)?;
        } else {
            return Err(expected());
        }
    }
    Ok(target)
}

/// Seconds, at least a millisecond.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let number = number.filter(|seconds| (1e-3..=1e9).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| format!("expected seconds, such as 30 or 0.5, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        let sizes = ["512MiB", "2GB", "1.5G", "7 kb", "3B"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [512 << 20, 2_000_000_000, 3 << 29, 7000, 3]);
        for wrong in ["", "12", "GB", "-1GB", "0MB", "1..5GB", "1TBs", "NaNGB", "0.1B"] {
            assert!(size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_target_is_a_time_or_a_factor_or_both() {
        let target =
            |ms, times_decode| ItlTarget { at_least: Duration::from_millis(ms), times_decode, least_tokens: 4 };
        assert_eq!(itl_target("100ms"), Ok(target(100, 0.0)));
        assert_eq!(itl_target("4x"), Ok(target(0, 4.0)));
        assert_eq!(itl_target("50ms, 2.5x"), Ok(target(50, 2.5)));
        for wrong in ["", "100", "0ms", "0.5x", "x", "ms", "1x,", "infx", "NaNms"] {
            assert!(itl_target(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn seconds_may_have_a_unit_and_a_fraction() {
        assert_eq!(seconds("30"), Ok(Duration::from_secs(30)));
        assert_eq!(seconds("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "NaN", "inf", "1m"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
    }
}
