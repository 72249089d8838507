//! How many requests a key may send: `--rate-limit 10/s`.
//!
//! A bucket of N requests that fills evenly in the time (the generic cell rate algorithm): one instant per key says when it
//! will be full again. A crate for that brings a dozen others for these ten lines of arithmetic.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::access::ApiKey;

/// OpenAI's names: how many in all, how many at once from now on, and when it is all of them again.
pub(crate) const HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];

/// Requests per time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
}

impl Rate {
    fn period(self) -> Duration {
        Duration::from_secs(match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
        })
    }

    /// The time in which one request becomes free.
    fn interval(self) -> Duration {
        self.period() / self.count
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Second => "s",
            Unit::Minute => "min",
            Unit::Hour => "h",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

/// A rate is written wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected requests per second, minute or hour, such as 10/s, 600/min or 1000/h, not {0:?}")]
pub struct NotARate(String);

impl FromStr for Rate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Self, NotARate> {
        let wrong = || NotARate(text.to_owned());
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let unit = match unit.trim() {
            "s" | "sec" | "second" => Unit::Second,
            "m" | "min" | "minute" => Unit::Minute,
            "h" | "hour" => Unit::Hour,
            _ => return Err(wrong()),
        };
        // Above a million a second the time of one request would come close to the clock's own resolution.
        let count = count.trim().parse().ok().filter(|count| (1..=1_000_000).contains(count));
        Ok(Self { count: count.ok_or_else(wrong)?, unit })
    }
}

/// Where a key stands after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    limit: u32,
    remaining: u32,
    reset: Duration,
    /// When a request would be taken; zero after one that was.
    pub(crate) retry_after: Duration,
}

impl Allowance {
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        let [limit, remaining, reset] = HEADERS;
        headers.insert(limit, HeaderValue::from(self.limit));
        headers.insert(remaining, HeaderValue::from(self.remaining));
        if let Ok(value) = HeaderValue::from_str(&span(self.reset)) {
            headers.insert(reset, value);
        }
    }
}

/// As OpenAI writes a time: `120ms`, `17s`, `6m0s`.
fn span(time: Duration) -> String {
    let ms = whole_ms(time).as_millis();
    match ms.div_ceil(1000) {
        _ if ms < 1000 => format!("{ms}ms"),
        seconds @ 0..60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

/// Rounded up: who asks again after the time that was told has waited long enough.
fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_nanos().div_ceil(1_000_000) as u64)
}

/// Counts the requests of each key.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    rate: Rate,
    /// When the bucket of each key is full again; of those without a key there is one. No more entries than there were keys.
    full_at: Mutex<HashMap<Option<ApiKey>, Instant>>,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, full_at: Mutex::default() }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes a request of `caller` that comes at `now`; `Err` if there are none left.
    pub(crate) fn take(&self, caller: Option<&ApiKey>, now: Instant) -> Result<Allowance, Allowance> {
        let (interval, capacity) = (self.rate.interval(), self.rate.interval() * self.rate.count);
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = full_at.entry(caller.cloned()).or_insert(now);
        let missing = full_at.saturating_duration_since(now);
        let taken = missing + interval;
        let is_taken = taken <= capacity;
        if is_taken {
            *full_at = now + taken;
        }
        let reset = if is_taken { taken } else { missing };
        let remaining = (capacity.saturating_sub(reset).as_nanos() / interval.as_nanos().max(1)) as u32;
        let allowance = Allowance {
            limit: self.rate.count,
            remaining,
            reset,
            retry_after: if is_taken { Duration::ZERO } else { whole_ms(taken - capacity) },
        };
        if is_taken { Ok(allowance) } else { Err(allowance) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn rates_are_counts_per_second_minute_or_hour() {
        for (text, canonical, interval_ms) in
            [("10/s", "10/s", 100), ("30/min", "30/min", 2000), ("2 / h", "2/h", 1_800_000)]
        {
            assert_eq!(rate(text).to_string(), canonical);
            assert_eq!(rate(text).interval(), Duration::from_millis(interval_ms));
        }
        for wrong in ["", "10", "0/s", "-1/s", "1.5/s", "10/d", "/s", "9999999/s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bucket_empties_at_once_and_fills_evenly() {
        let limiter = RateLimiter::new(rate("3/min"));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for remaining in [2, 1, 0] {
            assert_eq!(limiter.take(None, start).unwrap().remaining, remaining);
        }
        let refused = limiter.take(None, after(5)).unwrap_err();
        assert_eq!((refused.remaining, refused.retry_after), (0, Duration::from_secs(15)));
        assert_eq!(limiter.take(None, after(19)).unwrap_err().retry_after, Duration::from_secs(1));
        assert_eq!(limiter.take(None, after(20)).unwrap().reset, Duration::from_secs(60));
        assert!(limiter.take(None, after(20)).is_err());
        // Never more than it holds, however long it waits.
        assert_eq!(limiter.take(None, after(10_000)).unwrap().remaining, 2);
    }

    #[test]
    fn who_waits_as_long_as_was_told_is_taken() {
        // A request becomes free every 8.571428571 s.
        for early in [1, 571_128_571, 8_571_000_000] {
            let limiter = RateLimiter::new(rate("7/min"));
            let start = Instant::now();
            for _ in 0..7 {
                assert!(limiter.take(None, start).is_ok());
            }
            let asked = start + Duration::from_nanos(early);
            let told = limiter.take(None, asked).unwrap_err();
            // As the header has it.
            let seconds = told.retry_after.as_millis().div_ceil(1000) as u64;
            assert!(limiter.take(None, asked + Duration::from_secs(seconds)).is_ok(), "{told:?}");
        }
    }

    #[test]
    fn each_key_has_its_own_bucket() {
        let keys = crate::access::test_keys(&["a", "b"]);
        let limiter = RateLimiter::new(rate("1/h"));
        let now = Instant::now();
        for key in &keys {
            assert!(limiter.take(Some(key), now).is_ok());
            assert!(limiter.take(Some(key), now).is_err());
        }
    }

    #[test]
    fn times_are_written_as_openai_does() {
        let times = [0, 120, 1000, 16_500, 59_001, 360_000].map(|ms| span(Duration::from_millis(ms)));
        assert_eq!(times, ["0ms", "120ms", "1s", "17s", "1m0s", "6m0s"]);
        let least = [1, 1_000_001, 999_000_001, 1_000_000_001].map(|ns| span(Duration::from_nanos(ns)));
        assert_eq!(least, ["1ms", "2ms", "1s", "2s"]);
    }
}
