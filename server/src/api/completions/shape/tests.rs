use super::*;
use crate::token_json::Details;

/// The byte vocabulary of the tiny test models: a byte's token has the byte's number.
fn tokenizer() -> Arc<Tokenizer> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), taper_testkit::tiny::TinyModel::default().to_gguf()).unwrap();
    let checkpoint = taper_checkpoint::Checkpoint::open(file.path()).unwrap();
    Arc::new(Tokenizer::from_metadata(checkpoint.metadata()).unwrap())
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn found(token: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
    let rank = 1 + top.iter().filter(|&&(_, better)| better > logprob).count();
    TokenLogprobs { token, logprob, rank, top: top.to_vec() }
}

/// Answers to "hé" and "x", echoed, each with two choices, after the prompts' log-probabilities came.
fn completion(details: Details) -> Completion {
    let parameters = Parameters { details, num_choices: 2, ..Parameters::default() };
    let prompts = [tokens("hé"), tokens("x")];
    let mut completion = Completion::new(&tokenizer(), &parameters, &prompts, vec!["hé".into(), "x".into()]);
    let e = tokens("é");
    let after_h = found(e[0], -0.5, &[(e[0], -0.5), (u32::from(b'i'), -1.5)]);
    let after_half = found(e[1], f32::NEG_INFINITY, &[(u32::from(b'?'), -0.25), (u32::from(b'!'), -2.0)]);
    completion.prompt_logprobs(0, vec![None, Some(after_h), Some(after_half)]);
    completion.prompt_logprobs(1, vec![None]);
    completion
}

fn piece() -> Piece {
    let y = u32::from(b'y');
    Piece { text: "y".into(), tokens: vec![y], logprobs: vec![found(y, -1.0, &[(y, -1.0), (u32::from(b'z'), -2.0)])] }
}

fn logprobs() -> Details {
    Details { logprobs: Some(1), ..Details::default() }
}

/// "hé" and "y": four tokens in three characters.
fn expected() -> Value {
    json!({
        "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9", "y"],
        "token_logprobs": [null, -0.5, -9999.0, -1.0],
        "top_logprobs": [null, { "bytes:\\xc3": -0.5 }, { "?": -0.25, "bytes:\\xa9": -9999.0 }, { "y": -1.0 }],
        "text_offset": [0, 1, 1, 2],
    })
}

#[test]
fn an_echo_has_the_prompts_log_probabilities_before_the_answers() {
    let mut completion = completion(logprobs());
    assert!(completion.awaits_prompt());
    for choice in [0, 1] {
        let whole = completion.whole(choice, FinishReason::Length, &piece());
        assert_eq!(whole["text"], "héy");
        assert_eq!(whole["logprobs"], expected());
    }
    let other = completion.whole(2, FinishReason::Length, &piece());
    assert_eq!(other["logprobs"]["token_logprobs"], json!([null, -1.0]), "the second prompt");
    assert_eq!(other["logprobs"]["text_offset"], json!([0, 1]));
}

#[test]
fn a_streamed_echo_says_the_same_in_parts() {
    let mut completion = completion(logprobs());
    let parts = [completion.opening(1).unwrap(), completion.delta(1, &piece())];
    let text: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
    assert_eq!(text, "héy");
    for (name, expected) in expected().as_object().unwrap() {
        let joined = parts.iter().flat_map(|part| part["logprobs"][name].as_array().unwrap().clone());
        assert_eq!(&joined.collect::<Value>(), expected);
    }
}

#[test]
fn prompt_logprobs_have_the_shape_of_vllm() {
    let mut completion = completion(Details { prompt_logprobs: Some(1), ..Details::default() });
    assert!(!completion.awaits_prompt());
    let whole = completion.whole(0, FinishReason::Stop, &Piece::default());
    assert_eq!(whole["logprobs"], Value::Null);
    let expected = json!([
        null,
        { "195": { "logprob": -0.5, "rank": 1, "decoded_token": "bytes:\\xc3" } },
        { "169": { "logprob": -9999.0, "rank": 3, "decoded_token": "bytes:\\xa9" },
          "63": { "logprob": -0.25, "rank": 1, "decoded_token": "?" } },
    ]);
    assert_eq!(whole["prompt_logprobs"], expected);
}

#[test]
fn a_prompt_that_begins_with_an_added_token_begins_at_the_text() {
    let parameters = Parameters { details: logprobs(), num_choices: 1, ..Parameters::default() };
    let tokenizer = tokenizer();
    let bos = tokenizer.bos().expect("the tiny vocabulary names one");
    let prompt = [vec![bos], tokens("hi")].concat();
    for (text, offsets) in [("hi", [0, 0, 1]), (&format!("{}hi", tokenizer.bos_text()), [0, 13, 14])] {
        let completion = Completion::new(&tokenizer, &parameters, std::slice::from_ref(&prompt), vec![text.to_owned()]);
        let logprobs = completion.echo_logprobs(0).unwrap().into_json();
        assert_eq!(logprobs["text_offset"], json!(offsets), "{text}");
    }
}
