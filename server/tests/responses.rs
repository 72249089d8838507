//! POST /v1/responses.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, RunnerLimits};
use taper_server::{ServerState, Timeouts};
use taper_text::EncodeOptions;

const RESPONSES: &str = "/v1/responses";
/// Writes tools, thoughts, calls and results, and knows an effort.
const TEMPLATE: &str = "{{ reasoning_effort }}{% if tools %}TOOLS\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }} {{ c.id }}</tool_call>{% endfor %}\
    {% if m.tool_call_id %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

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

async fn ask(state: &ServerState, fields: &Value) -> Answer {
    let mut body = json!({ "input": "Hi" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post(state, RESPONSES, &body).await
}

/// The items that the events of a stream make, after checking their order and numbers, and the last event.
fn assembled(events: &[Value]) -> (Vec<Value>, Value) {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    assert_eq!((&events[1]["response"]["output"], &events[1]["response"]["usage"]), (&json!([]), &Value::Null));
    let (mut items, mut texts): (Vec<Value>, Vec<String>) = Default::default();
    let (mut item_is_open, mut part_is_open) = (false, false);
    let last = events.len() - 1;
    for event in &events[2..last] {
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert!(!item_is_open);
            assert_eq!(event["item"]["status"], "in_progress");
            item_is_open = true;
            items.push(event["item"].clone());
            texts.push(String::new());
        }
        assert_eq!(event["output_index"], items.len() - 1);
        let (item, text) = (items.last_mut().unwrap(), texts.last_mut().unwrap());
        if let Some(id) = event.get("item_id") {
            assert_eq!(*id, item["id"]);
        }
        let is_call = item["type"] == "function_call";
        match kind.strip_prefix("response.").unwrap() {
            "output_item.added" => {}
            "content_part.added" => part_is_open = true,
            "content_part.done" => {
                let part = &event["part"];
                assert_eq!(part["text"], *text);
                part_is_open = false;
            }
            "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta" => {
                assert_eq!((item_is_open, part_is_open), (true, !is_call));
                assert_eq!(event.get("content_index").is_some(), !is_call);
                text.push_str(event["delta"].as_str().unwrap());
            }
            "output_text.done" | "reasoning_text.done" => assert_eq!(event["text"], *text),
            "function_call_arguments.done" => {
                assert_eq!((&event["arguments"], &event["name"]), (&json!(text), &item["name"]));
            }
            "output_item.done" => {
                assert_eq!((&event["item"]["id"], part_is_open), (&item["id"], false));
                *item = event["item"].clone();
                item_is_open = false;
            }
            other => panic!("{other}"),
        }
    }
    assert!(!item_is_open);
    (items, events[last].clone())
}

/// What differs between two answers of one text.
fn without_ids(items: &[Value]) -> Vec<Value> {
    let prefix = |kind: &Value| match kind.as_str().unwrap() {
        "message" => "msg_",
        "reasoning" => "rs_",
        _ => "fc_",
    };
    let without = |item: &Value| {
        assert!(item["id"].as_str().unwrap().starts_with(prefix(&item["type"])), "{item}");
        let mut item = item.clone();
        item["id"] = Value::Null;
        if let Some(id) = item.get_mut("call_id") {
            assert!(id.as_str().unwrap().starts_with("call_"));
            *id = Value::Null;
        }
        item
    };
    items.iter().map(without).collect()
}

/// The same answer whole and streamed.
async fn check(state: &ServerState, fields: Value, output: &[Value], status: &str) -> Value {
    let answer = ask(state, &fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let response = answer.json();
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!(status)));
    assert_eq!(without_ids(response["output"].as_array().unwrap()), output);
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let (items, last) = assembled(&ask(state, &streamed).await.events());
    assert_eq!(last["type"], format!("response.{status}"));
    assert_eq!(last["response"]["output"], json!(items));
    assert_eq!(without_ids(&items), output);
    for field in ["status", "incomplete_details", "error", "store", "tools", "text"] {
        assert_eq!(last["response"][field], response[field], "{field}");
    }
    response
}

fn message(text: &str, status: &str) -> Value {
    let part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
    json!({ "id": null, "type": "message", "status": status, "role": "assistant", "content": [part] })
}

#[tokio::test]
async fn a_text_is_a_message() {
    let response = check(&answering(REPLY), json!({}), &[message(REPLY, "completed")], "completed").await;
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(
        (&response["store"], &response["model"], &response["error"]),
        (&json!(false), &json!(MODEL), &Value::Null)
    );
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], REPLY.len() + 1);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["input_tokens"].as_u64().unwrap() + REPLY.len() as u64 + 1
    );
    assert_eq!(usage["output_tokens_details"], json!({ "reasoning_tokens": 0 }));
    check(&answering(""), json!({}), &[message("", "completed")], "completed").await;
}

#[tokio::test]
async fn a_limit_leaves_a_response_incomplete() {
    let fields = json!({ "max_output_tokens": 3 });
    let response = check(&answering("One two"), fields, &[message("One", "incomplete")], "incomplete").await;
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(response["max_output_tokens"], 3);
}

#[tokio::test]
async fn thoughts_are_an_item() {
    let state = answering("<think>\nHm.\n</think>\n\nYes.");
    let thought = json!({ "type": "reasoning_text", "text": "Hm." });
    let reasoning =
        json!({ "id": null, "type": "reasoning", "status": "completed", "summary": [], "content": [thought] });
    let output = [reasoning, message("Yes.", "completed")];
    let response = check(&state, json!({ "reasoning": { "effort": "high" } }), &output, "completed").await;
    assert!(response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 3);
    assert_eq!(response["reasoning"]["effort"], "high");
    let tokens = |fields: Value| async move {
        ask(&answering("x"), &fields).await.json()["usage"]["input_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(json!({ "reasoning": { "effort": "high" } })).await, tokens(json!({})).await + 4);
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 5}}\n</tool_call>";

#[tokio::test]
async fn a_call_is_an_item() {
    let call = json!({ "id": null, "type": "function_call", "status": "completed", "call_id": null, "name": "weather", "arguments": "{\"city\": 5}" });
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "integer" } } });
    let tool = |name: &str| json!({ "type": "function", "name": name, "parameters": parameters });
    let fields = |choice: Value| json!({ "tools": [tool("weather"), tool("time")], "tool_choice": choice });
    let state = answering(&format!("Let me see.\n{CALL}\n{CALL}"));
    let output = [message("Let me see.", "completed"), call.clone(), call.clone()];
    let response = check(&state, fields(json!("auto")), &output, "completed").await;
    // With every field, given or not.
    let mut whole = tool("weather");
    (whole["description"], whole["strict"]) = (Value::Null, false.into());
    assert_eq!(response["tools"][0], whole);
    check(&answering(CALL), fields(json!("none")), &[message(CALL, "completed")], "completed").await;
}

#[tokio::test]
async fn a_call_that_is_required_comes_whatever_the_model_would_say() {
    // Without marks of thoughts, which a model without an opinion would never end.
    let template = TEMPLATE.replace("think>", "b>");
    let state = state_with_template(StubRunner::with_logits(roomy(), |_, _| ()), &template);
    let tool = |name: &str| json!({ "type": "function", "name": name });
    let named = json!({ "type": "function", "name": "weather" });
    let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [named] });
    for choice in [named, allowed] {
        let tools = json!([tool("time"), tool("weather")]);
        // A function that is named is called once in any case.
        let parallel = choice["type"] == "function";
        let fields =
            json!({ "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel, "temperature": 0 });
        let response = ask(&state, &fields).await.json();
        let output = response["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["name"]), (1, &json!("weather")), "{response}");
        assert_eq!((&output[0]["arguments"], &response["status"]), (&json!("{}"), &json!("completed")));
    }
}

#[tokio::test]
async fn a_stop_string_inside_a_call_leaves_it_incomplete() {
    let state = state_with_template(willing_to_say(roomy(), CALL), &TEMPLATE.replace("think>", "b>"));
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "integer" } }, "required": ["city"] });
    let tool = json!({ "type": "function", "name": "weather", "parameters": parameters });
    let mut fields = json!({ "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false });
    fields["temperature"] = 0.into();
    fields["stop"] = json!(["\": 5"]);
    let call = json!({ "id": null, "type": "function_call", "status": "incomplete", "call_id": null, "name": "weather", "arguments": "{\"city" });
    let response = check(&state, fields, &[call], "incomplete").await;
    assert_eq!(response["incomplete_details"], json!({ "reason": "stop" }));
}

#[tokio::test]
async fn every_token_of_a_text_has_its_logprobs_where_they_are_asked_for() {
    let state = answering("Yes");
    for fields in
        [json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }), json!({ "top_logprobs": 2 })]
    {
        let response = ask(&state, &fields).await.json();
        let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
        assert_eq!(logprobs.len(), 4, "with the one that ends it: {response}");
        assert_eq!((&logprobs[0]["token"], logprobs[0]["top_logprobs"].as_array().unwrap().len()), (&json!("Y"), 2));
        let mut streamed = fields;
        streamed["stream"] = true.into();
        let (items, _) = assembled(&ask(&state, &streamed).await.events());
        assert_eq!(items[0]["content"][0]["logprobs"], json!(logprobs));
    }
}

#[tokio::test]
async fn texts_around_a_call_have_the_logprobs_of_their_own_tokens() {
    let state = answering(&format!("<think>\nHm.\n</think>\n\nLet me see.\n{CALL}\nThere."));
    let tool = json!({ "type": "function", "name": "weather" });
    let fields = json!({ "tools": [tool], "top_logprobs": 1 });
    let text_of = |item: &Value| {
        let part = &item["content"][0];
        let tokens = part["logprobs"].as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap());
        (part["text"].as_str().unwrap().to_owned(), tokens.collect::<String>())
    };
    let response = ask(&state, &fields).await.json();
    let output = response["output"].as_array().unwrap();
    assert_eq!(output.len(), 4, "{response}");
    let (first, its_tokens) = text_of(&output[1]);
    assert_eq!((first.as_str(), its_tokens.as_str()), ("Let me see.", "Let me see."), "{response}");
    let (second, its_tokens) = text_of(&output[3]);
    assert_eq!(second, "\nThere.", "{response}");
    assert!(its_tokens.starts_with("\nThere.") && !its_tokens.contains("tool"), "{its_tokens:?}");
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let (items, _) = assembled(&ask(&state, &streamed).await.events());
    assert_eq!((text_of(&items[1]), text_of(&items[3])), (text_of(&output[1]), text_of(&output[3])));
}

#[tokio::test]
async fn an_answer_keeps_to_its_form() {
    // Without marks of thoughts, which a model without an opinion would never end.
    let (state, _engine) =
        state_with(StubRunner::with_logits(limits(), |_, _| ()), EngineConfig::default(), Timeouts::default());
    let schema = json!({ "type": "object", "properties": { "x": { "enum": [7] } }, "required": ["x"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema });
    let fields = json!({ "text": { "format": format }, "temperature": 0, "max_output_tokens": 100 });
    let response = ask(&state, &fields).await.json();
    assert_eq!(response["text"]["format"], format);
    let items = response["output"].as_array().unwrap();
    let text = items.iter().find(|item| item["type"] == "message").unwrap()["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "x": 7 }));
}

#[tokio::test]
async fn a_conversation_is_rendered_with_its_calls_results_and_thoughts() {
    let prompt = "<|im_start|>system\nI\n\nD<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>hm</think>So.\
        <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} c1</tool_call><|im_end|>\n\
        <|im_start|>tool\none[f c1]<|im_end|>\n<|im_start|>assistant";
    let tokens = vocabulary().tokenizer.encode(prompt, EncodeOptions { parse_special: true, add_bos: true }).unwrap();
    let state = serve(StubRunner::scripted(roomy(), vec![(tokens, bytes_of("yes"))], end_token()));
    let input = json!([
        { "role": "developer", "content": "D" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "U" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
            { "type": "output_text", "text": "So.", "annotations": [], "logprobs": [] },
        ] },
        { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}" },
        { "type": "function_call_output", "call_id": "c1", "output": "one" },
    ]);
    let answer = ask(&state, &json!({ "input": input, "instructions": "I" })).await;
    assert_eq!(answer.json()["output"][0]["content"][0]["text"], "yes", "{}", answer.body);
}

#[tokio::test]
async fn what_came_is_repeated() {
    let fields = json!({ "instructions": "I", "metadata": { "a": "b" }, "temperature": 0.7, "parallel_tool_calls": false, "user": "u" });
    let response = ask(&answering("x"), &fields).await.json();
    for (field, value) in fields.as_object().unwrap() {
        assert_eq!(&response[field], value, "{field}");
    }
    assert_eq!((&response["top_p"], &response["tool_choice"]), (&json!(1.0), &json!("auto")));
    assert_eq!((&response["presence_penalty"], &response["frequency_penalty"]), (&json!(0.0), &json!(0.0)));
    assert!(response["completed_at"].as_u64() >= response["created_at"].as_u64(), "{response}");
}

#[tokio::test]
async fn tools_that_are_large_are_repeated_too() {
    let description = "long ".repeat(taper_server::limits::SMALL_BODY_BYTES / 4);
    let fields =
        json!({ "tools": [{ "type": "function", "name": "f", "description": description }], "tool_choice": "none" });
    let response = check(&answering("x"), fields.clone(), &[message("x", "completed")], "completed").await;
    assert_eq!(response["tools"][0]["description"], fields["tools"][0]["description"]);
}

#[tokio::test]
async fn what_is_not_done_but_harmless_is_told() {
    let fields = json!({ "include": ["reasoning.encrypted_content"], "reasoning": { "summary": "auto" }, "store": false, "other": 1 });
    let answer = ask(&answering("x"), &fields).await;
    let ignored = "include.reasoning.encrypted_content, reasoning.summary, other";
    assert_eq!(answer.headers["x-taper-ignored-fields"], ignored);
}

#[tokio::test]
async fn what_is_wrong_or_would_need_a_memory_is_refused_by_name() {
    let state = answering("x");
    let item = |item: Value| json!({ "input": [item] });
    let part = |part: Value| json!({ "input": [{ "role": "user", "content": [part] }] });
    for (fields, param, part) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id", "stores no responses"),
        (json!({ "conversation": "conv_1" }), "conversation", "stores no responses"),
        (json!({ "store": true }), "store", "stores no responses"),
        (json!({ "background": true }), "background", "true"),
        (json!({ "prompt": { "id": "p" } }), "prompt", "stores no prompts"),
        (json!({ "truncation": "auto" }), "truncation", "never cut"),
        (json!({ "max_tool_calls": 3 }), "max_tool_calls", "3"),
        (json!({ "input": null }), "input", "missing"),
        (json!({ "input": [] }), "input", "at least one"),
        (json!({ "input": 5 }), "input", "got 5"),
        (item(json!({ "type": "reasoning", "summary": [] })), "input", "says nothing"),
        (item(json!({ "role": "user", "content": [] })), "input", "says nothing"),
        (json!({ "input": [{ "type": "reasoning", "summary": [] }], "instructions": "I" }), "input", "says nothing"),
        (item(json!({ "type": "item_reference", "id": "x" })), "input[0].type", "send the item"),
        (item(json!({ "type": "computer_call" })), "input[0].type", "computer_call"),
        (item(json!({ "content": "x" })), "input[0].role", "missing"),
        (item(json!({ "role": "tool", "content": "x" })), "input[0].role", "tool"),
        (item(json!({ "type": "function_call_output", "output": "x" })), "input[0].call_id", "missing"),
        (part(json!({ "type": "input_image", "image_url": "x" })), "input[0].content[0].type", "text only"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens", "at least 1"),
        (json!({ "include": ["file_search_call.results"] }), "include[0]", ""),
        (json!({ "top_logprobs": 1000 }), "top_logprobs", "1000"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type", "xml"),
        (json!({ "text": { "format": { "type": "json_schema" } } }), "text.format.schema", "missing"),
        (json!({ "text": { "format": { "type": "json_schema", "schema": false } } }), "text.format.schema", ""),
        (json!({ "text": { "verbosity": "low" } }), "text.verbosity", "low"),
        (json!({ "metadata": { "a": 1 } }), "metadata", "strings"),
        (json!({ "metadata": { "a": "v".repeat(513) } }), "metadata", "at most 512"),
        (json!({ "user": 5 }), "user", "a string"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type", "web_search"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].name", "missing"),
        (json!({ "tool_choice": "required" }), "tool_choice", "no tools"),
        (json!({ "reasoning": { "effort": "endless" } }), "reasoning.effort", "endless"),
        (json!({ "reasoning": { "summary": "long" } }), "reasoning.summary", "long"),
        (json!({ "n": 2 }), "n", "not supported"),
        (json!({ "return_token_ids": true }), "return_token_ids", "not supported"),
        (json!({ "input": "x".repeat(5000) }), "input", "context"),
    ] {
        let answer = ask(&state, &fields).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
        let error = answer.error();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "no {part:?} in {error}");
    }
}

#[tokio::test]
async fn nothing_is_stored() {
    let state = answering("x");
    let id = ask(&state, &json!({})).await.json()["id"].as_str().unwrap().to_owned();
    let answer = get(&state, &format!("{RESPONSES}/{id}")).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (404, &json!("not_found")));
    assert!(answer.error()["message"].as_str().unwrap().contains("stores no responses"));
}

#[tokio::test]
async fn thoughts_end_where_their_budget_does() {
    let state = serve(musing(roomy()));
    for name in ["thinking_token_budget", "thinking_budget_tokens"] {
        let body = ask(&state, &json!({ name: 5 })).await.json();
        assert_eq!(body["output"][0]["content"][0]["text"], "mmmmm", "{body}");
        assert_eq!(body["output"][1]["content"][0]["text"], "Yes.", "{body}");
    }
}

#[tokio::test]
async fn timings_are_told_where_they_are_asked_for() {
    let state = answering(REPLY);
    assert_eq!(ask(&state, &json!({})).await.json().get("timings"), None);
    let body = ask(&state, &json!({ "timings": true })).await.json();
    assert_eq!(body["timings"]["predicted_n"], body["usage"]["output_tokens"]);
    let events = ask(&state, &json!({ "timings": true, "stream": true })).await.events();
    let with_timings: Vec<&Value> = events.iter().filter(|event| event["response"]["timings"].is_object()).collect();
    assert!(matches!(with_timings.as_slice(), [end] if end["type"] == "response.completed"), "{events:?}");
}
