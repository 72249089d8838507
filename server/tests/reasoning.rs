//! Thoughts in answers of POST /v1/chat/completions.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::EngineConfig;
use taper_engine::stub::StubRunner;
use taper_server::ServerState;

/// The model begins its thoughts itself, unless it is told not to; former thoughts are written, and an effort is known.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\
    {{ m.content }}<|im_end|>\n{% endfor %}{{ reasoning_effort }}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
/// The template begins them.
const OPENS: &str = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n{# </think> #}";

/// Writes this whatever tokens a grammar made of what it had to write.
fn thinking(reply: &str, template: &str) -> ServerState {
    let (tokenizer, reply, end) = (vocabulary().tokenizer, reply.as_bytes().to_vec(), end_token());
    let runner = StubRunner::new(limits(), move |tokens| {
        let bytes = |token: &u32| tokenizer.token_bytes(*token).unwrap_or_default().to_vec();
        let said: Vec<u8> = tokens.iter().flat_map(bytes).collect();
        let written = (0..=reply.len()).rev().find(|&len| said.ends_with(&reply[..len])).unwrap_or(0);
        reply.get(written).map_or(end, |&byte| byte.into())
    });
    state_with_template(runner, template)
}

/// The answer's thoughts and text, the same whole and streamed.
async fn check(state: &ServerState, fields: Value, reasoning: Option<&str>, content: &str) -> Value {
    let answer = chat(state, fields.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    let message = &body["choices"][0]["message"];
    assert_eq!(message.get("reasoning_content").and_then(Value::as_str), reasoning, "{message}");
    assert_eq!(message["content"], content, "{message}");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let (mut thoughts, mut text) = (String::new(), String::new());
    for chunk in chat(state, streamed).await.chunks() {
        let delta = &chunk["choices"][0]["delta"];
        if let Some(more) = delta["reasoning_content"].as_str() {
            assert_eq!(text, "", "thoughts come first");
            thoughts.push_str(more);
        }
        text.push_str(delta["content"].as_str().unwrap_or_default());
    }
    assert_eq!((thoughts.as_str(), text.as_str()), (reasoning.unwrap_or_default(), content));
    body["usage"].clone()
}

const ANSWER: &str = "<think>\nHm <b>.\n</think>\n\nYes.";

#[tokio::test]
async fn thoughts_are_told_apart_from_the_text() {
    let usage = check(&thinking(ANSWER, THINKS), json!({}), Some("Hm <b>."), "Yes.").await;
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let all = usage["completion_tokens"].as_u64().unwrap();
    assert!((7..all - 4).contains(&reasoning), "{reasoning} of {all}");
    check(&thinking("Hm.\n</think>\n\nYes.", OPENS), json!({}), Some("Hm."), "Yes.").await;
    check(&thinking("Just so.", THINKS), json!({}), None, "Just so.").await;
    // A model that does not think writes what it likes.
    check(&state_of(ANSWER), json!({}), None, ANSWER).await;
}

/// With the tiny model's template.
fn state_of(reply: &str) -> ServerState {
    state_with(replying(reply), EngineConfig::default(), taper_server::Timeouts::default()).0
}

#[tokio::test]
async fn thoughts_may_be_left_out_or_stay_in_the_text() {
    let state = thinking(ANSWER, THINKS);
    check(&state, json!({ "include_reasoning": true }), Some("Hm <b>."), "Yes.").await;
    check(&state, json!({ "include_reasoning": false }), None, "Yes.").await;
    check(&state, json!({ "reasoning_format": "none" }), None, ANSWER).await;
    check(&state, json!({ "reasoning_format": "deepseek" }), Some("Hm <b>."), "Yes.").await;
    let body = chat(&state, json!({ "include_reasoning": false, "logprobs": true })).await.json();
    let logprobs = body["choices"][0]["logprobs"]["content"].as_array().unwrap().len();
    assert_eq!(logprobs as u64, body["usage"]["completion_tokens"].as_u64().unwrap(), "every token has its own");
    for (field, value) in [("include_reasoning", json!("no")), ("reasoning_format", json!("xml"))] {
        let answer = chat(&state, json!({ field: value })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(field)));
    }
}

#[tokio::test]
async fn a_form_begins_behind_the_thoughts() {
    let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] });
    let format =
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } });
    let state = thinking("<think>\nHm, {1}.\n</think>\n\n{\"x\": true}", THINKS);
    check(&state, format.clone(), Some("Hm, {1}."), "{\"x\": true}").await;
    let state = thinking("Hm.\n</think>\n\n{\"x\": true}", OPENS);
    check(&state, format.clone(), Some("Hm."), "{\"x\": true}").await;
    check(&thinking("{\"x\": false}", THINKS), format.clone(), None, "{\"x\": false}").await;
    let mut without = format;
    without["chat_template_kwargs"] = json!({ "enable_thinking": false });
    check(&thinking("{\"x\": false}", THINKS), without, None, "{\"x\": false}").await;
}

#[tokio::test]
async fn calls_follow_the_thoughts() {
    let call = "{\"name\": \"f\", \"arguments\": {}}";
    let reply = format!("<think>\nI call.\n</think>\n\n<tool_call>\n{call}\n</tool_call>");
    // The template knows no tools, and their description takes more than the stub's usual context.
    let knows = format!("{{% if tools %}}T{{% endif %}}{THINKS}");
    for choice in ["auto", "required"] {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        let body = chat(&thinking(&reply, &knows), json!({ "tools": tools, "tool_choice": choice })).await.json();
        let message = &body["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "I call.", "{body}");
        assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "f", "arguments": "{}" }), "{body}");
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    }
}

/// The number of tokens, bytes but for control tokens, that a request's prompt has.
async fn prompt_tokens(state: &ServerState, fields: Value) -> u64 {
    let answer = chat(state, fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn an_effort_reaches_templates_that_know_it() {
    let state = thinking("x", THINKS);
    let none = prompt_tokens(&state, json!({})).await;
    assert_eq!(prompt_tokens(&state, json!({ "reasoning_effort": "high" })).await, none + 4);
    assert_eq!(prompt_tokens(&state, json!({ "reasoning_effort": "medium" })).await, none + 6);
    let answer = chat(&state, json!({ "reasoning_effort": "endless" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("reasoning_effort")));

    let switch = THINKS.replace("{{ reasoning_effort }}", "");
    let state = thinking("x", &switch);
    let plain = prompt_tokens(&state, json!({})).await;
    let off = prompt_tokens(&state, json!({ "chat_template_kwargs": { "enable_thinking": false } })).await;
    assert!(off > plain);
    assert_eq!(prompt_tokens(&state, json!({ "reasoning_effort": "none" })).await, off);
    assert_eq!(prompt_tokens(&state, json!({ "reasoning_effort": "medium" })).await, plain);
    let answer = chat(&state, json!({ "reasoning_effort": "high" })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (400, &json!("unsupported_parameter")));
}

#[tokio::test]
async fn former_thoughts_can_be_sent_back() {
    let state = thinking("x", THINKS);
    let messages = |field: &str, thought: Value| json!([{ "role": "user", "content": "U" }, { "role": "assistant", "content": "A", field: thought }, { "role": "user", "content": "V" }]);
    let without = prompt_tokens(&state, json!({ "messages": messages("reasoning_content", Value::Null) })).await;
    for field in ["reasoning_content", "reasoning"] {
        let with = prompt_tokens(&state, json!({ "messages": messages(field, json!("abc")) })).await;
        assert!(with > without + 10, "{with} tokens with thoughts, {without} without");
    }
}

#[tokio::test]
async fn thoughts_end_where_their_budget_does() {
    for template in [THINKS, OPENS] {
        let state = state_with_template(musing(limits()), template);
        for name in ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens"] {
            let usage = check(&state, json!({ name: 5 }), Some("mmmmm"), "Yes.").await;
            // The mark has seven tokens.
            let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
            assert!((5..=5 + 7).contains(&reasoning), "{usage}");
        }
        check(&state, json!({ "thinking_token_budget": 0 }), None, "Yes.").await;
        check(&state, json!({ "thinking_token_budget": 3, "include_reasoning": false }), None, "Yes.").await;
        let form = json!({ "structured_outputs": { "choice": ["Yes.", "No."] }, "thinking_token_budget": 3 });
        check(&state, form, Some("mmm"), "Yes.").await;
        let endless = chat(&state, json!({ "thinking_token_budget": -1, "max_tokens": 40 })).await.json();
        assert_eq!(endless["choices"][0]["finish_reason"], "length");
    }
    let state = state_with_template(musing(limits()), THINKS);
    let in_text = json!({ "thinking_token_budget": 3, "reasoning_format": "none" });
    check(&state, in_text, None, "<think>mmm</think>Yes.").await;
    // A model that does not think keeps to any budget.
    check(&state_of("Just so."), json!({ "thinking_token_budget": 1 }), None, "Just so.").await;
}

#[tokio::test]
async fn budgets_that_differ_and_those_of_endpoints_without_thoughts_are_refused() {
    let state = state_with_template(musing(limits()), THINKS);
    let answer = chat(&state, json!({ "thinking_token_budget": 3, "thinking_budget_tokens": 4 })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("thinking_budget_tokens")));
    for (name, value) in [("thinking_token_budget", json!(3)), ("enable_thinking", json!(true))] {
        let answer = complete(&state, json!({ name: value })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(name)));
    }
}

#[tokio::test]
async fn enable_thinking_is_the_variable_of_that_name() {
    let state = thinking("x", THINKS);
    let variable = |thinks: bool| json!({ "enable_thinking": thinks });
    let off = prompt_tokens(&state, json!({ "chat_template_kwargs": variable(false) })).await;
    assert!(off > prompt_tokens(&state, json!({})).await);
    assert_eq!(prompt_tokens(&state, variable(false)).await, off);
    let both = |thinks: bool| json!({ "enable_thinking": thinks, "chat_template_kwargs": variable(false) });
    assert_eq!(prompt_tokens(&state, both(false)).await, off);
    let answer = chat(&state, both(true)).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("enable_thinking")));
}
