//! Two hundred JSON schemas on the default model, over HTTP: what ends is what the schema allows.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::{Server, post};
use std::sync::atomic::{AtomicUsize, Ordering};
use taper_testkit::schemas::{SEED, schemas};

const NUM_SCHEMAS: usize = 200;
const USERS: usize = 8;

fn request(schema: &Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "Give me an example of the described data as JSON." }],
        "temperature": 0.7,
        "seed": 7,
        "max_tokens": 512,
        "response_format": { "type": "json_schema", "json_schema": { "name": "data", "schema": schema, "strict": true } },
    })
}

#[test]
fn what_ends_is_what_the_schema_allows_and_nearly_all_ends() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let (cases, url) = (schemas(SEED, NUM_SCHEMAS), &server.url);
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..USERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (status, answer) = post(url, "/v1/chat/completions", &request(&case.schema));
                    assert_eq!(status, 200, "{answer} for {}", case.schema);
                    let choice = &answer["choices"][0];
                    if choice["finish_reason"] != "stop" {
                        continue;
                    }
                    let text = choice["message"]["content"].as_str().unwrap();
                    let document: Value =
                        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
                    let validator = jsonschema::validator_for(&case.schema).unwrap();
                    assert!(validator.is_valid(&document), "{text} for {}", case.schema);
                    finished.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let finished = finished.into_inner();
    println!("{finished} of {NUM_SCHEMAS} ended");
    // What does not end is a tree whose generations have two children each.
    assert!(finished >= NUM_SCHEMAS * 95 / 100, "{finished} of {NUM_SCHEMAS} ended");
}

#[test]
fn every_kind_of_form_is_kept_streamed_or_not_and_whatever_the_seed() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let check = |form: Value, is_kept: &dyn Fn(&str) -> bool| {
        let mut body = json!({ "prompt": "Tell me: ", "max_tokens": 60, "temperature": 1.3, "n": 3, "seed": 11 });
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        for choice in answer["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap();
            assert!(choice["finish_reason"] != "stop" || is_kept(text), "{text:?} for {form}");
        }
        body["n"] = json!(1);
        let streamed = server.stream("/v1/completions", &body, |_| true);
        assert_eq!(streamed.text(), answer["choices"][0]["text"].as_str().unwrap(), "{form}");
    };
    let choices = ["yes, it is", "no, it is not", "maybe"];
    check(json!({ "guided_choice": choices }), &|text| choices.contains(&text));
    let is_date = |text: &str| text.len() == 10 && text.bytes().filter(u8::is_ascii_digit).count() == 8;
    check(json!({ "structured_outputs": { "regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}" } }), &is_date);
    check(json!({ "grammar": "root ::= (\"a\" | \"b\"){3} \".\"" }), &|text| text.len() == 4 && text.ends_with('.'));
    check(json!({ "response_format": { "type": "json_object" } }), &|text| {
        serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
    });
}
