//! POST /completion in llama-server's way.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use serde_json::{Value, json};
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineHandle, RunnerLimits};
use taper_server::{ServerState, Timeouts};

const COMPLETION: &str = "/completion";

/// The answer to a request with these fields; the prompt is "Once" unless given.
async fn ask(state: &ServerState, fields: Value) -> Answer {
    let mut body = json!({ "prompt": "Once" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post(state, COMPLETION, &body).await
}

async fn answer(state: &ServerState, fields: Value) -> Value {
    let answer = ask(state, fields.clone()).await;
    assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
    answer.json()
}

async fn check_refused(fields: Value, param: &str, message: &str) {
    let answer = ask(&state(), fields.clone()).await;
    assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
    let error = answer.error();
    assert_eq!(error["param"], param, "{error}");
    assert!(error["message"].as_str().unwrap().contains(message), "{error}");
}

/// The data of a stream's frames.
fn parts(answer: &Answer) -> Vec<Value> {
    answer.frames().iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

/// A model that would say "abcabc..." for ever, with `z` as the second best.
fn alphabet() -> (ServerState, EngineHandle) {
    let runner = StubRunner::with_logits(limits(), move |tokens, logits| {
        let last = tokens[tokens.len() - 1];
        let next = if (97..99).contains(&last) { last + 1 } else { 97 };
        logits[next as usize] = 6.0;
        logits[usize::from(b'z')] = 4.0;
    });
    state_with(runner, EngineConfig::default(), Timeouts::default())
}

#[tokio::test]
async fn an_answer_has_llama_servers_fields() {
    let state = state();
    for path in ["/completion", "/completions"] {
        let answer = post(&state, path, &json!({ "prompt": "Once", "return_tokens": true })).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let body = answer.json();
        assert_eq!((&body["content"], &body["stop"], &body["index"]), (&json!(REPLY), &json!(true), &json!(0)));
        assert_eq!((&body["stop_type"], &body["stopping_word"]), (&json!("eos"), &json!("")));
        assert_eq!((&body["model"], &body["prompt"]), (&json!(MODEL), &json!("Once")));
        let num_tokens = REPLY.len() + 1;
        assert_eq!((&body["tokens_evaluated"], &body["tokens_predicted"]), (&json!(4), &json!(num_tokens)));
        assert_eq!(body["tokens"], json!([bytes_of(REPLY), vec![end_token()]].concat()));
        assert_eq!((&body["truncated"], &body["has_new_line"]), (&json!(false), &json!(false)));
        assert_eq!((&body["timings"]["prompt_n"], &body["timings"]["predicted_n"]), (&json!(4), &json!(num_tokens)));
        assert_eq!((&body["timings"]["cache_n"], &body["tokens_cached"]), (&json!(0), &json!(0)));
        for part in ["sample_ms", "detokenize_ms", "recomputed_rows"] {
            assert!(body["timings"][part].as_f64().is_some_and(|part| part >= 0.0), "{part} in {body}");
        }
        let settings = &body["generation_settings"];
        assert_eq!(
            (&settings["top_k"], &settings["n_predict"], &settings["mirostat"]),
            (&json!(40), &json!(-1), &json!(0))
        );
        assert_eq!(settings["seed"], 4_294_967_295_u32);
        assert!(body.get("completion_probabilities").is_none());
    }
    assert_eq!(answer(&state, json!({})).await["tokens"], json!([]), "nobody asked for them");
}

#[tokio::test]
async fn a_stream_says_the_same_in_parts_and_ends_without_done() {
    let state = state();
    let whole = answer(&state, json!({ "seed": 1, "n_probs": 2, "return_tokens": true })).await;
    let streamed = ask(&state, json!({ "seed": 1, "n_probs": 2, "stream": true })).await;
    let mut parts = parts(&streamed);
    let last = parts.pop().unwrap();
    assert!(!parts.is_empty() && parts.iter().all(|part| part["stop"] == false));
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(text, REPLY);
    assert_eq!(parts[0]["tokens_evaluated"], 4);
    for field in ["stop", "stop_type", "tokens_predicted", "tokens_evaluated", "prompt", "model", "truncated"] {
        assert_eq!(last[field], whole[field], "{field}");
    }
    assert_eq!((&last["content"], &last["tokens"]), (&json!(""), &json!([])));
    assert_eq!(last["generation_settings"]["stream"], true);
    // The token that ends the text has no part of its own.
    let tokens: Vec<Value> = parts.iter().flat_map(|part| part["tokens"].as_array().unwrap().clone()).collect();
    assert_eq!(tokens, json!(bytes_of(REPLY)).as_array().unwrap()[..]);
    let probabilities: Vec<Value> =
        parts.iter().flat_map(|part| part["completion_probabilities"].as_array().unwrap().clone()).collect();
    assert_eq!(probabilities[..], whole["completion_probabilities"].as_array().unwrap()[..probabilities.len()]);
}

#[tokio::test]
async fn prompts_may_be_text_tokens_a_mix_or_several() {
    let tokenizer = vocabulary().tokenizer;
    let options = || taper_text::EncodeOptions { parse_special: true, add_bos: true };
    let script = (0..3)
        .map(|index| (tokenizer.encode(&format!("p{index}:"), options()).unwrap(), bytes_of(&format!("R{index}"))))
        .collect();
    let runner = StubRunner::scripted(limits(), script, end_token());
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let (p, one, colon) = (u32::from(b'p'), u32::from(b'1'), u32::from(b':'));
    for prompt in [
        json!("p1:"),
        json!([p, one, colon]),
        json!([p, "1", colon]),
        json!(["p1:"]),
        json!({ "prompt_string": "p1:" }),
    ] {
        let body = answer(&state, json!({ "prompt": prompt })).await;
        assert_eq!((&body["content"], &body["prompt"]), (&json!("R1"), &json!("p1:")), "{prompt}");
    }
    let prompt = json!(["p2:", [p, "0", colon], { "prompt_string": "p1:" }]);
    let body = answer(&state, json!({ "prompt": prompt, "n_cmpl": 2 })).await;
    let seen: Vec<(u64, &str, &str)> = body
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["index"].as_u64().unwrap(), one["content"].as_str().unwrap(), one["prompt"].as_str().unwrap()))
        .collect();
    let expected =
        [(0, "R2", "p2:"), (1, "R2", "p2:"), (2, "R0", "p0:"), (3, "R0", "p0:"), (4, "R1", "p1:"), (5, "R1", "p1:")];
    assert_eq!(seen, expected);
    assert!(body.as_array().unwrap().iter().all(|one| one["timings"]["prompt_n"] == 3));
    let streamed = ask(&state, json!({ "prompt": ["p2:", "p0:"], "stream": true })).await;
    let mut texts = [String::new(), String::new()];
    let mut ends = 0;
    for part in parts(&streamed) {
        texts[part["index"].as_u64().unwrap() as usize].push_str(part["content"].as_str().unwrap());
        ends += usize::from(part["stop"] == true);
    }
    assert_eq!((texts, ends), (["R2".to_owned(), "R0".to_owned()], 2));
}

#[tokio::test]
async fn parameters_reach_the_sampler_under_llama_cpps_names() {
    let (state, _engine) = alphabet();
    for (fields, expected) in [
        (json!({}), "abcabcabc"),
        (json!({ "n_predict": 3 }), "abc"),
        (json!({ "max_tokens": 3, "n_predict": null }), "abc"),
        (json!({ "max_tokens": 3, "n_predict": 3 }), "abc"),
        (json!({ "temperature": -1 }), "abcabcabc"),
        (json!({ "logit_bias": [[122, 10]] }), "zzzzzzzzz"),
        (json!({ "logit_bias": { "z": 10 } }), "zzzzzzzzz"),
        (json!({ "logit_bias": { "122": 10 } }), "zzzzzzzzz"),
        (json!({ "logit_bias": [["a", false]] }), "zzzzzzzzz"),
        (json!({ "logit_bias": [["b", false], ["c", -100]] }), "azazazaza"),
        (json!({ "presence_penalty": 1.5, "n_predict": 4 }), "abca"),
        (json!({ "presence_penalty": 2, "frequency_penalty": 1, "repeat_last_n": 0, "n_predict": 6 }), "abcabc"),
        (json!({ "presence_penalty": 1.9, "frequency_penalty": 1, "repeat_last_n": 2, "n_predict": 6 }), "abcabc"),
        (json!({ "presence_penalty": 1.9, "frequency_penalty": 1, "repeat_last_n": 3, "n_predict": 6 }), "abczab"),
        (json!({ "temperature": 1, "samplers": ["temperature", "top_k"], "top_k": 1, "min_p": 0.5 }), "abcabcabc"),
        (json!({ "temperature": 1, "samplers": ["top_k", "temperature"], "top_k": 1 }), "abcabcabc"),
        (json!({ "samplers": "edskypmxt" }), "abcabcabc"),
        // Without the most probable letter the second best is left, before a temperature of 0 or in place of it.
        (json!({ "samplers": "kx", "top_k": 2, "xtc_probability": 1, "xtc_threshold": 0.01, "n_predict": 3 }), "zzz"),
        (json!({ "samplers": "kxt", "top_k": 2, "xtc_probability": 1, "xtc_threshold": 0.01, "n_predict": 3 }), "zzz"),
        (json!({ "xtc_probability": 1, "xtc_threshold": 0.01, "n_predict": 3 }), "abc"),
        (json!({ "temperature": 100, "top_n_sigma": 5, "min_p": 0, "top_k": 1, "n_predict": 3 }), "abc"),
        (json!({ "temperature": 1, "mirostat": 2, "mirostat_tau": 0, "n_predict": 3 }), "abc"),
        (json!({ "temperature": 1, "mirostat": 1, "mirostat_tau": 0, "n_predict": 3 }), "abc"),
        // After "abcab" a third letter would be repeated.
        (json!({ "dry_multiplier": 3, "n_predict": 6 }), "abcabz"),
        (json!({ "dry_multiplier": 3, "dry_sequence_breakers": ["b"], "n_predict": 6 }), "abcabc"),
        (json!({ "dry_multiplier": 3, "dry_allowed_length": 1, "n_predict": 5 }), "abcaz"),
        (json!({ "dry_multiplier": 3, "dry_penalty_last_n": 3, "n_predict": 6 }), "abcabc"),
        (json!({ "dry_multiplier": 3, "samplers": ["top_k"], "n_predict": 6 }), "abcabc"),
        (
            json!({ "samplers": ["penalties", "dry", "temperature", "min_p", "top_k", "typical_p", "xtc", "top_p"] }),
            "abcabcabc",
        ),
        (json!({ "stop": ["ca"] }), "ab"),
    ] {
        let mut all = json!({ "temperature": 0, "n_predict": 9 });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        if all["n_predict"].is_null() {
            all.as_object_mut().unwrap().remove("n_predict");
        }
        assert_eq!(answer(&state, all).await["content"], expected, "{fields}");
    }
}

#[tokio::test]
async fn samplers_that_are_not_named_are_off() {
    let (state, _engine) = alphabet();
    let fields = json!({ "samplers": ["top_k"], "top_k": 1, "repeat_penalty": 3, "temperature": 0.5, "n_predict": 3 });
    let body = answer(&state, fields).await;
    assert_eq!(body["content"], "abc");
    let settings = &body["generation_settings"];
    assert_eq!((&settings["min_p"], &settings["top_p"]), (&json!(0.0), &json!(1.0)));
    assert_eq!((&settings["repeat_penalty"], &settings["temperature"]), (&json!(1.0), &json!(1.0)));
    for (samplers, part) in [
        (json!(["top_k", "penalties"]), "must begin with penalties and then dry"),
        (json!(["top_k", "top_k"]), "twice"),
        (json!(["mirostat"]), "penalties (e), dry (d), top_n_sigma (s)"),
        (json!([1]), "got 1"),
    ] {
        check_refused(json!({ "samplers": samplers }), "samplers", part).await;
    }
}

#[tokio::test]
async fn an_answer_tells_the_settings_of_all_samplers() {
    let (state, _engine) = alphabet();
    let fields = json!({
        "mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0.5, "dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3,
        "dry_penalty_last_n": -1, "xtc_probability": 0.25, "xtc_threshold": 0.5, "dynatemp_range": 0.5,
        "dynatemp_exponent": 2, "top_n_sigma": 1.5, "min_keep": 2, "repeat_last_n": 64, "temperature": 5,
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        "post_sampling_probs": true, "n_predict": 1,
    });
    let settings = answer(&state, fields.clone()).await["generation_settings"].clone();
    for (name, value) in fields.as_object().unwrap() {
        match value.as_f64() {
            Some(number) => assert_eq!(settings[name].as_f64(), Some(number), "{name}"),
            None => assert_eq!(&settings[name], value, "{name}"),
        }
    }
    let plain = answer(&state, json!({ "n_predict": 1 })).await["generation_settings"].clone();
    let expected = json!(["penalties", "dry", "top_n_sigma", "temperature", "min_p", "top_k", "typ_p", "top_p", "xtc"]);
    assert_eq!(plain["samplers"], expected);
    assert_eq!(
        (&plain["mirostat"], &plain["repeat_last_n"], &plain["dry_penalty_last_n"]),
        (&json!(0), &json!(-1), &json!(64))
    );
}

#[tokio::test]
async fn what_ended_an_answer_is_told() {
    let (state, _engine) = alphabet();
    for (fields, stop_type, word) in [
        (json!({ "n_predict": 3 }), "limit", ""),
        (json!({ "stop": ["x", "ca"] }), "word", "ca"),
        (json!({ "stop": ["c", "b"] }), "word", "b"),
        (json!({ "stop": ["bc"], "include_stop_str_in_output": true }), "word", "bc"),
    ] {
        let mut all = json!({ "temperature": 0 });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let body = answer(&state, all.clone()).await;
        assert_eq!((&body["stop_type"], &body["stopping_word"]), (&json!(stop_type), &json!(word)), "{fields}");
        all["stream"] = json!(true);
        let last = parts(&ask(&state, all).await).pop().unwrap();
        assert_eq!((&last["stop_type"], &last["stopping_word"]), (&json!(stop_type), &json!(word)), "{fields}");
    }
    // The rest of the context, where nothing else ends it.
    let body = answer(&state, json!({ "temperature": 0, "prompt": "x".repeat(500) })).await;
    assert_eq!((&body["stop_type"], &body["truncated"]), (&json!("limit"), &json!(true)));
    assert_eq!(body["tokens_predicted"], 12);
}

#[tokio::test]
async fn a_prompt_may_be_computed_without_an_answer() {
    let state = state();
    let body = answer(&state, json!({ "n_predict": 0 })).await;
    assert_eq!((&body["content"], &body["tokens_predicted"]), (&json!(""), &json!(0)));
    assert_eq!((&body["timings"]["predicted_n"], &body["stop_type"]), (&json!(0), &json!("limit")));
}

#[tokio::test]
async fn the_same_prompt_again_is_not_computed_again() {
    let state = state();
    let fields = json!({ "prompt": "x".repeat(40), "cache_prompt": true, "id_slot": -1 });
    assert_eq!(answer(&state, fields.clone()).await["tokens_cached"], 0);
    let body = answer(&state, fields).await;
    assert_eq!((&body["tokens_cached"], &body["timings"]["cache_n"]), (&json!(32), &json!(32)), "two blocks");
}

#[tokio::test]
async fn probabilities_are_told_of_each_token() {
    let (state, _engine) = alphabet();
    let body = answer(&state, json!({ "temperature": 0, "n_predict": 2, "n_probs": 2 })).await;
    let found = body["completion_probabilities"].as_array().unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0]["id"], &found[0]["token"], &found[0]["bytes"]), (&json!(97), &json!("a"), &json!([97])));
    let top = found[1]["top_logprobs"].as_array().unwrap();
    assert_eq!((&top[0]["token"], &top[1]["token"], top.len()), (&json!("b"), &json!("z"), 2));
    assert_eq!(top[0]["logprob"], found[1]["logprob"]);
}

#[tokio::test]
async fn probabilities_may_be_those_of_the_draw() {
    let (state, _engine) = alphabet();
    let fields = json!({
        "temperature": 1, "top_k": 2, "top_p": 1, "min_p": 0, "n_predict": 2, "n_probs": 3, "post_sampling_probs": true,
    });
    let body = answer(&state, fields).await;
    let found = body["completion_probabilities"].as_array().unwrap();
    assert_eq!(found.len(), 2);
    for one in found {
        let top = one["top_probs"].as_array().unwrap();
        assert_eq!(top.len(), 2, "what top_k leaves: {one}");
        let sum: f64 = top.iter().map(|token| token["prob"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6 && one.get("logprob").is_none() && one.get("top_logprobs").is_none(), "{one}");
        assert!(top.iter().any(|token| token["prob"] == one["prob"] && token["id"] == one["id"]));
    }
    let greedy = json!({ "temperature": 0, "n_predict": 1, "n_probs": 3, "post_sampling_probs": true });
    let certain = answer(&state, greedy).await["completion_probabilities"][0].clone();
    assert_eq!((&certain["prob"], certain["top_probs"].as_array().unwrap().len()), (&json!(1.0), 1));
}

#[tokio::test]
async fn a_form_is_kept() {
    let (state, _engine) = alphabet();
    for form in [json!({ "grammar": "root ::= \"abca\"" }), json!({ "json_schema": { "const": "ab" } })] {
        let body = answer(&state, form.clone()).await;
        let expected = if form.get("grammar").is_some() { "abca" } else { "\"ab\"" };
        assert_eq!((&body["content"], &body["stop_type"]), (&json!(expected), &json!("eos")), "{form}");
    }
    check_refused(json!({ "grammar": "root ::= (" }), "grammar", "").await;
}

#[tokio::test]
async fn after_its_time_an_answer_ends_at_a_line_break() {
    // The model waits for ever after some tokens: only the time can end the answer.
    for stream in [false, true] {
        let (runner, gate) = StubRunner::new(limits(), |_| u32::from(b'\n')).with_gate();
        let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
        gate.allow(3);
        let answer = ask(&state, json!({ "t_max_predict_ms": 1, "stream": stream, "temperature": 0 })).await;
        let body = if stream { parts(&answer).pop().unwrap() } else { answer.json() };
        assert_eq!((&body["stop_type"], &body["has_new_line"]), (&json!("limit"), &json!(true)));
        assert!(body["tokens_predicted"].as_u64().unwrap() >= 1, "{body}");
        assert_eq!(body["truncated"], false);
        gate.open();
        eventually("the sequence is given up", || engine.status().running == 0).await;
    }
    // Without a line break it goes on to its end.
    let body = answer(&state(), json!({ "t_max_predict_ms": 1 })).await;
    assert_eq!((&body["content"], &body["stop_type"]), (&json!(REPLY), &json!("eos")));
}

#[tokio::test]
async fn what_is_not_there_is_refused_by_name_and_off_values_are_accepted() {
    for (field, value) in [
        ("grammar_lazy", json!(true)),
        ("adaptive_target", json!(0.5)),
        ("prompt_logprobs", json!(1)),
        ("image_data", json!([{}])),
        ("lora", json!([{ "id": 0, "scale": 1 }])),
    ] {
        check_refused(json!({ field: value }), field, "not supported").await;
        assert_eq!(ask(&state(), json!({ field: value })).await.error()["code"], "unsupported_parameter");
    }
    let off = r#"{
        "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "xtc_probability": 0.0,
        "xtc_threshold": 0.1, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0, "min_keep": 1,
        "post_sampling_probs": false, "return_progress": false, "response_fields": [], "n_indent": 0, "n_keep": 0,
        "n_discard": 0, "repeat_last_n": 64, "repeat_penalty": 1.0, "seed": -1, "cache_prompt": true, "id_slot": -1,
        "timings_per_token": false, "adaptive_target": -1.0, "adaptive_decay": 0.9, "lora": [], "t_max_predict_ms": 0,
        "typical_p": 1.0, "n_probs": 0, "n_predict": -1, "n_cmpl": 1, "stop": [], "logit_bias": [], "grammar": "",
        "sse_ping_interval": 30, "image_data": [], "return_tokens": false, "ignore_eos": false, "samplers": null
    }"#;
    let off = serde_json::from_str(off).unwrap();
    let answer = ask(&state(), off).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.get("x-taper-ignored-fields").is_none());
}

#[tokio::test]
async fn values_that_mean_nothing_are_refused_by_name() {
    for (fields, param, message) in [
        (json!({ "prompt": null }), "prompt", "missing"),
        (json!({ "prompt": 5 }), "prompt", "got 5"),
        (json!({ "prompt": [] }), "prompt", "empty"),
        (json!({ "prompt": [1, [2]] }), "prompt", "integer"),
        (json!({ "prompt": [4_000_000] }), "prompt", "4000000"),
        (json!({ "prompt": {} }), "prompt.prompt_string", "missing"),
        (
            json!({ "prompt": { "prompt_string": "a", "multimodal_data": ["x"] } }),
            "prompt.multimodal_data",
            "text only",
        ),
        (json!({ "prompt": vec!["a"; 513] }), "prompt", "at most 512"),
        (json!({ "n_predict": -3 }), "n_predict", "at least -2"),
        (json!({ "n_predict": "all" }), "n_predict", "\"all\""),
        (json!({ "n_predict": 3, "max_tokens": 4 }), "n_predict", "n_predict is 3 and max_tokens"),
        (json!({ "n_predict": -1, "max_tokens": 4 }), "n_predict", "max_completion_tokens) is 4"),
        (json!({ "n_predict": 0, "max_completion_tokens": 4 }), "n_predict", "give one of them"),
        (json!({ "n_probs": 21 }), "n_probs", "between 0 and 20"),
        (json!({ "n_cmpl": 129 }), "n_cmpl", "between 1 and 128"),
        (json!({ "n_cmpl": 2, "n": 3 }), "n_cmpl", "n_cmpl is 2 and n is 3"),
        (json!({ "n_probs": 2, "logprobs": 3 }), "n_probs", "give one of them"),
        (json!({ "temperature": "hot" }), "temperature", "must be a number, got"),
        (json!({ "mirostat": 3 }), "mirostat", "between 0 and 2"),
        (json!({ "mirostat_tau": -1 }), "mirostat_tau", "between 0 and 100"),
        (json!({ "mirostat_eta": 11 }), "mirostat_eta", "between 0 and 10"),
        (json!({ "dry_multiplier": -1 }), "dry_multiplier", "at least 0"),
        (json!({ "dry_base": 0.5 }), "dry_base", "at least 1"),
        (json!({ "dry_allowed_length": -1 }), "dry_allowed_length", "between 0 and"),
        (json!({ "dry_penalty_last_n": -2 }), "dry_penalty_last_n", "between -1 and"),
        (json!({ "dry_sequence_breakers": "x" }), "dry_sequence_breakers", "array"),
        (json!({ "dry_sequence_breakers": [""] }), "dry_sequence_breakers", "1 to 1024 bytes"),
        (json!({ "dry_sequence_breakers": vec!["x"; 65] }), "dry_sequence_breakers", "at most 64"),
        (json!({ "xtc_probability": 1.5 }), "xtc_probability", "between 0 and 1"),
        (json!({ "xtc_threshold": -0.5 }), "xtc_threshold", "between 0 and 1"),
        (json!({ "dynatemp_range": -0.5 }), "dynatemp_range", "at least 0"),
        (json!({ "dynatemp_exponent": -0.5 }), "dynatemp_exponent", "at least 0"),
        (json!({ "top_n_sigma": "x" }), "top_n_sigma", "must be a number"),
        (json!({ "min_keep": -1 }), "min_keep", "between 0 and"),
        (json!({ "repeat_last_n": -2 }), "repeat_last_n", "between -1 and"),
        (json!({ "post_sampling_probs": 1 }), "post_sampling_probs", "true or false"),
        (json!({ "seed": "x" }), "seed", "integer"),
        (json!({ "logit_bias": 5 }), "logit_bias", "object or an array"),
        (json!({ "logit_bias": { "99999999999": 1 } }), "logit_bias", "below"),
        (json!({ "logit_bias": { "-1": 1 } }), "logit_bias", "below"),
        (json!({ "logit_bias": { "1.5": 1 } }), "logit_bias", "below"),
        (json!({ "response_fields": vec!["content"; 65] }), "response_fields", "64 paths"),
        (json!({ "response_fields": ["x".repeat(257)] }), "response_fields", "256 bytes"),
        (json!({ "samplers": "kkk" }), "samplers", "twice"),
        (json!({ "logit_bias": [[1]] }), "logit_bias", "[token, bias]"),
        (json!({ "logit_bias": [[1, true]] }), "logit_bias", "or false, got true"),
        (json!({ "logit_bias": [[-1, 1]] }), "logit_bias", "from 0"),
        (json!({ "logit_bias": { "a": 1000 } }), "logit_bias", "1000"),
        (json!({ "samplers": "kfypmt" }), "samplers", "got \"f\""),
        (json!({ "samplers": 5 }), "samplers", "array"),
        (json!({ "response_fields": "content" }), "response_fields", "array"),
        (json!({ "response_fields": [5] }), "response_fields", "has 5"),
        (json!({ "n_indent": -1 }), "n_indent", "at least 0"),
        (json!({ "t_max_predict_ms": -2 }), "t_max_predict_ms", "at least -1"),
        (json!({ "prompt": "x".repeat(512) }), "prompt", "512 tokens"),
    ] {
        check_refused(fields, param, message).await;
    }
    let answer = ask(&state(), json!({ "model": "gpt-9" })).await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn an_error_before_the_first_word_of_a_stream_is_a_status() {
    let (state, _engine) = state_with(replying(REPLY).failing_at(0..1), EngineConfig::default(), Timeouts::default());
    let answer = ask(&state, json!({ "stream": true })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["type"]), (500, &json!("server_error")));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    let (state, engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let server = Running::start(&state).await;
    let mut client = server.connect().await;
    let request = raw_post(COMPLETION, &json!({ "prompt": "Once", "stream": true }));
    tokio::io::AsyncWriteExt::write_all(&mut client, &request).await.unwrap();
    read_until(&mut client, "\"stop\":false").await;
    drop(client);
    eventually("nothing runs", || engine.status().running == 0 && state.active_requests() == 0).await;
}

#[tokio::test]
async fn an_answer_has_the_fields_that_are_asked_for() {
    let fields = json!({ "response_fields": ["content", "generation_settings/n_predict", "nothing", "content/x"], "n_predict": 64 });
    let expected = json!({ "content": REPLY, "generation_settings/n_predict": 64 });
    assert_eq!(ask(&state(), fields.clone()).await.json(), expected);
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let parts = parts(&ask(&state(), streamed).await);
    let (end, before) = parts.split_last().unwrap();
    assert_eq!(*end, json!({ "content": "", "generation_settings/n_predict": 64 }));
    let text: String = before.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(text, REPLY);
}

#[tokio::test]
async fn a_line_with_too_few_blanks_ends_the_answer() {
    let state = || {
        let runner = replying("if x:\n    y\n  z and so on");
        state_with(runner, EngineConfig::default(), Timeouts::default())
    };
    for (least, content, stop_type) in
        [(4, "if x:\n    y\n  ", "limit"), (2, "if x:\n    y\n  z and so on", "eos"), (5, "if x:\n    ", "limit")]
    {
        let (state, engine) = state();
        let body = ask(&state, json!({ "n_indent": least })).await.json();
        assert_eq!((&body["content"], &body["stop_type"]), (&json!(content), &json!(stop_type)));
        let streamed = parts(&ask(&state, json!({ "n_indent": least, "stream": true })).await);
        let text: String = streamed.iter().map(|part| part["content"].as_str().unwrap()).collect();
        assert_eq!((text.as_str(), &streamed.last().unwrap()["stop_type"]), (content, &json!(stop_type)));
        let several = ask(&state, json!({ "n_indent": least, "n": 2 })).await.json();
        assert!(several.as_array().unwrap().iter().all(|one| one["content"] == content), "{several}");
        eventually("nothing runs", || engine.status().running == 0).await;
    }
}

#[tokio::test]
async fn a_stream_tells_how_much_of_its_prompt_is_computed() {
    let limits = RunnerLimits { max_rows: 16, ..limits() };
    let runner = StubRunner::replying(limits, bytes_of(REPLY), end_token());
    let (state, _engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let prompt = "p".repeat(50);
    let streamed = parts(&ask(&state, json!({ "prompt": prompt, "return_progress": true, "stream": true })).await);
    let told: Vec<&Value> =
        streamed.iter().map(|part| &part["prompt_progress"]).take_while(|told| told.is_object()).collect();
    assert!(told.len() > 3, "{streamed:?}");
    assert!(told.iter().all(|told| told["total"] == 50 && told["cache"] == 0 && told["time_ms"].is_u64()), "{told:?}");
    assert_eq!((&told[0]["processed"], &told[told.len() - 1]["processed"]), (&json!(0), &json!(50)));
    assert!(streamed[told.len()..].iter().all(|part| part.get("prompt_progress").is_none()));
    // The others do so too, and who does not stream hears nothing.
    let body = json!({ "prompt": prompt, "return_progress": true, "stream": true });
    let chunks = complete(&state, body).await.chunks();
    let told: Vec<&Value> = chunks.iter().filter(|chunk| chunk["prompt_progress"].is_object()).collect();
    assert!(!told.is_empty() && told.iter().all(|chunk| chunk["choices"] == json!([])), "{chunks:?}");
    assert_eq!(told[0]["prompt_progress"]["cache"], 48);
    assert_eq!(answer(&state, json!({ "prompt": prompt, "return_progress": true })).await["content"], REPLY);
    let refused = post(&state, "/v1/responses", &json!({ "input": "a", "return_progress": true })).await;
    assert_eq!((refused.status.as_u16(), &refused.error()["param"]), (400, &json!("return_progress")));
}
