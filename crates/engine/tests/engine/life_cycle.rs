//! Queueing, leaving, draining, stopping.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use taper_engine::stub::StubRunner;
use taper_engine::{
    DiskCache, Engine, EngineConfig, EngineError, EngineParts, Event, QueueLimit, Request, Runner, RunnerLimits,
    SamplingParams, Speculation, SubmitError,
};
use taper_testkit::rng::SplitMix;

fn endless(limits: RunnerLimits) -> StubRunner {
    StubRunner::new(limits, |_| u32::from(b'x'))
}

#[test]
fn a_full_queue_refuses_with_a_hint_and_takes_the_next_when_one_leaves() {
    let (runner, gate) = replying("Hi").with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, max_queued: 2, ..EngineConfig::default() });
    let mut streams: Vec<_> = (0..3).map(|_| engine.submit(greedy("> ", 9)).unwrap()).collect();
    let refused = engine.submit(greedy("> ", 9)).err();
    assert_eq!(refused, Some(SubmitError::QueueFull { limit: QueueLimit::Requests, retry_after_s: 1 }));
    gate.open();
    assert_eq!(read(streams.remove(0)).text(), "Hi");
    // Whoever sees an answer end may submit at once.
    assert_eq!(ask(&engine, greedy("> ", 9)).text(), "Hi");
    for stream in streams {
        assert_eq!(read(stream).text(), "Hi");
    }
}

#[test]
fn dropping_a_stream_frees_its_blocks_within_one_step() {
    let (runner, gate) = endless(limits()).with_gate();
    let stats = runner.stats();
    let engine = start(runner);
    let mut stays = engine.submit(greedy("p", 400)).unwrap();
    let leaves = engine.submit(request(&"q".repeat(100), SamplingParams { n: 2, ..SamplingParams::greedy() })).unwrap();
    gate.allow(3);
    eventually("three steps are done", || stats.steps() == 3);
    assert!(matches!(stays.blocking_recv(), Some(Event::Text { .. })));
    eventually("all three sequences run", || engine.status().running == 3);
    drop(leaves);
    // The step in progress when the stream was dropped, and one more to be seen after it.
    gate.allow(2);
    eventually("the steps are done", || stats.steps() == 5 && engine.status().running == 1);
    assert_eq!(engine.status().free_blocks, 63);
    drop(stays);
    gate.allow(1);
    eventually("all blocks are free", || engine.status().free_blocks == 64 && engine.status().queued == 0);
}

/// The engine has begun the step that it can begin, and waits for its gate.
fn let_it_begin() {
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_step_that_nobody_waits_for_any_more_is_left() {
    let (runner, gate) = replying("Hi").asking().with_gate();
    let stats = runner.stats();
    let engine = start(runner);
    let long = "q".repeat(100);
    let leaves = engine.submit(greedy(&long, 9)).unwrap();
    let_it_begin();
    drop(leaves);
    gate.open();
    eventually("all blocks are free", || engine.status().free_blocks == 64 && engine.status().queued == 0);
    assert_eq!((stats.steps(), engine.status().failed_steps), (0, 0));
    // What the step has stored is nobody's.
    let answer = ask(&engine, greedy(&long, 9));
    assert_eq!((answer.text(), answer.usage.unwrap().cached_tokens), ("Hi", 0));
    assert!(engine.is_healthy());
}

#[test]
fn a_step_that_one_of_two_waits_for_is_done() {
    let (runner, gate) = replying("Hello").asking().with_gate();
    let engine = start(runner);
    let (stays, leaves) = (engine.submit(greedy("> ", 9)).unwrap(), engine.submit(greedy("> ", 9)).unwrap());
    gate.allow(2);
    eventually("both run", || engine.status().running == 2);
    let_it_begin();
    drop(leaves);
    gate.open();
    assert_eq!(read(stays).text(), "Hello");
}

#[test]
fn dropping_the_stream_of_a_queued_request_takes_it_out_of_the_queue() {
    let (runner, gate) = endless(limits()).with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, max_queued: 1, ..EngineConfig::default() });
    let _running = engine.submit(greedy("p", 400)).unwrap();
    let queued = engine.submit(greedy("p", 400)).unwrap();
    gate.allow(1);
    eventually("one runs, one waits", || (engine.status().running, engine.status().queued) == (1, 1));
    drop(queued);
    gate.allow(1);
    eventually("the queue is empty", || engine.status().queued == 0);
    assert!(engine.submit(greedy("p", 400)).is_ok());
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let engine = start(replying("Hello"));
    let unread = engine.submit(greedy("> ", 100)).unwrap();
    for _ in 0..20 {
        assert_eq!(ask(&engine, greedy("> ", 100)).text(), "Hello");
    }
    assert_eq!(read(unread).text(), "Hello");
}

#[test]
fn draining_finishes_what_was_accepted_and_refuses_the_rest() {
    let (runner, gate) = replying("Hello").with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, ..EngineConfig::default() });
    let streams: Vec<_> = (0..3).map(|_| engine.submit(greedy("> ", 100)).unwrap()).collect();
    engine.drain();
    assert_eq!(engine.submit(greedy("> ", 100)).err(), Some(SubmitError::Draining));
    assert!(engine.status().is_draining);
    gate.open();
    engine.join();
    for stream in streams {
        assert_eq!(read(stream).text(), "Hello");
    }
    engine.join();
    assert!(engine.is_healthy(), "an orderly end is not an illness");
}

#[test]
fn drained_can_be_awaited_by_several() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine = start(replying("Hello").with_delay(Duration::from_millis(2)));
    runtime.block_on(async {
        let mut stream = engine.submit(greedy("> ", 100)).unwrap();
        engine.drain();
        engine.drain();
        let mut text = String::new();
        while let Some(event) = stream.recv().await {
            match event {
                Event::Text { text: piece, .. } | Event::Finished { text: piece, .. } => text.push_str(&piece),
                Event::Done(usage) => assert_eq!(usage.completion_tokens, 6),
                Event::Failed(error) => panic!("{error}"),
                Event::PromptLogprobs(_) | Event::PromptProgress { .. } | Event::Embedding(_) => {}
            }
        }
        assert_eq!(text, "Hello");
        tokio::join!(engine.drained(), engine.drained());
    });
}

#[test]
fn an_idle_engine_drains_at_once() {
    let engine = start(replying("Hello"));
    engine.drain();
    engine.join();
    assert_eq!(engine.submit(greedy("> ", 100)).err(), Some(SubmitError::Draining));
}

#[test]
fn stopping_fails_what_runs_and_what_waits() {
    let (runner, gate) = endless(limits()).with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, ..EngineConfig::default() });
    let streams: Vec<_> = (0..3).map(|_| engine.submit(greedy("p", 400)).unwrap()).collect();
    gate.allow(2);
    engine.drain();
    engine.stop_now();
    gate.open();
    engine.join();
    for stream in streams {
        assert_eq!(read(stream).error, Some(EngineError::Stopped));
    }
    let status = engine.status();
    assert_eq!((status.running, status.queued, status.free_blocks), (0, 0, 64));
}

#[test]
fn dropping_the_last_handle_ends_the_thread_after_the_streams_that_are_held() {
    let alive = Arc::new(());
    let witness = Arc::downgrade(&alive);
    let reply = bytes("Hello");
    let end = end_token();
    let runner = StubRunner::new(limits(), move |tokens| {
        let _owned = &alive;
        reply.get(tokens.len() - 2).copied().unwrap_or(end)
    });
    let (runner, gate) = runner.with_gate();
    let engine = start(runner);
    let other = engine.clone();
    let stream = engine.submit(greedy("> ", 100)).unwrap();
    drop((engine, other));
    gate.open();
    assert_eq!(read(stream).text(), "Hello");
    eventually("the thread and its runner are gone", || witness.upgrade().is_none());
}

#[test]
fn random_comings_and_goings_leave_every_block_free() {
    let limits = RunnerLimits { num_blocks: 24, block_size: 8, max_rows: 32, ..limits() };
    let runner = chaotic(limits);
    let engine = start_with(runner, EngineConfig { max_batch: 8, max_queued: 500, ..EngineConfig::default() });
    let clients = (0..4u64).map(|seed| {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let mut rng = SplitMix::new(seed);
            for round in 0..60 {
                let sampling = SamplingParams {
                    max_tokens: Some(1 + rng.below(60)),
                    n: 1 + rng.below(3),
                    seed: Some(seed),
                    ..SamplingParams::default()
                };
                let mut stream = engine.submit(request(&"p".repeat(1 + rng.below(100)), sampling)).unwrap();
                if rng.chance(0.4) {
                    for _ in 0..rng.below(10) {
                        stream.blocking_recv();
                    }
                } else {
                    let answer = read(stream);
                    assert!(answer.error.is_none(), "client {seed}, round {round}: {answer:?}");
                }
            }
        })
    });
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    eventually("nobody is left", || num_live(&engine) == 0);
    let status = engine.status();
    assert_eq!(status.free_blocks, 24, "{status:?}");
    assert!(status.preemptions > 0, "{status:?}");
    assert_eq!(status.failed_steps, 0);
}

#[test]
fn what_one_engine_computed_the_next_one_reads_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let runner = chaotic(limits());
        let disk = DiskCache::open(folder.path(), &runner.identity(), runner.block_bytes(), 1 << 30).unwrap();
        let (stats, tokenizer) = (runner.stats(), tokenizer());
        let parts = EngineParts { runner: Box::new(runner), tokenizer, draft: None, disk: Some(disk) };
        // Without guesses, so that rows can be counted.
        let config = EngineConfig { speculation: Speculation::Off, ..EngineConfig::default() };
        (stats, Engine::start_with(parts, config))
    };
    let prompt = "a prompt that fills some blocks of the cache, and a little more than that";
    let first = {
        let (_, engine) = start();
        let answer = ask(&engine, greedy(prompt, 40));
        assert_eq!(engine.status().restored_blocks, 0);
        engine.drain();
        engine.join();
        answer
    };
    let (stats, engine) = start();
    let second = ask(&engine, greedy(prompt, 40));
    assert_eq!(second.choices, first.choices);
    let cached_tokens = prompt.len() / 16 * 16;
    assert_eq!(second.usage.unwrap().cached_tokens, cached_tokens);
    assert_eq!(engine.status().restored_blocks, cached_tokens as u64 / 16);
    // The rest of the prompt, and each token but the last.
    assert_eq!(stats.rows(), prompt.len() - cached_tokens + 39);
    // Another tenant finds nothing of it.
    let salted = Request { cache_salt: Some("tenant".to_owned()), ..greedy(prompt, 40) };
    let third = ask(&engine, salted);
    assert_eq!((third.choices, third.usage.unwrap().cached_tokens), (first.choices, 0));
}

#[test]
fn a_request_that_takes_too_long_fails_and_frees_its_blocks() {
    let (runner, gate) = endless(limits()).with_gate();
    let engine = start(runner);
    let late = engine.submit(Request { timeout: Some(Duration::from_millis(5)), ..greedy("p", 400) }).unwrap();
    let patient = engine.submit(greedy("q", 3)).unwrap();
    gate.allow(1);
    std::thread::sleep(Duration::from_millis(6));
    gate.open();
    assert_eq!(read(late).error, Some(EngineError::TimedOut(0.005)));
    assert_eq!(read(patient).text(), "xxx");
    eventually("all blocks are free", || engine.status().free_blocks == 64);
}

#[test]
fn queued_tokens_are_limited_and_one_long_prompt_alone_is_not() {
    let (runner, gate) = endless(limits()).with_gate();
    let config = EngineConfig { max_batch: 1, max_queued_tokens: 30, ..EngineConfig::default() };
    let engine = start_with(runner, config);
    let _running = engine.submit(greedy("p", 400)).unwrap();
    gate.allow(1);
    eventually("it runs", || engine.status().running == 1);
    let long = engine.submit(greedy(&"long".repeat(10), 1)).unwrap();
    let refused = engine.submit(greedy("p", 1)).err();
    assert!(matches!(refused, Some(SubmitError::QueueFull { limit: QueueLimit::Tokens, .. })), "{refused:?}");
    drop(long);
    gate.allow(2);
    eventually("there is room", || engine.submit(greedy("p", 1)).is_ok());
}
