//! Handles and the engine thread meet at the channel of commands in thousands of random orders. Whatever the order: an
//! accepted request ends, with its answer where it can have one; counts come back to zero; nobody waits for ever.
//!
//! `cargo test --release -p taper-engine --features shuttle --test shuttle`. A failure prints the seed of its order:
//! `SHUTTLE_RANDOM_SEED` repeats it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

#[path = "engine/support.rs"]
#[allow(dead_code, reason = "shared with the tests on real threads")]
mod support;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::{self, JoinHandle};
use std::any::Any;
use std::sync::Once;
use support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{
    EngineConfig, EngineError, EngineHandle, Event, EventStream, Request, RunnerLimits, SamplingParams, SubmitError,
};

/// Orders that each test tries, half of them without preference and half with few changes of who runs.
const ORDERS: usize = 20_000;
/// Changes of who runs, in the second half.
const CHANGES: usize = 4;
const NUM_BLOCKS: usize = 24;
const MAX_QUEUED_TOKENS: usize = 40;

fn check(scenario: fn()) {
    fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
        let mut config = shuttle::Config::new();
        // The tokenizer's frames are larger than shuttle expects.
        config.stack_size = 1 << 18;
        shuttle::Runner::new(scheduler, config).run(move || {
            mute_the_stub();
            scenario();
        });
    }
    let seed = 0x5eed;
    run(RandomScheduler::new_from_seed(seed, ORDERS / 2), scenario);
    run(PctScheduler::new_from_seed(seed, CHANGES, ORDERS / 2), scenario);
}

/// Panics that the stub was told to have are no news. Set after shuttle's own hook, which tells of every panic.
fn mute_the_stub() {
    static MUTE: Once = Once::new();
    MUTE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let payload: &dyn Any = panic.payload();
            let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
            if text.is_some_and(|text| !text.starts_with("the stub ")) {
                hook(panic);
            }
        }));
    });
}

fn below(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

/// A model that never ends an answer, on a small cache: blocks run out, and the youngest loses its own.
fn endless() -> StubRunner {
    StubRunner::new(small_limits(), |_| u32::from(b'x'))
}

fn small_limits() -> RunnerLimits {
    RunnerLimits { context_len: 64, num_blocks: NUM_BLOCKS, block_size: 2, max_rows: 32, ..limits() }
}

/// Room for everything that the scenarios submit at a time.
fn config() -> EngineConfig {
    EngineConfig { max_batch: 2, max_queued: 30, ..EngineConfig::default() }
}

/// One or two choices of a few tokens, whose prompts share blocks.
fn any_request() -> Request {
    let sampling = SamplingParams { n: 1 + below(2), max_tokens: Some(1 + below(4)), ..SamplingParams::greedy() };
    request(&"prompt"[..1 + below(6)], sampling)
}

/// How a stream ended.
type End = Result<(), EngineError>;

/// Reads a stream to its end; every one has one, and says so once.
fn end_of(mut stream: EventStream) -> End {
    block_on(async {
        let mut end = None;
        while let Some(event) = stream.recv().await {
            assert_eq!(end, None, "news after the end: {event:?}");
            match event {
                Event::Done(_) => end = Some(Ok(())),
                Event::Failed(error) => end = Some(Err(error)),
                _ => {}
            }
        }
        end.expect("a stream ends with a last word")
    })
}

/// What became of the requests of a client: how those ended that it waited for, and why the last of the others was refused.
struct Outcome {
    ends: Vec<End>,
    refusal: Option<SubmitError>,
}

/// A thread that submits requests and leaves some of them, at once or in the middle.
fn client(engine: EngineHandle, num_requests: usize) -> JoinHandle<Outcome> {
    thread::spawn(move || {
        let mut streams = Vec::new();
        let mut refusal = None;
        for _ in 0..num_requests {
            match engine.submit(any_request()) {
                Err(error) => refusal = Some(error),
                Ok(_) if below(4) == 0 => {}
                Ok(mut stream) if below(3) == 0 => drop(block_on(stream.recv())),
                Ok(stream) => streams.push(stream),
            }
        }
        drop(engine);
        Outcome { ends: streams.into_iter().map(end_of).collect(), refusal }
    })
}

/// Nothing runs, nothing waits, nothing is held.
fn assert_empty(engine: &EngineHandle) {
    let status = engine.status();
    assert_eq!((status.running, status.queued, status.free_blocks), (0, 0, NUM_BLOCKS), "{status:?}");
}

/// Until those who left are noticed.
fn wait_until_empty(engine: &EngineHandle) {
    while engine.status().queued + engine.status().running > 0 {
        thread::yield_now();
    }
}

/// A prompt that is longer than all that may wait is taken only by an engine that counts no token as waiting.
fn assert_no_queued_tokens(engine: &EngineHandle) {
    let sampling = SamplingParams { max_tokens: Some(1), ..SamplingParams::greedy() };
    let long = request(&"long ".repeat(1 + MAX_QUEUED_TOKENS / 5), sampling);
    assert_eq!(end_of(engine.submit(long).unwrap()), Ok(()));
}

#[test]
fn what_was_accepted_before_a_drain_is_answered_and_nothing_is_accepted_after_it() {
    check(|| {
        let engine = start_with(endless(), config());
        let clients: Vec<_> = (0..2).map(|_| client(engine.clone(), 2)).collect();
        engine.drain();
        assert_eq!(engine.submit(any_request()).err(), Some(SubmitError::Draining));
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
            assert!(matches!(refusal, None | Some(SubmitError::Draining)), "{refusal:?}");
        }
        engine.join();
        assert_empty(&engine);
        assert!(engine.is_healthy());
    });
}

#[test]
fn a_stop_ends_every_stream_also_behind_a_drain() {
    check(|| {
        let engine = start_with(endless(), config());
        let clients: Vec<_> = (0..2).map(|_| client(engine.clone(), 2)).collect();
        if below(2) == 0 {
            engine.drain();
        }
        engine.stop_now();
        engine.join();
        assert_empty(&engine);
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            assert!(ends.iter().all(|end| matches!(end, Ok(()) | Err(EngineError::Stopped))), "{ends:?}");
            assert!(matches!(refusal, None | Some(SubmitError::Draining)), "{refusal:?}");
        }
    });
}

#[test]
fn when_the_last_handle_is_dropped_held_streams_are_answered_and_the_thread_ends() {
    check(|| {
        let (owned, runner_is_gone) = shuttle::sync::mpsc::channel::<()>();
        let runner = StubRunner::new(small_limits(), move |_| {
            let _owned = &owned;
            u32::from(b'x')
        });
        let engine = start_with(runner, config());
        let clients: Vec<_> = (0..2).map(|_| client(engine.clone(), 2)).collect();
        drop(engine);
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            assert!(ends.iter().all(Result::is_ok) && refusal.is_none(), "{ends:?} {refusal:?}");
        }
        assert!(runner_is_gone.recv().is_err());
    });
}

#[test]
fn a_refused_request_counts_nothing_and_one_that_there_is_room_for_is_not_refused() {
    check(|| {
        let small = EngineConfig { max_batch: 1, max_queued: 2, max_queued_tokens: MAX_QUEUED_TOKENS, ..config() };
        let engine = start_with(endless(), small);
        let clients: Vec<_> = (0..3).map(|_| client(engine.clone(), 2)).collect();
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
            assert!(matches!(refusal, None | Some(SubmitError::QueueFull { .. })), "{refusal:?}");
        }
        wait_until_empty(&engine);
        assert_no_queued_tokens(&engine);
        let full = request("p", SamplingParams { n: 3, max_tokens: Some(1), ..SamplingParams::greedy() });
        assert_eq!(end_of(engine.submit(full).unwrap()), Ok(()));
        assert_empty(&engine);
    });
}

#[test]
fn a_dropped_stream_frees_its_blocks_within_one_step() {
    check(|| {
        let runner = endless();
        let stats = runner.stats();
        let engine = start_with(runner, config());
        let mut stream = engine.submit(greedy("prompt", 50)).unwrap();
        for _ in 0..below(3) {
            block_on(stream.recv()).unwrap();
        }
        drop(stream);
        let steps = stats.steps();
        engine.drain();
        engine.join();
        assert!(stats.steps() <= steps + 1, "{} steps after it was dropped", stats.steps() - steps);
        assert_empty(&engine);
    });
}

#[test]
fn a_step_that_fails_or_panics_costs_its_own_requests_only() {
    check(|| {
        let step = below(6);
        let runner =
            if below(2) == 0 { endless().failing_at(step..step + 1) } else { endless().panicking_at(step..step + 1) };
        let engine = start_with(runner, EngineConfig { max_queued_tokens: MAX_QUEUED_TOKENS, ..config() });
        let clients: Vec<_> = (0..2).map(|_| client(engine.clone(), 2)).collect();
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            let is_fair = |end: &_| matches!(end, Ok(()) | Err(EngineError::Runner(_) | EngineError::Panicked(_)));
            assert!(ends.iter().all(is_fair) && refusal.is_none(), "{ends:?} {refusal:?}");
        }
        // The step comes with the next requests, if the first were too few.
        while engine.status().failed_steps == 0 {
            let _ = end_of(engine.submit(any_request()).unwrap());
        }
        wait_until_empty(&engine);
        assert_no_queued_tokens(&engine);
        assert_empty(&engine);
    });
}

#[test]
fn the_death_of_the_engine_thread_ends_every_stream_and_refuses_the_rest() {
    check(|| {
        let engine = start_with(endless().dying_at(below(5)), config());
        let clients: Vec<_> = (0..2).map(|_| client(engine.clone(), 2)).collect();
        for client in clients {
            let Outcome { ends, refusal } = client.join().unwrap();
            assert!(ends.iter().all(|end| matches!(end, Ok(()) | Err(EngineError::Stopped))), "{ends:?}");
            assert!(matches!(refusal, None | Some(SubmitError::Failed(_))), "{refusal:?}");
        }
        // It dies of the next requests, if the first were too few.
        while engine.submit(any_request()).is_ok_and(|stream| end_of(stream).is_ok()) {}
        block_on(engine.drained());
        engine.join();
        assert!(!engine.is_healthy());
        assert!(matches!(engine.submit(any_request()), Err(SubmitError::Failed(_))));
    });
}
