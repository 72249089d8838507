//! `--draft-model` on the real binary: it changes no text, and a model of another vocabulary is refused.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::Server;
use taper_testkit::tiny::TinyModel;

#[test]
fn what_a_draft_model_guesses_changes_no_text() {
    let Some(model) = support::model_or_skip() else { return };
    let plain = Server::start(&model, &["--speculation", "off"]);
    let drafted = Server::start(&model, &["--draft-model", model.to_str().unwrap(), "--speculation", "draft"]);
    let ask = |server: &Server, prompt: &str, temperature: f64| -> Value {
        let body = json!({ "prompt": prompt, "max_tokens": 40, "temperature": temperature, "seed": 5, "logprobs": 2 });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0].clone()
    };
    for prompt in ["Once upon a time", "The three primary colours are"] {
        for temperature in [0.0, 0.9] {
            assert_eq!(
                ask(&drafted, prompt, temperature),
                ask(&plain, prompt, temperature),
                "{prompt} at {temperature}"
            );
        }
    }
    let metrics = drafted.get_text("/metrics");
    let count = metrics.lines().find(|line| line.starts_with("taper:drafted_tokens_total")).unwrap();
    assert!(!count.ends_with(" 0"), "{count}");
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused_with_the_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, mut model: Vec<u8>, rename: bool| {
        if rename {
            let token = b"<|im_start|>";
            let place = model.windows(token.len()).position(|window| window == token).unwrap();
            model[place + 2..][..2].copy_from_slice(b"IM");
        }
        let path = folder.path().join(name);
        std::fs::write(&path, model).unwrap();
        path
    };
    let model = TinyModel::default().to_gguf();
    let (large, small) = (file("large.gguf", model.clone(), false), file("small.gguf", model, true));
    let run = |arguments: &[&str]| {
        let mut taper = support::taper();
        taper.args(["run", "--raw", "-p", "x", "--max-tokens", "2", "-m"]).arg(&large).args(arguments);
        let output = taper.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, message) = run(&["--draft-model", small.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{message}");
    for part in ["another vocabulary", "<|IM_start|>", "<|im_start|>"] {
        assert!(message.contains(part), "{message}");
    }
    let (code, message) = run(&["--draft-model", large.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{message}");
    for arguments in [["--speculation", "draft"].as_slice(), &["--speculation", "off", "--draft-model", "x.gguf"]] {
        let (code, message) = run(arguments);
        assert!(code == Some(1) && message.contains("--draft-model"), "{message}");
    }
}
