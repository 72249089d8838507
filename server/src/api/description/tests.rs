use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use taper_engine::stub::{StubRunner, stub_limits};
use taper_engine::{Engine, EngineConfig};

use super::*;
use crate::api::{
    chat_completions, completions, embeddings, messages, model_control, native, ollama, responses, tokens,
};
use crate::errors::ApiError;
use crate::fields::asked;
use crate::state::{Served, ServedModel, ServerState};

type Read = fn(&[u8], &ServerState, &Served) -> Result<(), ApiError>;

fn served() -> (ServerState, Arc<Served>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), taper_testkit::tiny::TinyModel::default().to_gguf()).unwrap();
    let checkpoint = taper_checkpoint::Checkpoint::open(file.path()).unwrap();
    let tokenizer = Arc::new(taper_text::Tokenizer::from_metadata(checkpoint.metadata()).unwrap());
    let template = taper_text::ChatTemplate::from_metadata(checkpoint.metadata()).unwrap();
    let runner = StubRunner::new(stub_limits(tokenizer.vocab_size()), |_| 0).with_states(4, |_, _| {});
    let engine = Engine::start(Box::new(runner), tokenizer.clone(), EngineConfig::default());
    let state = ServerState::new();
    state.set_ready(ServedModel {
        id: "tiny".to_owned(),
        tokenizer,
        template,
        context_len: engine.limits().context_len,
        engine,
        created_unix: 0,
        fingerprint: "stub".to_owned(),
        deterministic: true,
    });
    let served = state.served().unwrap();
    (state, served)
}

/// For each schema of a request: what reads it, and bodies that make it ask for every field there is.
fn readers() -> [(&'static str, Read, Vec<Value>); 18] {
    let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "hi" }] },
        { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "a", "content": "it is" },
    ]);
    let function = json!({ "name": "f", "parameters": {} });
    let tools = json!([{ "type": "function", "function": function }]);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [named] } });
    let chat = |choice: &Value| json!({ "messages": messages, "tools": tools, "tool_choice": choice, "chat_template_kwargs": {}, "reasoning_effort": "medium" });
    let formats = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": {} } });
    let forms = [
        json!({ "response_format": formats, "stream": true, "stream_options": {} }),
        json!({ "response_format": { "type": "json_object", "schema": {} }, "structured_outputs": {} }),
        json!({ "response_format": { "type": "json_schema", "schema": {} } }),
    ];
    let with = |fields: Value| {
        let with_forms = forms.iter().map(move |form| {
            let mut body = form.clone();
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            body
        });
        with_forms.collect::<Vec<Value>>()
    };
    let anthropics = |fields: Value| {
        let mut body = json!({
            "system": [{ "type": "text", "text": "S" }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "hi" }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "tool_use", "id": "a", "name": "f", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "it is" }] },
                ] },
            ],
            "tools": [{ "name": "f", "input_schema": {} }],
            "tool_choice": { "type": "auto" },
            "thinking": { "type": "enabled" },
            "output_config": { "effort": "low" },
            "chat_template_kwargs": {},
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let input = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
        { "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] },
        { "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "a", "output": "it is" },
    ]);
    let ollamas = json!({
        "messages": [
            { "role": "user", "content": "hi", "images": [] },
            { "role": "assistant", "thinking": "hm", "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": {} } }] },
            { "role": "tool", "tool_name": "f", "content": "it is" },
        ],
        "tools": tools,
        "tool_choice": named,
        "think": false,
    });
    [
        (
            "ChatRequest",
            |body, state, served| chat_completions::count_tokens(body, state, served).map(drop),
            [vec![chat(&named)], with(chat(&allowed))].concat(),
        ),
        (
            "CompletionRequest",
            |body, state, served| completions::prepare(body, state, served).map(drop),
            with(json!({ "prompt": "a", "echo": true, "max_tokens": 0 })),
        ),
        (
            "NativeRequest",
            |body, state, served| native::prepare(body, state, served).map(drop),
            [with(json!({ "prompt": "a" })), vec![json!({ "prompt": { "prompt_string": "a" } })]].concat(),
        ),
        (
            "MessagesRequest",
            |body, state, served| messages::prepare(body, state, served).map(drop),
            with(anthropics(json!({ "max_tokens": 5 }))),
        ),
        (
            "CountTokensRequest",
            |body, state, served| messages::read_count_tokens(body, state, served).map(drop),
            with(anthropics(json!({}))),
        ),
        (
            "ResponsesRequest",
            |body, state, served| responses::prepare(body, state, served).map(drop),
            vec![
                json!({ "input": "a", "text": { "format": { "type": "json_schema", "schema": {} } }, "stream": true, "stream_options": {} }),
                json!({ "input": "a", "structured_outputs": {}, "response_format": { "type": "json_schema", "json_schema": { "schema": {} } } }),
                json!({ "input": "a", "response_format": { "type": "json_object", "schema": {} } }),
                json!({
                    "input": input, "reasoning": { "effort": "medium" }, "text": {}, "chat_template_kwargs": {},
                    "tools": [{ "type": "function", "name": "f", "parameters": {} }],
                    "tool_choice": { "type": "function", "name": "f" },
                }),
                json!({
                    "input": input, "tools": [{ "type": "function", "name": "f" }],
                    "tool_choice": { "type": "allowed_tools", "tools": [{ "type": "function", "name": "f" }] },
                }),
            ],
        ),
        (
            "OllamaChatRequest",
            |body, state, served| ollama::prepare_chat(body, state, served).map(drop),
            [options_of(&ollamas, &forms), vec![json!({ "format": {}, "messages": [] })]].concat(),
        ),
        (
            "OllamaGenerateRequest",
            |body, state, served| ollama::prepare_generate(body, state, served).map(drop),
            options_of(&json!({ "prompt": "a" }), &forms),
        ),
        (
            "OllamaEmbedRequest",
            |body, state, served| ollama::prepare_embed(body, state, served).map(drop),
            vec![json!({ "input": "a" })],
        ),
        (
            "OllamaEmbeddingsRequest",
            |body, state, served| ollama::prepare_embeddings(body, state, served).map(drop),
            vec![json!({ "prompt": "a" })],
        ),
        ("/api/show", |body, state, served| ollama::read_show(body, state, served).map(drop), vec![json!({})]),
        (
            "EmbeddingRequest",
            |body, state, served| embeddings::prepare(body, state, served).map(drop),
            vec![json!({ "input": "a" })],
        ),
        (
            "NativeEmbeddingRequest",
            |body, state, served| embeddings::prepare_native(body, state, served).map(drop),
            vec![json!({ "content": "a" })],
        ),
        (
            "ModelName",
            |body, state, _| model_control::read_model(body, state).map(drop),
            vec![json!({ "model": "tiny" })],
        ),
        (
            "ModelId",
            |body, state, _| model_control::read_model_id(body, state).map(drop),
            vec![json!({ "model_id": "tiny" })],
        ),
        (
            "/tokenize",
            |body, state, served| tokens::read_tokenize(body, state, served).map(drop),
            vec![json!({ "prompt": "a" }), chat(&named), json!({ "content": "a" })],
        ),
        (
            "/detokenize",
            |body, state, served| tokens::read_detokenize(body, state, served).map(drop),
            vec![json!({ "tokens": [97] })],
        ),
        (
            "/apply-template",
            |body, state, served| tokens::read_apply_template(body, state, served).map(drop),
            vec![chat(&named)],
        ),
    ]
}

/// The same request with each of these forms among Ollama's options, which has no stream there.
fn options_of(request: &Value, forms: &[Value]) -> Vec<Value> {
    let with_form = forms.iter().map(|form| {
        let mut body = request.clone();
        let mut options = form.clone();
        for name in ["stream", "stream_options"] {
            options.as_object_mut().unwrap().remove(name);
        }
        body["options"] = options;
        body
    });
    with_form.collect()
}

fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}")),
        None => schema,
    }
}

/// Whether a schema knows the field at the end of a path such as `messages[].content[].text`.
fn knows(schema: &Value, path: &[&str], document: &Value) -> bool {
    let schema = resolved(schema, document);
    if let Some(schemas) = schema["anyOf"].as_array() {
        return schemas.iter().any(|schema| knows(schema, path, document));
    }
    match path {
        [] => true,
        ["[]", rest @ ..] => knows(&schema["items"], rest, document),
        [name, rest @ ..] => schema["properties"].get(name).is_some_and(|field| knows(field, rest, document)),
    }
}

/// `messages[0].role` as its steps, and `messages`, `[]`, `role` for it.
fn steps(name: &str) -> Vec<&str> {
    let step = |part: &'_ str| -> (usize, usize) { (part.find('[').unwrap_or(part.len()), part.matches('[').count()) };
    let mut steps = Vec::new();
    for part in name.split('.') {
        let (name_len, num_indices) = step(part);
        steps.push(&part[..name_len]);
        steps.extend(std::iter::repeat_n("[]", num_indices));
    }
    steps
}

#[test]
fn every_field_that_is_read_is_described_and_every_described_field_is_read() {
    let (state, served) = served();
    let document = document();
    for (name, read, bodies) in readers() {
        let schema = match name.strip_prefix('/') {
            Some(_) => &document["paths"][name]["post"]["requestBody"]["content"][JSON]["schema"],
            None => &document["components"]["schemas"][name],
        };
        assert!(schema.is_object(), "no schema for {name}");
        asked::take();
        for body in bodies {
            read(body.to_string().as_bytes(), &state, &served)
                .unwrap_or_else(|error| panic!("{name}, {body}: {error}"));
        }
        let asked = asked::take();
        let unknown: Vec<&String> = asked.iter().filter(|field| !knows(schema, &steps(field), &document)).collect();
        assert!(unknown.is_empty(), "{name} reads what its schema does not have: {unknown:?}");
        let read: BTreeSet<&str> = asked.iter().filter_map(|field| field.split(['.', '[']).next()).collect();
        let described = schema["properties"].as_object().unwrap().keys();
        let unread: Vec<&String> = described.filter(|field| !read.contains(field.as_str())).collect();
        assert!(unread.is_empty(), "the schema of {name} has what is not read: {unread:?}");
    }
}

#[test]
fn every_request_has_a_reader_in_this_test() {
    let mut named: BTreeSet<String> = readers().iter().map(|(name, ..)| (*name).to_owned()).collect();
    let document = document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(body) = methods["post"].get("requestBody") else { continue };
        let schema = &body["content"][JSON]["schema"];
        let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        // An alias has the description of the path that it stands for.
        let name = name.unwrap_or_else(|| path.trim_start_matches("/v1"));
        assert!(readers().iter().any(|(known, ..)| *known == name), "{path}: nothing reads {name} here");
        named.remove(name);
    }
    assert!(named.is_empty(), "no request has {named:?}");
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let document = document();
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(text.contains(&format!("#/components/schemas/{name}\"")), "{name} is used nowhere");
    }
}

#[test]
fn no_two_operations_have_one_id_and_no_component_is_named_twice() {
    let document = document();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|methods| methods.as_object().unwrap().values());
    let ids: Vec<&Value> = operations.map(|operation| &operation["operationId"]).collect();
    let different: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(ids.len(), different.len());
    let groups = [
        schema::components(),
        generation::components(),
        super::messages::components(),
        super::responses::components(),
        super::native::components(),
        super::ollama::components(),
        super::embeddings::components(),
        super::model_control::components(),
    ];
    assert_eq!(components().len(), groups.iter().map(Vec::len).sum::<usize>());
}

#[test]
fn routes_are_rows_of_the_table_and_nowhere_else() {
    // Served by hand, a route would be missing from the description.
    assert_eq!(include_str!("../../serve.rs").matches(".route(").count(), 1);
    let document = document();
    for route in routes() {
        let (path, _) = path_parameters(route.path);
        assert!(document["paths"][&path][route.method].is_object(), "{path}");
    }
}
