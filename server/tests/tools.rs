//! Tools on POST /v1/chat/completions: what the model is told, what is made of its answer, and what is guaranteed.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{Engine, EngineConfig, RunnerLimits};
use taper_server::{ServedModel, ServerState};
use taper_text::{ChatTemplate, EncodeOptions};

/// Writes tools, former calls and results.
const KNOWS_TOOLS: &str = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }} {{ c.id }}</tool_call>{% endfor %}\
    {% if m.tool_call_id %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const LLAMA: &str =
    "{{ tools }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}{# <|python_tag|> #}";
const MISTRAL: &str =
    "{{ tools }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}{# [TOOL_CALLS] #}";

/// Room for descriptions of tools: bytes are tokens here.
fn roomy() -> RunnerLimits {
    RunnerLimits { context_len: 4096, num_blocks: 1024, ..limits() }
}

/// A server with this template, or with the tiny model's, which knows no tools.
fn serve(runner: StubRunner, template: Option<&str>) -> ServerState {
    let Vocabulary { tokenizer, template: plain } = vocabulary();
    let engine = Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    state.set_ready(ServedModel {
        id: MODEL.to_owned(),
        tokenizer,
        template: Some(template.map_or(plain, |source| ChatTemplate::from_source("test", source).unwrap())),
        engine,
        context_len: roomy().context_len,
        created_unix: 0,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    state
}

/// Answers `reply` to everything.
fn answering(reply: &str, template: Option<&str>) -> ServerState {
    serve(StubRunner::replying(roomy(), bytes_of(reply), end_token()), template)
}

/// Has no opinion: what is not forced is the lowest byte that is allowed, at temperature 0.
fn indifferent(template: Option<&str>) -> ServerState {
    serve(StubRunner::with_logits(roomy(), |_, _| ()), template)
}

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "integer" } }, "required": ["city"] });
    json!({ "type": "function", "function": { "name": name, "description": "D", "parameters": parameters } })
}

fn with_tools(fields: Value) -> Value {
    let mut all = json!({ "tools": [tool("weather"), tool("time")], "temperature": 0 });
    let Value::Object(fields) = fields else { panic!("tests give objects") };
    all.as_object_mut().unwrap().extend(fields);
    all
}

/// The name and the arguments of each call of a message.
fn calls_of(message: &Value) -> Vec<(String, Value)> {
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        let id = call["id"].as_str().unwrap();
        assert!(id.starts_with("call_") && id.len() > 20, "{id}");
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_owned(), arguments)
    };
    calls.iter().map(call).collect()
}

/// The message that the chunks of a stream make, its finish reason, and the number of chunks with arguments.
fn assembled(chunks: &[Value]) -> (Value, Value, usize) {
    let (mut content, mut reasoning, mut calls): (String, String, Vec<Value>) = Default::default();
    let (mut reason, mut num_arguments) = (Value::Null, 0);
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
            if call.get("id").is_some() {
                assert_eq!(index, calls.len(), "calls begin in order");
                assert_eq!(arguments, "", "a call begins with its name alone");
                calls.push(json!({ "id": call["id"], "type": call["type"], "function": call["function"] }));
            } else {
                assert_eq!(index, calls.len() - 1);
                assert!(call["function"].get("name").is_none() && call.get("type").is_none(), "the name comes once");
                num_arguments += 1;
                let so_far = calls[index]["function"]["arguments"].as_str().unwrap();
                calls[index]["function"]["arguments"] = format!("{so_far}{arguments}").into();
            }
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    let content = (!content.is_empty() || calls.is_empty()).then_some(content);
    let mut message = json!({ "content": content });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, reason, num_arguments)
}

/// The same answer whole and streamed: this text, these calls, this reason.
async fn check_answer(state: &ServerState, fields: Value, content: Value, calls: &[(&str, Value)], reason: &str) {
    let expected: Vec<(String, Value)> =
        calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let answer = chat(state, fields.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let choice = answer.json()["choices"][0].clone();
    let message = &choice["message"];
    assert_eq!(message["content"], content, "{message}");
    assert_eq!(message["refusal"], Value::Null);
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(calls_of(message), expected, "{message}");
    assert_eq!(message.get("tool_calls").is_some(), !calls.is_empty());
    assert_eq!(choice["finish_reason"], reason);
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let (message, streamed_reason, _) = assembled(&chat(state, streamed).await.chunks());
    assert_eq!(message["content"], content, "{message}");
    assert_eq!(calls_of(&message), expected);
    assert_eq!(streamed_reason, reason);
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 5}}\n</tool_call>";

#[tokio::test]
async fn a_call_in_an_answer_is_told_apart() {
    let weather = ("weather", json!({ "city": 5 }));
    let time = ("time", json!({}));
    for template in [None, Some(KNOWS_TOOLS)] {
        let state = answering(CALL, template);
        check_answer(&state, with_tools(json!({})), Value::Null, std::slice::from_ref(&weather), "tool_calls").await;
        let two = format!("Let me see.\n{CALL}\n<tool_call>{{\"name\": \"time\", \"arguments\": {{}}}}</tool_call>");
        let state = answering(&two, template);
        let both = [weather.clone(), time.clone()];
        check_answer(&state, with_tools(json!({})), json!("Let me see."), &both, "tool_calls").await;
    }
}

#[tokio::test]
async fn each_model_has_its_format() {
    let call = [("weather", json!({ "city": 5 }))];
    for (template, reply) in [
        (LLAMA, "{\"name\": \"weather\", \"parameters\": {\"city\": 5}}"),
        (MISTRAL, "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": 5}}]"),
    ] {
        check_answer(&answering(reply, Some(template)), with_tools(json!({})), Value::Null, &call, "tool_calls").await;
        // Another format is text to this model.
        check_answer(&answering(CALL, Some(template)), with_tools(json!({})), json!(CALL), &[], "stop").await;
    }
}

#[tokio::test]
async fn an_answer_without_a_call_is_what_it_always_was() {
    for reply in ["Sunny <b>.", "<tool_call>\nweather(5)\n</tool_call>", "<tool_call>{\"name\": \"weather\""] {
        check_answer(&answering(reply, None), with_tools(json!({})), json!(reply), &[], "stop").await;
    }
    // Nobody offered tools.
    check_answer(&answering(CALL, None), json!({}), json!(CALL), &[], "stop").await;
}

#[tokio::test]
async fn a_limit_in_the_middle_of_a_call_is_a_length_and_a_text() {
    let state = answering(CALL, None);
    check_answer(&state, with_tools(json!({ "max_tokens": 30 })), json!(&CALL[..30]), &[], "length").await;
}

#[tokio::test]
async fn every_token_has_its_logprobs_also_in_calls() {
    let state = answering(&format!("So. {CALL}"), None);
    let body = chat(&state, with_tools(json!({ "logprobs": true }))).await.json();
    let num_tokens = body["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(body["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), num_tokens);
    let chunks = chat(&state, with_tools(json!({ "logprobs": true, "stream": true }))).await.chunks();
    let found = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().map(Vec::len));
    assert_eq!(found.sum::<usize>(), num_tokens);
}

#[tokio::test]
async fn several_choices_have_calls_of_their_own() {
    let body = chat(&answering(CALL, None), with_tools(json!({ "n": 2 }))).await.json();
    let ids: Vec<&Value> = (0..2).map(|n| &body["choices"][n]["message"]["tool_calls"][0]["id"]).collect();
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.is_string()));
}

/// A model that answers "yes" to this prompt alone.
fn expecting(prompt: &str, template: Option<&str>) -> ServerState {
    let tokenizer = vocabulary().tokenizer;
    let prompt = tokenizer.encode(prompt, EncodeOptions { parse_special: true, add_bos: true }).unwrap();
    serve(StubRunner::scripted(roomy(), vec![(prompt, bytes_of("yes"))], end_token()), template)
}

async fn check_prompt(template: Option<&str>, body: Value, prompt: &str) {
    let answer = post(&expecting(prompt, template), CHAT, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "yes", "{body}");
}

#[tokio::test]
async fn a_template_that_knows_tools_gets_them() {
    let messages = json!([{ "role": "user", "content": "U" }]);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let conversation = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n";
    let written = "TOOLS [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]\n";
    let body = |choice: Value| json!({ "messages": messages, "tools": tools, "tool_choice": choice });
    check_prompt(Some(KNOWS_TOOLS), body(json!("auto")), &format!("{written}{conversation}")).await;
    check_prompt(Some(KNOWS_TOOLS), body(Value::Null), &format!("{written}{conversation}")).await;
    check_prompt(Some(KNOWS_TOOLS), body(json!("none")), conversation).await;
    check_prompt(None, body(json!("none")), conversation).await;
}

/// A conversation in which tools were called.
fn history() -> Value {
    json!([
        { "role": "user", "content": "U" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": [1, 2.50]}" } },
            { "id": "call_2", "type": "function", "function": { "name": "g", "arguments": "not JSON" } },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": "one" },
        { "role": "tool", "tool_call_id": "call_2", "content": [{ "type": "text", "text": "two" }] },
    ])
}

#[tokio::test]
async fn former_calls_and_their_results_are_rendered() {
    check_prompt(
        Some(KNOWS_TOOLS),
        json!({ "messages": history() }),
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n\
         <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5]}} call_1</tool_call>\
         <tool_call>{\"name\": \"g\", \"arguments\": \"not JSON\"} call_2</tool_call><|im_end|>\n\
         <|im_start|>tool\none[f call_1]<|im_end|>\n<|im_start|>tool\ntwo[g call_2]<|im_end|>\n<|im_start|>assistant\n",
    )
    .await;
    check_prompt(
        None,
        json!({ "messages": history() }),
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n\
         <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5]}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"g\", \"arguments\": \"not JSON\"}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n",
    )
    .await;
}

#[tokio::test]
async fn a_template_without_tools_is_told_of_them_in_words() {
    let plain = chat(&answering("x", None), json!({})).await.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let told =
        chat(&answering("x", None), with_tools(json!({}))).await.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let tools = json!([tool("weather"), tool("time")]).to_string().len() as u64;
    assert!(told > plain + tools, "{told} tokens with tools, {plain} without");
    // A template that takes no system message gets the words in the user's.
    let strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                  <|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}";
    check_answer(
        &answering(CALL, Some(strict)),
        with_tools(json!({})),
        Value::Null,
        &[("weather", json!({ "city": 5 }))],
        "tool_calls",
    )
    .await;
}

#[tokio::test]
async fn a_call_that_is_required_comes_whatever_the_model_would_say() {
    for template in [None, Some(KNOWS_TOOLS), Some(LLAMA), Some(MISTRAL)] {
        let state = indifferent(template);
        let fields = with_tools(json!({ "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 300 }));
        let body = chat(&state, fields.clone()).await.json();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{template:?}: {body}");
        let calls = calls_of(&choice["message"]);
        assert_eq!((calls.len(), &choice["message"]["content"]), (1, &Value::Null), "{body}");
        assert!(calls[0].1["city"].is_number(), "{calls:?}");
        // A named one, with its arguments in several pieces.
        let named = json!({ "type": "function", "function": { "name": "weather" } });
        let mut fields = with_tools(json!({ "tool_choice": named, "parallel_tool_calls": false, "max_tokens": 300 }));
        let body = chat(&state, fields.clone()).await.json();
        let calls = calls_of(&body["choices"][0]["message"]);
        assert_eq!(calls[0].0, "weather");
        fields["stream"] = true.into();
        let (message, reason, num_arguments) = assembled(&chat(&state, fields).await.chunks());
        assert_eq!((calls_of(&message), reason), (calls, json!("tool_calls")));
        assert!(num_arguments > 1, "{num_arguments} pieces of arguments");
    }
}

#[tokio::test]
async fn a_required_call_that_is_cut_off_is_told_as_far_as_it_came() {
    let fields = with_tools(json!({ "tool_choice": "required", "max_tokens": 45 }));
    let body = chat(&indifferent(None), fields).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{body}");
    assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{body}");
}

/// A model that writes this, as far as it may.
fn willing(reply: &'static str) -> ServerState {
    serve(willing_to_say(roomy(), reply), None)
}

#[tokio::test]
async fn a_stop_string_inside_a_call_is_no_call_that_was_made() {
    // A call that was guarded by a grammar is told as it comes, and its arguments are no JSON.
    let fields =
        json!({ "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 300, "stop": ["\": 5"] });
    let body = chat(&willing(CALL), with_tools(fields.clone())).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{body}");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city", "{body}");
    let mut streamed = with_tools(fields.clone());
    streamed["stream"] = true.into();
    let (_, reason, _) = assembled(&chat(&willing(CALL), streamed).await.chunks());
    assert_eq!(reason, "stop");
    // Behind its arguments a call is one.
    let mut behind = with_tools(fields);
    behind["stop"] = json!(["</tool_call>"]);
    let body = chat(&willing(CALL), behind).await.json();
    let choice = &body["choices"][0];
    assert_eq!((calls_of(&choice["message"]).len(), &choice["finish_reason"]), (1, &json!("tool_calls")), "{body}");
}

#[tokio::test]
async fn a_strict_tool_keeps_to_its_schema_also_where_no_call_is_required() {
    let mut tools = json!([tool("weather")]);
    let wrong = "So <tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let request =
        |tools: &Value| json!({ "tools": tools, "parallel_tool_calls": false, "temperature": 0, "max_tokens": 200 });
    let loose = chat(&willing(wrong), request(&tools)).await.json();
    assert_eq!(calls_of(&loose["choices"][0]["message"])[0].1, json!({}));
    tools[0]["function"]["strict"] = true.into();
    let strict = chat(&willing(wrong), request(&tools)).await.json();
    let message = &strict["choices"][0]["message"];
    assert_eq!(message["content"], "So", "{strict}");
    assert!(calls_of(message)[0].1["city"].is_number(), "{strict}");
}

#[tokio::test]
async fn a_strict_tool_that_nothing_guards_is_told() {
    let mut tools = json!([tool("time"), tool("weather")]);
    tools[1]["function"]["strict"] = true.into();
    let ignored = |answer: Answer| answer.headers.get("x-taper-ignored-fields").cloned();
    // Llama's calls begin like a text.
    let state = answering("x", Some(LLAMA));
    let answer = chat(&state, json!({ "tools": tools })).await;
    assert_eq!(ignored(answer).unwrap(), "tools[].function.strict");
    for fields in [json!({ "tools": tools, "tool_choice": "none" }), json!({ "tools": [tool("time")] })] {
        assert_eq!(ignored(chat(&state, fields).await), None);
    }
    assert_eq!(ignored(chat(&answering("x", Some(MISTRAL)), json!({ "tools": tools, "max_tokens": 3 })).await), None);
}

#[tokio::test]
async fn without_parallel_calls_there_is_one() {
    let two = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    for (parallel, expected) in [(true, 2), (false, 1)] {
        let body =
            chat(&willing(two), with_tools(json!({ "parallel_tool_calls": parallel, "max_tokens": 300 }))).await.json();
        assert_eq!(calls_of(&body["choices"][0]["message"]).len(), expected, "{body}");
    }
    let call = "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\": 5}}\n</tool_call>";
    let two: &'static str = format!("{call}\n{call}").leak();
    // A function that is named is called once, also where several calls are allowed; "required" leaves their number open.
    for (choice, expected) in
        [(json!({ "type": "function", "function": { "name": "time" } }), 1), (json!("required"), 2)]
    {
        let fields = with_tools(json!({ "tool_choice": choice, "parallel_tool_calls": true, "max_tokens": 300 }));
        let body = chat(&willing(two), fields).await.json();
        assert_eq!(calls_of(&body["choices"][0]["message"]).len(), expected, "{body}");
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls", "{body}");
    }
    // Where no grammar can see to it, the rest is not told.
    let two = "{\"name\": \"time\", \"parameters\": {}}; {\"name\": \"time\", \"parameters\": {}}";
    let body = chat(&answering(two, Some(LLAMA)), with_tools(json!({ "parallel_tool_calls": false }))).await.json();
    assert_eq!(calls_of(&body["choices"][0]["message"]).len(), 1, "{body}");
}

#[tokio::test]
async fn a_form_of_the_text_holds_where_there_is_no_call() {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": {
        "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] } } });
    let fields = with_tools(json!({ "response_format": format, "parallel_tool_calls": false, "max_tokens": 200 }));
    let body = chat(&willing("{\"x\": true}"), fields.clone()).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "{\"x\": true}", "{body}");
    let body = chat(&willing("Free text"), fields.clone()).await.json();
    let message = &body["choices"][0]["message"];
    let content: Value = message["content"].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    assert!(content["x"].is_boolean() || !calls_of(message).is_empty(), "{body}");
    let body =
        chat(&willing("<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>"), fields).await.json();
    assert_eq!(calls_of(&body["choices"][0]["message"]).len(), 1, "{body}");
}

async fn check_refused(fields: Value, param: &str, part: &str) {
    let answer = chat(&answering("x", None), fields.clone()).await;
    assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
    let error = answer.error();
    assert_eq!(error["param"], param, "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains(part), "{error}");
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_by_its_place() {
    check_refused(json!({ "tools": [tool("a b")] }), "tools[0].function.name", "a b").await;
    check_refused(json!({ "tools": [tool("f"), tool("f")] }), "tools[1].function.name", "another").await;
    let named = json!({ "type": "function", "function": { "name": "g" } });
    check_refused(json!({ "tools": [tool("f")], "tool_choice": named }), "tool_choice", "\"g\"").await;
    check_refused(json!({ "tool_choice": "required" }), "tool_choice", "no tools").await;
    check_refused(json!({ "tools": [{ "type": "code_interpreter" }] }), "tools[0].type", "code_interpreter").await;
    let mut bad = tool("bad");
    bad["function"]["parameters"]["properties"]["city"] = json!({ "type": "wizard" });
    let fields = json!({ "tools": [tool("f"), bad], "tool_choice": "required" });
    check_refused(fields.clone(), "tools[1].function.parameters", "wizard").await;
    // A hint need not compile.
    let mut free = fields;
    free["tool_choice"] = "auto".into();
    assert_eq!(chat(&answering("x", None), free).await.status, 200);
}

#[tokio::test]
async fn bad_messages_of_tools_are_refused_by_their_place() {
    let call = |call: Value| json!([{ "role": "assistant", "content": null, "tool_calls": [call] }]);
    for (messages, param, part) in [
        (json!([{ "role": "tool", "content": "x" }]), "messages[0].tool_call_id", "missing"),
        (json!([{ "role": "function", "name": "f", "content": "x" }]), "messages[0].role", "use tool"),
        (call(json!(5)), "messages[0].tool_calls[0]", "object"),
        (call(json!({})), "messages[0].tool_calls[0].id", "missing"),
        (call(json!({ "id": "1" })), "messages[0].tool_calls[0].function", "missing"),
        (call(json!({ "id": "1", "function": {} })), "messages[0].tool_calls[0].function.name", "missing"),
        (
            call(json!({ "id": "1", "function": { "name": "f", "arguments": 5 } })),
            "messages[0].tool_calls[0].function.arguments",
            "got 5",
        ),
        (call(json!({ "id": "1", "type": "custom" })), "messages[0].tool_calls[0].type", "custom"),
        (
            json!([{ "role": "user", "content": "x", "tool_calls": [{ "id": "1", "function": { "name": "f" } }] }]),
            "messages[0].tool_calls",
            "assistant",
        ),
        (json!([{ "role": "assistant", "content": null }]), "messages[0].content", "missing"),
        (
            json!([{ "role": "assistant", "content": "", "function_call": { "name": "f" } }]),
            "messages[0].function_call",
            "tool_calls",
        ),
    ] {
        check_refused(json!({ "messages": messages }), param, part).await;
    }
}
