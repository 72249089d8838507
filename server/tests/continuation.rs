//! Conversations that end with a message of the assistant, on every protocol, whole and streamed.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::RunnerLimits;
use taper_engine::stub::StubRunner;
use taper_server::ServerState;
use taper_text::EncodeOptions;

/// Writes thoughts, trims texts, and knows tools.
const TEMPLATE: &str = "{% if tools %}TOOLS\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content | trim }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Does not think.
const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// What the user says, and the beginning of an answer.
const TURN: &str = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";

fn roomy() -> RunnerLimits {
    RunnerLimits { context_len: 4096, num_blocks: 1024, ..limits() }
}

fn tokens_of(text: &str) -> Vec<u32> {
    vocabulary().tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true }).unwrap()
}

/// Answers each of these prompts with what stands beside it, and fails on any other.
fn expecting(script: &[(&str, &str)]) -> ServerState {
    let script = script.iter().map(|(prompt, reply)| (tokens_of(prompt), bytes_of(reply))).collect();
    state_with_template(StubRunner::scripted(roomy(), script, end_token()), TEMPLATE)
}

/// Says this as far as it may, whatever it is asked.
fn saying(reply: &'static str) -> ServerState {
    state_with_template(willing_to_say(roomy(), reply), TEMPLATE)
}

/// What the assistant thought and said.
type Said<'a> = (Option<&'a str>, &'a str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Chat,
    Messages,
    Responses,
    Ollama,
}

const PROTOCOLS: [Protocol; 4] = [Protocol::Chat, Protocol::Messages, Protocol::Responses, Protocol::Ollama];

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Protocol::Chat => CHAT,
            Protocol::Messages => "/v1/messages",
            Protocol::Responses => "/v1/responses",
            Protocol::Ollama => "/api/chat",
        }
    }

    /// What the user says, and then the assistant.
    fn request(self, (thoughts, text): Said<'_>) -> Value {
        let user = json!({ "role": "user", "content": "Hi" });
        let mut last = json!({ "role": "assistant", "content": text });
        match self {
            Protocol::Chat => {
                last["reasoning_content"] = json!(thoughts);
                json!({ "messages": [user, last] })
            }
            Protocol::Ollama => {
                last["thinking"] = json!(thoughts);
                json!({ "messages": [user, last], "stream": false })
            }
            Protocol::Messages => {
                let thoughts = thoughts.map(|thoughts| json!({ "type": "thinking", "thinking": thoughts }));
                let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
                last["content"] = thoughts.into_iter().chain(text).collect();
                json!({ "messages": [user, last], "max_tokens": 200 })
            }
            Protocol::Responses => {
                let part = |thoughts| json!([{ "type": "reasoning_text", "text": thoughts }]);
                let thoughts = thoughts.map(|thoughts| json!({ "type": "reasoning", "content": part(thoughts) }));
                let text = (!text.is_empty()).then_some(last);
                let input: Vec<Value> = [user].into_iter().chain(thoughts).chain(text).collect();
                json!({ "input": input })
            }
        }
    }

    /// The thoughts and the text of a whole answer.
    fn read(self, answer: &Value) -> (String, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_kind = |items: &Value, kind: &str, field: &str| {
            let items = items.as_array().unwrap().iter().filter(|item| item["type"] == kind);
            items.map(|item| text(&item[field])).collect::<String>()
        };
        match self {
            Protocol::Chat => {
                let message = &answer["choices"][0]["message"];
                (text(&message["reasoning_content"]), text(&message["content"]))
            }
            Protocol::Ollama => (text(&answer["message"]["thinking"]), text(&answer["message"]["content"])),
            Protocol::Messages => {
                let content = &answer["content"];
                (of_kind(content, "thinking", "thinking"), of_kind(content, "text", "text"))
            }
            Protocol::Responses => {
                let parts =
                    answer["output"].as_array().unwrap().iter().flat_map(|item| item["content"].as_array().unwrap());
                let parts = parts.cloned().collect();
                (of_kind(&parts, "reasoning_text", "text"), of_kind(&parts, "output_text", "text"))
            }
        }
    }

    /// The same of a stream.
    fn read_stream(self, answer: &Answer) -> (String, String) {
        let pieces: Vec<(String, String)> = match self {
            Protocol::Chat => {
                let delta =
                    |chunk: &Value| self.read(&json!({ "choices": [{ "message": chunk["choices"][0]["delta"] }] }));
                answer.chunks().iter().map(delta).collect()
            }
            Protocol::Ollama => answer.lines().iter().map(|line| self.read(line)).collect(),
            Protocol::Messages => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let delta = |event: &Value| (text(&event["delta"]["thinking"]), text(&event["delta"]["text"]));
                answer.events().iter().map(delta).collect()
            }
            Protocol::Responses => {
                let delta = |event: &Value| {
                    let text = || event["delta"].as_str().unwrap_or_default().to_owned();
                    match event["type"].as_str() {
                        Some("response.reasoning_text.delta") => (text(), String::new()),
                        Some("response.output_text.delta") => (String::new(), text()),
                        _ => Default::default(),
                    }
                };
                answer.events().iter().map(delta).collect()
            }
        };
        pieces.into_iter().unzip()
    }
}

/// Sends a request whole and streamed: the same thoughts and text come back, and they are these. Gives the whole answer.
async fn check(state: &ServerState, protocol: Protocol, mut body: Value, thoughts: &str, text: &str) -> Value {
    let answer = post(state, protocol.path(), &body).await;
    assert_eq!(answer.status, 200, "{protocol:?}: {}", answer.body);
    let expected = (thoughts.to_owned(), text.to_owned());
    assert_eq!(protocol.read(&answer.json()), expected, "{protocol:?}: {}", answer.body);
    body["stream"] = true.into();
    let streamed = post(state, protocol.path(), &body).await;
    assert_eq!(protocol.read_stream(&streamed), expected, "{protocol:?}: {}", streamed.body);
    answer.json()
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn an_answer_goes_on_with_a_text_and_holds_only_what_is_new() {
    let prompt = format!("{TURN}The answer is");
    for protocol in PROTOCOLS {
        let state = expecting(&[(&prompt, " 42, <b>")]);
        check(&state, protocol, protocol.request((None, "The answer is")), "", " 42, <b>").await;
    }
}

#[tokio::test]
async fn what_is_continued_is_counted_as_the_prompt() {
    let prompt = format!("{TURN}The answer is");
    let num_tokens = json!(tokens_of(&prompt).len());
    let state = expecting(&[(&prompt, " 42")]);
    let body = Protocol::Chat.request((None, "The answer is"));
    let usage = post(&state, CHAT, &body).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&num_tokens, &json!(4)));
    for (path, field) in [("/v1/chat/completions/input_tokens", "input_tokens"), ("/tokenize", "count")] {
        assert_eq!(post(&state, path, &body).await.json()[field], num_tokens, "{path}");
    }
    let body = Protocol::Messages.request((None, "The answer is"));
    let counted = post(&state, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted["input_tokens"], num_tokens);
}

#[tokio::test]
async fn blanks_at_the_end_of_a_text_stay_but_anthropics_clients_may_send_none() {
    let state = expecting(&[(&format!("{TURN}So: \n"), "yes")]);
    for protocol in [Protocol::Chat, Protocol::Responses, Protocol::Ollama] {
        check(&state, protocol, protocol.request((None, "So: \n")), "", "yes").await;
    }
    let body = Protocol::Messages.request((None, "So: \n"));
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let answer = post(&state, path, &body).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.error()["message"].as_str().unwrap().contains("ends with a blank"), "{}", answer.body);
    }
}

#[tokio::test]
async fn thoughts_without_a_text_go_on_and_behind_a_text_they_are_over() {
    let within = format!("{TURN}<think>\nHm, so");
    let behind = format!("{TURN}<think>\nHm\n</think>\n\nSo");
    for protocol in PROTOCOLS {
        let state = expecting(&[(&within, " it is.\n</think>\n\nYes."), (&behind, " <think>be it.")]);
        check(&state, protocol, protocol.request((Some("Hm, so"), "")), " it is.", "Yes.").await;
        check(&state, protocol, protocol.request((None, "<think>Hm, so")), " it is.", "Yes.").await;
        check(&state, protocol, protocol.request((Some("Hm"), "So")), "", " <think>be it.").await;
    }
    let state = expecting(&[(&within, " it is.\n</think>\n\nYes.")]);
    let body = with(Protocol::Chat.request((Some("Hm, so"), "")), &json!({ "reasoning_format": "none" }));
    check(&state, Protocol::Chat, body, "", " it is.\n</think>\n\nYes.").await;
    let mut body = Protocol::Chat.request((Some("Hm, so"), ""));
    body["messages"][1]["content"] = Value::Null;
    let usage = check(&state, Protocol::Chat, body, " it is.", "Yes.").await["usage"].clone();
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((" it is.".len() as u64..usage["completion_tokens"].as_u64().unwrap()).contains(&reasoning), "{usage}");
}

#[tokio::test]
async fn two_fields_say_where_the_answer_begins() {
    let (continued, bare) = (format!("{TURN}A"), format!("{TURN}A<|im_end|>\n"));
    let new = format!("{bare}<|im_start|>assistant\n");
    for (fields, prompt) in [
        (json!({}), &continued),
        (json!({ "continue_final_message": true }), &continued),
        (json!({ "continue_final_message": true, "add_generation_prompt": false }), &continued),
        (json!({ "continue_final_message": false }), &new),
        (json!({ "add_generation_prompt": true }), &new),
        (json!({ "continue_final_message": false, "add_generation_prompt": true }), &new),
        (json!({ "add_generation_prompt": false }), &bare),
        (json!({ "continue_final_message": false, "add_generation_prompt": false }), &bare),
    ] {
        let state = expecting(&[(&continued, "more"), (&bare, "bare"), (&new, "new")]);
        let expected = if *prompt == continued {
            "more"
        } else if *prompt == bare {
            "bare"
        } else {
            "new"
        };
        for protocol in PROTOCOLS {
            check(&state, protocol, with(protocol.request((None, "A")), &fields), "", expected).await;
        }
        let body = with(Protocol::Chat.request((None, "A")), &fields);
        assert_eq!(post(&state, "/apply-template", &body).await.json()["prompt"], *prompt, "{fields}");
        let tokens = post(&state, "/tokenize", &body).await.json()["tokens"].clone();
        assert_eq!(tokens, json!(tokens_of(prompt)), "{fields}");
    }
}

#[tokio::test]
async fn a_last_message_that_says_nothing_is_left_out() {
    let state = expecting(&[(TURN, "Hello.")]);
    for protocol in [Protocol::Chat, Protocol::Ollama] {
        check(&state, protocol, protocol.request((None, "")), "", "Hello.").await;
    }
    let body = with(Protocol::Chat.request((Some(" "), "\n")), &json!({ "continue_final_message": true }));
    check(&state, Protocol::Chat, body, "", "Hello.").await;
}

#[tokio::test]
async fn a_call_may_follow_a_text_that_is_continued() {
    let prompt = format!("TOOLS\n{TURN}Let me");
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let state = expecting(&[(&prompt, &format!(" see.\n{call}"))]);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let body = with(Protocol::Chat.request((None, "Let me")), &json!({ "tools": tools }));
    let answer = check(&state, Protocol::Chat, body, "", " see.").await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({ "name": "f", "arguments": "{}" }));
}

#[tokio::test]
async fn a_form_is_that_of_what_is_new() {
    let state = saying(" no, never");
    for fields in [
        json!({ "guided_choice": [" yes", " no"] }),
        json!({ "guided_regex": " (yes|no)" }),
        json!({ "ebnf": "root ::= \" yes\" | \" no\"" }),
    ] {
        check(&state, Protocol::Chat, with(Protocol::Chat.request((None, "I say")), &fields), "", " no").await;
    }
    // Behind thoughts there is a whole text.
    let state = saying(", so\n</think>\n\n{\"x\": true}");
    let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] });
    let format = json!({ "response_format": { "type": "json_object", "schema": schema } });
    let body = with(Protocol::Chat.request((Some("Hm"), "")), &format);
    check(&state, Protocol::Chat, body, ", so", "{\"x\": true}").await;
}

async fn check_refused(state: &ServerState, protocol: Protocol, body: Value, param: &str, part: &str) {
    let answer = post(state, protocol.path(), &body).await;
    assert_eq!(answer.status, 400, "{protocol:?} {body}: {}", answer.body);
    let error = answer.error();
    // Ollama's and Anthropic's errors name no parameter.
    let message = error.as_str().or(error["message"].as_str()).unwrap();
    assert!(message.contains(part), "no {part:?} in {message}");
    if matches!(protocol, Protocol::Chat | Protocol::Responses) {
        assert_eq!(error["param"], param, "{error}");
    }
}

#[tokio::test]
async fn what_cannot_be_continued_is_refused() {
    let state = saying("x");
    for protocol in PROTOCOLS {
        let field = if protocol == Protocol::Responses { "input" } else { "messages" };
        let both = json!({ "continue_final_message": true, "add_generation_prompt": true });
        let body = with(protocol.request((None, "A")), &both);
        check_refused(&state, protocol, body, "continue_final_message", "cannot both be true").await;
        let mut body = with(protocol.request((None, "A")), &json!({ "continue_final_message": true }));
        body[field].as_array_mut().unwrap().pop();
        check_refused(&state, protocol, body, "continue_final_message", "of the role assistant, got user").await;
        let call = match protocol {
            Protocol::Messages => {
                json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "f", "input": {} }] })
            }
            Protocol::Responses => json!({ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" }),
            _ => {
                json!({ "role": "assistant", "content": "", "tool_calls": [{ "id": "a", "function": { "name": "f" } }] })
            }
        };
        let mut body = protocol.request((None, "A"));
        *body[field].as_array_mut().unwrap().last_mut().unwrap() = call;
        check_refused(&state, protocol, body, field, "ends with calls of the assistant").await;
    }
    let without_thoughts = state_with_template(willing_to_say(roomy(), "x"), PLAIN);
    let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let without_answers = state_with_template(willing_to_say(roomy(), "x"), users);
    for protocol in PROTOCOLS {
        let field = if protocol == Protocol::Responses { "input" } else { "messages" };
        let body = protocol.request((Some("Hm"), ""));
        check_refused(&without_thoughts, protocol, body, field, "does not show them").await;
        let body = protocol.request((None, "A"));
        check_refused(&without_answers, protocol, body, field, "does not show it").await;
    }
}

#[tokio::test]
async fn json_and_required_calls_are_no_end_of_a_text() {
    let state = saying("x");
    let schema = json!({ "type": "object" });
    let json_schema =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema }, "schema": schema });
    for (protocol, fields, param) in [
        (Protocol::Chat, json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (Protocol::Chat, json!({ "response_format": json_schema }), "response_format"),
        (Protocol::Chat, json!({ "guided_json": schema }), "guided_json"),
        (Protocol::Responses, json!({ "text": { "format": { "type": "json_object" } } }), "text.format"),
        (
            Protocol::Messages,
            json!({ "output_format": { "type": "json_schema", "schema": schema } }),
            "output_format.schema",
        ),
        (Protocol::Ollama, json!({ "format": "json" }), "format"),
    ] {
        let body = with(protocol.request((None, "A")), &fields);
        check_refused(&state, protocol, body, param, &format!("{param} asks for JSON")).await;
    }
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for choice in [json!("required"), named] {
        let fields = json!({ "tools": tools, "tool_choice": choice });
        let body = with(Protocol::Chat.request((None, "A")), &fields);
        check_refused(&state, Protocol::Chat, body, "tool_choice", "tool_choice asks for a call").await;
    }
}
