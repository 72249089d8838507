//! OpenAI's fields that say who asks and what the answer belongs to. They change nothing in it, but answers and the client's own
//! books repeat them, so they keep to OpenAI's limits.

use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// Pairs of `metadata`, characters of a key, and characters of a value.
const MAX_PAIRS: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;
/// Names of who asks, and of what to cache: texts of at most [`MAX_VALUE_CHARS`].
const NAMES: [&str; 3] = ["user", "safety_identifier", "prompt_cache_key"];

/// Takes them.
///
/// # Errors
/// 400 for one of another type, or beyond its limit.
pub(crate) fn take(fields: &mut Fields) -> Result<(), ApiError> {
    for name in NAMES {
        if fields.string(name)?.is_some_and(|text| is_longer(&text, MAX_VALUE_CHARS)) {
            let message = format!("{name} must have at most {MAX_VALUE_CHARS} characters");
            return Err(ApiError::invalid(name, message));
        }
    }
    take_metadata(fields)
}

fn take_metadata(fields: &mut Fields) -> Result<(), ApiError> {
    const FIELD: &str = "metadata";
    let Some(metadata) = fields.object(FIELD)? else { return Ok(()) };
    let metadata = metadata.into_rest();
    let refused = |message: String| Err(ApiError::invalid(FIELD, message));
    if metadata.len() > MAX_PAIRS {
        return refused(format!("{FIELD} must have at most {MAX_PAIRS} pairs, got {}", metadata.len()));
    }
    for (key, value) in &metadata {
        let shown = || show(&key.as_str().into());
        if is_longer(key, MAX_KEY_CHARS) {
            return refused(format!("keys of {FIELD} must have at most {MAX_KEY_CHARS} characters, got {}", shown()));
        }
        match value.as_str() {
            Some(text) if !is_longer(text, MAX_VALUE_CHARS) => {}
            Some(_) => {
                let message = format!("values of {FIELD} must have at most {MAX_VALUE_CHARS} characters, and that of");
                return refused(format!("{message} {} has more", shown()));
            }
            None => {
                let got = show(value);
                return refused(format!("{FIELD} must be an object of strings, and {} has {got}", shown()));
            }
        }
    }
    Ok(())
}

fn is_longer(text: &str, max_chars: usize) -> bool {
    text.chars().nth(max_chars).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: Value) -> Result<(), ApiError> {
        let Value::Object(object) = body else { panic!("tests give objects") };
        take(&mut Fields::new(object))
    }

    fn check_refused(body: Value, param: &str, part: &str) {
        let error = read(body).expect_err(part);
        assert_eq!((error.status().as_u16(), &error.to_json()["error"]["param"]), (400, &json!(param)));
        assert!(error.message().contains(part), "{}", error.message());
    }

    #[test]
    fn what_keeps_to_the_limits_is_taken() {
        let pairs: Value = (0..16).map(|n| (format!("{n:0>64}"), json!("ü".repeat(512)))).collect();
        read(json!({ "metadata": pairs, "user": "ü".repeat(512), "prompt_cache_key": "k" })).unwrap();
        read(json!({ "metadata": null, "user": null })).unwrap();
    }

    #[test]
    fn what_does_not_is_refused_by_name() {
        let pairs: Value = (0..17).map(|n| (n.to_string(), json!(""))).collect();
        check_refused(json!({ "metadata": pairs }), "metadata", "at most 16 pairs, got 17");
        check_refused(json!({ "metadata": { "k".repeat(65): "v" } }), "metadata", "at most 64 characters");
        check_refused(json!({ "metadata": { "k": "v".repeat(513) } }), "metadata", "that of \"k\" has more");
        check_refused(json!({ "metadata": { "k": 1 } }), "metadata", "strings, and \"k\" has 1");
        check_refused(json!({ "metadata": "m" }), "metadata", "an object");
        for name in NAMES {
            check_refused(json!({ name: "u".repeat(513) }), name, "at most 512 characters");
            check_refused(json!({ name: 5 }), name, "a string");
        }
    }
}
