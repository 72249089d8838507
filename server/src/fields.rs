//! The fields of a JSON object, taken one by one with their types and ranges checked by hand, so that every error names
//! the field and shows what was given.
//!
//! `null` counts as absent everywhere. What is left after all known fields were taken goes through the table of
//! `unsupported`; what is left of objects inside the body is noted by name when they are dropped ([`untaken`]).

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::errors::ApiError;

/// The bound of a number that has none but that of its type.
pub(crate) const UNBOUNDED: f64 = f32::MAX as f64;

/// Characters of a client's string that an error message repeats.
const SHOWN_CHARS: usize = 40;

/// A value as an error message shows it: short whatever the client sent.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().nth(SHOWN_CHARS).is_some() => {
            let beginning: String = text.chars().take(SHOWN_CHARS).collect();
            format!("{}...", Value::String(beginning))
        }
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// An object whose fields are being taken.
pub(crate) struct Fields {
    object: Map<String, Value>,
    /// What stands before a field's name in errors: "" at the top, `messages[2].` inside.
    path: String,
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !self.path.is_empty() {
            untaken::note(&self.path, &self.object);
        }
    }
}

impl Fields {
    /// The fields of the body.
    pub(crate) fn new(object: Map<String, Value>) -> Self {
        untaken::take();
        Self { object, path: String::new() }
    }

    /// The fields of an object inside the body, which `path` leads to.
    pub(crate) fn nested(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(object) => Ok(Self { object, path: format!("{path}.") }),
            other => Err(ApiError::invalid(path, format!("{path} must be an object, got {}", show(&other)))),
        }
    }

    /// A field's full name.
    pub(crate) fn name_of(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Removes a field; `None` when it is absent or null.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        #[cfg(test)]
        asked::note(self.name_of(field));
        self.object.remove(field).filter(|value| !value.is_null())
    }

    /// Whether a field is there, and not null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.object.get(field).is_some_and(|value| !value.is_null())
    }

    /// Whether a field is an object.
    pub(crate) fn is_object(&self, field: &str) -> bool {
        self.object.get(field).is_some_and(Value::is_object)
    }

    /// Whether a field is an object that has another one.
    pub(crate) fn is_object_with(&self, field: &str, inner: &str) -> bool {
        self.object.get(field).and_then(|value| value.get(inner)).is_some_and(|value| !value.is_null())
    }

    /// Sets a field that is not there: what an endpoint assumes where a request says nothing.
    pub(crate) fn assume(&mut self, field: &str, value: Value) {
        if !self.has(field) {
            self.object.insert(field.to_owned(), value);
        }
    }

    /// Removes a field that is 0; whether it was.
    pub(crate) fn take_zero(&mut self, field: &str) -> bool {
        let is_zero = self.object.get(field).is_some_and(|value| value.as_f64() == Some(0.0));
        is_zero && self.object.remove(field).is_some()
    }

    /// The fields that nobody took.
    pub(crate) fn into_rest(mut self) -> Map<String, Value> {
        std::mem::take(&mut self.object)
    }

    fn refuse<T>(&self, field: &str, expected: &str, got: &Value) -> Result<T, ApiError> {
        let name = self.name_of(field);
        let message = format!("{name} must be {expected}, got {}", show(got));
        Err(ApiError::invalid(name, message))
    }

    /// A number within `range`.
    pub(crate) fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ if *range.start() == -UNBOUNDED => self.refuse(field, "a number", &value),
            _ if *range.end() == UNBOUNDED => {
                self.refuse(field, &format!("a number of at least {}", range.start()), &value)
            }
            _ => self.refuse(field, &format!("a number between {} and {}", range.start(), range.end()), &value),
        }
    }

    /// An integer within `range`.
    pub(crate) fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match integer_of(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ if *range.end() == i64::MAX => {
                self.refuse(field, &format!("an integer of at least {}", range.start()), &value)
            }
            _ => self.refuse(field, &format!("an integer between {} and {}", range.start(), range.end()), &value),
        }
    }

    /// True or false.
    pub(crate) fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => self.refuse(field, "true or false", &other),
        }
    }

    /// A string.
    pub(crate) fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.refuse(field, "a string", &other),
        }
    }

    /// An array.
    pub(crate) fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => self.refuse(field, "an array", &other),
        }
    }

    /// An object's fields.
    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let name = self.name_of(field);
        self.take(field).map(|value| Fields::nested(&name, value)).transpose()
    }
}

/// Fields of objects inside the body that nobody took: their paths without indices, such as `messages[].foo`.
///
/// Of the thread, and not handed from reader to reader: a body is read by one thread from its beginning ([`Fields::new`]) to its
/// end, where [`untaken::take`] asks.
pub(crate) mod untaken {
    use std::cell::RefCell;

    use serde_json::{Map, Value};

    /// Names that are kept; the answer tells fewer.
    const MAX_NAMES: usize = 32;
    /// Characters of a field's own name that are kept.
    const MAX_CHARS: usize = 64;

    thread_local! {
        static UNTAKEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes what is left of an object, which `path` leads to.
    pub(super) fn note(path: &str, rest: &Map<String, Value>) {
        UNTAKEN.with_borrow_mut(|untaken| {
            for (name, _) in rest.iter().filter(|(_, value)| !value.is_null()) {
                if untaken.len() == MAX_NAMES {
                    return;
                }
                let digits_left_out = path.chars().filter(|letter| !letter.is_ascii_digit());
                let name: String = digits_left_out.chain(name.chars().take(MAX_CHARS)).collect();
                if !untaken.contains(&name) {
                    untaken.push(name);
                }
            }
        });
    }

    /// Those since this was called last, or a body begun, in order of their names: what takes fields moves the others about.
    pub(crate) fn take() -> Vec<String> {
        let mut names = UNTAKEN.take();
        names.sort_unstable();
        names
    }
}

/// Which fields this thread asked for: the test of the API's description compares.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(name: String) {
        ASKED.with_borrow_mut(|asked| asked.insert(name));
    }

    /// Those since this was called last.
    pub(crate) fn take() -> BTreeSet<String> {
        ASKED.take()
    }
}

/// An integer, also one written as 16.0, as some languages do.
pub(crate) fn integer_of(value: &Value) -> Option<i64> {
    /// Beyond this a float no longer tells neighbouring integers apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| {
        // A u64 above i64::MAX would come back from as_f64 as a rounded float; EXACT keeps it out.
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT)?;
        Some(float as i64)
    })
}

/// The one value of a parameter that has two names, each taken by `take`; 400 where a request gives it another value under each.
pub(crate) fn either<T: PartialEq + Display>(
    [name, other_name]: [&str; 2],
    mut take: impl FnMut(&str) -> Result<Option<T>, ApiError>,
) -> Result<Option<T>, ApiError> {
    let (value, other) = (take(name)?, take(other_name)?);
    if let (Some(value), Some(other)) = (&value, &other)
        && value != other
    {
        let message =
            format!("{name} is {value} and {other_name} is {other}, two names of one parameter; give one of them");
        return Err(ApiError::invalid(name, message));
    }
    Ok(value.or(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        match value {
            Value::Object(object) => Fields::new(object),
            _ => panic!("tests give objects"),
        }
    }

    fn message<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.expect_err("should be refused").message().to_owned()
    }

    #[test]
    fn errors_name_the_field_and_show_the_value() {
        let mut f = fields(json!({"temperature": "hot", "n": 2.5, "stream": 1, "model": ["a"], "max": -1}));
        assert_eq!(
            message(f.number("temperature", 0.0..=2.0)),
            "temperature must be a number between 0 and 2, got \"hot\""
        );
        let mut unbounded = fields(json!({"range": -1, "sigma": "small", "base": 1e300}));
        assert_eq!(message(unbounded.number("range", 0.0..=UNBOUNDED)), "range must be a number of at least 0, got -1");
        assert_eq!(
            message(unbounded.number("base", 1.0..=UNBOUNDED)),
            "base must be a number of at least 1, got 1e+300"
        );
        assert_eq!(message(unbounded.number("sigma", -UNBOUNDED..=UNBOUNDED)), "sigma must be a number, got \"small\"");
        assert_eq!(message(f.integer("n", 1..=16)), "n must be an integer between 1 and 16, got 2.5");
        assert_eq!(message(f.boolean("stream")), "stream must be true or false, got 1");
        assert_eq!(message(f.string("model")), "model must be a string, got an array of 1");
        assert_eq!(message(f.integer("max", 1..=i64::MAX)), "max must be an integer of at least 1, got -1");
    }

    #[test]
    fn nested_errors_give_the_whole_path() {
        let mut f = Fields::nested("messages[2]", json!({"role": 7})).unwrap();
        let error = f.string("role").unwrap_err();
        assert_eq!(error.to_json()["error"]["param"], "messages[2].role");
    }

    #[test]
    fn null_is_absent_and_integral_floats_are_integers() {
        let mut f = fields(json!({"a": null, "b": 16.0, "c": 1e300, "d": u64::MAX}));
        assert_eq!(f.string("a").unwrap(), None);
        assert_eq!(f.integer("b", 1..=16).unwrap(), Some(16));
        assert!(f.integer("c", 0..=i64::MAX).is_err());
        assert!(f.integer("d", 0..=i64::MAX).is_err());
    }

    #[test]
    fn what_nobody_took_of_nested_objects_is_known_by_name() {
        let body = fields(json!({ "top": 1 }));
        for index in 0..100 {
            let value = json!({ "role": "user", "foo": index, "bar": null, "b\u{e4}z": { "not": "looked at" } });
            let mut message = Fields::nested(&format!("messages[{index}]"), value).unwrap();
            message.string("role").unwrap();
            let mut tool = Fields::nested("tools[0].function", json!({ "parameters": { "any": 1 } })).unwrap();
            assert_eq!(tool.object("parameters").unwrap().unwrap().into_rest().len(), 1);
        }
        assert_eq!(untaken::take(), ["messages[].b\u{e4}z", "messages[].foo"]);
        assert_eq!(untaken::take(), Vec::<String>::new());
        // However many there are, few are kept, and none for the next body.
        let many: Map<String, Value> = (0..1000).map(|n| (format!("{n}").repeat(100), json!(n))).collect();
        drop(Fields::nested("many", Value::Object(many)).unwrap());
        drop(body);
        let kept = untaken::take();
        assert!(kept.len() == 32 && kept.iter().all(|name| name.len() <= "many.".len() + 64), "{kept:?}");
        drop(Fields::nested("x", json!({ "y": 1 })).unwrap());
        drop(fields(json!({})));
        assert_eq!(untaken::take(), Vec::<String>::new());
    }

    #[test]
    fn long_values_are_shown_short() {
        assert_eq!(show(&json!("ü".repeat(1000))).chars().count(), SHOWN_CHARS + 5);
        assert_eq!(show(&json!([1, 2])), "an array of 2");
    }
}
