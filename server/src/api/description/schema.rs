//! Words that schemas are written in, and the schemas that all groups share.

use serde_json::{Map, Value, json};

/// A named schema.
pub(super) type Named = (&'static str, Value);

/// A text.
pub(super) fn string(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

/// A text that must be empty.
pub(super) fn empty(about: &str) -> Value {
    json!({ "type": "string", "maxLength": 0, "description": about })
}

/// A text that is JSON of this schema.
pub(super) fn text_of_json(schema: Value) -> Value {
    let mut text = json!({ "type": "string", "contentMediaType": super::JSON });
    text["contentSchema"] = schema;
    text
}

/// True or false.
pub(super) fn boolean(about: &str) -> Value {
    json!({ "type": "boolean", "description": about })
}

/// An integer of any size.
pub(super) fn integer(about: &str) -> Value {
    json!({ "type": "integer", "description": about })
}

/// An integer between two bounds.
pub(super) fn integer_in(least: i64, most: i64, about: &str) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most, "description": about })
}

/// An integer that is at least `least`.
pub(super) fn integer_from(least: i64, about: &str) -> Value {
    json!({ "type": "integer", "minimum": least, "description": about })
}

/// A number.
pub(super) fn number(about: &str) -> Value {
    json!({ "type": "number", "description": about })
}

/// A number between two bounds.
pub(super) fn number_in(least: f64, most: f64, about: &str) -> Value {
    json!({ "type": "number", "minimum": least, "maximum": most, "description": about })
}

/// A number that is at least `least`.
pub(super) fn number_from(least: f64, about: &str) -> Value {
    json!({ "type": "number", "minimum": least, "description": about })
}

/// One of these texts.
pub(super) fn one_of(texts: &[&str], about: &str) -> Value {
    json!({ "type": "string", "enum": texts, "description": about })
}

/// An array.
pub(super) fn array(items: Value, about: &str) -> Value {
    let mut schema = json!({ "type": "array", "description": about });
    schema["items"] = items;
    schema
}

/// Token ids.
pub(super) fn ids(about: &str) -> Value {
    array(json!({ "type": "integer", "minimum": 0 }), about)
}

/// Texts.
pub(super) fn strings(about: &str) -> Value {
    array(json!({ "type": "string" }), about)
}

/// Nothing, always.
pub(super) fn null() -> Value {
    json!({ "type": "null" })
}

/// The schema or null.
pub(super) fn nullable(schema: Value) -> Value {
    any_of(vec![schema, null()], "")
}

/// Any of these.
pub(super) fn any_of(schemas: Vec<Value>, about: &str) -> Value {
    let mut schema = Value::Object(Map::from_iter([("anyOf".to_owned(), Value::Array(schemas))]));
    if !about.is_empty() {
        schema["description"] = about.into();
    }
    schema
}

/// An object whose fields are not told.
pub(super) fn map(about: &str) -> Value {
    json!({ "type": "object", "description": about, "additionalProperties": true })
}

/// An object that may have these fields.
pub(super) fn optional(fields: Vec<Named>) -> Value {
    object(fields, &[])
}

/// An object that has all of these fields.
pub(super) fn all(fields: Vec<Named>) -> Value {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    object(fields, &names)
}

/// An object.
pub(super) fn object(fields: Vec<Named>, required: &[&str]) -> Value {
    let properties: Map<String, Value> = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// An object that may have these fields as well.
pub(super) fn also(mut object: Value, fields: Vec<Named>) -> Value {
    for (name, schema) in fields {
        object["properties"][name] = schema;
    }
    object
}

/// A schema of [`super::components`].
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A schema of [`super::components`], where it is used for something.
pub(super) fn reference_as(name: &str, about: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}"), "description": about })
}

/// What an error says.
fn error() -> Value {
    object(
        vec![
            ("message", string("What is wrong, with the value that was given and what was expected.")),
            (
                "type",
                string("invalid_request_error, rate_limit_error, timeout_error, service_unavailable or server_error."),
            ),
            ("param", nullable(string("The field at fault."))),
            ("code", nullable(string("A name of the reason, such as invalid_value or context_length_exceeded."))),
            ("n_prompt_tokens", integer("Tokens of a prompt that is too long.")),
            ("n_ctx", integer("Tokens of the context that it does not fit.")),
        ],
        &["message", "type", "param", "code"],
    )
}

/// Schemas of all groups.
pub(super) fn components() -> Vec<Named> {
    let timings = vec![
        ("queue_ms", number("From arrival to the first step.")),
        ("cache_n", integer("Tokens of the prompt that were not computed again.")),
        (
            "cache_miss_reason",
            nullable(string(
                "Why the prefix cache had no more: new (nothing else like it was kept), departs at token N (that one differs from all \
                 kept prompts that begin like this one, and whole blocks are shared), evicted (its memory was needed). Null where every \
                 full block was there.",
            )),
        ),
        ("prompt_n", integer("Tokens of the prompt.")),
        ("prompt_ms", number("From the first step to the first token.")),
        ("prompt_per_token_ms", number("The same for each token of the prompt.")),
        ("prompt_per_second", number("Tokens of the prompt per second.")),
        ("predicted_n", integer("Tokens of the answer.")),
        ("predicted_ms", number("From the first token to the last.")),
        ("predicted_per_token_ms", number("The same for each token after the first.")),
        ("predicted_per_second", number("Tokens after the first per second.")),
        ("draft_n", integer("Guesses of tokens that were verified.")),
        ("draft_n_accepted", integer("Of those, the ones that were right.")),
        (
            "sample_ms",
            number(
                "Of these times, what it took to choose tokens from logits: penalties, masks, draws, log-probabilities. \
                 What a GPU draws itself is not in it.",
            ),
        ),
        ("detokenize_ms", number("And what it took to make text of tokens, and to look for stop strings in it.")),
        (
            "recomputed_rows",
            integer(
                "Rows of attention, of each head, that were computed a second time because a fixed reference of their \
                 softmax did not fit; those of others in the same steps included.",
            ),
        ),
    ];
    let usage = all(vec![
        ("prompt_tokens", integer("Tokens of all prompts.")),
        ("completion_tokens", integer("Tokens of all answers, those that end them included.")),
        ("total_tokens", integer("Both.")),
        (
            "prompt_tokens_details",
            all(vec![("cached_tokens", integer("Tokens of prompts that were not computed again."))]),
        ),
        (
            "completion_tokens_details",
            all(vec![(
                "reasoning_tokens",
                integer("Of the answers, the ones that the model thought with, where thoughts are told apart."),
            )]),
        ),
    ]);
    let progress = object(
        vec![
            ("total", integer("Tokens of the prompt.")),
            ("cache", integer("Of those, the ones that the prefix cache spared.")),
            ("processed", integer("And all that need not be computed any more.")),
            ("time_ms", integer("Since the first step that computed some of it.")),
            ("prompt", integer("Which prompt of several; not on /completion, whose index tells.")),
        ],
        &["total", "cache", "processed", "time_ms"],
    );
    let usage_so_far = all(vec![
        ("prompt_tokens", integer("Tokens of all prompts.")),
        ("completion_tokens", integer("Tokens of all answers so far.")),
        ("total_tokens", integer("Both.")),
    ]);
    vec![
        ("Error", all(vec![("error", error())])),
        ("Timings", all(timings)),
        ("Usage", usage),
        ("UsageSoFar", usage_so_far),
        ("PromptProgress", progress),
    ]
}
