//! Seeded JSON schemas with documents that they allow: nesting, enum, const, pattern, `$ref`, anyOf, bounded arrays and
//! numbers, optional properties.
//!
//! A schema is drawn first, then documents are drawn from the schema, so neither knows of a validator or a grammar. Lengths
//! are bounded as a careful author bounds them: a document is one to three hundred bytes.

use crate::rng::SplitMix;
use serde_json::{Map, Value, json};

/// One schema and some of its documents, their properties in the schema's order.
#[derive(Debug, Clone)]
pub struct SchemaCase {
    /// Its place in the series.
    pub index: usize,
    /// The schema.
    pub schema: Value,
    /// Documents that it allows.
    pub documents: Vec<Value>,
}

/// The seed of the series that tests and measurements share.
pub const SEED: u64 = 20_261;

/// Documents of each schema.
const NUM_DOCUMENTS: usize = 4;

/// Names of properties.
const NAMES: &[&str] = &[
    "name",
    "age",
    "city",
    "email",
    "tags",
    "price",
    "items",
    "status",
    "count",
    "id",
    "title",
    "color",
    "active",
    "score",
    "address",
    "phone",
    "unit_price",
    "createdAt",
    "é",
    "with space",
];

/// Words that strings are made of.
const WORDS: &[&str] =
    &["red", "Berlin", "a b", "café", "東京", "🦀", "x\"y", "back\\slash", "tab\there", "line\nend", "", "Smith", "42"];

/// Patterns, and texts that they match.
const PATTERNS: &[(&str, &[&str])] = &[
    ("^[A-Z]{2}-[0-9]{4}$", &["AB-1234", "ZZ-0000"]),
    ("^[0-9]{3}$", &["000", "417"]),
    ("^(red|green|blue)$", &["red", "blue"]),
    ("^[a-z]{1,16}@[a-z]{1,16}\\.(com|org)$", &["me@here.org", "a@b.com"]),
    ("^\\d{4}-\\d{2}-\\d{2}$", &["2026-11-21"]),
];

/// `num` schemas of a seed. The first ones do not depend on `num`.
pub fn schemas(seed: u64, num: usize) -> Vec<SchemaCase> {
    (0..num).map(|index| case(seed, index)).collect()
}

fn case(seed: u64, index: usize) -> SchemaCase {
    let mut rng = SplitMix::named(seed, &format!("schema {index}"));
    let mut definitions = Map::new();
    if rng.chance(0.4) {
        definitions.insert("point".to_owned(), object(&mut rng, 1, &[]));
    }
    if rng.chance(0.2) {
        let tree = json!({
            "type": "object", "additionalProperties": false, "required": ["value", "children"],
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
            },
        });
        definitions.insert("tree".to_owned(), tree);
    }
    let names: Vec<&str> = definitions.keys().map(String::as_str).collect();
    let mut schema = object(&mut rng, 3, &names);
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    let documents = (0..NUM_DOCUMENTS).map(|_| document(&mut rng, &schema, &schema, 0)).collect();
    SchemaCase { index, schema, documents }
}

/// An object of up to six properties; `depth` levels may follow below it, and `$ref` may name `definitions`.
fn object(rng: &mut SplitMix, depth: usize, definitions: &[&str]) -> Value {
    let mut names = NAMES.to_vec();
    rng.shuffle(&mut names);
    names.truncate(1 + rng.below(if depth > 1 { 6 } else { 3 }));
    let properties: Map<String, Value> =
        names.iter().map(|&name| (name.to_owned(), value(rng, depth - 1, definitions))).collect();
    let required: Vec<&str> = names.into_iter().filter(|_| rng.chance(0.7)).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    // A third leaves open whether there are others.
    if rng.chance(0.67) {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

fn value(rng: &mut SplitMix, depth: usize, definitions: &[&str]) -> Value {
    if !definitions.is_empty() && rng.chance(0.2) {
        return json!({"$ref": format!("#/$defs/{}", rng.pick(definitions))});
    }
    match rng.below(if depth > 0 { 11 } else { 8 }) {
        0 => json!({"type": "string", "maxLength": rng.pick(&[20, 40, 60, 100])}),
        1 => json!({"type": "string", "pattern": rng.pick(PATTERNS).0}),
        2 => {
            let low = rng.below(2000) as i64 - 1000;
            json!({"type": "integer", "minimum": low, "maximum": low + 1 + rng.below(500) as i64})
        }
        3 => json!({"type": "number", "minimum": -1.5, "maximum": 1 + rng.below(99)}),
        4 => json!({"type": "boolean"}),
        5 => json!({"enum": ["small", "medium", 3, null, true]}),
        6 => json!({"const": rng.pick(&["v1", "fixed"])}),
        7 => json!({"type": ["string", "null"], "maxLength": 50}),
        8 => {
            let low = rng.below(3);
            let items = value(rng, depth - 1, definitions);
            json!({"type": "array", "items": items, "minItems": low, "maxItems": low + 1 + rng.below(3)})
        }
        9 => json!({"anyOf": [value(rng, depth - 1, definitions), {"type": "null"}]}),
        _ => object(rng, depth, definitions),
    }
}

/// A document of `schema`, which is part of `root`. Deep in a recursion, arrays are as short as they may be.
fn document(rng: &mut SplitMix, schema: &Value, root: &Value, depth: usize) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(&reference[1..]).expect("the definition is there");
        return document(rng, target, root, depth + 1);
    }
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    for key in ["enum", "anyOf"] {
        if let Some(options) = schema[key].as_array() {
            let option = rng.pick(options);
            return if key == "enum" { option.clone() } else { document(rng, option, root, depth + 1) };
        }
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => rng.pick(kinds).as_str(),
        kind => kind.as_str(),
    };
    let integer = |key: &str| schema[key].as_i64();
    match kind.expect("a schema has a type") {
        "object" => Value::Object(properties(rng, schema, root, depth)),
        "array" => {
            let low = integer("minItems").unwrap_or(0) as usize;
            let high = integer("maxItems").expect("arrays are bounded") as usize;
            let len = if depth > 4 { low } else { low + rng.below(high - low + 1) };
            (0..len).map(|_| document(rng, &schema["items"], root, depth + 1)).collect()
        }
        "string" => json!(string(rng, schema)),
        "integer" => {
            let (low, high) = (integer("minimum").expect("it is bounded"), integer("maximum").expect("it is bounded"));
            json!(low + rng.below((high - low + 1) as usize) as i64)
        }
        "number" => json!(*rng.pick(&[-1.5, -0.25, 0.0, 0.5, 1.0])),
        "boolean" => json!(rng.chance(0.5)),
        "null" => Value::Null,
        other => panic!("no schema here has the type {other}"),
    }
}

fn properties(rng: &mut SplitMix, schema: &Value, root: &Value, depth: usize) -> Map<String, Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut fields = Map::new();
    for (name, property) in schema["properties"].as_object().expect("objects here name their properties") {
        if required.contains(&json!(name)) || rng.chance(0.5) {
            fields.insert(name.clone(), document(rng, property, root, depth + 1));
        }
    }
    fields
}

fn string(rng: &mut SplitMix, schema: &Value) -> String {
    if let Some(pattern) = schema["pattern"].as_str() {
        let (_, texts) = PATTERNS.iter().find(|(known, _)| *known == pattern).expect("the pattern is one of ours");
        return (*rng.pick(texts)).to_owned();
    }
    let max = schema["maxLength"].as_u64().expect("strings are bounded") as usize;
    let words: Vec<&str> = (0..rng.below(4)).map(|_| *rng.pick(WORDS)).collect();
    words.join(" ").chars().take(max).collect()
}

/// A document on one line with a blank after each comma and colon, as Python's `json.dumps(ensure_ascii=False)` writes it.
pub fn one_line(document: &Value) -> String {
    match document {
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{}: {}", json!(name), one_line(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_the_same_whatever_is_asked_for() {
        let (few, many) = (schemas(SEED, 3), schemas(SEED, 200));
        for (few, many) in few.iter().zip(&many) {
            assert_eq!((&few.schema, &few.documents), (&many.schema, &many.documents));
        }
        assert_ne!(schemas(1, 1)[0].schema, schemas(2, 1)[0].schema);
    }

    #[test]
    fn every_feature_occurs() {
        let text: String = schemas(SEED, 200).iter().map(|case| case.schema.to_string()).collect();
        let features = [
            "\"enum\"",
            "\"const\"",
            "\"pattern\"",
            "\"$ref\"",
            "\"anyOf\"",
            "\"minItems\"",
            "\"minimum\"",
            "#/$defs/tree",
        ];
        for feature in features {
            assert!(text.contains(feature), "{feature}");
        }
    }

    #[test]
    fn documents_are_written_as_python_writes_them() {
        let document = json!({"a": [1, 2.5, null], "é": {"b\"": "x\n"}});
        assert_eq!(one_line(&document), r#"{"a": [1, 2.5, null], "é": {"b\"": "x\n"}}"#);
    }
}
