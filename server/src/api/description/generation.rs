//! The chat endpoint and the completions endpoint.

use serde_json::{Value, json};
use taper_engine::MAX_LOGPROBS;

use super::Operation;
use super::schema::{
    Named, all, any_of, array, boolean, empty, ids, integer, integer_from, integer_in, map, nullable, number,
    number_from, number_in, object, one_of, optional, reference, reference_as, string, strings,
};
use crate::api::chat_completions::EFFORTS;
use crate::limits::MAX_CHOICES;

const TAG: &str = "generation";

/// POST /v1/chat/completions.
pub(crate) fn chat() -> Operation {
    let (request, answer) = (reference("ChatRequest"), reference("ChatCompletion"));
    let summary = "Answer a conversation, rendered with the model's chat template";
    let event = any_of(vec![reference("ChatChunk"), reference("Error")], "");
    Operation::post(TAG, summary, request, answer).streamed(event)
}

/// POST /v1/completions.
pub(crate) fn completions() -> Operation {
    let (request, answer) = (reference("CompletionRequest"), reference("Completion"));
    let event = any_of(vec![reference("CompletionChunk"), reference("Error")], "");
    Operation::post(TAG, "Continue prompts, given as text or token ids", request, answer).streamed(event)
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("ChatRequest", chat_request()),
        ("Message", message()),
        ("Tool", tool()),
        ("ToolCall", tool_call()),
        ("ResponseFormat", response_format()),
        ("StructuredOutputs", structured_outputs()),
        ("ChatCompletion", chat_completion()),
        ("ChatChunk", chat_chunk()),
        ("ChatLogprobs", chat_logprobs()),
        ("CompletionRequest", completion_request()),
        ("Completion", completion("text_completion", true)),
        ("CompletionChunk", completion("text_completion", false)),
        ("CompletionLogprobs", completion_logprobs()),
        ("PromptLogprobs", prompt_logprobs()),
    ]
}

/// A name of the model.
pub(super) fn model() -> Named {
    ("model", string("The model's id, an alias of it, or \"default\"; another is a 404, an empty one as good as none."))
}

fn most_logprobs() -> i64 {
    i64::from(MAX_LOGPROBS)
}

/// What all generating endpoints read, llama-server's among them.
pub(super) fn shared_fields() -> Vec<Named> {
    let mut fields = vec![
        model(),
        ("max_tokens", integer_from(1, "Tokens of the answer.")),
        ("max_completion_tokens", integer_from(1, "The newer name of max_tokens; where both are given, it counts.")),
        ("min_tokens", integer_from(0, "Nothing ends an answer that has fewer.")),
        ("n", integer_in(1, MAX_CHOICES as i64, "Answers per prompt.")),
        ("temperature", number_in(0.0, 2.0, "0 is greedy.")),
        ("top_k", integer_from(-1, "Keep the k most probable tokens; 0 and -1 keep all.")),
        ("top_p", number_in(0.0, 1.0, "Keep the most probable tokens up to this mass.")),
        ("min_p", number_in(0.0, 1.0, "Keep tokens at least this times as probable as the most probable one.")),
        ("typical_p", number_in(0.0, 1.0, "Locally typical sampling; 1 is off.")),
        ("seed", integer("The same seed gives the same text.")),
        ("repetition_penalty", number_in(0.01, 100.0, "Divides the logits of tokens of prompt and answer; 1 is off.")),
        ("repeat_penalty", number_in(0.01, 100.0, "llama.cpp's name of repetition_penalty.")),
        ("frequency_penalty", number_in(-2.0, 2.0, "Subtracted for each time that a token was generated.")),
        ("presence_penalty", number_in(-2.0, 2.0, "Subtracted once a token was generated.")),
        ("logit_bias", logit_bias()),
        ("allowed_token_ids", ids("The only tokens that may be chosen; an empty list restricts nothing.")),
        ("bad_words", strings("Texts that are never generated.")),
        (
            "stop",
            any_of(
                vec![json!({ "type": "string" }), strings("")],
                "Texts that end an answer; they are not part of it.",
            ),
        ),
        ("stop_token_ids", ids("Tokens that end an answer.")),
        ("include_stop_str_in_output", boolean("Put the stop text into the answer after all.")),
        ("ignore_eos", boolean("Go on after the token that ends a text.")),
        (
            "timings",
            boolean(
                "Whether the answer tells where the time went. Where nothing is said, chat completions and text completions of one \
                 prompt do, messages, responses and completions of several prompts do not; /completion always does.",
            ),
        ),
        (
            "t_max_predict_ms",
            integer_from(
                -1,
                "llama.cpp's: end the answer at its first line break after this time since its first text; -1 and 0 are off.",
            ),
        ),
        ("stream", boolean("Answer with server-sent events.")),
        ("stream_options", stream_options()),
        (
            "return_progress",
            boolean("llama.cpp's: a stream tells how much of its prompt is computed; not on messages and responses."),
        ),
        (
            "prompt_logprobs",
            integer_in(0, most_logprobs(), "vLLM's: log-probabilities of the prompt's tokens; not in streams."),
        ),
        ("return_token_ids", boolean("vLLM's: the ids of the answer's tokens.")),
        ("return_tokens_as_token_ids", boolean("vLLM's: write tokens as token_id:17.")),
        ("priority", integer("Lower is served earlier.")),
        ("cache_salt", string("Cached prompts are shared only under the same salt.")),
    ];
    fields.extend(sampler_fields());
    fields.extend(form_fields());
    fields
}

/// The samplers that have llama.cpp's names.
fn sampler_fields() -> Vec<Named> {
    vec![
        (
            "repeat_last_n",
            integer_from(-1, "Tokens that the penalties look at; -1, the default, is all, 0 turns them off."),
        ),
        ("dry_multiplier", number_from(0.0, "DRY, a penalty on repetitions; 0 is off.")),
        (
            "dry_base",
            number_from(1.0, "What each repeated token multiplies the penalty by; 1.75 where nothing is said."),
        ),
        ("dry_allowed_length", integer_from(0, "Tokens that may be repeated; 2 where nothing is said.")),
        (
            "dry_penalty_last_n",
            integer_from(-1, "Tokens that DRY looks at, 64 where nothing is said; -1 is all, 0 is off."),
        ),
        (
            "dry_sequence_breakers",
            strings(
                "No repetition goes across these; a line break, a colon, a quotation mark and an asterisk where nothing is said.",
            ),
        ),
        (
            "top_n_sigma",
            number("Keep tokens within so many standard deviations of the largest logit; 0 and less are off."),
        ),
        ("dynatemp_range", number_from(0.0, "The temperature lies so far from temperature at the most; 0 is off.")),
        (
            "dynatemp_exponent",
            number_from(0.0, "The power at which it rises with the entropy; 1 where nothing is said."),
        ),
        ("xtc_probability", number_in(0.0, 1.0, "How often XTC leaves out the most probable tokens; 0 is off.")),
        (
            "xtc_threshold",
            number_in(0.0, 1.0, "All of at least this probability but the last; 0.1 where nothing is said."),
        ),
        ("min_keep", integer_from(0, "Tokens that min_p, typical_p, top_p and XTC keep at least.")),
        ("mirostat", integer_in(0, 2, "Mirostat 1 or 2 in place of all that keeps or leaves out tokens; 0 is off.")),
        ("mirostat_tau", number_in(0.0, 100.0, "The surprise that it aims at, in bits; 5 where nothing is said.")),
        ("mirostat_eta", number_in(0.0, 10.0, "How much of an error it corrects at once; 0.1 where nothing is said.")),
        (
            "samplers",
            any_of(
                vec![strings("Names."), json!({ "type": "string", "pattern": "^[edskypmxt]*$" })],
                "The samplers that apply, in this order; penalties and dry come first.",
            ),
        ),
    ]
}

fn stream_options() -> Value {
    optional(vec![
        ("include_usage", boolean("A last chunk has the usage.")),
        (
            "continuous_usage_stats",
            boolean("vLLM's: every chunk has the usage so far; on chat completions and text completions."),
        ),
        ("include_obfuscation", boolean("Nothing is hidden here: true is told among the ignored fields.")),
    ])
}

fn logit_bias() -> Value {
    let bias = json!({ "anyOf": [{ "type": "number", "minimum": -100, "maximum": 100 }, { "const": false }] });
    any_of(
        vec![json!({ "type": "object", "additionalProperties": bias }), array(array(Value::Bool(true), ""), "")],
        "What is added to logits: from token ids or texts to biases, or an array of [id or text, bias]; false is never.",
    )
}

fn schema_of_json(about: &str) -> Value {
    any_of(vec![map(""), json!({ "type": "boolean" }), json!({ "type": "string" })], about)
}

/// One form per request.
fn form_fields() -> Vec<Named> {
    vec![
        ("response_format", reference_as("ResponseFormat", "OpenAI's way to ask for JSON.")),
        ("structured_outputs", reference_as("StructuredOutputs", "vLLM's way to ask for a form.")),
        ("guided_json", schema_of_json("vLLM's older name: a JSON schema.")),
        ("guided_regex", string("A regular expression that the whole answer matches.")),
        ("guided_choice", strings("The answer is one of these.")),
        ("guided_grammar", string("A grammar, Lark or GBNF.")),
        ("guided_decoding_backend", string("Accepted; changes nothing.")),
        ("guided_whitespace_pattern", empty("Not supported: it must be empty.")),
        ("regex", string("SGLang's name: a regular expression.")),
        ("ebnf", string("SGLang's name: a grammar.")),
        (
            "grammar",
            any_of(
                vec![json!({ "type": "string" }), typed_form()],
                "llama.cpp's name: a grammar in GBNF; or as mistral.rs and TGI have it, a form of a type.",
            ),
        ),
        ("json_schema", schema_of_json("llama.cpp's name: a JSON schema.")),
    ]
}

/// A form of a type and a value.
fn typed_form() -> Value {
    object(
        vec![
            ("type", one_of(&["regex", "json_schema", "json", "json_object", "lark", "llguidance"], "")),
            ("value", any_of(vec![json!({ "type": "string" }), map("")], "The expression, schema or grammar.")),
        ],
        &["type", "value"],
    )
}

fn response_format() -> Value {
    let json_schema = optional(vec![
        ("name", string("Not read.")),
        ("strict", boolean("Answers always follow the schema.")),
        ("schema", schema_of_json("A JSON schema.")),
    ]);
    object(
        vec![
            ("type", one_of(&["text", "json_object", "json_schema", "json", "regex"], "")),
            ("json_schema", json_schema),
            ("schema", schema_of_json("llama.cpp's place of the schema.")),
            ("value", schema_of_json("TGI's place of the schema, or of the regular expression.")),
        ],
        &["type"],
    )
}

fn structured_outputs() -> Value {
    optional(vec![
        ("json", schema_of_json("A JSON schema.")),
        ("regex", string("A regular expression.")),
        ("choice", strings("The answer is one of these.")),
        ("grammar", string("A grammar, Lark or GBNF.")),
        ("json_object", boolean("Any JSON object.")),
        ("whitespace_pattern", empty("Not supported: it must be empty.")),
        ("structural_tag", json!({ "type": "null", "description": "Not supported." })),
    ])
}

/// The messages of a conversation.
pub(super) fn messages() -> Named {
    ("messages", array(reference("Message"), "The conversation so far."))
}

/// Variables of the chat template.
pub(super) fn template_variables() -> Named {
    ("chat_template_kwargs", map("Variables for the chat template, such as {\"enable_thinking\": false}."))
}

/// Where an answer begins.
pub(super) fn opening_fields() -> [Named; 2] {
    [
        (
            "continue_final_message",
            boolean(
                "vLLM's: go on with a last message of the assistant, or do not; where neither this nor add_generation_prompt is given, it \
                 is continued.",
            ),
        ),
        (
            "add_generation_prompt",
            boolean("vLLM's: false leaves out the beginning of an answer, true begins one even behind the assistant."),
        ),
    ]
}

/// What the model may call, what it may know of the conversation besides, and what of its thoughts is told.
pub(super) fn conversation_fields() -> Vec<Named> {
    let [continues, adds] = opening_fields();
    let mut fields = vec![
        continues,
        adds,
        messages(),
        ("tools", array(reference("Tool"), "What the model may call.")),
        ("tool_choice", tool_choice()),
        (
            "parallel_tool_calls",
            boolean("Whether an answer may have several calls, but for one that names the function."),
        ),
        ("include_reasoning", boolean("Whether the model's thoughts are told; true where nothing is said.")),
        (
            "reasoning_format",
            one_of(&["auto", "deepseek", "none"], "Where: in reasoning_content, or with none in the text."),
        ),
        ("reasoning_effort", one_of(EFFORTS, "How hard to think, where the chat template knows that.")),
        ("enable_thinking", boolean("The same as chat_template_kwargs.enable_thinking.")),
        template_variables(),
    ];
    fields.extend(thinking_budgets());
    fields
}

/// How many tokens the model may think.
pub(super) fn thinking_budgets() -> Vec<Named> {
    let budget = |about: &str| integer_from(-1, about);
    vec![
        (
            "thinking_token_budget",
            budget("Most tokens of thoughts; then the mark that ends them is written. -1 is no budget."),
        ),
        ("thinking_budget_tokens", budget("llama.cpp's name of the same.")),
        ("reasoning_budget_tokens", budget("And its newer one.")),
    ]
}

fn message() -> Value {
    let part = all(vec![("type", one_of(&["text"], "")), ("text", string(""))]);
    let function = object(
        vec![
            ("name", string("")),
            ("arguments", any_of(vec![json!({ "type": "string" }), map("")], "As JSON, in a string or not.")),
        ],
        &["name"],
    );
    let call = object(
        vec![("id", string("")), ("type", one_of(&["function"], "")), ("function", function)],
        &["id", "function"],
    );
    object(
        vec![
            ("role", one_of(&["system", "developer", "user", "assistant", "tool"], "Who says it.")),
            (
                "content",
                nullable(any_of(
                    vec![json!({ "type": "string" }), array(part, "")],
                    "What is said; only a message with calls or thoughts may have none.",
                )),
            ),
            ("name", string("Which of several speakers of a role.")),
            ("tool_calls", array(call, "Of the assistant.")),
            ("tool_call_id", string("Of the role tool: which call this answers.")),
            ("reasoning_content", string("Of the assistant: what it thought.")),
            ("reasoning", string("vLLM's newer name of reasoning_content.")),
            ("function_call", json!({ "type": "null", "description": "Not supported; see tool_calls." })),
        ],
        &["role"],
    )
}

fn tool() -> Value {
    let function = object(
        vec![
            ("name", string("1 to 128 letters, digits, _ and -.")),
            ("description", string("What it is for.")),
            ("parameters", map("The JSON schema of its arguments.")),
            ("strict", boolean("Arguments always follow the schema.")),
        ],
        &["name"],
    );
    object(vec![("type", one_of(&["function"], "")), ("function", function)], &["type", "function"])
}

fn tool_choice() -> Value {
    let named = || {
        let function = object(vec![("name", string(""))], &["name"]);
        object(vec![("type", one_of(&["function"], "")), ("function", function)], &["type", "function"])
    };
    let allowed = object(vec![("mode", one_of(&["auto", "required"], "")), ("tools", array(named(), ""))], &["tools"]);
    let allowed =
        object(vec![("type", one_of(&["allowed_tools"], "")), ("allowed_tools", allowed)], &["type", "allowed_tools"]);
    any_of(
        vec![one_of(&["none", "auto", "required"], ""), named(), allowed],
        "Whether the model may call, must call, and what.",
    )
}

/// The fields of OpenAI's two interfaces for conversations that say who asks.
pub(super) fn account_fields() -> Vec<Named> {
    let name = || json!({ "type": "string", "maxLength": 512, "description": "Accepted; changes nothing." });
    let values = json!({ "type": "string", "maxLength": 512 });
    let metadata = json!({ "type": "object", "maxProperties": 16, "additionalProperties": values });
    vec![("metadata", metadata), ("user", name()), ("safety_identifier", name()), ("prompt_cache_key", name())]
}

fn chat_request() -> Value {
    let mut fields = conversation_fields();
    fields.extend([
        ("logprobs", boolean("Tell the log-probability of each token.")),
        ("top_logprobs", integer_in(0, most_logprobs(), "And of this many most probable ones; needs logprobs.")),
    ]);
    fields.extend(account_fields());
    fields.extend(shared_fields());
    object(fields, &["messages"])
}

fn completion_request() -> Value {
    let prompt = any_of(
        vec![json!({ "type": "string" }), ids(""), array(any_of(vec![json!({ "type": "string" }), ids("")], ""), "")],
        "A text, token ids, or an array of either.",
    );
    let mut fields = vec![
        ("prompt", prompt),
        (
            "logprobs",
            any_of(
                vec![integer_in(0, most_logprobs(), ""), json!({ "const": false })],
                "Tell the log-probabilities of each token and of this many most probable ones.",
            ),
        ),
        ("echo", boolean("Put the prompt before the answer; max_tokens may be 0 then.")),
        (
            "best_of",
            integer_in(
                1,
                MAX_CHOICES as i64,
                "Generate this many and answer with the n most probable by token; not in streams.",
            ),
        ),
    ];
    fields.extend(shared_fields().into_iter().filter(|(name, _)| *name != "max_tokens"));
    fields.push((
        "max_tokens",
        integer_from(0, "Tokens of the answer, 16 where neither request nor server says; 0 with echo alone."),
    ));
    object(fields, &["prompt"])
}

fn finish_reason() -> Value {
    one_of(&["stop", "length"], "Why it ended.")
}

fn chat_finish_reason() -> Value {
    one_of(&["stop", "length", "tool_calls"], "Why it ended.")
}

fn tool_call() -> Value {
    let function = all(vec![("name", string("")), ("arguments", string("JSON."))]);
    all(vec![("id", string("")), ("type", json!({ "const": "function" })), ("function", function)])
}

/// What every answer and every chunk of one begins with.
fn envelope(kind: &str) -> Vec<Named> {
    vec![
        ("id", string("The answer's.")),
        ("object", json!({ "const": kind })),
        ("created", integer("Seconds since 1970.")),
        ("model", string("Who answers.")),
        ("system_fingerprint", string("The build and its class of arithmetic.")),
    ]
}

/// An envelope with choices; the fields of `rest` need not be there.
fn enveloped(kind: &str, choice: Value, always: Vec<Named>, rest: Vec<Named>) -> Value {
    let mut fields = envelope(kind);
    fields.push(("choices", array(choice, "")));
    fields.extend(always);
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.extend(rest);
    object(fields, &required)
}

/// Where the time went, where an answer tells.
pub(super) fn timings() -> Named {
    ("timings", reference_as("Timings", "Where the time went."))
}

fn progress() -> Named {
    ("prompt_progress", reference_as("PromptProgress", "With return_progress; then there are no choices."))
}

fn usage_of_chunk() -> Named {
    ("usage", nullable(any_of(vec![reference("Usage"), reference("UsageSoFar")], "")))
}

fn timings_of_prompts() -> Named {
    let of_each = array(nullable(reference("Timings")), "Of several prompts, which overlap: one for each.");
    ("timings", any_of(vec![reference("Timings"), of_each], "Where the time went."))
}

fn of_prompt() -> Vec<Named> {
    vec![
        ("prompt_logprobs", nullable(reference("PromptLogprobs"))),
        ("prompt_token_ids", nullable(ids("With return_token_ids."))),
    ]
}

fn chat_completion() -> Value {
    let message = object(
        vec![
            ("role", json!({ "const": "assistant" })),
            ("content", nullable(string("The answer; null where there are only calls."))),
            ("refusal", json!({ "type": "null" })),
            ("reasoning_content", string("What the model thought.")),
            ("tool_calls", array(reference("ToolCall"), "What it calls.")),
        ],
        &["role", "content", "refusal"],
    );
    let choice = object(
        vec![
            ("index", integer("Which answer.")),
            ("message", message),
            ("logprobs", nullable(reference("ChatLogprobs"))),
            ("finish_reason", chat_finish_reason()),
            ("token_ids", ids("With return_token_ids.")),
        ],
        &["index", "message", "logprobs", "finish_reason"],
    );
    let mut rest = of_prompt();
    rest.push(timings());
    enveloped("chat.completion", choice, vec![("usage", reference("Usage"))], rest)
}

fn chat_chunk() -> Value {
    let function = optional(vec![("name", string("")), ("arguments", string("The next of the JSON."))]);
    let call = object(
        vec![
            ("index", integer("Which call.")),
            ("id", string("With its first part.")),
            ("type", json!({ "const": "function" })),
            ("function", function),
        ],
        &["index", "function"],
    );
    let delta = optional(vec![
        ("role", json!({ "const": "assistant" })),
        ("content", string("The next of the text.")),
        ("reasoning_content", string("The next of the thoughts.")),
        ("tool_calls", array(call, "The next of the calls.")),
    ]);
    let choice = object(
        vec![
            ("index", integer("Which answer.")),
            ("delta", delta),
            ("logprobs", nullable(reference("ChatLogprobs"))),
            ("finish_reason", nullable(chat_finish_reason())),
            ("token_ids", ids("With return_token_ids.")),
        ],
        &["index", "delta", "logprobs", "finish_reason"],
    );
    let mut rest = of_prompt();
    rest.extend([usage_of_chunk(), timings(), progress()]);
    enveloped("chat.completion.chunk", choice, Vec::new(), rest)
}

fn chat_logprobs() -> Value {
    let of_token = || {
        vec![
            ("token", string("Its text, or bytes:\\xf0\\x9f where that is no whole character.")),
            ("logprob", number("In the model's own distribution; -9999 is never.")),
            ("bytes", nullable(array(json!({ "type": "integer" }), ""))),
        ]
    };
    let mut entry = of_token();
    entry.push(("top_logprobs", array(all(of_token()), "")));
    all(vec![("content", array(all(entry), "One per token.")), ("refusal", json!({ "type": "null" }))])
}

fn completion(kind: &str, is_whole: bool) -> Value {
    let mut fields = vec![
        ("text", string("The text.")),
        ("index", integer("Which answer.")),
        ("logprobs", nullable(reference("CompletionLogprobs"))),
        ("finish_reason", if is_whole { finish_reason() } else { nullable(finish_reason()) }),
    ];
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.push(("token_ids", ids("With return_token_ids.")));
    fields.extend(of_prompt());
    let choice = object(fields, &required);
    if is_whole {
        enveloped(kind, choice, vec![("usage", reference("Usage"))], vec![timings_of_prompts()])
    } else {
        enveloped(kind, choice, Vec::new(), vec![usage_of_chunk(), timings_of_prompts(), progress()])
    }
}

fn completion_logprobs() -> Value {
    let numbers = array(json!({ "type": ["number", "null"] }), "The first token of a text has none.");
    let top = array(
        any_of(
            vec![json!({ "type": "object", "additionalProperties": { "type": "number" } }), json!({ "type": "null" })],
            "",
        ),
        "From tokens to log-probabilities.",
    );
    all(vec![
        ("tokens", strings("")),
        ("token_logprobs", numbers),
        ("top_logprobs", nullable(top)),
        ("text_offset", array(json!({ "type": "integer" }), "In characters.")),
    ])
}

fn prompt_logprobs() -> Value {
    let found =
        all(vec![("logprob", number("")), ("rank", integer("1 is the most probable.")), ("decoded_token", string(""))]);
    let of_token = json!({ "type": "object", "additionalProperties": found });
    array(nullable(of_token), "For each token of the prompt but the first, from ids to log-probabilities.")
}
