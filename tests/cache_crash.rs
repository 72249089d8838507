//! `kill -9` of a server at random points while it writes its cache on disk: every restart starts, and gives the answers of a
//! server that has no cache.
//!
//! `TAPER_TEST_KILLS=50` sets the number of kills of each model; without it they are few.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first thing that goes wrong, and tells what it met"
)]

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::Server;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::TinyModel;

/// Room for fewer blocks than a long run writes, so that files are removed as well.
const ROOM: &str = "64MiB";
/// The longest that a server writes before it is killed.
const LIFE_MS: usize = 400;
const NUM_PROMPTS: usize = 4;

fn num_kills(few: usize) -> usize {
    std::env::var("TAPER_TEST_KILLS").map_or(few, |number| number.parse().expect("TAPER_TEST_KILLS is a number"))
}

/// A greedy answer of a few tokens, whose probabilities tell bits apart that its text does not.
fn body(prompt: &[u32]) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": 6, "ignore_eos": true, "logprobs": 1 })
}

fn random_tokens(rng: &mut SplitMix, len: usize) -> Vec<u32> {
    (0..len).map(|_| 32 + rng.below(90) as u32).collect()
}

/// Prompts of several blocks that share their first ones.
fn known_prompts() -> Vec<Vec<u32>> {
    let mut rng = SplitMix::new(30);
    let head = random_tokens(&mut rng, 150);
    (0..NUM_PROMPTS).map(|_| [head.clone(), random_tokens(&mut rng, 150)].concat()).collect()
}

/// The answers to the known prompts, and how many of their tokens came from a cache.
fn answers(server: &Server) -> (Vec<Value>, u64) {
    let mut cached_tokens = 0;
    let answer = |prompt: &Vec<u32>| {
        let (status, answer) = server.post("/v1/completions", &body(prompt));
        assert_eq!(status, 200, "{answer}");
        cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        answer["choices"].clone()
    };
    (known_prompts().iter().map(answer).collect(), cached_tokens)
}

/// Has the server write blocks that it never had before, until it is gone.
fn write(url: &str, rng: &mut SplitMix, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let body = body(&random_tokens(rng, 400));
        let _ = ureq::post(format!("{url}/v1/completions")).send_json(&body);
    }
}

/// Files of blocks that were begun and not finished.
fn num_parts(folder: &Path) -> usize {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "part");
    entries(folder).flat_map(|folder| entries(&folder).collect::<Vec<_>>()).filter(is_part).count()
}

fn check(model: &Path, num_kills: usize) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--cache-dir", folder.path().to_str().unwrap(), "--cache-dir-size", ROOM];
    let (expected, within) = answers(&Server::start(model, &[]));
    let mut rng = SplitMix::new(31);
    let (mut restored, mut interrupted) = (0, 0);
    for kill in 0..num_kills {
        // Some are killed while they start.
        if kill % 4 == 3 {
            let server = Server::start_loading(model, &arguments);
            std::thread::sleep(Duration::from_millis(rng.below(LIFE_MS / 4) as u64));
            drop(server);
            continue;
        }
        let server = Server::start(model, &arguments);
        let (found, cached_tokens) = answers(&server);
        assert_eq!(found, expected, "after {kill} kills");
        restored += usize::from(cached_tokens > within);
        let (url, is_over) = (server.url.clone(), AtomicBool::new(false));
        let mut prompts = SplitMix::new(rng.next_u64());
        std::thread::scope(|scope| {
            scope.spawn(|| write(&url, &mut prompts, &is_over));
            std::thread::sleep(Duration::from_millis(rng.below(LIFE_MS) as u64));
            // Others in the middle of a file.
            let deadline = Instant::now() + Duration::from_secs(2);
            while kill % 2 == 1 && num_parts(folder.path()) == 0 && Instant::now() < deadline {
                std::thread::yield_now();
            }
            // Dropping it is `kill -9`.
            drop(server);
            is_over.store(true, Ordering::Relaxed);
        });
        interrupted += usize::from(num_parts(folder.path()) > 0);
    }
    let (found, cached_tokens) = answers(&Server::start(model, &arguments));
    assert_eq!(found, expected, "after all kills");
    restored += usize::from(cached_tokens > within);
    println!("{num_kills} kills: {interrupted} met a write, and {restored} restarts found blocks");
    assert!(restored > 0, "no restart found a block on disk");
}

#[test]
fn a_server_killed_while_it_writes_its_cache_starts_again_and_answers_as_if_it_had_none() {
    let model = TinyModel { hidden: 256, head_dim: 64, kv_heads: 4, layers: 8, context: 512, ..TinyModel::default() };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    std::fs::write(&file, model.to_gguf()).unwrap();
    check(&file, num_kills(6));
}

#[test]
fn so_does_one_of_the_default_model() {
    let Some(model) = support::model_or_skip() else { return };
    check(&model, num_kills(2));
}
