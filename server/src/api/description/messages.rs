//! Anthropic's endpoints.

use serde_json::{Value, json};

use super::Operation;
use super::generation::{opening_fields, shared_fields, template_variables, timings};
use super::schema::{
    Named, all, also, any_of, array, boolean, integer, integer_from, map, null, nullable, object, one_of, optional,
    reference, string, strings,
};

const TAG: &str = "generation";

/// POST /v1/messages.
pub(crate) fn messages() -> Operation {
    let event = any_of(vec![reference("MessagesEvent"), reference("MessagesError")], "");
    let summary = "Answer a conversation in Anthropic's words";
    let operation = Operation::post(TAG, summary, reference("MessagesRequest"), reference("MessagesAnswer"));
    Operation { error: reference("MessagesError"), ..operation.streamed_by_name(event) }
}

/// POST /v1/messages/count_tokens.
pub(crate) fn count_tokens() -> Operation {
    let answer = all(vec![("input_tokens", integer("Tokens of the prompt."))]);
    let summary = "How many tokens the prompt of such a request has";
    let operation = Operation::post(TAG, summary, reference("CountTokensRequest"), answer);
    Operation { error: reference("MessagesError"), ..operation }
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("MessagesRequest", request(&["messages", "max_tokens"])),
        ("CountTokensRequest", request(&["messages"])),
        ("MessagesAnswer", answer()),
        ("MessagesEvent", event()),
        ("MessagesUsage", usage()),
        ("MessagesError", error()),
    ]
}

/// The shared fields that these endpoints refuse.
pub(super) fn without_several(fields: Vec<Named>) -> Vec<Named> {
    let refused = |name: &str| ["n", "prompt_logprobs", "return_token_ids", "return_progress"].contains(&name);
    let note = |(name, schema)| {
        if refused(name) { (name, json!({ "description": "Not supported here." })) } else { (name, schema) }
    };
    fields.into_iter().map(note).collect()
}

fn cache_control() -> Named {
    ("cache_control", map("Accepted; every prompt is cached."))
}

fn text_block() -> Value {
    object(
        vec![("type", one_of(&["text"], "")), ("text", string("")), cache_control(), ("citations", json!({}))],
        &["type", "text"],
    )
}

fn texts(about: &str) -> Value {
    any_of(vec![json!({ "type": "string" }), array(text_block(), "")], about)
}

fn message() -> Value {
    let thinking = object(
        vec![
            ("type", one_of(&["thinking"], "")),
            ("thinking", string("Former thoughts, for templates that take them.")),
            ("signature", string("Not read.")),
        ],
        &["type", "thinking"],
    );
    let redacted = object(
        vec![("type", one_of(&["redacted_thinking"], "")), ("data", string("Left out: nobody here can read it."))],
        &["type"],
    );
    let tool_use = object(
        vec![
            ("type", one_of(&["tool_use"], "")),
            ("id", string("")),
            ("name", string("")),
            ("input", map("")),
            cache_control(),
        ],
        &["type", "id", "name"],
    );
    let tool_result = object(
        vec![
            ("type", one_of(&["tool_result"], "")),
            ("tool_use_id", string("")),
            ("content", texts("")),
            ("is_error", boolean("The result is told with the word Error before it.")),
            cache_control(),
        ],
        &["type", "tool_use_id"],
    );
    let block = any_of(vec![text_block(), thinking, redacted, tool_use, tool_result], "");
    all(vec![
        ("role", one_of(&["user", "assistant"], "Who says it; the answer goes on with a last text of the assistant.")),
        ("content", any_of(vec![json!({ "type": "string" }), array(block, "")], "What is said.")),
    ])
}

fn request(required: &[&str]) -> Value {
    let format = object(
        vec![("type", one_of(&["json_schema"], "")), ("schema", map("A JSON schema that the answer follows."))],
        &["type", "schema"],
    );
    let tool = object(
        vec![
            ("type", one_of(&["custom"], "Others are refused: this server has no tools of its own.")),
            ("name", string("1 to 128 letters, digits, _ and -.")),
            ("description", string("")),
            ("input_schema", map("The JSON schema of its input.")),
            ("strict", boolean("Calls keep to the schema also where none is required.")),
            cache_control(),
        ],
        &["name", "input_schema"],
    );
    let choice = object(
        vec![
            ("type", one_of(&["auto", "any", "tool", "none"], "")),
            ("name", string("With tool: which.")),
            ("disable_parallel_tool_use", boolean("At most one call.")),
        ],
        &["type"],
    );
    let thinking = object(
        vec![
            ("type", one_of(&["enabled", "adaptive", "disabled"], "The template's switch, where it has one.")),
            ("budget_tokens", integer_from(1, "Most tokens of thoughts.")),
            ("display", one_of(&["summarized", "omitted"], "Whether thoughts are told; they are told whole.")),
        ],
        &["type"],
    );
    let mut fields = vec![
        ("messages", array(message(), "The conversation so far.")),
        ("system", texts("What the model is told before it.")),
        ("stop_sequences", strings("Texts that end the answer; they are not part of it.")),
        ("tools", array(tool, "What the model may call.")),
        ("tool_choice", choice),
        ("thinking", thinking),
        (
            "output_config",
            optional(vec![
                ("format", format.clone()),
                (
                    "effort",
                    one_of(
                        &["low", "medium", "high", "xhigh", "max"],
                        "For templates that know it; else named among the ignored fields.",
                    ),
                ),
            ]),
        ),
        ("output_format", format),
        ("metadata", map("Accepted; changes nothing.")),
        ("service_tier", one_of(&["auto", "standard_only"], "Accepted; changes nothing.")),
        ("container", json!({ "description": "Not supported." })),
        ("mcp_servers", json!({ "description": "Not supported." })),
        template_variables(),
    ];
    fields.extend(opening_fields());
    fields.extend(without_several(shared_fields()));
    object(fields, required)
}

fn usage() -> Value {
    all(vec![
        ("input_tokens", integer("Tokens of the prompt that were computed.")),
        ("cache_creation_input_tokens", json!({ "const": 0 })),
        ("cache_read_input_tokens", integer("Tokens of the prompt that were not computed again.")),
        ("output_tokens", integer("Tokens of the answer.")),
        ("output_tokens_details", all(vec![("thinking_tokens", integer("Those of thoughts."))])),
        ("cache_creation", null()),
        ("inference_geo", null()),
        ("server_tool_use", null()),
        ("service_tier", null()),
    ])
}

fn stop_reason() -> Value {
    nullable(one_of(&["end_turn", "max_tokens", "stop_sequence", "tool_use"], "Why it ended."))
}

fn block() -> Value {
    let text = all(vec![("type", json!({ "const": "text" })), ("text", string("")), ("citations", json!({}))]);
    let thinking =
        all(vec![("type", json!({ "const": "thinking" })), ("thinking", string("")), ("signature", string("Empty."))]);
    let tool_use = all(vec![
        ("type", json!({ "const": "tool_use" })),
        ("id", string("")),
        ("name", string("")),
        ("caller", all(vec![("type", json!({ "const": "direct" }))])),
        ("input", map("")),
    ]);
    any_of(vec![text, thinking, tool_use], "")
}

fn answer() -> Value {
    let answer = all(vec![
        ("id", string("The answer's.")),
        ("type", json!({ "const": "message" })),
        ("role", json!({ "const": "assistant" })),
        ("model", string("Who answers.")),
        ("content", array(block(), "")),
        ("stop_reason", stop_reason()),
        ("stop_sequence", nullable(string("The stop text that ended it."))),
        ("stop_details", null()),
        ("container", null()),
        ("usage", reference("MessagesUsage")),
    ]);
    also(answer, vec![timings()])
}

fn event() -> Value {
    let kinds = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    let delta = optional(vec![
        ("type", one_of(&["text_delta", "thinking_delta", "input_json_delta"], "In content_block_delta.")),
        ("text", string("")),
        ("thinking", string("")),
        ("partial_json", string("")),
        ("stop_reason", stop_reason()),
        ("stop_sequence", nullable(string(""))),
        ("stop_details", null()),
        ("container", null()),
    ]);
    object(
        vec![
            ("type", one_of(&kinds, "")),
            ("message", reference("MessagesAnswer")),
            ("index", integer("Which block.")),
            ("content_block", block()),
            ("delta", delta),
            ("usage", reference("MessagesUsage")),
            timings(),
        ],
        &["type"],
    )
}

fn error() -> Value {
    object(
        vec![
            ("type", json!({ "const": "error" })),
            ("error", all(vec![("type", string("By the status.")), ("message", string("What is wrong."))])),
            ("request_id", nullable(string("As in the header request-id; not in streams."))),
        ],
        &["type", "error"],
    )
}
