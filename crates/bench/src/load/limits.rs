//! What a request may take and still count for goodput.

use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The most of each latency; what is not named has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Time to the first text.
    pub ttft: Option<Duration>,
    /// The longest wait between two pieces of text.
    pub itl: Option<Duration>,
    /// Mean time per token after the first.
    pub tpot: Option<Duration>,
    /// Time to the end.
    pub e2e: Option<Duration>,
}

/// What a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Took {
    pub(super) ttft: Option<Duration>,
    pub(super) longest_itl: Option<Duration>,
    pub(super) tpot: Option<Duration>,
    pub(super) e2e: Duration,
}

/// Limits that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no limit: expected any of ttft, itl, tpot and e2e with a time, such as ttft=200ms,tpot=50ms,e2e=10s")]
pub struct LimitError(String);

impl Limits {
    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// Whether a request kept them all. One without a first text is as late as its end; one with a single token has no gaps.
    pub(super) fn are_kept(&self, took: Took) -> bool {
        let within = |took: Option<Duration>, limit: Option<Duration>| {
            limit.is_none_or(|limit| took.is_none_or(|took| took <= limit))
        };
        within(took.ttft.or(Some(took.e2e)), self.ttft)
            && within(took.longest_itl, self.itl)
            && within(took.tpot, self.tpot)
            && within(Some(took.e2e), self.e2e)
    }

    fn named(&self) -> [(&'static str, Option<Duration>); 4] {
        [("ttft", self.ttft), ("itl", self.itl), ("tpot", self.tpot), ("e2e", self.e2e)]
    }

    /// Milliseconds by name.
    pub(super) fn to_json(self) -> Value {
        let named = self
            .named()
            .into_iter()
            .filter_map(|(name, limit)| limit.map(|limit| (name.to_owned(), Value::from(limit.as_secs_f64() * 1e3))));
        Value::Object(Map::from_iter(named))
    }
}

/// `200ms`, `1.5s` or `800us`; a number alone says nothing.
fn time(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (digits, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let seconds = digits.parse::<f64>().ok()? * unit;
    (1e-6..=1e6).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

impl FromStr for Limits {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limits, LimitError> {
        let mut limits = Limits::default();
        for part in text.split(',') {
            let bad = || LimitError(part.to_owned());
            let (name, limit) = part.split_once('=').ok_or_else(bad)?;
            let place = match name.trim() {
                "ttft" => &mut limits.ttft,
                "itl" => &mut limits.itl,
                "tpot" => &mut limits.tpot,
                "e2e" => &mut limits.e2e,
                _ => return Err(bad()),
            };
            *place = Some(time(limit.trim()).ok_or_else(bad)?);
        }
        Ok(limits)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, limit) in self.named() {
            if let Some(limit) = limit {
                write!(f, "{comma}{name}={}ms", limit.as_secs_f64() * 1e3)?;
                comma = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn limits_are_named_times() {
        let limits: Limits = "ttft=200ms, e2e=1.5s,itl=800us".parse().unwrap();
        assert_eq!((limits.ttft, limits.e2e, limits.tpot), (Some(MS(200)), Some(MS(1500)), None));
        assert_eq!(limits.to_string(), "ttft=200ms,itl=0.8ms,e2e=1500ms");
        for text in ["", "ttft", "ttft=200", "ttft=-1ms", "ttft=0s", "ttft=NaNms", "latency=1s", "ttft=1s,"] {
            assert!(text.parse::<Limits>().unwrap_err().to_string().contains("ttft=200ms"), "{text:?}");
        }
    }

    #[test]
    fn a_request_must_keep_every_limit() {
        let limits: Limits = "ttft=200ms,itl=50ms,tpot=20ms,e2e=1s".parse().unwrap();
        let good = Took { ttft: Some(MS(200)), longest_itl: Some(MS(50)), tpot: Some(MS(20)), e2e: MS(1000) };
        assert!(limits.are_kept(good), "what takes as long as it may is kept");
        assert!(!limits.are_kept(Took { ttft: Some(MS(201)), ..good }));
        assert!(!limits.are_kept(Took { longest_itl: Some(MS(51)), ..good }));
        assert!(!limits.are_kept(Took { tpot: Some(MS(21)), ..good }));
        assert!(!limits.are_kept(Took { e2e: MS(1001), ..good }));
        assert!(limits.are_kept(Took { longest_itl: None, tpot: None, ..good }), "one token");
        assert!(!limits.are_kept(Took { ttft: None, ..good }), "no text before the end, which is late");
        assert!(Limits::default().are_kept(Took { e2e: MS(1_000_000), ..good }) && Limits::default().is_empty());
    }
}
