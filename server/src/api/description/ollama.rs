//! Ollama's endpoints.

use serde_json::{Value, json};
use taper_engine::MAX_LOGPROBS;

use super::Operation;
use super::generation::{conversation_fields, opening_fields, shared_fields};
use super::messages::without_several;
use super::schema::{
    Named, all, any_of, array, boolean, ids, integer, integer_from, integer_in, map, number, number_from, number_in,
    object, one_of, optional, reference, string, strings,
};
use crate::api::ollama::{HARMLESS, LEVELS, LOADING, REFUSED};
use crate::limits::MAX_INPUTS;

const TAG: &str = "Ollama";

fn described(operation: Operation) -> Operation {
    Operation { error: reference("OllamaError"), ..operation }
}

fn generating(summary: &'static str, request: &str, answer: &str) -> Operation {
    let line = any_of(vec![reference(answer), reference("OllamaError")], "The last one has done true.");
    let operation = Operation::post(TAG, summary, reference(request), reference(answer));
    described(operation.streamed_as_lines(line))
}

/// POST /api/chat.
pub(crate) fn chat() -> Operation {
    generating("Answer a conversation; streamed unless stream is false", "OllamaChatRequest", "OllamaChatAnswer")
}

/// POST /api/generate.
pub(crate) fn generate() -> Operation {
    let summary = "Answer a prompt, or with raw continue it; streamed unless stream is false";
    generating(summary, "OllamaGenerateRequest", "OllamaGenerateAnswer")
}

/// POST /api/embed.
pub(crate) fn embed() -> Operation {
    let answer = all(vec![
        ("model", string("Who answers, as it was asked for.")),
        ("embeddings", array(array(json!({ "type": "number" }), ""), "One for each input, of the length 1.")),
        ("total_duration", nanoseconds("From the request to the answer.")),
        ("load_duration", json!({ "const": 0 })),
        ("prompt_eval_count", integer("Tokens of all inputs.")),
    ]);
    described(Operation::post(TAG, "A vector for each input", reference("OllamaEmbedRequest"), answer))
}

/// POST /api/embeddings.
pub(crate) fn embeddings() -> Operation {
    let answer = all(vec![("embedding", array(json!({ "type": "number" }), "Of any length."))]);
    described(Operation::post(TAG, "The vector of a text", reference("OllamaEmbeddingsRequest"), answer))
}

/// POST /api/show.
pub(crate) fn show() -> Operation {
    let accepted = |about: &str| json!({ "description": about });
    let request = optional(vec![
        model(),
        ("name", string("The older name of model.")),
        ("verbose", boolean("Accepted; nothing more is told.")),
        ("system", accepted("Accepted; changes nothing.")),
        ("template", accepted("Accepted; changes nothing.")),
        ("options", accepted("Accepted; changes nothing.")),
    ]);
    let answer = all(vec![
        ("modelfile", string("The name, the template and the context.")),
        ("parameters", string("The context.")),
        ("template", string("Jinja; empty where the model has none.")),
        ("details", reference("OllamaDetails")),
        ("model_info", map("What is known of the file's metadata, by its keys.")),
        (
            "capabilities",
            array(one_of(&["completion", "tools", "thinking", "embedding"], ""), "What the model can do."),
        ),
        ("modified_at", moment()),
    ]);
    described(Operation::post(TAG, "What is known of a model", request, answer))
}

/// GET /api/tags.
pub(crate) fn tags() -> Operation {
    listed("What is served", vec![("modified_at", moment())])
}

/// GET /api/ps.
pub(crate) fn ps() -> Operation {
    let more = vec![
        ("size_vram", integer("Of its bytes, those on a GPU.")),
        ("expires_at", moment()),
        ("context_length", integer("Tokens of a prompt and its answer.")),
    ];
    listed("What is in memory", more)
}

fn listed(summary: &'static str, more: Vec<Named>) -> Operation {
    let mut fields = vec![
        ("name", string("With its tag.")),
        ("model", string("The same.")),
        ("digest", string("Names the model; not the hash of its file.")),
        ("details", reference("OllamaDetails")),
        ("size", integer("Bytes.")),
    ];
    fields.extend(more);
    described(Operation::get(TAG, summary, all(vec![("models", array(all(fields), "One model."))])))
}

/// GET /api/version.
pub(crate) fn version() -> Operation {
    let version = string("The version of Ollama whose interface this is.");
    described(Operation::get(TAG, "Which of Ollama's interfaces this is", all(vec![("version", version)])))
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("OllamaChatRequest", chat_request()),
        ("OllamaGenerateRequest", generate_request()),
        ("OllamaOptions", options()),
        ("OllamaEmbedRequest", embed_request()),
        ("OllamaEmbeddingsRequest", embeddings_request()),
        ("OllamaChatAnswer", answer(vec![("message", message_of_answer())], &["message"])),
        ("OllamaGenerateAnswer", generate_answer()),
        ("OllamaToolCall", tool_call()),
        ("OllamaDetails", details()),
        ("OllamaError", all(vec![("error", string("What is wrong."))])),
    ]
}

fn model() -> Named {
    (
        "model",
        string(
            "The model's id or an alias of it, with the tag latest or without; another is a 404, an empty one as good as none.",
        ),
    )
}

fn moment() -> Value {
    string("RFC 3339, in UTC.")
}

fn nanoseconds(about: &str) -> Value {
    integer_from(0, &format!("{about} In nanoseconds."))
}

fn keep_alive() -> Named {
    let kinds = vec![json!({ "type": "number" }), json!({ "type": "string" })];
    (
        "keep_alive",
        any_of(
            kinds,
            "0 unloads the model: with nothing to answer once those that use it have ended, else after the answer if nobody else uses \
             it. Any other value leaves it loaded.",
        ),
    )
}

fn common_fields() -> Vec<Named> {
    let think = vec![json!({ "type": "boolean" }), one_of(LEVELS, "")];
    vec![
        model(),
        ("stream", boolean("Answer with lines; true where nothing is said.")),
        (
            "format",
            any_of(
                vec![one_of(&["", "json"], ""), map("")],
                "The answer is a JSON object, or follows this JSON schema.",
            ),
        ),
        ("options", reference("OllamaOptions")),
        ("think", any_of(think, "Whether and how hard to think; a level that the template does not know is told so.")),
        keep_alive(),
        ("truncate", boolean("Accepted; a prompt that the context does not hold is always refused.")),
        ("shift", boolean("Accepted; an answer ends where the context does.")),
        ("logprobs", boolean("Tell the log-probability of each token.")),
        (
            "top_logprobs",
            integer_in(0, i64::from(MAX_LOGPROBS), "And of this many most probable ones; needs logprobs."),
        ),
        ("_debug_render_only", json!({ "description": "Not supported: it must be false." })),
    ]
}

fn message() -> Value {
    let function = object(vec![("name", string("")), ("arguments", map(""))], &["name"]);
    let call = object(vec![("id", string("")), ("function", function)], &["function"]);
    object(
        vec![
            (
                "role",
                one_of(&["system", "user", "assistant", "tool"], "Who says it; the last one is not the assistant."),
            ),
            ("content", string("What is said.")),
            ("thinking", string("Of the assistant: what it thought.")),
            ("tool_calls", array(call, "Of the assistant.")),
            ("tool_name", string("Of the role tool: whose result it is.")),
            ("name", string("The older name of tool_name.")),
            ("tool_call_id", string("Of the role tool: which call this answers.")),
            images(),
        ],
        &["role"],
    )
}

fn images() -> Named {
    ("images", array(Value::Bool(true), "Not supported: it must be empty."))
}

fn chat_request() -> Value {
    let mut fields = common_fields();
    fields.push(("messages", array(message(), "The conversation so far; without any nothing is answered.")));
    let of_tools = |name: &str| ["tools", "tool_choice", "parallel_tool_calls"].contains(&name);
    fields.extend(opening_fields());
    fields.extend(conversation_fields().into_iter().filter(|(name, _)| of_tools(name)));
    optional(fields)
}

fn generate_request() -> Value {
    let empty = |about: &str| json!({ "type": "string", "maxLength": 0, "description": about });
    let mut fields = common_fields();
    fields.extend([
        ("prompt", string("What is asked; without it nothing is answered.")),
        ("system", string("What the model is told before.")),
        ("raw", boolean("The prompt is all, and no template is applied.")),
        ("context", ids("The context of a former answer, which this prompt follows.")),
        ("suffix", empty("Not supported: it must be empty.")),
        ("template", empty("Not supported: it must be empty.")),
        images(),
    ]);
    optional(fields)
}

fn options() -> Value {
    let mut fields = vec![
        ("num_predict", integer_from(-2, "Tokens of the answer; -1 and -2 are the rest of the context, 0 is none.")),
        ("num_ctx", integer_from(0, "A larger one than the server's is told among the ignored fields.")),
        ("temperature", number_from(0.0, "0.8 where neither request nor server nor model says; 0 is greedy.")),
        ("top_k", integer_from(-1, "40 where neither request nor server nor model says; 0 and -1 keep all.")),
        ("top_p", number_in(0.0, 1.0, "0.9 where neither request nor server nor model says.")),
        ("seed", integer("-1 is any.")),
    ];
    let own: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.extend(without_several(shared_fields()).into_iter().filter(|(name, _)| !own.contains(name)));
    fields.retain(|(name, _)| !REFUSED.iter().any(|(refused, _)| refused == name));
    let about = |names: &'static [&str], about: &'static str| {
        names.iter().map(move |name| (*name, json!({ "description": about })))
    };
    fields.extend(
        REFUSED.iter().map(|(name, _)| {
            (*name, json!({ "description": "Not supported: only a value that turns it off is taken." }))
        }),
    );
    fields.extend(about(HARMLESS, "Accepted; changes nothing here."));
    fields.extend(about(LOADING, "Accepted and told among the ignored fields: the server was told when it started."));
    optional(fields)
}

fn embed_request() -> Value {
    let input = any_of(vec![json!({ "type": "string" }), strings("")], &format!("A text, or up to {MAX_INPUTS}."));
    optional(vec![
        model(),
        ("input", input),
        (
            "truncate",
            boolean("Whether an input that is too long is cut behind its first tokens; true where nothing is said."),
        ),
        ("dimensions", integer_from(0, "Elements that are kept, from the first; 0 is all.")),
        ("options", options_of_embeddings()),
        keep_alive(),
    ])
}

fn embeddings_request() -> Value {
    optional(vec![model(), ("prompt", string("The text.")), ("options", options_of_embeddings()), keep_alive()])
}

fn options_of_embeddings() -> Value {
    let num_ctx = integer_from(0, "Tokens that an input may have, where the context has as many.");
    json!({
        "type": "object",
        "description": "Others change no vector.",
        "properties": { "num_ctx": num_ctx },
        "additionalProperties": true,
    })
}

fn tool_call() -> Value {
    let function = all(vec![("index", integer("Which call.")), ("name", string("")), ("arguments", map(""))]);
    all(vec![("id", string("")), ("function", function)])
}

fn message_of_answer() -> Value {
    object(
        vec![
            ("role", json!({ "const": "assistant" })),
            ("content", string("The text, or the next of it.")),
            ("thinking", string("What the model thought.")),
            ("tool_calls", array(reference("OllamaToolCall"), "What it calls.")),
        ],
        &["role", "content"],
    )
}

fn generate_answer() -> Value {
    answer(
        vec![
            ("response", string("The text, or the next of it.")),
            ("thinking", string("What the model thought.")),
            ("context", ids("The tokens of the prompt and of the answer, without raw.")),
        ],
        &["response"],
    )
}

fn answer(own: Vec<Named>, needed: &[&'static str]) -> Value {
    let of_token = || {
        vec![
            ("token", string("Its text, or bytes:\\xf0\\x9f where that is no whole character.")),
            ("logprob", number("In the model's own distribution; -9999 is never.")),
            ("bytes", super::schema::nullable(array(json!({ "type": "integer" }), ""))),
        ]
    };
    let mut entry = of_token();
    entry.push(("top_logprobs", array(all(of_token()), "")));
    let mut fields = vec![
        ("model", string("Who answers, as it was asked for.")),
        ("created_at", moment()),
        ("done", boolean("Whether the answer is complete; what follows is there then.")),
        ("done_reason", one_of(&["stop", "length", "load", "unload"], "Why.")),
        ("total_duration", nanoseconds("From the request to the end of the answer.")),
        ("load_duration", json!({ "const": 0 })),
        ("prompt_eval_count", integer("Tokens of the prompt.")),
        ("prompt_eval_duration", nanoseconds("Until the first token of the answer.")),
        ("eval_count", integer("Tokens of the answer.")),
        ("eval_duration", nanoseconds("From its first token to its last.")),
        ("logprobs", array(all(entry), "With logprobs: one per token.")),
    ];
    fields.extend(own);
    let required: Vec<&str> = ["model", "created_at", "done"].into_iter().chain(needed.iter().copied()).collect();
    object(fields, &required)
}

fn details() -> Value {
    all(vec![
        ("parent_model", json!({ "const": "" })),
        ("format", json!({ "const": "gguf" })),
        ("family", string("The architecture.")),
        ("families", strings("The same.")),
        ("parameter_size", string("Numbers in its tensors, such as 134.52M.")),
        ("quantization_level", string("What most of them are stored as, such as Q4_K_M.")),
    ])
}
