//! How large a client's grammar may be, and how long compiling it may take.
//!
//! The library counts its own work (grammar symbols, lexer states, fuel); what is here besides keeps its recursive parsers
//! from deep nesting, which would overflow a stack, and bounds the time that a request waits.

use std::time::Duration;

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::GrammarError;

/// Bytes of a grammar's text, or of a schema written as JSON.
pub(super) const MAX_BYTES: usize = 512 << 10;
/// Brackets in brackets in a grammar or a regular expression; levels of a schema. serde_json stops at 128 levels itself.
pub(super) const MAX_NESTING: usize = 128;
/// Properties of one object that may be left out. Behind a property the parser tries each of the optional ones that follow:
/// four Earley items each, and some 20 ms for the mask of a key among 2,000.
pub(super) const MAX_OPTIONAL_PROPERTIES: usize = 2000;
/// Alternatives of a choice.
pub(super) const MAX_CHOICES: usize = 10_000;
/// Compilations at a time, whether somebody still waits for them or not.
pub(super) const MAX_COMPILATIONS: usize = 2;
/// How long a request waits for its grammar.
pub(super) const COMPILE_DEADLINE: Duration = Duration::from_secs(10);
/// Stack of a compilation: its parsers recurse to [`MAX_NESTING`] and further through references. Only touched pages cost.
pub(super) const COMPILE_STACK_BYTES: usize = 256 << 20;

/// The library's limits: its defaults but for three. Each sequence has a lexer of its own, and a state takes up to two
/// kilobytes. Items in a row are the ways to go on in one place: [`MAX_OPTIONAL_PROPERTIES`] and some. Errors go to clients,
/// who need neither the parser's state nor the whole grammar again.
pub(super) fn parser_limits() -> ParserLimits {
    let max_items_in_row = 4 * MAX_OPTIONAL_PROPERTIES + 192;
    ParserLimits { max_lexer_states: 16_384, max_items_in_row, verbose_errors: false, ..ParserLimits::default() }
}

/// An error of the library in a client's terms, where it is about a limit that has none.
pub(super) fn explain(error: &str) -> String {
    match error.split_once("Current row has ").and_then(|(_, rest)| rest.split_once(" items")) {
        Some((num_items, _)) => format!(
            "it has too many ways to go on in one place ({num_items} items of the parser, at most {} are taken); give it \
             fewer optional properties or alternatives",
            parser_limits().max_items_in_row
        ),
        None => error.to_owned(),
    }
}

/// Refuses a text that is too long.
pub(super) fn check_size(kind: &'static str, len: usize) -> Result<(), GrammarError> {
    if len <= MAX_BYTES {
        return Ok(());
    }
    Err(GrammarError::invalid(kind, format!("it has {len} bytes; at most {MAX_BYTES} are taken")))
}

/// Refuses brackets nested too deeply. Brackets in strings and comments count too: no sane grammar comes near the limit.
pub(super) fn check_brackets(kind: &'static str, text: &str) -> Result<(), GrammarError> {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if escaped => {
                escaped = false;
                continue;
            }
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest <= MAX_NESTING {
        return Ok(());
    }
    Err(GrammarError::invalid(kind, format!("its brackets are nested {deepest} deep; at most {MAX_NESTING} are taken")))
}

/// Refuses a schema that is nested too deeply.
pub(super) fn check_levels(kind: &'static str, value: &Value) -> Result<(), GrammarError> {
    let mut level: Vec<&Value> = vec![value];
    for _ in 0..MAX_NESTING {
        level = level.into_iter().flat_map(children).collect();
        if level.is_empty() {
            return Ok(());
        }
    }
    Err(GrammarError::invalid(kind, format!("it is nested more than {MAX_NESTING} levels deep")))
}

/// Refuses a schema with an object of too many optional properties, at whatever level it is.
pub(super) fn check_optional_properties(kind: &'static str, value: &Value) -> Result<(), GrammarError> {
    let mut level: Vec<&Value> = vec![value];
    while !level.is_empty() {
        for schema in &level {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { continue };
            let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len);
            let num_optional = properties.len().saturating_sub(required);
            if num_optional > MAX_OPTIONAL_PROPERTIES {
                let most = MAX_OPTIONAL_PROPERTIES;
                let reason =
                    format!("an object has {num_optional} properties that are not required; at most {most} are taken");
                return Err(GrammarError::invalid(kind, reason));
            }
        }
        level = level.into_iter().flat_map(children).collect();
    }
    Ok(())
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_brackets_are_refused_and_wide_ones_are_not() {
        assert!(check_brackets("regex", &"()".repeat(10_000)).is_ok());
        assert!(check_brackets("regex", &r"\(".repeat(10_000)).is_ok());
        let error = check_brackets("regex", &"(".repeat(10_000)).unwrap_err().to_string();
        assert!(error.contains("nested 10000 deep"), "{error}");
    }

    #[test]
    fn deep_schemas_are_refused_and_wide_ones_are_not() {
        let deep = (0..200).fold(Value::Null, |inner, _| serde_json::json!([inner]));
        assert!(check_levels("JSON schema", &deep).is_err());
        assert!(check_levels("JSON schema", &Value::Array(vec![Value::Null; 10_000])).is_ok());
    }

    #[test]
    fn errors_about_the_parsers_rows_say_what_a_client_can_do() {
        let error = explain("Parser Error: Current row has 9999 items; max is 8192; consider making your grammar ...");
        assert!(error.contains("9999 items of the parser, at most 8192") && error.contains("optional"), "{error}");
        assert_eq!(explain("another"), "another");
    }
}
