//! OpenAI's newer endpoint.

use serde_json::{Value, json};
use taper_engine::MAX_LOGPROBS;

use super::Operation;
use super::generation::{account_fields, opening_fields, shared_fields, template_variables, thinking_budgets, timings};
use super::messages::without_several;
use super::schema::{
    Named, all, also, any_of, array, boolean, integer, integer_from, integer_in, map, null, nullable, number, object,
    one_of, optional, reference, string, strings,
};
use crate::api::chat_completions::EFFORTS;

const TAG: &str = "generation";

/// POST /v1/responses.
pub(crate) fn responses() -> Operation {
    let summary = "Answer a conversation in the words of OpenAI's newer interface; nothing is stored";
    Operation::post(TAG, summary, reference("ResponsesRequest"), reference("Response"))
        .streamed_by_name(reference("ResponseEvent"))
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("ResponsesRequest", request()),
        ("Response", response()),
        ("ResponseEvent", event()),
        ("ResponseItem", item()),
        ("ResponsePart", part()),
    ]
}

fn refused(about: &str) -> Value {
    json!({ "description": about })
}

fn input_item() -> Value {
    let text = all(vec![("type", one_of(&["input_text", "output_text"], "")), ("text", string(""))]);
    let refusal = all(vec![("type", one_of(&["refusal"], "")), ("refusal", string(""))]);
    let content =
        || any_of(vec![json!({ "type": "string" }), array(any_of(vec![text.clone(), refusal.clone()], ""), "")], "");
    let message = object(
        vec![
            ("type", one_of(&["message"], "")),
            ("role", one_of(&["system", "developer", "user", "assistant"], "Who says it.")),
            ("content", content()),
        ],
        &["role", "content"],
    );
    let call = object(
        vec![
            ("type", one_of(&["function_call"], "")),
            ("call_id", string("")),
            ("name", string("")),
            ("arguments", string("JSON.")),
        ],
        &["type", "call_id", "name"],
    );
    let output =
        all(vec![("type", one_of(&["function_call_output"], "")), ("call_id", string("")), ("output", content())]);
    let thought = all(vec![("type", one_of(&["reasoning_text"], "")), ("text", string(""))]);
    let reasoning = object(
        vec![
            ("type", one_of(&["reasoning"], "")),
            ("content", array(thought, "Former thoughts, for templates that take them.")),
            ("summary", array(map(""), "Not read.")),
            ("encrypted_content", string("Not read: nobody here can.")),
        ],
        &["type"],
    );
    any_of(vec![message, call, output, reasoning], "")
}

fn request() -> Value {
    let format = object(
        vec![
            ("type", one_of(&["text", "json_object", "json_schema"], "")),
            ("name", string("Not read.")),
            ("strict", boolean("Answers always follow the schema.")),
            ("schema", map("A JSON schema.")),
        ],
        &["type"],
    );
    let tool = object(
        vec![
            ("type", one_of(&["function"], "Others are refused: this server has no tools of its own.")),
            ("name", string("")),
            ("description", string("")),
            ("parameters", map("The JSON schema of its arguments.")),
            ("strict", boolean("Calls keep to the schema also where none is required; false where nothing is said.")),
        ],
        &["type", "name"],
    );
    let named = object(vec![("type", one_of(&["function"], "")), ("name", string(""))], &["type", "name"]);
    let chosen = object(
        vec![
            ("type", one_of(&["function", "allowed_tools"], "")),
            ("name", string("With function: which.")),
            ("mode", one_of(&["auto", "required"], "With allowed_tools.")),
            ("tools", array(named, "With allowed_tools: the others are left out.")),
        ],
        &["type"],
    );
    let choice =
        any_of(vec![one_of(&["none", "auto", "required"], ""), chosen], "Whether the model may call, and must.");
    let mut fields = vec![
        ("input", any_of(vec![json!({ "type": "string" }), array(input_item(), "")], "The conversation so far.")),
        ("instructions", string("What the model is told before it.")),
        ("max_output_tokens", integer_from(1, "Tokens of the answer, thoughts included.")),
        ("tools", array(tool, "What the model may call.")),
        ("tool_choice", choice),
        (
            "parallel_tool_calls",
            boolean("Whether an answer may have several calls, but for one that names the function."),
        ),
        ("text", optional(vec![("format", format), ("verbosity", one_of(&["medium"], ""))])),
        (
            "reasoning",
            optional(vec![
                ("effort", one_of(EFFORTS, "For templates that know it.")),
                ("summary", one_of(&["auto", "concise", "detailed"], "None is written; the thoughts are told whole.")),
                ("generate_summary", one_of(&["auto", "concise", "detailed"], "An older name of summary.")),
            ]),
        ),
        ("include", strings("message.output_text.logprobs; reasoning.encrypted_content is ignored.")),
        ("top_logprobs", integer_in(0, i64::from(MAX_LOGPROBS), "Log-probabilities of this many tokens beside each.")),
        ("store", json!({ "const": false, "description": "Nothing is stored." })),
        ("background", json!({ "const": false })),
        ("truncation", json!({ "const": "disabled" })),
        ("previous_response_id", refused("Not supported: nothing is stored.")),
        ("conversation", refused("Not supported: nothing is stored.")),
        ("prompt", refused("Not supported: nothing is stored.")),
        ("max_tool_calls", refused("Not supported: this server has no tools of its own.")),
        template_variables(),
    ];
    fields.extend(thinking_budgets());
    fields.extend(opening_fields());
    fields.extend(account_fields());
    fields.extend(without_several(shared_fields()));
    object(fields, &["input"])
}

fn logprobs() -> Value {
    array(map("token, logprob, bytes and top_logprobs, as in the chat endpoint."), "Where they are asked for.")
}

fn part() -> Value {
    let text = all(vec![
        ("type", json!({ "const": "output_text" })),
        ("text", string("")),
        ("annotations", array(map(""), "Empty.")),
        ("logprobs", logprobs()),
    ]);
    any_of(vec![text, all(vec![("type", json!({ "const": "reasoning_text" })), ("text", string(""))])], "")
}

fn item() -> Value {
    let status = || one_of(&["in_progress", "completed", "incomplete"], "");
    let message = all(vec![
        ("id", string("")),
        ("type", json!({ "const": "message" })),
        ("status", status()),
        ("role", json!({ "const": "assistant" })),
        ("content", array(reference("ResponsePart"), "")),
    ]);
    let reasoning = all(vec![
        ("id", string("")),
        ("type", json!({ "const": "reasoning" })),
        ("status", status()),
        ("summary", array(map(""), "Empty.")),
        ("content", array(reference("ResponsePart"), "")),
    ]);
    let call = all(vec![
        ("id", string("")),
        ("type", json!({ "const": "function_call" })),
        ("status", status()),
        ("call_id", string("")),
        ("name", string("")),
        ("arguments", string("JSON.")),
    ]);
    any_of(vec![message, reasoning, call], "")
}

fn response() -> Value {
    let usage = all(vec![
        ("input_tokens", integer("Tokens of the prompt.")),
        ("input_tokens_details", all(vec![("cached_tokens", integer("Those that were not computed again."))])),
        ("output_tokens", integer("Tokens of the answer.")),
        ("output_tokens_details", all(vec![("reasoning_tokens", integer("Those of thoughts."))])),
        ("total_tokens", integer("Both.")),
    ]);
    let error = all(vec![("code", string("")), ("message", string(""))]);
    let reason = all(vec![(
        "reason",
        one_of(&["max_output_tokens", "stop"], "The latter: a stop string was met inside a call, which has no end."),
    )]);
    let response = all(vec![
        ("id", string("The response's; nothing can be asked by it.")),
        ("object", json!({ "const": "response" })),
        ("created_at", integer("Seconds since 1970.")),
        ("completed_at", nullable(integer("The same; null where it is not complete."))),
        ("status", one_of(&["in_progress", "completed", "incomplete", "failed"], "")),
        ("background", json!({ "const": false })),
        ("conversation", null()),
        ("error", nullable(error)),
        ("incomplete_details", nullable(reason)),
        ("max_tool_calls", null()),
        ("model", string("Who answers.")),
        ("output", array(reference("ResponseItem"), "")),
        ("previous_response_id", null()),
        ("service_tier", json!({ "const": "default" })),
        ("store", json!({ "const": false })),
        ("truncation", json!({ "const": "disabled" })),
        ("usage", nullable(usage)),
        ("instructions", json!({})),
        ("metadata", map("The request's.")),
        ("parallel_tool_calls", boolean("")),
        ("tool_choice", json!({})),
        ("tools", array(map(""), "The request's, with every field.")),
        ("user", json!({})),
        ("safety_identifier", json!({})),
        ("prompt_cache_key", json!({})),
        ("text", map("")),
        ("reasoning", map("")),
        ("temperature", number("")),
        ("top_p", number("")),
        ("presence_penalty", number("")),
        ("frequency_penalty", number("")),
        ("max_output_tokens", nullable(integer(""))),
        ("top_logprobs", integer("")),
    ]);
    also(response, vec![timings()])
}

fn event() -> Value {
    object(
        vec![
            ("type", string("The event's name, such as response.output_text.delta.")),
            ("sequence_number", integer("Counts from 0.")),
            ("response", reference("Response")),
            ("item", reference("ResponseItem")),
            ("item_id", string("")),
            ("output_index", integer("Which item.")),
            ("content_index", integer("Which part of it.")),
            ("part", reference("ResponsePart")),
            ("delta", string("")),
            ("text", string("")),
            ("arguments", string("")),
            ("name", string("")),
            ("logprobs", logprobs()),
        ],
        &["type", "sequence_number"],
    )
}
