//! Vectors of texts.

use serde_json::{Value, json};

use super::Operation;
use super::generation::model;
use super::schema::{
    Named, all, any_of, array, boolean, ids, integer, integer_from, map, number, object, one_of, optional, reference,
    string, strings,
};
use crate::limits::MAX_INPUTS;

/// POST /v1/embeddings.
pub(crate) fn embeddings() -> Operation {
    Operation::post("embeddings", "A vector for each input", reference("EmbeddingRequest"), reference("Embeddings"))
}

/// POST /embedding and /embeddings.
pub(crate) fn native() -> Operation {
    let vectors = array(array(number(""), ""), "One vector: the hidden states are pooled.");
    let item = all(vec![("index", integer("")), ("embedding", vectors)]);
    let answer = array(item, "In the order of the inputs.");
    Operation::post(
        "llama-server",
        "A vector for each input, in llama-server's way",
        reference("NativeEmbeddingRequest"),
        answer,
    )
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("EmbeddingRequest", object(fields(), &["input"])),
        ("NativeEmbeddingRequest", native_request()),
        ("Embeddings", answer()),
    ]
}

fn native_request() -> Value {
    let mut fields = fields();
    let input = fields.iter().find(|(name, _)| *name == "input").map(|(_, schema)| schema.clone());
    fields.retain(|(name, _)| !["embd_normalize", "encoding_format"].contains(name));
    fields.extend([
        ("content", input.unwrap_or_default()),
        ("embd_normalize", json!({ "enum": [-1, 2], "description": "-1: vectors as they are; 2: of the length 1." })),
        ("encoding_format", one_of(&["float"], "")),
    ]);
    optional(fields)
}

fn fields() -> Vec<Named> {
    let most = MAX_INPUTS;
    let input = any_of(
        vec![string(""), strings(""), ids(""), array(ids(""), "")],
        &format!("A text, token ids, or up to {most} of either."),
    );
    vec![
        model(),
        ("input", input),
        ("encoding_format", one_of(&["float", "base64"], "base64 is of float32, little-endian.")),
        ("dimensions", integer_from(1, "Elements that are kept, from the first; at most those of the model.")),
        ("pooling", one_of(&["mean", "last"], "How the hidden states become one; the model's file says the default.")),
        ("normalize", boolean("Whether vectors get the length 1; true where nothing is said.")),
        (
            "truncate_prompt_tokens",
            integer_from(
                -1,
                "Tokens that are kept of a longer input, its last, and before those of a text its BOS; -1: the context.",
            ),
        ),
        ("add_special_tokens", boolean("What the model's file wants around a text; true where nothing is said.")),
        ("priority", integer("Lower is served earlier.")),
        ("cache_salt", string("Prefixes are shared only under the same one.")),
        ("messages", array(map(""), "Not supported.")),
        ("embed_dtype", one_of(&["float32"], "")),
        ("endianness", one_of(&["native", "little"], "")),
        ("truncation_side", one_of(&["left"], "")),
        ("use_activation", json!({ "description": "Not supported." })),
        ("embd_normalize", json!({ "description": "Not supported; see normalize." })),
    ]
}

fn answer() -> Value {
    let vector = any_of(vec![array(number(""), ""), string("")], "Numbers, or their base64.");
    let item = all(vec![("object", json!({ "const": "embedding" })), ("index", integer("")), ("embedding", vector)]);
    let usage = all(vec![("prompt_tokens", integer("")), ("total_tokens", integer(""))]);
    all(vec![
        ("object", json!({ "const": "list" })),
        ("data", array(item, "In the order of the inputs.")),
        ("model", string("")),
        ("usage", usage),
    ])
}
