//! What we add to a client's JSON schema before it is compiled. Every document of the changed schema is one of the original.
//!
//! **Whitespace.** One line, a blank after each comma and colon and nowhere else, as Python's `json.dumps` writes: the form
//! that models have seen most, and one in which everything between values is forced and costs no sampling. Free whitespace
//! would let a weak model write blanks until its tokens run out.
//!
//! **Closed objects.** An object that names its properties takes no others unless the schema says `additionalProperties`,
//! as in OpenAI's strict mode, vLLM and llama.cpp; inventing names is the other way never to finish. Where schemas are
//! merged (`allOf`, a `$ref` with neighbours), closing a part could contradict another, so such documents stay as they are.

use serde_json::{Map, Value, json};

use super::GrammarError;
use crate::error::quoted;

const KIND: &str = "JSON schema";

/// Keys that hold one schema.
const ONE: &[&str] = &["items", "additionalProperties", "additionalItems", "contains", "propertyNames"];
/// Keys that hold a list of schemas.
const LISTS: &[&str] = &["anyOf", "oneOf", "prefixItems", "items"];
/// Keys that hold schemas by name.
const NAMED: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];
/// Keys whose schemas are merged with their neighbours: none of them, and no object is closed.
const MERGING: &[&str] =
    &["allOf", "unevaluatedProperties", "not", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keys of an object's shape. Beside `anyOf`, they are merged with its branches.
const SHAPE: &[&str] = &["properties", "required", "additionalProperties", "patternProperties", "minProperties"];
/// Keys that may stand beside `$ref` without meaning anything.
const ANNOTATIONS: &[&str] = &["$ref", "title", "description", "default", "examples", "$comment", "deprecated"];

/// The schema to compile, with our ways in it. It is nested no deeper than `limits` says.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err(GrammarError::invalid(KIND, "false allows no document")),
        other => {
            let found = quoted(&other.to_string());
            return Err(GrammarError::invalid(KIND, format!("a schema is an object, got {found}")));
        }
    };
    if !merges(&schema) {
        close_objects(&mut schema);
    }
    if let Value::Object(fields) = &mut schema {
        let options = json!({"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false});
        fields.insert("x-guidance".to_owned(), options);
    }
    Ok(schema)
}

/// Whether schemas are merged anywhere in `value`. Property names that look like such keys only make it true too often.
fn merges(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(merges),
        Value::Object(fields) => {
            let refers = fields.get("$ref").is_some_and(Value::is_string);
            let has_neighbours = fields.keys().any(|key| !ANNOTATIONS.contains(&key.as_str()));
            (refers && has_neighbours && !fields.contains_key("$defs") && !fields.contains_key("definitions"))
                || fields.keys().any(|key| MERGING.contains(&key.as_str()))
                || fields.values().any(merges)
        }
        _ => false,
    }
}

fn close_objects(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let is_shape = fields.keys().any(|key| SHAPE.contains(&key.as_str()));
    if is_closable(fields) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (key, value) in fields.iter_mut() {
        let key = key.as_str();
        if is_shape && (key == "anyOf" || key == "oneOf") {
            continue;
        }
        match value {
            Value::Array(schemas) if LISTS.contains(&key) => schemas.iter_mut().for_each(close_objects),
            Value::Object(schemas) if NAMED.contains(&key) => schemas.values_mut().for_each(close_objects),
            one if ONE.contains(&key) => close_objects(one),
            _ => {}
        }
    }
}

/// Whether closing the object leaves a document: it names what it requires, and says nothing itself.
fn is_closable(fields: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = fields.get("properties") else { return false };
    let says_itself =
        ["additionalProperties", "patternProperties", "propertyNames", "minProperties", "anyOf", "oneOf", "$ref"];
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    says_itself.iter().all(|key| !fields.contains_key(*key))
        && required.into_iter().all(|name| name.as_str().is_some_and(|name| properties.contains_key(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &Value, expected: &Value) {
        let mut prepared = prepare(schema).unwrap();
        let options = prepared.as_object_mut().unwrap().remove("x-guidance").unwrap();
        assert_eq!(options["whitespace_flexible"], false);
        assert_eq!(&prepared, expected, "{schema}");
    }

    #[test]
    fn objects_that_name_their_properties_are_closed_at_every_level() {
        check(
            &json!({"properties": {"a": {"properties": {}}}, "required": ["a"], "$defs": {"d": {"properties": {}}}}),
            &json!({
                "properties": {"a": {"properties": {}, "additionalProperties": false}}, "required": ["a"],
                "$defs": {"d": {"properties": {}, "additionalProperties": false}}, "additionalProperties": false,
            }),
        );
        check(
            &json!({"items": {"anyOf": [{"properties": {}}, {"type": "null"}]}}),
            &json!({"items": {"anyOf": [{"properties": {}, "additionalProperties": false}, {"type": "null"}]}}),
        );
    }

    #[test]
    fn objects_that_say_what_else_they_take_stay_open() {
        for open in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "minProperties": 3}),
            json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"properties": {"a": {"$ref": "#/$defs/d", "required": ["x"]}}, "$defs": {"d": {"properties": {}}}}),
        ] {
            check(&open, &open);
        }
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        check(&json!(true), &json!({}));
        for (bad, part) in
            [(json!(false), "no document"), (json!("x"), "an object, got"), (json!([]), "an object, got")]
        {
            let error = prepare(&bad).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
