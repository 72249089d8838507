//! llama-server's own endpoints.

use serde_json::{Value, json};
use taper_engine::MAX_LOGPROBS;

use super::Operation;
use super::generation::shared_fields;
use super::info::asked;
use super::schema::{
    Named, all, also, any_of, array, boolean, ids, integer, integer_from, integer_in, map, number, number_in, object,
    one_of, reference, string, strings,
};
use crate::api::native::{HARMLESS, REFUSED};
use crate::limits::MAX_CHOICES;

const TAG: &str = "llama-server";

/// POST /completion.
pub(crate) fn completion() -> Operation {
    let one = || any_of(vec![reference("NativeCompletion"), chosen()], "");
    let answer = any_of(vec![one(), array(one(), "")], "An array where there are several prompts or choices.");
    let event = any_of(vec![reference("NativePart"), one(), reference("Error")], "");
    let summary = "Continue prompts, in llama-server's way";
    Operation::post(TAG, summary, reference("NativeRequest"), answer).streamed_until_the_end(event)
}

/// An answer with `response_fields`, which are not all.
fn chosen() -> Value {
    let mut some = map("With response_fields: those, under the names that they are asked for by.");
    some["not"] = json!({ "required": whole()["required"] });
    some
}

/// GET /props.
pub(crate) fn props() -> Operation {
    let defaults = all(vec![
        ("id", integer("")),
        ("id_task", integer("")),
        ("n_ctx", integer("Tokens of the context.")),
        ("speculative", boolean("Whether next tokens are guessed.")),
        ("is_processing", boolean("")),
        ("params", reference("NativeSettings")),
    ]);
    let answer = all(vec![
        ("default_generation_settings", defaults),
        ("total_slots", integer("Places of the batch.")),
        ("model_alias", string("The model's id.")),
        ("model_path", string("Its file, where that is known.")),
        ("modalities", all(vec![("vision", json!({ "const": false })), ("audio", json!({ "const": false }))])),
        ("chat_template", string("Jinja; empty where the model has none.")),
        ("bos_token", string("")),
        ("eos_token", string("")),
        ("build_info", string("The fingerprint.")),
        ("is_sleeping", json!({ "const": false })),
    ]);
    Operation::get(TAG, "A model and the defaults of /completion", answer).with_query(vec![asked()])
}

/// GET /slots.
pub(crate) fn slots() -> Operation {
    let slot = all(vec![
        ("id", integer("")),
        ("n_ctx", integer("Tokens of the context.")),
        ("speculative", boolean("Whether next tokens are guessed.")),
        ("is_processing", boolean("Requests have no fixed places: the first ones are those that are taken.")),
    ]);
    let next = all(vec![
        ("has_next_token", json!({ "const": true })),
        ("n_remain", integer("Tokens that the choice may have besides.")),
        ("n_decoded", integer("Tokens generated.")),
    ]);
    let of_running = vec![
        ("id_task", integer("The number of the request; its choices have the same.")),
        ("n_prompt_tokens", integer("Tokens of the prompt.")),
        ("params", reference("NativeSettings")),
        ("next_token", next),
    ];
    let slot = also(slot, of_running);
    let answer = array(slot, "One for each place of the batch.");
    Operation::get(TAG, "The places of the batch", answer)
        .with_query(vec![asked(), ("fail_on_no_slot", string("1: a 503 when every place is taken."))])
}

/// GET /lora-adapters.
pub(crate) fn lora_adapters() -> Operation {
    Operation::get(TAG, "Adapters, of which there are none", array(Value::Bool(false), "Empty."))
}

pub(super) fn components() -> Vec<Named> {
    vec![
        ("NativeRequest", request()),
        ("NativeSettings", settings()),
        ("NativePart", part()),
        ("NativeCompletion", whole()),
        ("NativeProbabilities", probabilities()),
    ]
}

fn request() -> Value {
    let text_or_ids = || array(json!({ "type": ["string", "integer"] }), "");
    let media = array(Value::Bool(true), "Not supported: it must be empty.");
    let object_prompt = object(vec![("prompt_string", string("")), ("multimodal_data", media)], &["prompt_string"]);
    let one = || vec![json!({ "type": "string" }), text_or_ids(), object_prompt.clone()];
    let several = array(any_of(one(), ""), "");
    let mut fields = vec![
        ("prompt", any_of([one(), vec![several]].concat(), "A text, token ids, a mix of both, or an array of these.")),
        (
            "n_predict",
            integer_from(
                -2,
                "Tokens of the answer: -1 (where neither request nor server says) is the rest of the context, 0 is none.",
            ),
        ),
        ("n_cmpl", integer_in(1, MAX_CHOICES as i64, "Answers per prompt.")),
        ("temperature", number("0.8 where neither request nor server nor model says; 0 and less are greedy.")),
        ("top_k", integer_from(-1, "40 where neither request nor server nor model says; 0 and -1 keep all.")),
        ("top_p", number_in(0.0, 1.0, "0.95 where neither request nor server nor model says.")),
        ("min_p", number_in(0.0, 1.0, "0.05 where neither request nor server nor model says.")),
        ("seed", integer("-1 is any.")),
        (
            "n_probs",
            integer_in(
                0,
                i64::from(MAX_LOGPROBS),
                "Tell the log-probabilities of each token and of this many most probable ones.",
            ),
        ),
        ("logprobs", integer_in(0, i64::from(MAX_LOGPROBS), "Another name of n_probs.")),
        (
            "post_sampling_probs",
            boolean("With n_probs: tell probabilities in what tokens were drawn from, as prob and top_probs."),
        ),
        (
            "response_fields",
            strings(
                "The fields that answers shall have; generation_settings/n_predict is one of a field. Without any, all.",
            ),
        ),
        ("n_indent", integer_from(0, "End the answer where a line after its first begins with fewer blanks.")),
        ("return_tokens", boolean("Tell the ids of the answer's tokens; streams always do.")),
    ];
    let own: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.extend(shared_fields().into_iter().filter(|(name, _)| !own.contains(name)));
    fields.retain(|(name, _)| !REFUSED.iter().any(|(refused, _)| refused == name));
    let refused = |name| (name, json!({ "description": "Not supported: only a value that turns it off is taken." }));
    fields.extend(REFUSED.iter().map(|(name, _)| refused(*name)));
    fields.extend(HARMLESS.iter().map(|name| (*name, json!({ "description": "Accepted; changes nothing here." }))));
    object(fields, &["prompt"])
}

fn settings() -> Value {
    let biases = array(all(vec![("token", integer("")), ("bias", json!({ "type": ["number", "boolean"] }))]), "");
    all(vec![
        ("seed", integer("4294967295 is any.")),
        ("temperature", number("")),
        ("dynatemp_range", number("")),
        ("dynatemp_exponent", number("")),
        ("top_k", integer("")),
        ("top_p", number("")),
        ("min_p", number("")),
        ("top_n_sigma", number("")),
        ("xtc_probability", number("")),
        ("xtc_threshold", number("")),
        ("typical_p", number("")),
        ("repeat_last_n", integer("")),
        ("repeat_penalty", number("")),
        ("presence_penalty", number("")),
        ("frequency_penalty", number("")),
        ("dry_multiplier", number("")),
        ("dry_base", number("")),
        ("dry_allowed_length", integer("")),
        ("dry_penalty_last_n", integer("-1 is all.")),
        ("mirostat", integer("")),
        ("mirostat_tau", number("")),
        ("mirostat_eta", number("")),
        ("stop", strings("")),
        ("max_tokens", integer("-1 is the rest of the context.")),
        ("n_predict", integer("The same.")),
        ("n_keep", integer("")),
        ("ignore_eos", boolean("")),
        ("stream", boolean("")),
        ("logit_bias", biases),
        ("n_probs", integer("")),
        ("min_keep", integer("")),
        ("samplers", strings("In the order in which they apply.")),
        ("post_sampling_probs", boolean("")),
        ("lora", array(map(""), "")),
    ])
}

/// An object of which only the probabilities may be missing.
fn with_probabilities(mut fields: Vec<Named>) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    fields.push(("completion_probabilities", array(reference("NativeProbabilities"), "With n_probs: one per token.")));
    object(fields, &required)
}

fn part() -> Value {
    let part = with_probabilities(vec![
        ("index", integer("Which answer.")),
        ("content", string("The next of the text.")),
        ("tokens", ids("Its tokens.")),
        ("stop", json!({ "const": false })),
        ("id_slot", integer("-1: requests have no fixed places.")),
        ("tokens_predicted", integer("So far.")),
        ("tokens_evaluated", integer("Tokens of the prompt.")),
    ]);
    also(part, vec![("prompt_progress", reference("PromptProgress"))])
}

fn whole() -> Value {
    with_probabilities(vec![
        ("index", integer("Which answer.")),
        ("content", string("The text; at the end of a stream nothing.")),
        ("tokens", ids("With return_tokens.")),
        ("id_slot", integer("-1: requests have no fixed places.")),
        ("stop", json!({ "const": true })),
        ("model", string("Who answers.")),
        ("tokens_predicted", integer("Tokens of the answer.")),
        ("tokens_evaluated", integer("Tokens of the prompt.")),
        ("generation_settings", reference("NativeSettings")),
        ("prompt", string("The prompt's text.")),
        ("has_new_line", boolean("Whether the text has a line break.")),
        ("truncated", boolean("Whether the context was full.")),
        ("stop_type", one_of(&["none", "eos", "limit", "word"], "Why it ended.")),
        ("stopping_word", string("The stop text that ended it.")),
        ("tokens_cached", integer("Tokens of the prompt that were not computed again.")),
        ("timings", reference("Timings")),
    ])
}

fn probabilities() -> Value {
    let of_token = |value: Named| {
        vec![("id", integer("")), ("token", string("")), ("bytes", array(json!({ "type": "integer" }), "")), value]
    };
    let with_top = |value: Named, top: &'static str| {
        let mut fields = of_token(value.clone());
        fields.push((top, array(all(of_token(value)), "")));
        all(fields)
    };
    any_of(
        vec![
            with_top(("logprob", number("In the model's own distribution; -9999 is never.")), "top_logprobs"),
            with_top(("prob", number("In what was drawn from.")), "top_probs"),
        ],
        "The second with post_sampling_probs.",
    )
}
