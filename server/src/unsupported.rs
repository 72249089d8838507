//! What a request may hold besides the parameters that are read: parameters that other servers have and this one has not,
//! and fields that change nothing in the answer.
//!
//! A known parameter that would change the answer is refused by name; the value that means "off" is accepted, because
//! clients send it. A field that nobody knows is accepted (a client that met a stricter server would not work at all),
//! logged once per name, and reported in the response's `x-taper-ignored-fields` header.

use serde_json::Value;

use crate::errors::ApiError;
use crate::fields::{Fields, untaken};
use crate::state::ServerState;

/// One parameter that is not there: its name, and which values ask for nothing.
struct Row(&'static str, fn(&Value) -> bool);

fn never(_: &Value) -> bool {
    false
}
fn empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
fn off(value: &Value) -> bool {
    value == &Value::Bool(false)
}
fn on(value: &Value) -> bool {
    value == &Value::Bool(true)
}
fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}
fn negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number < 0.0)
}
fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
fn at_most_one(value: &Value) -> bool {
    zero(value) || one(value)
}
fn only_text(value: &Value) -> bool {
    empty(value) || value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
}
fn no_forced_tool(value: &Value) -> bool {
    value == "none" || value == "auto"
}
fn usual_tier(value: &Value) -> bool {
    value == "auto" || value == "default"
}
fn medium(value: &Value) -> bool {
    value == "medium"
}
fn none(value: &Value) -> bool {
    value == "none"
}

/// Parameters of OpenAI and of peers that would change the answer and are not there.
const UNSUPPORTED: &[Row] = &[
    // OpenAI
    Row("store", off),
    Row("service_tier", usual_tier),
    Row("max_output_tokens", never),
    Row("functions", empty),
    Row("function_call", no_forced_tool),
    // Of the chat endpoint alone.
    Row("tools", empty),
    Row("tool_choice", no_forced_tool),
    Row("top_logprobs", zero),
    Row("reasoning_effort", none),
    Row("include_reasoning", Value::is_boolean),
    Row("reasoning_format", Value::is_string),
    Row("thinking_token_budget", negative),
    Row("thinking_budget_tokens", negative),
    Row("reasoning_budget_tokens", negative),
    Row("enable_thinking", never),
    Row("reasoning_budget_message", empty),
    Row("reasoning_control", off),
    // Of the completions endpoint alone.
    Row("best_of", at_most_one),
    Row("echo", off),
    Row("suffix", empty),
    Row("audio", never),
    Row("modalities", only_text),
    Row("verbosity", medium),
    Row("web_search_options", never),
    // vLLM
    Row("length_penalty", one),
    Row("use_beam_search", off),
    Row("skip_special_tokens", on),
    Row("spaces_between_special_tokens", on),
    Row("add_special_tokens", on),
    Row("add_generation_prompt", on),
    Row("continue_final_message", off),
    Row("truncate_prompt_tokens", never),
    Row("prompt_embeds", empty),
    Row("logits_processors", empty),
    Row("chat_template", never),
    Row("documents", empty),
    Row("structural_tag", empty),
    Row("repetition_detection", empty),
    Row("detokenize", on),
    Row("early_stopping", off),
    Row("mm_processor_kwargs", empty),
    Row("media_io_kwargs", empty),
    Row("kv_transfer_params", empty),
    Row("vllm_xargs", empty),
    // SGLang
    Row("stop_regex", empty),
    Row("no_stop_trim", off),
    Row("min_new_tokens", zero),
    Row("max_new_tokens", never),
    Row("custom_logit_processor", empty),
    Row("custom_params", empty),
    Row("lora_path", empty),
    Row("session_params", empty),
    Row("return_hidden_states", off),
    Row("separate_reasoning", on),
    Row("stream_reasoning", on),
    // TGI, mistral.rs, Ollama, Anthropic, Alibaba
    Row("adapter_id", empty),
    Row("tool_prompt", empty),
    Row("guideline", empty),
    Row("truncate_sequence", off),
    Row("adapters", empty),
    Row("think", never),
    Row("thinking", never),
    Row("thinking_budget", never),
    // llama.cpp
    Row("n_predict", never),
    Row("n_probs", zero),
    Row("post_sampling_probs", off),
    Row("return_tokens", off),
    Row("lora", empty),
    Row("n_cmpl", one),
    Row("n_indent", zero),
    Row("response_fields", empty),
    Row("grammar_lazy", off),
    Row("grammar_triggers", empty),
    Row("preserved_tokens", empty),
    Row("image_data", empty),
    Row("adaptive_target", negative),
    Row("parse_tool_calls", on),
    Row("generation_prompt", empty),
];

/// What they are called here, where it is there under another name.
const NAMES_HERE: &[(&str, &str)] = &[
    ("n_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("no_stop_trim", "include_stop_str_in_output"),
    ("n_cmpl", "n"),
    ("think", "enable_thinking on chat completions"),
    ("thinking", "enable_thinking on chat completions"),
    ("thinking_budget", "thinking_token_budget on chat completions"),
    ("separate_reasoning", "reasoning_format on chat completions"),
];

/// Fields that say who asks, how to account for it or what to cache: the answer is the same with and without.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    // A guess at the answer: it could only save time.
    "prediction",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "cache_prompt",
    "id_slot",
    "request_id",
    "timings_per_token",
];

/// The ends of paths to such fields inside other objects: names, what answers say of their parts and clients send back with them,
/// and what to cache, which is done unasked.
const HARMLESS_INSIDE: &[&str] = &[
    ".json_schema.name",
    ".value.name",
    ".id",
    ".index",
    ".status",
    ".annotations",
    ".citations",
    ".logprobs",
    ".cache_control",
    ".caller",
];

/// Bytes of an unknown name that are logged or sent back, about, and the most names sent back.
const NAME_BYTES: usize = 128;
const MAX_REPORTED: usize = 8;

/// Goes through the fields that were not read: refuses what is known and not there, and returns the names of the unknown
/// ones, made safe for a log line and a header; those inside other objects come last.
pub(crate) fn check_rest(fields: Fields, state: &ServerState) -> Result<Vec<String>, ApiError> {
    let mut rest = fields.into_rest();
    rest.retain(|name, value| !value.is_null() && !HARMLESS.contains(&name.as_str()));
    for Row(name, asks_for_nothing) in UNSUPPORTED {
        if let Some(value) = rest.remove(*name)
            && !asks_for_nothing(&value)
        {
            let here = NAMES_HERE.iter().find(|(other, _)| other == name);
            let hint = here.map(|(_, here)| format!("; its name here is {here}")).unwrap_or_default();
            let message = format!(
                "{name} is not supported by this server{hint}; leave it out (got {})",
                crate::fields::show(&value)
            );
            return Err(ApiError::unsupported(*name, message));
        }
    }
    let is_harmless = |path: &String| HARMLESS_INSIDE.iter().any(|end| path.ends_with(end));
    let inside = untaken::take();
    let names = rest.keys().chain(inside.iter().filter(|path| !is_harmless(path)));
    let unknown: Vec<String> = names.take(MAX_REPORTED).map(|name| printable(name)).collect();
    for name in &unknown {
        if state.first_sight(name) {
            tracing::warn!(field = %name, "a request has a field that this server does not know; it is ignored");
        }
    }
    Ok(unknown)
}

/// A name as a log line and a header can carry it: what is not plain in both is percent-encoded, so that different names stay
/// different.
fn printable(name: &str) -> String {
    let mut printable = String::new();
    for byte in name.bytes() {
        if printable.len() >= NAME_BYTES {
            break;
        }
        if byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte) {
            printable.push(char::from(byte));
        } else {
            printable.push_str(&format!("%{byte:02X}"));
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(body: Value) -> Result<Vec<String>, ApiError> {
        let Value::Object(object) = body else { panic!("tests give objects") };
        check_rest(Fields::new(object), &ServerState::new())
    }

    #[test]
    fn every_unsupported_parameter_is_refused_by_its_name() {
        for Row(name, _) in UNSUPPORTED {
            let error = check(json!({ *name: {"what": "ever"} })).expect_err(name);
            assert_eq!(error.status(), 400);
            assert_eq!(error.to_json()["error"]["param"], *name);
            assert_eq!(error.to_json()["error"]["code"], "unsupported_parameter");
            assert!(error.message().contains(name));
        }
    }

    #[test]
    fn null_asks_for_nothing() {
        for Row(name, _) in UNSUPPORTED {
            assert_eq!(check(json!({ *name: null })).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn values_that_mean_off_are_accepted() {
        let body = json!({
            "tools": [], "tool_choice": "auto", "top_logprobs": 0, "best_of": 1,
            "suffix": "", "echo": false, "modalities": ["text"], "skip_special_tokens": true, "length_penalty": 1.0,
        });
        assert_eq!(check(body).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn harmless_fields_are_accepted_silently_and_unknown_ones_reported() {
        let body = json!({"user": "u", "metadata": {"a": "b"}, "my field\n": 1, "größe, 100%": 2});
        assert_eq!(check(body).unwrap(), ["my%20field%0A", "gr%C3%B6%C3%9Fe%2C%20100%25"]);
        let long = check(json!({ "ü".repeat(1000): 1 })).unwrap();
        assert!(long[0].starts_with("%C3%BC%C3%BC") && long[0].len() < NAME_BYTES + 3, "{long:?}");
    }
}
