//! Moments as Ollama writes them (RFC 3339, in UTC), and lengths of time in nanoseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, by the time since 1970.
pub(super) fn moment(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    let second = taper_text::strftime("%Y-%m-%dT%H:%M:%S", seconds);
    format!("{second}.{:09}Z", since_1970.subsec_nanos())
}

/// The time since 1970.
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// This moment.
pub(super) fn now() -> String {
    moment(since_1970())
}

/// Nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_nine_digits_behind_the_second() {
        assert_eq!(moment(Duration::new(1_735_603_200, 5)), "2024-12-31T00:00:00.000000005Z");
        assert_eq!(moment(Duration::ZERO), "1970-01-01T00:00:00.000000000Z");
        assert!(now().as_str() > "2025-01-01", "{}", now());
    }
}
