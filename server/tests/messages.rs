//! POST /v1/messages and /v1/messages/count_tokens.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, RunnerLimits};
use taper_server::{ApiKeys, ServerConfig, ServerState};
use taper_text::EncodeOptions;

const MESSAGES: &str = "/v1/messages";
/// Writes tools, thoughts, calls and results.
const TEMPLATE: &str = "{% if tools %}TOOLS\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }} {{ c.id }}</tool_call>{% endfor %}\
    {% if m.tool_call_id %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";

fn roomy() -> RunnerLimits {
    RunnerLimits { context_len: 4096, num_blocks: 1024, ..limits() }
}

fn serve(runner: StubRunner) -> ServerState {
    state_with_template(runner, TEMPLATE)
}

/// Answers `reply` to everything.
fn answering(reply: &str) -> ServerState {
    serve(StubRunner::replying(roomy(), bytes_of(reply), end_token()))
}

fn with(fields: &Value) -> Value {
    let mut body = json!({ "max_tokens": 200, "messages": [{ "role": "user", "content": "Hi" }] });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn ask(state: &ServerState, fields: &Value) -> Answer {
    post(state, MESSAGES, &with(fields)).await
}

fn weather() -> Value {
    json!({ "name": "weather", "description": "D", "input_schema": { "type": "object", "properties": { "city": { "type": "integer" } } } })
}

/// The message that the events of a stream make, after checking their order.
fn assembled(events: &[Value]) -> Value {
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let mut message = events[0]["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let mut inputs: Vec<String> = Vec::new();
    let mut open = None;
    for event in &events[1..events.len() - 1] {
        let content = message["content"].as_array_mut().unwrap();
        match event["type"].as_str().unwrap() {
            "ping" => {}
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(content.len())));
                open = Some(content.len());
                content.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let index = open.expect("a block is open");
                assert_eq!(event["index"], index);
                let delta = &event["delta"];
                let (field, more) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "input_json_delta" => {
                        inputs[index].push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let so_far = content[index][field].as_str().unwrap().to_owned();
                content[index][field] = format!("{so_far}{}", more.as_str().unwrap()).into();
            }
            "content_block_stop" => {
                let index = open.take().expect("a block is open");
                assert_eq!(event["index"], index);
                if content[index]["type"] == "tool_use" {
                    content[index]["input"] = serde_json::from_str(&inputs[index]).unwrap();
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            other => panic!("{other}"),
        }
    }
    message
}

/// What differs between two answers of one text.
fn without_ids(mut message: Value) -> Value {
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if let Some(id) = block.get_mut("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"), "{id}");
            *id = Value::Null;
        }
    }
    // The second finds the first in the cache.
    message["usage"] = Value::Null;
    message
}

/// The answer without what differs between two of one text, the same whole and streamed; and its usage.
async fn both_ways(state: &ServerState, mut fields: Value) -> (Value, Value) {
    let answer = ask(state, &fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let message = answer.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(message["model"], MODEL);
    fields["stream"] = true.into();
    let events = ask(state, &fields).await.events();
    let usage = message["usage"].clone();
    let whole = without_ids(message);
    assert_eq!(without_ids(assembled(&events)), whole);
    (whole, usage)
}

async fn check(state: &ServerState, fields: Value, content: Value, reason: &str, stop: Value) -> Value {
    let (whole, usage) = both_ways(state, fields).await;
    assert_eq!(whole["content"], content);
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &stop));
    usage
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text, "citations": null })
}

#[tokio::test]
async fn a_text_is_a_block() {
    let usage = check(&answering(REPLY), json!({}), json!([text(REPLY)]), "end_turn", Value::Null).await;
    assert_eq!(usage["output_tokens"], REPLY.len() + 1);
    assert_eq!(usage["cache_creation_input_tokens"], 0);
    assert!(usage["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn cached_tokens_are_not_counted_as_input() {
    let state = answering(REPLY);
    let fields = json!({ "system": "A long text that the second request finds in the cache." });
    let first = ask(&state, &fields).await.json()["usage"].clone();
    let second = ask(&state, &fields).await.json()["usage"].clone();
    let (input, cached) = (&second["input_tokens"], second["cache_read_input_tokens"].as_u64().unwrap());
    assert!(cached > 0, "{second}");
    assert_eq!(input.as_u64().unwrap() + cached, first["input_tokens"].as_u64().unwrap());
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let events = ask(&state, &streamed).await.events();
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], first["input_tokens"]);
    assert_eq!(assembled(&events)["usage"], second);
}

#[tokio::test]
async fn an_answer_ends_by_a_limit_or_a_stop_sequence() {
    let state = answering("One two three");
    check(&state, json!({ "max_tokens": 3 }), json!([text("One")]), "max_tokens", Value::Null).await;
    let stops = json!({ "stop_sequences": ["four", " thr"] });
    check(&state, stops, json!([text("One two")]), "stop_sequence", json!(" thr")).await;
    let unmet = json!({ "stop_sequences": ["four"] });
    check(&state, unmet, json!([text("One two three")]), "end_turn", Value::Null).await;
}

#[tokio::test]
async fn thoughts_are_blocks_of_their_own() {
    let state = answering("<think>\nHm.\n</think>\n\nYes.");
    let thinking = json!({ "type": "thinking", "thinking": "Hm.", "signature": "" });
    for fields in
        [json!({}), json!({ "thinking": { "type": "enabled" } }), json!({ "thinking": { "type": "adaptive" } })]
    {
        check(&state, fields, json!([thinking, text("Yes.")]), "end_turn", Value::Null).await;
    }
    let omitted = json!({ "thinking": { "type": "adaptive", "display": "omitted" } });
    check(&state, omitted, json!([text("Yes.")]), "end_turn", Value::Null).await;
    // The template's switch: the prompt ends the thoughts.
    let disabled = json!({ "thinking": { "type": "disabled" } });
    check(&answering("Yes."), disabled.clone(), json!([text("Yes.")]), "end_turn", Value::Null).await;
    let tokens = |fields: Value| async move {
        ask(&answering("x"), &fields).await.json()["usage"]["input_tokens"].as_u64().unwrap()
    };
    assert!(tokens(disabled).await > tokens(json!({})).await);
}

#[tokio::test]
async fn an_effort_that_the_template_does_not_know_is_told() {
    let fields = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 }, "output_config": { "effort": "max" }, "other": 1 });
    let answer = ask(&answering("x"), &fields).await;
    assert_eq!(answer.headers["x-taper-ignored-fields"], "output_config.effort, other");
}

#[tokio::test]
async fn thoughts_end_where_their_budget_does() {
    let state = serve(musing(roomy()));
    for kind in ["enabled", "adaptive"] {
        let fields = json!({ "thinking": { "type": kind, "budget_tokens": 5 } });
        let thinking = json!({ "type": "thinking", "thinking": "mmmmm", "signature": "" });
        check(&state, fields, json!([thinking, text("Yes.")]), "end_turn", Value::Null).await;
    }
    // Under the name of the other endpoints nobody would expect it here.
    let answer = ask(&state, &json!({ "thinking_token_budget": 5 })).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[tokio::test]
async fn timings_are_told_where_they_are_asked_for() {
    let state = answering(REPLY);
    assert_eq!(ask(&state, &json!({})).await.json().get("timings"), None);
    let body = ask(&state, &json!({ "timings": true })).await.json();
    assert_eq!(body["timings"]["predicted_n"], body["usage"]["output_tokens"]);
    let events = ask(&state, &json!({ "timings": true, "stream": true })).await.events();
    for event in events {
        let is_end = event["type"] == "message_delta";
        assert_eq!(event["timings"].is_object(), is_end, "{event}");
        assert_eq!(event["message"].get("timings"), None);
    }
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 5}}\n</tool_call>";

#[tokio::test]
async fn a_call_is_a_block_with_its_input() {
    let call = json!({ "type": "tool_use", "id": null, "name": "weather", "caller": { "type": "direct" }, "input": { "city": 5 } });
    let state = answering(&format!("Let me see.\n{CALL}\n{CALL}"));
    let fields = |choice: Value| json!({ "tools": [weather()], "tool_choice": choice });
    let both = json!([text("Let me see."), call, call]);
    check(&state, fields(Value::Null), both.clone(), "tool_use", Value::Null).await;
    check(&state, fields(json!({ "type": "auto" })), both, "tool_use", Value::Null).await;
    check(&answering(CALL), fields(json!({ "type": "none" })), json!([text(CALL)]), "end_turn", Value::Null).await;
}

#[tokio::test]
async fn numbers_of_a_call_are_told_as_the_model_wrote_them() {
    let written = "{\"city\": 123456789012345678901234567890, \"x\": 1.10}";
    let call = format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {written}}}\n</tool_call>");
    let answer = ask(&answering(&call), &json!({ "tools": [weather()] })).await;
    assert_eq!(answer.json()["content"][0]["name"], "weather");
    assert!(answer.body.contains(&format!("\"input\":{written}")), "{}", answer.body);
}

#[tokio::test]
async fn a_call_that_is_required_comes_whatever_the_model_would_say() {
    let state = serve(StubRunner::with_logits(roomy(), |_, _| ()));
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "weather" })] {
        let mut fields = json!({ "tools": [weather()], "tool_choice": choice, "temperature": 0, "max_tokens": 300 });
        fields["tool_choice"]["disable_parallel_tool_use"] = true.into();
        fields["thinking"] = json!({ "type": "disabled" });
        let (message, _) = both_ways(&state, fields).await;
        let content = message["content"].as_array().unwrap();
        assert_eq!((content.len(), &content[0]["name"]), (1, &json!("weather")), "{message}");
        assert!(content[0]["input"].is_object());
        assert_eq!(message["stop_reason"], "tool_use");
    }
}

#[tokio::test]
async fn a_tool_has_a_name_of_up_to_128_letters() {
    let tool = |len: usize| json!({ "tools": [{ "name": "n".repeat(len), "input_schema": {} }] });
    assert_eq!(ask(&answering("x"), &tool(128)).await.status, 200);
    check_error(&ask(&answering("x"), &tool(129)).await, 400, "invalid_request_error", "1 to 128");
}

#[tokio::test]
async fn a_call_that_is_cut_short_is_none() {
    let state = serve(willing_to_say(roomy(), CALL));
    for (limit, reason, stop) in [
        (json!({ "stop_sequences": ["\": 5"] }), "stop_sequence", json!("\": 5")),
        (json!({ "max_tokens": 50 }), "max_tokens", Value::Null),
    ] {
        let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
        let mut fields = json!({ "tools": [weather()], "tool_choice": choice, "thinking": { "type": "disabled" } });
        fields["temperature"] = 0.into();
        fields.as_object_mut().unwrap().extend(limit.as_object().unwrap().clone());
        let message = ask(&state, &fields).await.json();
        assert_eq!(message["content"], json!([]), "{message}");
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(reason), &stop));
        fields["stream"] = true.into();
        let events = ask(&state, &fields).await.events();
        let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
        assert_eq!((&delta["delta"]["stop_reason"], &delta["delta"]["stop_sequence"]), (&json!(reason), &stop));
    }
}

#[tokio::test]
async fn an_answer_keeps_to_its_schema() {
    let state = serve(StubRunner::with_logits(roomy(), |_, _| ()));
    let schema = json!({ "type": "object", "properties": { "x": { "enum": [7] } }, "required": ["x"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "schema": schema });
    for fields in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        let mut fields = fields;
        fields["temperature"] = 0.into();
        fields["thinking"] = json!({ "type": "disabled" });
        let body = ask(&state, &fields).await.json();
        let answer: Value = serde_json::from_str(body["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(answer, json!({ "x": 7 }));
    }
}

#[tokio::test]
async fn a_conversation_is_rendered_with_its_calls_results_and_thoughts() {
    let prompt = "<|im_start|>system\nS\nT<|im_end|>\n<|im_start|>user\nU\n\nV<|im_end|>\n<|im_start|>assistant\n<think>hm</think>So.\
        <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} t1</tool_call><|im_end|>\n\
        <|im_start|>tool\none\ntwo[f t1]<|im_end|>\n<|im_start|>tool\nError: no[ t2]<|im_end|>\n<|im_start|>user\nW<|im_end|>\n\
        <|im_start|>assistant\n";
    let tokens = vocabulary().tokenizer.encode(prompt, EncodeOptions { parse_special: true, add_bos: true }).unwrap();
    let state = serve(StubRunner::scripted(roomy(), vec![(tokens, bytes_of("yes"))], end_token()));
    let cached = json!({ "type": "ephemeral" });
    let body = json!({
        "max_tokens": 10,
        "system": [{ "type": "text", "text": "S", "cache_control": cached }, { "type": "text", "text": "T" }],
        "messages": [
            { "role": "user", "content": "U" },
            { "role": "user", "content": [{ "type": "text", "text": "V" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "redacted_thinking", "data": "d" },
                { "type": "text", "text": "So." },
                { "type": "tool_use", "id": "t1", "name": "f", "caller": { "type": "direct" }, "input": { "a": 1 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] },
                { "type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true },
                { "type": "text", "text": "W" },
            ] },
        ],
    });
    let answer = post(&state, MESSAGES, &body).await;
    assert_eq!(answer.json()["content"], json!([text("yes")]), "{}", answer.body);
    let counted = post(&state, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted["input_tokens"], answer.json()["usage"]["input_tokens"]);
}

#[tokio::test]
async fn tokens_are_counted_without_a_limit_of_the_answer() {
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let answer = post(&answering("x"), "/v1/messages/count_tokens", &body).await;
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let tokens = vocabulary().tokenizer.encode(expected, EncodeOptions { parse_special: true, add_bos: true }).unwrap();
    assert_eq!(answer.json(), json!({ "input_tokens": tokens.len() }));
}

#[tokio::test]
async fn a_system_without_blocks_is_none() {
    let state = answering("x");
    let input_of = |fields: Value| {
        let body = with(&fields);
        let state = state.clone();
        async move { post(&state, "/v1/messages/count_tokens", &body).await.json()["input_tokens"].clone() }
    };
    assert_eq!(input_of(json!({ "system": [] })).await, input_of(json!({})).await);
}

#[tokio::test]
async fn what_does_not_fit_is_counted_too() {
    let said = |len: usize| json!({ "messages": [{ "role": "user", "content": "x".repeat(len) }] });
    // Far more than the context has room for, whatever the tokens are.
    let state = answering("x");
    let answer = post(&state, "/v1/messages/count_tokens", &said(300_000)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.json()["input_tokens"].as_u64().unwrap() > 300_000);
    check_error(&ask(&state, &said(300_000)).await, 400, "invalid_request_error", "too long: at least ");
    let answer = post(&state, "/v1/messages/count_tokens", &said(taper_server::limits::MAX_COUNTED_BYTES)).await;
    check_error(&answer, 400, "invalid_request_error", "8388608 are counted");
}

fn check_error(answer: &Answer, status: u16, kind: &str, part: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains(part), "no {part:?} in {body}");
    assert_eq!(body["request_id"], answer.headers["request-id"].to_str().unwrap());
    assert_eq!(body["error"].as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_its_place_in_anthropics_words() {
    let state = answering("x");
    let said = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let tools = |tool: Value| json!({ "tools": [tool] });
    for (fields, part) in [
        (json!({ "max_tokens": null }), "max_tokens is missing"),
        (json!({ "max_tokens": "many" }), "max_tokens must be"),
        (json!({ "messages": null }), "messages is missing"),
        (json!({ "messages": [] }), "at least one"),
        (json!({ "messages": [{ "role": "system", "content": "S" }] }), "messages[0].role must be user or assistant"),
        (json!({ "messages": [{ "role": "assistant", "content": "A " }] }), "ends with a blank"),
        (said(json!(5)), "messages[0].content must be"),
        (said(json!([])), "messages[0].content must hold at least one block"),
        (
            said(json!([{ "type": "image", "source": {} }])),
            "messages[0].content[0].type must be text or tool_result, got \"image\"",
        ),
        (said(json!([{ "type": "text" }])), "messages[0].content[0].text is missing"),
        (said(json!([{ "type": "tool_result" }])), "messages[0].content[0].tool_use_id is missing"),
        (json!({ "system": [{ "type": "image" }] }), "system[0].type must be text"),
        (json!({ "stop_sequences": [""] }), "stop string"),
        (json!({ "stop_sequences": vec!["a"; 17] }), "stop_sequences has 17"),
        (tools(json!({ "type": "web_search_20250305", "name": "w" })), "tools[0].type must be \"custom\""),
        (tools(json!({ "name": "a b", "input_schema": {} })), "tools[0].name must have"),
        (tools(json!({ "name": "f" })), "tools[0].input_schema is missing"),
        (tools(json!({ "name": "f", "input_schema": { "type": "string" } })), "tools[0].input_schema.type"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice asks for a call"),
        (json!({ "tools": [weather()], "tool_choice": { "type": "must" } }), "tool_choice.type must be"),
        (json!({ "tools": [weather()], "tool_choice": { "type": "tool" } }), "tool_choice.name is missing"),
        (json!({ "thinking": { "type": "maybe" } }), "thinking.type must be"),
        (json!({ "output_config": { "effort": "some" } }), "output_config.effort must be"),
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type must be"),
        (json!({ "mcp_servers": [{}] }), "mcp_servers is not supported"),
        (json!({ "metadata": "m" }), "metadata must be an object"),
        (json!({ "n": 2 }), "n is not supported"),
        (json!({ "temperature": 3 }), "temperature must be"),
        (said(json!("x".repeat(5000))), "prompt is too long: "),
    ] {
        check_error(&ask(&state, &fields).await, 400, "invalid_request_error", part);
    }
    check_error(&ask(&state, &json!({ "model": "other" })).await, 404, "not_found_error", "other");
}

#[tokio::test]
async fn refusals_of_the_doors_are_in_anthropics_words_too() {
    let state = answering("x");
    check_error(&get(&state, MESSAGES).await, 405, "invalid_request_error", "does not take GET");
    check_error(
        &post(&state, "/v1/messages/batches", &json!({})).await,
        404,
        "not_found_error",
        "/v1/messages/batches",
    );
    check_error(&post_bytes(&state, MESSAGES, b"{".to_vec()).await, 400, "invalid_request_error", "");
    check_error(&ask(&ServerState::new(), &json!({})).await, 503, "overloaded_error", "loading");
    assert!(get(&state, "/v1/messagesx").await.error()["param"].is_null(), "others keep OpenAI's words");
    let keys = ApiKeys::new(&["secret".to_owned()], None).unwrap();
    let config = ServerConfig { api_keys: keys, ..ServerConfig::default() };
    let (guarded, _engine) = state_with_config(replying("x"), EngineConfig::default(), config);
    check_error(&ask(&guarded, &json!({})).await, 401, "authentication_error", "API key");
    let request = Request::builder().method(Method::POST).uri(MESSAGES).header("x-api-key", "secret");
    let request = request.header("anthropic-version", "2023-06-01").header("anthropic-beta", "context-1m-2025-08-07");
    let answer = send(&guarded, request.body(Body::from(with(&json!({})).to_string())).unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
