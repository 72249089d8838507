//! `keep_alive`: how long a model shall stay loaded, in seconds or as Go writes durations ("5m", "1h30m", "-1"). Here it stays
//! until another needs its memory; 0 has it unloaded after the answer if nobody else uses it then, and with nothing to answer as
//! soon as those who use it have ended.

use serde_json::Value;

use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// Units of Go's durations in seconds; a unit stands before those that it begins with.
const UNITS: &[(&str, f64)] =
    &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Takes it; whether it is 0.
pub(super) fn take_zero(fields: &mut Fields) -> Result<bool, ApiError> {
    const FIELD: &str = "keep_alive";
    let Some(value) = fields.take(FIELD) else { return Ok(false) };
    let seconds = match &value {
        Value::String(text) => seconds(text),
        other => other.as_f64(),
    };
    let refusal = || {
        let message = format!("{FIELD} must be a number of seconds or a duration such as \"5m\", got {}", show(&value));
        ApiError::invalid(FIELD, message)
    };
    seconds.map(|seconds| seconds == 0.0).ok_or_else(refusal)
}

/// The seconds of a duration; a number without a unit is one of seconds.
fn seconds(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let (mut rest, mut total) = (unsigned, 0.0);
    loop {
        let len = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
        let number: f64 = rest[..len].parse().ok()?;
        rest = &rest[len..];
        let (unit, factor) = match rest {
            "" => ("", 1.0),
            _ => *UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?,
        };
        total += number * factor;
        rest = &rest[unit.len()..];
        if rest.is_empty() {
            return Some(sign * total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go_and_plain_seconds() {
        for (text, expected) in [
            ("0", Some(0.0)),
            ("0s", Some(0.0)),
            ("-1", Some(-1.0)),
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5h", Some(5400.0)),
            ("250ms", Some(0.25)),
            ("-1m", Some(-60.0)),
            ("300", Some(300.0)),
            ("", None),
            ("-", None),
            ("m", None),
            ("5 m", None),
            ("5mm", None),
            ("5d", None),
            ("inf", None),
            ("1.2.3s", None),
        ] {
            assert_eq!(seconds(text), expected, "{text:?}");
        }
    }

    fn take(value: &Value) -> Result<bool, ApiError> {
        let Value::Object(object) = serde_json::json!({ "keep_alive": value }) else { unreachable!() };
        take_zero(&mut Fields::new(object))
    }

    #[test]
    fn nothing_but_zero_is_zero_and_what_is_no_duration_is_refused() {
        use serde_json::json;
        for zero in [json!(0), json!(0.0), json!("0"), json!("0m")] {
            assert!(take(&zero).unwrap(), "{zero}");
        }
        for other in [json!(null), json!(-1), json!(300), json!("5m"), json!("-1")] {
            assert!(!take(&other).unwrap(), "{other}");
        }
        for wrong in [json!("soon"), json!(true), json!([1])] {
            let error = take(&wrong).unwrap_err();
            assert!(error.status() == 400 && error.message().starts_with("keep_alive must be"), "{error}");
        }
    }
}
