//! What the tokenizer and the chat template make of texts.

use serde_json::{Value, json};

use super::Operation;
use super::generation::{conversation_fields, model};
use super::info::asked;
use super::schema::{
    all, any_of, array, boolean, ids, integer, nullable, object, optional, reference, string, strings,
};

const TAG: &str = "tokens";

/// POST /tokenize.
pub(crate) fn tokenize() -> Operation {
    let mut fields = conversation_fields();
    fields.extend([
        model(),
        ("prompt", string("vLLM's: a text.")),
        (
            "content",
            any_of(
                vec![json!({ "type": "string" }), array(json!({ "type": ["string", "integer"] }), "")],
                "llama.cpp's: a text, or texts and token ids.",
            ),
        ),
        (
            "add_special_tokens",
            boolean("With prompt or messages: BOS where the model wants it; true where nothing is said."),
        ),
        ("return_token_strs", boolean("With prompt or messages: tell how the vocabulary writes the tokens.")),
        ("add_special", boolean("With content: BOS where the model wants it.")),
        (
            "parse_special",
            boolean("With content: control tokens that are spelled out are those tokens; true where nothing is said."),
        ),
        ("with_pieces", boolean("With content: tell the text of each token.")),
    ]);
    let request = optional(fields);
    let vllms = all(vec![
        ("count", integer("How many tokens.")),
        ("max_model_len", integer("Tokens of the context.")),
        ("tokens", ids("")),
        ("token_strs", nullable(strings(""))),
    ]);
    let piece = any_of(
        vec![json!({ "type": "string" }), array(json!({ "type": "integer" }), "")],
        "The token's text, or its bytes where they are no whole character.",
    );
    let with_piece = all(vec![("id", integer("")), ("piece", piece)]);
    let llama_cpps = all(vec![("tokens", any_of(vec![ids(""), array(with_piece, "")], ""))]);
    let answer = any_of(vec![vllms, llama_cpps], "The first for prompt and messages, the second for content.");
    Operation::post(
        TAG,
        "The tokens of prompt, of messages or of content: the field that is there decides",
        request,
        answer,
    )
}

/// POST /detokenize.
pub(crate) fn detokenize() -> Operation {
    let request = object(vec![model(), ("tokens", ids("Any tokens of the vocabulary."))], &["tokens"]);
    let answer = all(vec![
        ("prompt", string("The text, under vLLM's name.")),
        ("content", string("The same under llama.cpp's name.")),
    ]);
    Operation::post(TAG, "The text of tokens", request, answer)
}

/// POST /apply-template.
pub(crate) fn apply_template() -> Operation {
    let mut fields = conversation_fields();
    fields.push(model());
    let request = object(fields, &["messages"]);
    let answer = all(vec![("prompt", string("The conversation as the model would see it."))]);
    Operation::post(TAG, "A conversation, rendered with the model's chat template", request, answer)
}

/// POST /v1/chat/completions/input_tokens.
pub(crate) fn input_tokens() -> Operation {
    let answer = all(vec![
        ("object", json!({ "const": "response.input_tokens" })),
        ("input_tokens", integer("Tokens of the prompt.")),
    ]);
    let summary =
        "How many tokens the prompt of a chat request has; the request is checked as if it were to be answered";
    Operation::post(TAG, summary, reference("ChatRequest"), answer)
}

/// GET /tokenizer_info.
pub(crate) fn info() -> Operation {
    let token = |about: &str| nullable(string(about));
    let id = || nullable(json!({ "type": "integer" }));
    let answer: Value = all(vec![
        ("tokenizer_class", string("The class that loads any vocabulary.")),
        ("vocab_size", integer("Ids are below it.")),
        ("model_max_length", integer("Tokens of the context.")),
        ("add_bos_token", boolean("Whether a text begins with BOS.")),
        ("bos_token", token("The token that begins a text.")),
        ("bos_token_id", id()),
        ("eos_token", token("The token that ends a text.")),
        ("eos_token_id", id()),
        ("end_of_generation_ids", ids("Every token that ends an answer.")),
        ("special_tokens", strings("Tokens that templates write and answers do not show.")),
        ("chat_template", nullable(string("Jinja."))),
    ]);
    Operation::get(TAG, "What clients that render templates by themselves need to know", answer)
        .with_query(vec![asked()])
}
