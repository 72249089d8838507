//! The real binary with several models: named by requests, loaded by the first, unloaded for others, and the same again after.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;

use serde_json::{Value, json};
use server::Server;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

/// Two models that answer differently.
fn models() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("there is room");
    let write = |name: &str, model: &TinyModel| {
        let path = folder.path().join(name);
        std::fs::write(&path, model.to_gguf()).expect("there is room");
        path
    };
    let first = write("first.gguf", &TinyModel::default());
    let second = write("second.gguf", &TinyModel { seed: 7, ..TinyModel::default() });
    (folder, first, second)
}

fn named(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// A server of these models with small caches.
fn serve(first: &Path, others: &[(&str, &PathBuf)], arguments: &[&str]) -> Server {
    let others: Vec<String> = others.iter().map(|(name, path)| named(name, path)).collect();
    let mut all = vec!["--kv-cache-size", "8MiB"];
    all.extend(others.iter().flat_map(|other| ["--model", other.as_str()]));
    all.extend(arguments);
    Server::start(first, &all)
}

fn completion(model: &str) -> Value {
    // More than two blocks of the cache.
    let prompt = "Once upon a time, ".repeat(8);
    json!({ "model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "logprobs": 1 })
}

/// The text and its log-probabilities.
fn answer(server: &Server, model: &str) -> Value {
    let (status, body) = server.post("/v1/completions", &completion(model));
    assert_eq!(status, 200, "{body}");
    body["choices"].clone()
}

fn states(server: &Server) -> Vec<(String, String)> {
    let (_, list) = server.get("/v1/models");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|card| (text(&card["id"]), text(&card["status"]["value"])))
        .collect()
}

fn of(states: &[(&str, &str)]) -> Vec<(String, String)> {
    states.iter().map(|(id, state)| ((*id).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn an_answer_is_the_same_before_and_after_its_model_made_room() {
    let (folder, first, second) = models();
    let cache = folder.path().join("cache");
    let cache = cache.to_str().expect("it is UTF-8");
    let server = serve(&first, &[("org/second", &second)], &["--max-loaded-models", "1", "--cache-dir", cache]);
    assert_eq!(states(&server), of(&[("first", "loaded"), ("org/second", "unloaded")]));
    let of_first = answer(&server, "first");
    let of_second = answer(&server, "org/second");
    assert_ne!(of_first, of_second);
    assert_eq!(states(&server), of(&[("first", "unloaded"), ("org/second", "loaded")]));
    assert_eq!(server.get("/health").0, 200);
    for _ in 0..3 {
        assert_eq!(answer(&server, "default"), of_first);
        assert_eq!(answer(&server, "org/second"), of_second);
    }
    let metrics = server.get_text("/metrics");
    let restored =
        metrics.lines().find(|line| line.starts_with("taper:kv_blocks_restored_total")).expect("it is there");
    assert!(restored.contains("model_name=\"org/second\"") && !restored.ends_with(" 0"), "{restored}");
    let alone = serve(&second, &[], &[]);
    assert_eq!(answer(&alone, "second"), of_second, "as a server of its own has it");
}

#[test]
fn a_single_model_gives_its_memory_back_until_it_is_asked_for_again() {
    let (_folder, first, _) = models();
    let server = serve(&first, &[], &[]);
    let before = answer(&server, "first");
    assert_eq!(server.post("/models/unload", &json!({ "model": "first" })), (200, json!({ "success": true })));
    assert_eq!(states(&server), of(&[("first", "unloaded")]));
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(answer(&server, "first"), before);
    assert_eq!(states(&server), of(&[("first", "loaded")]));
}

#[test]
fn many_first_requests_are_answered_by_one_load() {
    let (_folder, first, second) = models();
    let server = serve(&first, &[("second", &second)], &[]);
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let url = server.url.clone();
            thread::spawn(move || server::post(&url, "/v1/completions", &completion("second")))
        })
        .collect();
    let mut answers = threads.into_iter().map(|thread| thread.join().expect("it is answered"));
    let (status, one) = answers.next().expect("there are six");
    assert_eq!(status, 200, "{one}");
    assert!(answers.all(|(status, other)| status == 200 && other["choices"] == one["choices"]));
    assert_eq!(states(&server), of(&[("first", "loaded"), ("second", "loaded")]), "both have room");
    let metrics = server.get_text("/metrics");
    for model in ["first", "second"] {
        let sample = format!("vllm:generation_tokens_total{{engine=\"0\",model_name=\"{model}\"}}");
        assert!(metrics.contains(&sample), "{sample} in {metrics}");
    }
    let lines = server.log_until("second is ready");
    let loads = lines.iter().filter(|line| line.contains("loading: a request asks for it")).count();
    assert_eq!(loads, 1, "{lines:#?}");
}

#[test]
fn a_file_that_has_gone_is_told_to_whom_it_concerns() {
    let (_folder, first, second) = models();
    let mut server = serve(&first, &[("second", &second)], &[]);
    std::fs::remove_file(&second).expect("it is there");
    let (status, body) = server.post("/v1/completions", &completion("second"));
    assert_eq!((status, &body["error"]["code"]), (503, &json!("model_failed")));
    assert!(body["error"]["message"].as_str().is_some_and(|message| message.contains("second.gguf")), "{body}");
    answer(&server, "first");
    server.signal("TERM");
    assert!(server.wait(Duration::from_secs(20)).success());
}

#[test]
fn models_come_from_variables_and_files_too() {
    let (folder, first, second) = models();
    let print = |taper: &mut Command| {
        let output = taper.args(["serve", "--print-config"]).output().expect("taper starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let table: toml::Table = String::from_utf8_lossy(&output.stdout).parse().expect("it is TOML");
        table["model"].clone()
    };
    let taper = || {
        let mut taper = Command::new(env!("CARGO_BIN_EXE_taper"));
        taper.env_remove("TAPER_MODEL").env_remove("TAPER_CONFIG");
        taper
    };
    let list = |names: &[&str]| toml::Value::from(names.to_vec());
    assert_eq!(print(taper().env("TAPER_MODEL", "a,x=b")), list(&["a", "x=b"]));
    for (text, names) in [("model = ['a', 'b']", &["a", "b"][..]), ("model = 'a'", &["a"])] {
        let file = folder.path().join("taper.toml");
        std::fs::write(&file, text).expect("there is room");
        assert_eq!(print(taper().env("TAPER_CONFIG", &file)), list(names));
    }
    let file = folder.path().join("two.toml");
    let text = format!("model = ['{}', '{}']", first.display(), named("b", &second));
    std::fs::write(&file, text).expect("there is room");
    let both = format!("{},{}", first.display(), named("c", &second));
    let server = serve(Path::new(&both), &[], &["--config", file.to_str().expect("it is UTF-8")]);
    assert_eq!(states(&server), of(&[("first", "loaded"), ("c", "unloaded")]), "a flag overrides the file");
    answer(&server, "c");
}

#[test]
fn a_model_of_several_names_is_one() {
    let (_folder, first, second) = models();
    let names = format!("gpt=small={}", first.display());
    let server = serve(Path::new(&names), &[("b", &second)], &[]);
    assert_eq!(states(&server), of(&[("gpt", "loaded"), ("b", "unloaded")]));
    let (_, list) = server.get("/v1/models");
    assert_eq!((&list["data"][0]["aliases"], &list["data"][1]["aliases"]), (&json!(["small"]), &json!([])));
    let expected = answer(&server, "gpt");
    for name in ["small", "default", ""] {
        let (status, body) = server.post("/v1/completions", &completion(name));
        assert_eq!((status, &body["model"], &body["choices"]), (200, &json!("gpt"), &expected), "{name:?}");
    }
    assert_eq!(states(&server), of(&[("gpt", "loaded"), ("b", "unloaded")]), "no other one was loaded");
}

#[test]
fn one_file_as_two_models_is_an_error_at_once() {
    let (_folder, first, _) = models();
    let mut server = Server::start_loading(&first, &["--model", &named("other", &first)]);
    server.log_until("first and other are one file");
    assert!(!server.wait(Duration::from_secs(20)).success());
}

#[test]
fn a_wrong_name_is_an_error_at_once() {
    let (_folder, first, _) = models();
    let mut server = Server::start_loading(&first, &["--model", "smolm2:135m"]);
    server.log_until("smolm2:135m");
    assert!(!server.wait(Duration::from_secs(20)).success());
}
