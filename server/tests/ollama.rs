//! Ollama's interface.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{Engine, EngineConfig, EngineHandle, RunnerLimits};
use taper_server::{ApiKeys, ServedModel, ServerConfig, ServerFacts, ServerState, Timeouts};
use taper_text::{ChatTemplate, EncodeOptions};

const CHAT_PATH: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
/// Writes tools, thoughts, calls and results, and knows an effort.
const TEMPLATE: &str = "{% if tools %}TOOLS\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }} {{ c.id }}</tool_call>{% endfor %}\
    {% if m.tool_call_id %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %}<|im_end|>\n{% endfor %}{{ reasoning_effort }}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}";
/// Does not think, and knows no tools.
const PLAIN: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

fn roomy() -> RunnerLimits {
    RunnerLimits { context_len: 4096, num_blocks: 1024, ..limits() }
}

fn serve_with(runner: StubRunner, template: Option<&str>) -> (ServerState, EngineHandle) {
    let tokenizer = vocabulary().tokenizer;
    let engine = Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    state.set_aliases(vec!["tiny".to_owned()]);
    state.set_ready(ServedModel {
        id: MODEL.to_owned(),
        tokenizer,
        template: template.map(|source| ChatTemplate::from_source("test", source).unwrap()),
        engine: engine.clone(),
        context_len: roomy().context_len,
        created_unix: 1_700_000_000,
        fingerprint: FINGERPRINT.to_owned(),
        deterministic: true,
    });
    (state, engine)
}

fn serve(runner: StubRunner) -> ServerState {
    serve_with(runner, Some(TEMPLATE)).0
}

/// Answers `reply` to everything.
fn answering(reply: &str) -> ServerState {
    serve(StubRunner::replying(roomy(), bytes_of(reply), end_token()))
}

/// Answers "yes" to this prompt and nothing to any other.
fn expecting(prompt: &str) -> ServerState {
    serve(StubRunner::scripted(roomy(), vec![(tokens_of(prompt), bytes_of("yes"))], end_token()))
}

fn tokens_of(text: &str) -> Vec<u32> {
    vocabulary().tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true }).unwrap()
}

fn merged(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn ask(state: &ServerState, fields: &Value) -> Answer {
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
    post(state, CHAT_PATH, &merged(body, fields)).await
}

async fn generate(state: &ServerState, fields: &Value) -> Answer {
    post(state, GENERATE, &merged(json!({ "model": "tiny", "prompt": "Once", "stream": false }), fields)).await
}

/// The whole answer that lines make, after checking that only the last one is done.
fn assembled(lines: &[Value]) -> Value {
    let (last, parts) = lines.split_last().unwrap();
    let mut whole = last.clone();
    let is_chat = last.get("message").is_some();
    for part in parts {
        assert_eq!(part["done"], false, "{part}");
        assert!(part.get("total_duration").is_none() && part.get("done_reason").is_none(), "{part}");
        assert_eq!(part["model"], last["model"]);
    }
    let at = |value: &Value| if is_chat { value["message"].clone() } else { value.clone() };
    let text = |field: &str| {
        parts.iter().map(|part| at(part)[field].as_str().unwrap_or_default().to_owned()).collect::<String>()
    };
    let calls: Vec<Value> =
        parts.iter().flat_map(|part| at(part)["tool_calls"].as_array().cloned().unwrap_or_default()).collect();
    let logprobs: Vec<Value> =
        parts.iter().flat_map(|part| part["logprobs"].as_array().cloned().unwrap_or_default()).collect();
    let (thinking, content) = (text("thinking"), text(if is_chat { "content" } else { "response" }));
    let told = if is_chat { &mut whole["message"] } else { &mut whole };
    assert_eq!(told[if is_chat { "content" } else { "response" }], "", "the last line says nothing more");
    told[if is_chat { "content" } else { "response" }] = content.into();
    if !thinking.is_empty() {
        told["thinking"] = thinking.into();
    }
    if !calls.is_empty() {
        told["tool_calls"] = calls.into();
    }
    if !logprobs.is_empty() {
        whole["logprobs"] = logprobs.into();
    }
    whole
}

/// What differs between two answers of one text.
fn without_times(mut answer: Value) -> Value {
    for name in ["created_at", "total_duration", "prompt_eval_duration", "eval_duration"] {
        answer[name] = Value::Null;
    }
    for call in answer.pointer_mut("/message/tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
        call["id"] = Value::Null;
    }
    answer
}

fn is_complete(answer: &Value) {
    assert_eq!(answer["done"], true);
    let created = answer["created_at"].as_str().unwrap();
    assert!(created.len() == 30 && created.ends_with('Z') && created.as_bytes()[10] == b'T', "{created}");
    assert_eq!(answer["load_duration"], 0);
    for name in ["total_duration", "eval_duration"] {
        assert!(answer[name].as_u64().unwrap() > 0, "{name}: {answer}");
    }
    assert!(answer["prompt_eval_duration"].is_u64() && answer["prompt_eval_count"].as_u64().unwrap() > 0, "{answer}");
}

/// The answer, the same whole and in lines.
async fn both_ways(state: &ServerState, path: &str, body: Value) -> Value {
    let whole = post(state, path, &body).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    assert_eq!(whole.headers["content-type"], "application/json");
    is_complete(&whole.json());
    let mut streamed = body;
    streamed.as_object_mut().unwrap().remove("stream");
    let lines = post(state, path, &streamed).await.lines();
    is_complete(lines.last().unwrap());
    let whole = without_times(whole.json());
    assert_eq!(without_times(assembled(&lines)), whole);
    whole
}

async fn both_ways_of_chat(state: &ServerState, fields: Value) -> Value {
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hi" }], "stream": false });
    both_ways(state, CHAT_PATH, merged(body, &fields)).await
}

#[tokio::test]
async fn a_conversation_is_answered_in_one_object_or_in_lines() {
    let answer = both_ways_of_chat(&answering(REPLY), json!({})).await;
    assert_eq!(answer["model"], "tiny", "by the name that was asked for");
    assert_eq!(answer["message"], json!({ "role": "assistant", "content": REPLY }));
    assert_eq!((&answer["done_reason"], &answer["eval_count"]), (&json!("stop"), &json!(REPLY.len() + 1)));
    let prompt = tokens_of("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(answer["prompt_eval_count"], prompt.len());
    assert!(answer.get("context").is_none());
}

#[tokio::test]
async fn a_prompt_is_answered_with_the_template_or_continued_without_it() {
    let body = json!({ "prompt": "Once", "stream": false });
    let rendered = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nOnce<|im_end|>\n<|im_start|>assistant\n";
    let answer = both_ways(&expecting(rendered), GENERATE, merged(body.clone(), &json!({ "system": "S" }))).await;
    assert_eq!((&answer["model"], &answer["response"]), (&json!("tiny:1m"), &json!("yes")));
    assert!(answer.get("message").is_none());
    let mut context = tokens_of(rendered);
    context.extend(bytes_of("yes"));
    context.push(end_token());
    assert_eq!(answer["context"], json!(context));
    let answer = both_ways(&expecting("Once"), GENERATE, merged(body, &json!({ "raw": true }))).await;
    assert_eq!(answer["response"], "yes");
    assert!(answer.get("context").is_none());
}

#[tokio::test]
async fn a_context_is_what_a_prompt_follows() {
    let first = tokens_of("<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n");
    let mut prompt = first.clone();
    prompt.extend(bytes_of("yes"));
    prompt.push(end_token());
    prompt.extend(tokens_of("<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n"));
    let scripts = vec![(first, bytes_of("yes")), (prompt, bytes_of("no"))];
    let state = serve(StubRunner::scripted(roomy(), scripts, end_token()));
    let former = generate(&state, &json!({ "prompt": "A" })).await.json();
    assert_eq!(former["response"], "yes");
    let next = generate(&state, &json!({ "prompt": "B", "context": former["context"] })).await.json();
    assert_eq!(next["response"], "no");
    assert!(next["context"].as_array().unwrap().len() > former["context"].as_array().unwrap().len());
}

#[tokio::test]
async fn text_that_some_take_for_several_lines_stays_on_one() {
    let text = "a\u{85}b\u{2028}c\u{2029}d";
    let state = serve(StubRunner::scripted(roomy(), vec![(tokens_of("Once"), bytes_of(text))], end_token()));
    let body = json!({ "prompt": "Once", "raw": true, "stream": false });
    assert_eq!(both_ways(&state, GENERATE, body).await["response"], text);
}

#[tokio::test]
async fn a_model_without_a_template_continues_prompts() {
    let runner = || StubRunner::scripted(roomy(), vec![(tokens_of("Once"), bytes_of("yes"))], end_token());
    let (state, _engine) = serve_with(runner(), None);
    assert_eq!(generate(&state, &json!({})).await.json()["response"], "yes");
    check_refused(&generate(&state, &json!({ "system": "S" })).await, "no chat template");
    check_refused(&ask(&state, &json!({})).await, "no chat template");
}

#[tokio::test]
async fn nothing_to_answer_says_where_the_model_is() {
    let state = answering("x");
    // Nobody could load it again, so it stays; `several_models.rs` has the servers that unload.
    for keep_alive in [Value::Null, json!("5m"), json!(-1), json!(0), json!("0s")] {
        let chat = ask(&state, &json!({ "messages": [], "keep_alive": keep_alive, "stream": true })).await.json();
        assert_eq!(chat["message"], json!({ "role": "assistant", "content": "" }));
        let generated = generate(&state, &json!({ "prompt": "", "keep_alive": keep_alive })).await.json();
        assert_eq!(generated["response"], "");
        for answer in [chat, generated] {
            assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")), "{keep_alive}");
            assert_eq!(answer["model"], "tiny");
        }
        assert_eq!(get(&state, "/api/ps").await.json()["models"].as_array().unwrap().len(), 1);
    }
    assert_eq!(ask(&state, &json!({ "keep_alive": 0 })).await.json()["message"]["content"], "x");
}

#[tokio::test]
async fn options_end_answers() {
    let state = answering("One two three");
    let content = async |options: Value| {
        let answer = ask(&state, &json!({ "options": options })).await.json();
        (
            answer["message"]["content"].as_str().unwrap().to_owned(),
            answer["done_reason"].clone(),
            answer["eval_count"].clone(),
        )
    };
    assert_eq!(content(json!({ "num_predict": 3 })).await, ("One".to_owned(), json!("length"), json!(3)));
    assert_eq!(content(json!({ "num_predict": 0 })).await, (String::new(), json!("length"), json!(0)));
    for num in [-1, -2] {
        assert_eq!(content(json!({ "num_predict": num })).await.0, "One two three");
    }
    for stop in [json!(" thr"), json!(["four", " thr"])] {
        let (text, reason, _) = content(json!({ "stop": stop })).await;
        assert_eq!((text.as_str(), reason), ("One two", json!("stop")));
    }
    assert_eq!(content(json!({ "stop": [] })).await.0, "One two three");
}

/// A runner whose tokens are all as probable, so that what is drawn depends on the seed alone.
fn undecided() -> ServerState {
    serve(StubRunner::with_logits(roomy(), |_, _| ()))
}

#[tokio::test]
async fn a_seed_fixes_the_text_and_minus_one_is_any() {
    let state = undecided();
    let text = async |options: Value| {
        let options = merged(
            json!({ "num_predict": 20, "temperature": 1, "top_k": 0, "top_p": 1, "ignore_eos": true }),
            &options,
        );
        ask(&state, &json!({ "options": options, "logprobs": true })).await.json()["logprobs"].clone()
    };
    assert_eq!(text(json!({ "seed": 3 })).await, text(json!({ "seed": 3 })).await);
    assert_ne!(text(json!({ "seed": 3 })).await, text(json!({ "seed": 4 })).await);
    assert_ne!(text(json!({ "seed": -1 })).await, text(json!({ "seed": -1 })).await);
}

#[tokio::test]
async fn options_are_those_that_ollama_has() {
    let state = answering("x");
    let all = json!({
        "num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7,
        "repeat_last_n": -1, "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 1.0,
        "mirostat": 0, "mirostat_tau": 0.8, "mirostat_eta": 0.6, "penalize_newline": true, "tfs_z": 1.0,
        "stop": ["\n", "user:"], "num_ctx": 1024,
    });
    let answer = ask(&state, &json!({ "options": all })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(!answer.headers.contains_key("x-taper-ignored-fields"), "{:?}", answer.headers);
    let loading = json!({ "num_ctx": 1_000_000, "numa": false, "num_gpu": 1, "num_thread": 8, "use_mmap": true });
    let answer = ask(&state, &json!({ "options": loading, "think": null, "fancy": 1 })).await;
    let ignored: BTreeSet<&str> = answer.headers["x-taper-ignored-fields"].to_str().unwrap().split(", ").collect();
    let options = ["options.num_ctx", "options.numa", "options.num_gpu", "options.num_thread", "options.use_mmap"];
    assert_eq!(ignored, options.into_iter().chain(["fancy"]).collect());
    for (options, part) in [
        (json!({ "temperature": "warm" }), "options.temperature must be a number"),
        (json!({ "num_predict": -3 }), "options.num_predict must be"),
        (json!({ "num_ctx": -1 }), "options.num_ctx must be"),
        (json!({ "mirostat": 3 }), "options.mirostat must be an integer between 0 and 2"),
        (json!({ "temperature": -1 }), "options.temperature must be a number of at least 0"),
        (json!({ "tfs_z": 0.5 }), "options.tfs_z is not supported"),
        (json!({ "penalize_newline": false }), "options.penalize_newline is not supported"),
        (json!({ "repeat_last_n": -2 }), "options.repeat_last_n must be an integer between -1"),
        (json!({ "stream": true }), "options.stream is not supported"),
        (json!({ "n": 2 }), "n is not supported by this endpoint"),
        (json!({ "stop": [""] }), "stop string"),
    ] {
        check_refused(&ask(&state, &json!({ "options": options })).await, part);
    }
    check_refused(&ask(&state, &json!({ "options": 5 })).await, "options must be an object");
    let usual =
        json!({ "repeat_last_n": 64, "repeat_penalty": 1.1, "temperature": 5, "mirostat": 2, "mirostat_tau": 5.0 });
    assert_eq!(ask(&state, &json!({ "options": usual })).await.status, 200);
}

#[tokio::test]
async fn thoughts_are_told_apart_and_may_be_switched() {
    let state = answering("<think>\nHm.\n</think>\n\nYes.");
    for think in [json!(null), json!(true), json!("low"), json!("max")] {
        let answer = both_ways_of_chat(&state, json!({ "think": think })).await;
        assert_eq!(answer["message"], json!({ "role": "assistant", "content": "Yes.", "thinking": "Hm." }), "{think}");
    }
    let raw = json!({ "prompt": "Once", "stream": false, "raw": true });
    for body in [json!({ "prompt": "Once", "stream": false }), raw] {
        let answer = both_ways(&state, GENERATE, body).await;
        assert_eq!((&answer["response"], &answer["thinking"]), (&json!("Yes."), &json!("Hm.")));
    }
    let answer = both_ways_of_chat(&answering("Yes."), json!({ "think": false })).await;
    assert_eq!(answer["message"], json!({ "role": "assistant", "content": "Yes." }));
    let prompt_len = async |think: Value| {
        ask(&state, &json!({ "think": think })).await.json()["prompt_eval_count"].as_u64().unwrap()
    };
    assert!(prompt_len(json!(false)).await > prompt_len(json!(true)).await, "the template ends the thoughts");
    assert!(prompt_len(json!("high")).await > prompt_len(json!(true)).await, "the template writes the effort");
    check_refused(&ask(&state, &json!({ "think": "hard" })).await, "think must be true, false or one of");
    let (plain, _engine) = serve_with(StubRunner::replying(roomy(), bytes_of("x"), end_token()), Some(PLAIN));
    check_refused(&ask(&plain, &json!({ "think": true })).await, "\"tiny:1m\" does not support thinking");
    assert_eq!(ask(&plain, &json!({ "think": false })).await.status, 200);
}

#[tokio::test]
async fn a_level_that_the_template_does_not_know_is_told() {
    let template = TEMPLATE.replace("{{ reasoning_effort }}", "");
    let (state, _engine) = serve_with(StubRunner::replying(roomy(), bytes_of("x"), end_token()), Some(&template));
    let answer = ask(&state, &json!({ "think": "high" })).await;
    assert_eq!(answer.headers["x-taper-ignored-fields"], "think");
    assert!(!ask(&state, &json!({ "think": true })).await.headers.contains_key("x-taper-ignored-fields"));
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 5}}\n</tool_call>";

fn weather() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "integer" } }, "required": ["city"] });
    json!({ "type": "function", "function": { "name": "weather", "description": "D", "parameters": parameters } })
}

fn called(index: usize) -> Value {
    json!({ "id": null, "function": { "index": index, "name": "weather", "arguments": { "city": 5 } } })
}

#[tokio::test]
async fn calls_have_objects_as_arguments() {
    let state = answering(&format!("Let me see.\n{CALL}\n{CALL}"));
    let answer = both_ways_of_chat(&state, json!({ "tools": [weather()] })).await;
    let message = json!({ "role": "assistant", "content": "Let me see.", "tool_calls": [called(0), called(1)] });
    assert_eq!((&answer["message"], &answer["done_reason"]), (&message, &json!("stop")));
    let answer = both_ways_of_chat(&answering(CALL), json!({})).await;
    assert_eq!(answer["message"]["content"], CALL, "without tools it is a text");
}

#[tokio::test]
async fn a_call_that_was_cut_is_no_call() {
    let fields =
        json!({ "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false, "think": false });
    let whole = both_ways_of_chat(
        &undecided(),
        merged(fields.clone(), &json!({ "options": { "temperature": 0, "num_predict": 300 } })),
    )
    .await;
    assert!(whole["message"]["tool_calls"][0]["function"]["arguments"]["city"].is_number(), "{whole}");
    let cut =
        both_ways_of_chat(&undecided(), merged(fields, &json!({ "options": { "temperature": 0, "num_predict": 45 } })))
            .await;
    assert_eq!(cut["done_reason"], "length");
    assert!(cut["message"].get("tool_calls").is_none(), "{cut}");
}

#[tokio::test]
async fn calls_results_and_thoughts_are_rendered() {
    let prompt = "TOOLS\n<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>hm</think>\
        <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} call_1</tool_call><|im_end|>\n\
        <|im_start|>tool\none[f call_1]<|im_end|>\n<|im_start|>assistant\n";
    let state = expecting(prompt);
    let messages = json!([
        { "role": "system", "content": "S" },
        { "role": "user", "content": "U" },
        { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
        { "role": "tool", "tool_name": "f", "content": "one" },
    ]);
    let answer = ask(&state, &json!({ "messages": messages, "tools": [weather()] })).await;
    assert_eq!(answer.json()["message"]["content"], "yes", "{}", answer.body);
}

#[tokio::test]
async fn an_answer_has_the_format_that_is_asked_for() {
    let state = undecided();
    let schema = json!({ "type": "object", "properties": { "x": { "enum": [7] } }, "required": ["x"], "additionalProperties": false });
    let options = json!({ "temperature": 0, "num_predict": 200 });
    let fields = json!({ "format": schema, "options": options, "think": false });
    let answer = both_ways_of_chat(&state, fields).await;
    let content: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(content, json!({ "x": 7 }));
    for raw in [false, true] {
        let fields = json!({ "format": schema, "options": options, "think": false, "raw": raw });
        let response = generate(&state, &fields).await.json()["response"].clone();
        assert_eq!(serde_json::from_str::<Value>(response.as_str().unwrap()).unwrap(), json!({ "x": 7 }), "{raw}");
    }
    let any = ask(&state, &json!({ "format": "json", "options": options, "think": false })).await.json();
    assert!(any["message"]["content"].as_str().unwrap().starts_with('{'), "{any}");
    assert_eq!(ask(&answering("x"), &json!({ "format": "" })).await.json()["message"]["content"], "x");
    for wrong in [json!("xml"), json!(5), json!(["json"])] {
        check_refused(&ask(&state, &json!({ "format": wrong })).await, "format must be \"json\" or a JSON schema");
    }
    let both = json!({ "format": "json", "options": { "regex": "a" } });
    check_refused(&ask(&state, &both).await, "options.regex and format both ask");
    check_refused(&ask(&state, &json!({ "format": { "type": 5 }, "think": false })).await, "");
}

#[tokio::test]
async fn log_probabilities_are_told_for_every_token() {
    let fields = json!({ "logprobs": true, "top_logprobs": 2 });
    let answer = both_ways_of_chat(&answering(REPLY), fields).await;
    let logprobs = answer["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len() as u64, answer["eval_count"].as_u64().unwrap());
    assert_eq!(logprobs[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert!(logprobs[0]["logprob"].is_number() && logprobs[0]["token"].is_string());
    check_refused(&ask(&answering("x"), &json!({ "top_logprobs": 2 })).await, "top_logprobs needs logprobs");
}

/// An error in Ollama's words.
fn check_error(answer: &Answer, status: u16, part: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    assert!(body["error"].as_str().unwrap().contains(part), "no {part:?} in {body}");
}

fn check_refused(answer: &Answer, part: &str) {
    check_error(answer, 400, part);
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    let state = answering("x");
    let said = |message: Value| json!({ "messages": [message] });
    for (fields, part) in [
        (json!({ "messages": "hi" }), "messages must be an array"),
        (said(json!({ "role": "wizard", "content": "" })), "messages[0].role must be"),
        (said(json!({ "role": "user", "content": "hi", "images": ["aGk="] })), "messages[0].images is not supported"),
        (
            said(json!({ "role": "assistant", "tool_calls": [{ "function": { "name": "f" } }] })),
            "messages ends with calls",
        ),
        (said(json!({ "role": "user", "content": "x".repeat(5000) })), "the context of this model holds"),
        (json!({ "stream": "yes" }), "stream must be true or false"),
        (json!({ "keep_alive": "soon" }), "keep_alive must be"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type must be"),
        (json!({ "truncate": 1 }), "truncate must be true or false"),
        (json!({ "_debug_render_only": true }), "_debug_render_only is not supported"),
        (json!({ "model": 5 }), "model must be a string"),
        (json!({ "functions": [{}] }), "functions is not supported"),
    ] {
        check_refused(&ask(&state, &fields).await, part);
    }
    for (fields, part) in [
        (json!({ "prompt": ["a"] }), "prompt must be a string"),
        (json!({ "suffix": "." }), "suffix is not supported"),
        (json!({ "template": "{{ .Prompt }}" }), "template is not supported"),
        (json!({ "images": ["aGk="] }), "images is not supported"),
        (json!({ "context": [1_000_000] }), "token id 1000000"),
        (json!({ "context": "a" }), "context must be"),
        (json!({ "raw": true, "system": "S" }), "leave out system"),
        (json!({ "raw": true, "context": [1] }), "leave out context"),
        (json!({ "tools": [weather()] }), "tools is not supported"),
    ] {
        check_refused(&generate(&state, &fields).await, part);
    }
    let harmless =
        json!({ "suffix": "", "template": "", "images": [], "context": [], "truncate": true, "shift": false });
    assert_eq!(generate(&state, &harmless).await.status, 200);
}

#[tokio::test]
async fn a_model_goes_by_its_names_with_the_tag_latest_and_without() {
    let state = answering("x");
    for name in ["tiny:1m", "tiny", "tiny:latest", "default"] {
        assert_eq!(ask(&state, &json!({ "model": name })).await.json()["model"], name);
        assert_eq!(post(&state, "/api/show", &json!({ "model": name })).await.status, 200, "{name}");
        assert_eq!(post(&state, "/api/show", &json!({ "name": name })).await.status, 200, "{name}");
    }
    for (path, body) in [
        (CHAT_PATH, json!({ "messages": [] })),
        (GENERATE, json!({ "prompt": "a" })),
        ("/api/show", json!({})),
        ("/api/embed", json!({ "input": "a" })),
        ("/api/embeddings", json!({ "prompt": "a" })),
    ] {
        for name in ["other", "tiny:2m", "other:latest"] {
            let answer = post(&state, path, &merged(body.clone(), &json!({ "model": name }))).await;
            check_error(&answer, 404, &format!("model '{name}' not found"));
        }
    }
}

#[tokio::test]
async fn refusals_of_the_doors_are_in_ollamas_words_too() {
    let state = answering("x");
    check_error(&get(&state, CHAT_PATH).await, 405, "does not take GET");
    check_error(&get(&state, "/api/other").await, 404, "/api/other");
    check_refused(&post_bytes(&state, CHAT_PATH, b"{".to_vec()).await, "not valid JSON");
    check_refused(&post_bytes(&state, CHAT_PATH, Vec::new()).await, "empty");
    let loading = ask(&ServerState::new(), &json!({})).await;
    check_error(&loading, 503, "loading");
    assert!(loading.headers.contains_key("retry-after"));
    check_error(&get(&ServerState::new(), "/api/tags").await, 503, "loading");
    assert!(get(&state, "/apix").await.error()["message"].is_string(), "others keep OpenAI's words");
    let keys = ApiKeys::new(&["secret".to_owned()], None).unwrap();
    let config = ServerConfig { api_keys: keys, ..ServerConfig::default() };
    let (guarded, _engine) = state_with_config(replying("x"), EngineConfig::default(), config);
    check_error(&ask(&guarded, &json!({})).await, 401, "API key");
}

#[tokio::test]
async fn models_are_not_managed_here() {
    let state = answering("x");
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/sha256:00"] {
        check_refused(&post(&state, path, &json!({ "model": "tiny" })).await, &format!("{path} is not supported"));
    }
    let delete = Request::builder().method(Method::DELETE).uri("/api/delete");
    check_refused(&send(&state, delete.body(Body::from("{}")).unwrap()).await, "/api/delete is not supported");
}

#[tokio::test]
async fn a_failure_after_the_first_line_is_the_last_line() {
    let runner = babbling().failing_at(5..6);
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let answer = post(&state, CHAT_PATH, &json!({ "messages": [{ "role": "user", "content": "Hi" }] })).await;
    let lines = answer.lines();
    let (last, parts) = lines.split_last().unwrap();
    assert!(!parts.is_empty() && parts.iter().all(|part| part["done"] == false), "{lines:?}");
    assert!(last["error"].is_string() && last.as_object().unwrap().len() == 1, "{last}");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_answer() {
    let (state, engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let server = Running::start(&state).await;
    let mut stream = server.connect().await;
    let body = json!({ "prompt": "Once", "options": { "num_predict": -1 } });
    tokio::io::AsyncWriteExt::write_all(&mut stream, &raw_post(GENERATE, &body)).await.unwrap();
    read_until(&mut stream, "\"done\":false").await;
    drop(stream);
    eventually("nothing runs", || engine.status().running == 0).await;
    eventually("nothing is active", || state.active_requests() == 0).await;
}

#[tokio::test]
async fn a_pause_is_filled_with_parts_that_say_nothing() {
    let timeouts = Timeouts { keep_alive: Duration::from_millis(20), ..Timeouts::default() };
    let (runner, gate) = babbling().with_gate();
    let (state, _engine) = state_with(runner, EngineConfig::default(), timeouts);
    let server = Running::start(&state).await;
    let mut stream = server.connect().await;
    let body = json!({ "prompt": "Once", "options": { "num_predict": 2 } });
    tokio::io::AsyncWriteExt::write_all(&mut stream, &raw_post(GENERATE, &body)).await.unwrap();
    let pause = read_until(&mut stream, "\"done\":false").await;
    assert!(pause.contains("\"response\":\"\""), "{pause}");
    gate.open();
    let rest = read_all(&mut stream).await;
    assert!(rest.contains("\"done_reason\":\"length\"") && rest.contains("\"eval_count\":2"), "{rest}");
}

#[tokio::test]
async fn models_are_listed_with_what_is_known_of_them() {
    let state =
        state_with(replying("x").with_states(4, |_, row| row.fill(1.0)), EngineConfig::default(), Timeouts::default())
            .0;
    let unknown = get(&state, "/api/tags").await.json()["models"][0].clone();
    assert_eq!(unknown["details"]["families"], json!([]));
    state.set_facts(ServerFacts {
        architecture: Some("llama".to_owned()),
        quantization: Some("Q4_1".to_owned()),
        num_params: Some(134_515_008),
        model_bytes: Some(98_000_000),
        trained_context_len: Some(8192),
        device: Some("cuda:0".to_owned()),
        ..ServerFacts::default()
    });
    let details = json!({
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "134.52M",
        "quantization_level": "Q4_1",
    });
    let listed = get(&state, "/api/tags").await.json();
    assert_eq!(listed["models"].as_array().unwrap().len(), 1);
    let model = &listed["models"][0];
    assert_eq!((&model["name"], &model["model"], &model["size"]), (&json!(MODEL), &json!(MODEL), &json!(98_000_000)));
    assert_eq!((&model["modified_at"], &model["details"]), (&json!("2023-11-14T22:13:20.000000000Z"), &details));
    let loaded = get(&state, "/api/ps").await.json()["models"][0].clone();
    assert_eq!((&loaded["digest"], &loaded["details"]), (&model["digest"], &details));
    assert!(loaded["size"].as_u64().unwrap() >= 98_000_000 && loaded["size_vram"] == loaded["size"], "{loaded}");
    assert_eq!(loaded["context_length"], limits().context_len);
    let shown = post(&state, "/api/show", &json!({ "model": MODEL, "verbose": true })).await.json();
    assert_eq!((&shown["details"], &shown["capabilities"]), (&details, &json!(["completion", "embedding"])));
    let info = &shown["model_info"];
    assert_eq!(
        (&info["general.architecture"], &info["general.parameter_count"]),
        (&json!("llama"), &json!(134_515_008))
    );
    assert_eq!(
        (&info["llama.context_length"], &info["llama.embedding_length"]),
        (&json!(limits().context_len), &json!(4))
    );
    assert!(shown["parameters"].as_str().unwrap().starts_with("num_ctx "), "{shown}");
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    let able = post(&answering("x"), "/api/show", &json!({})).await.json()["capabilities"].clone();
    assert_eq!(able, json!(["completion", "tools", "thinking"]));
    let version = get(&ServerState::new(), "/api/version").await.json()["version"].as_str().unwrap().to_owned();
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
    assert!(parts.len() == 3 && parts > vec![0, 12, 0], "{version}");
}

#[tokio::test]
async fn whether_the_server_is_there_is_asked_by_head() {
    let state = answering("x");
    for path in ["/", "/api/version", "/api/tags"] {
        let request = Request::builder().method(Method::HEAD).uri(path).body(Body::empty()).unwrap();
        let answer = send(&state, request).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, ""), "{path}");
    }
}

/// Its states are the number of tokens so far and the last one.
fn embedding() -> ServerState {
    let runner = replying("x").with_states(2, |tokens, row| {
        row[0] = tokens.len() as f32;
        row[1] = tokens[tokens.len() - 1] as f32;
    });
    state_with(runner, EngineConfig::default(), Timeouts::default()).0
}

/// The mean of the states of tokens.
fn mean(tokens: &[u32]) -> Vec<f64> {
    let len = tokens.len() as f64;
    vec![(len + 1.0) / 2.0, tokens.iter().map(|&token| f64::from(token)).sum::<f64>() / len]
}

fn unit(vector: &[f64]) -> Vec<f64> {
    let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.iter().map(|x| x / norm).collect()
}

fn is_near(vector: &Value, expected: &[f64]) {
    let vector: Vec<f64> = serde_json::from_value(vector.clone()).unwrap();
    assert_eq!(vector.len(), expected.len());
    let is_near = vector.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0));
    assert!(is_near, "{vector:?} is not {expected:?}");
}

#[tokio::test]
async fn inputs_become_vectors_of_the_length_1() {
    let state = embedding();
    let answer =
        post(&state, "/api/embed", &json!({ "model": "tiny", "input": ["ab", "q"], "keep_alive": "5m" })).await;
    let body = answer.json();
    assert_eq!((&body["model"], &body["load_duration"]), (&json!("tiny"), &json!(0)), "{body}");
    is_near(&body["embeddings"][0], &unit(&mean(&tokens_of("ab"))));
    is_near(&body["embeddings"][1], &unit(&mean(&tokens_of("q"))));
    assert_eq!(body["prompt_eval_count"], tokens_of("ab").len() + tokens_of("q").len());
    assert!(body["total_duration"].as_u64().unwrap() > 0);
    let one = post(&state, "/api/embed", &json!({ "input": "ab", "dimensions": 1 })).await.json();
    is_near(&one["embeddings"][0], &[1.0]);
    let older =
        post(&state, "/api/embeddings", &json!({ "prompt": "ab", "options": { "temperature": 0 } })).await.json();
    assert_eq!(older.as_object().unwrap().len(), 1);
    is_near(&older["embedding"], &mean(&tokens_of("ab")));
}

#[tokio::test]
async fn an_input_that_is_too_long_is_cut_behind_its_beginning() {
    let state = embedding();
    let most = limits().context_len;
    let text: String = "qz".chars().cycle().take(2 * most).collect();
    let cut = |num: usize| unit(&mean(&tokens_of(&text)[..num]));
    let embed = async |fields: Value| post(&state, "/api/embed", &merged(json!({ "input": text }), &fields)).await;
    is_near(&embed(json!({})).await.json()["embeddings"][0], &cut(most));
    is_near(&embed(json!({ "options": { "num_ctx": 7 } })).await.json()["embeddings"][0], &cut(7));
    let more = embed(json!({ "options": { "num_ctx": 1_000_000 } })).await;
    assert_eq!(more.headers["x-taper-ignored-fields"], "options.num_ctx");
    is_near(&more.json()["embeddings"][0], &cut(most));
    check_refused(&embed(json!({ "truncate": false })).await, "input has");
    check_refused(&post(&state, "/api/embeddings", &json!({ "prompt": text })).await, "prompt has");
}

#[tokio::test]
async fn nothing_to_embed_is_no_vector() {
    let state = embedding();
    for input in [json!(null), json!(""), json!([])] {
        assert_eq!(post(&state, "/api/embed", &json!({ "input": input })).await.json()["embeddings"], json!([]));
    }
    assert_eq!(post(&state, "/api/embeddings", &json!({ "prompt": "" })).await.json(), json!({ "embedding": [] }));
    for (body, part) in [
        (json!({ "input": 5 }), "input must be"),
        (json!({ "input": ["a", ""] }), "input[1] is empty"),
        (json!({ "input": [97] }), "input[0] must be a string"),
        (json!({ "input": "a", "dimensions": 3 }), "dimensions must be"),
        (json!({ "input": "a", "options": { "num_ctx": "many" } }), "options.num_ctx must be"),
    ] {
        check_refused(&post(&state, "/api/embed", &body).await, part);
    }
    let without = post(&answering("x"), "/api/embed", &json!({ "input": "a" })).await;
    check_refused(&without, "does not support embeddings");
}
