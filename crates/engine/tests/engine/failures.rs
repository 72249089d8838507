//! What goes wrong stays with the requests it went wrong for.

use crate::support::*;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, EngineError, SamplingParams, SubmitError};

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let engine = start(replying("Hello").failing_at(2..3));
    let failed = ask(&engine, greedy("> ", 100));
    assert_eq!(failed.error, Some(EngineError::Runner("the stub fails at step 2".into())));
    assert_eq!(failed.text(), "He", "text from before the failure was delivered");
    assert_eq!(ask(&engine, greedy("> ", 100)).text(), "Hello");
    let status = engine.status();
    assert_eq!((status.failed_steps, status.free_blocks, status.running, status.queued), (1, 64, 0, 0));
}

#[test]
fn a_panic_in_a_step_fails_its_requests_and_the_engine_goes_on() {
    let engine = start(replying("Hello").panicking_at(0..1));
    let failed = ask(&engine, greedy("> ", 100));
    assert_eq!(failed.error, Some(EngineError::Panicked("the stub panics at step 0".into())));
    assert_eq!(ask(&engine, greedy("> ", 100)).text(), "Hello");
    assert_eq!(engine.status().free_blocks, 64);
    assert!(engine.is_healthy());
}

#[test]
fn requests_that_wait_survive_a_failed_step() {
    let (runner, gate) = replying("Hello").failing_at(1..2).with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, ..EngineConfig::default() });
    let first = engine.submit(greedy("> ", 100)).unwrap();
    let second = engine.submit(greedy("> ", 100)).unwrap();
    gate.open();
    assert!(read(first).error.is_some());
    assert_eq!(read(second).text(), "Hello");
}

#[test]
fn all_choices_of_a_request_fail_together_and_once() {
    let engine = start(chaotic(limits()).failing_at(3..4));
    let answer = ask(&engine, request("p", SamplingParams { n: 3, ..SamplingParams::default() }));
    assert!(answer.error.is_some() && answer.choices.len() == 3);
    let status = engine.status();
    assert_eq!((status.free_blocks, status.running, status.queued), (64, 0, 0));
}

#[test]
fn three_failures_in_a_row_are_unhealthy_and_a_success_heals() {
    let engine = start(replying("Hello").failing_at(0..2).panicking_at(2..3));
    for failures in 1..=3 {
        assert!(ask(&engine, greedy("> ", 100)).error.is_some());
        assert_eq!(engine.is_healthy(), failures < 3, "after {failures} failures");
    }
    assert_eq!(ask(&engine, greedy("> ", 100)).text(), "Hello");
    assert!(engine.is_healthy());
}

#[test]
fn a_thread_that_dies_ends_its_streams_and_refuses_what_comes() {
    // Room for one: what is told then is not that the queue is full.
    let room = EngineConfig { max_batch: 1, max_queued: 0, ..EngineConfig::default() };
    let engine = start_with(replying("Hello").dying_at(1), room);
    let mut events = engine.submit(greedy("> ", 100)).unwrap();
    engine.join();
    assert!(std::iter::from_fn(|| events.blocking_recv()).all(|event| !matches!(event, taper_engine::Event::Done(_))));
    assert!(!engine.is_healthy());
    assert!(matches!(engine.submit(greedy("> ", 100)), Err(SubmitError::Failed(reason)) if reason.contains("restart")));
}

#[test]
fn a_nan_fails_its_own_request_and_no_other() {
    for temperature in [0.0, 1.0] {
        let (runner, gate) = replying("Hello").nan_at(1..2).with_gate();
        let engine = start(runner);
        let sampling = SamplingParams { temperature, ..SamplingParams::default() };
        let first = engine.submit(request("> ", sampling.clone())).unwrap();
        let second = engine.submit(request("> ", sampling)).unwrap();
        gate.open();
        let failed = read(first);
        let reason = "the logit of token 0 is not a number; the weights may be damaged".to_owned();
        // Two tokens of prompt and one generated: the fourth could not be chosen.
        assert_eq!(failed.error, Some(EngineError::InvalidLogits { position: 3, reason }));
        assert_eq!(read(second).text(), "Hello");
        assert_eq!(engine.status().free_blocks, 64);
    }
}

#[test]
fn a_nan_in_one_choice_fails_the_whole_request() {
    let seeded = SamplingParams { seed: Some(1), max_tokens: Some(9), ..SamplingParams::default() };
    let undisturbed = ask(&start(chaotic(limits())), request("q", seeded.clone()));
    let (runner, gate) = chaotic(limits()).nan_at(2..3).with_gate();
    let engine = start(runner);
    let three = engine.submit(request("p", SamplingParams { n: 3, ..seeded.clone() })).unwrap();
    let other = engine.submit(request("q", seeded)).unwrap();
    gate.open();
    let failed = read(three);
    assert!(matches!(failed.error, Some(EngineError::InvalidLogits { .. })), "{failed:?}");
    // Its other two rows of that step are passed over, and the next one still finds its own.
    assert_eq!(read(other).text(), undisturbed.text());
    assert_eq!(engine.status().queued, 0);
}

#[test]
fn a_runner_that_gives_too_few_rows_fails_the_step() {
    struct Mute;
    impl taper_engine::Runner for Mute {
        fn limits(&self) -> taper_engine::RunnerLimits {
            limits()
        }
        fn run(
            &mut self,
            _: &[taper_models::SequenceSlice<'_>],
            _: &mut taper_engine::LogitsBuffer,
        ) -> Result<(), taper_engine::RunnerError> {
            Ok(())
        }
        fn copy_block(&mut self, _: u32, _: u32) -> Result<(), taper_engine::RunnerError> {
            Ok(())
        }
        fn export_block(&self, _: u32, _: &mut Vec<u8>) -> Result<(), taper_engine::RunnerError> {
            Ok(())
        }
        fn import_block(&mut self, _: u32, _: &[u8]) -> Result<(), taper_engine::RunnerError> {
            Ok(())
        }
        fn block_bytes(&self) -> usize {
            0
        }
        fn identity(&self) -> String {
            "mute".into()
        }
    }
    let engine = taper_engine::Engine::start(Box::new(Mute), tokenizer(), EngineConfig::default());
    let failed = ask(&engine, greedy("> ", 1));
    assert_eq!(failed.error, Some(EngineError::Runner("0 rows of logits where 1 were due".into())));
}

fn check_refused(prompt_tokens: Vec<u32>, sampling: SamplingParams, expected: &SubmitError) {
    let engine = start(StubRunner::new(limits(), |_| 0));
    let refused = engine.submit(taper_engine::Request { prompt_tokens, sampling, ..taper_engine::Request::default() });
    assert_eq!(refused.err().as_ref(), Some(expected));
    assert_eq!(engine.status().queued, 0);
}

#[test]
fn a_prompt_that_leaves_no_room_is_refused_with_both_lengths() {
    for prompt_tokens in [512, 513, 100_000] {
        let expected = SubmitError::PromptTooLong { prompt_tokens, context_len: 512 };
        check_refused(vec![1; prompt_tokens], SamplingParams::default(), &expected);
    }
    let message = SubmitError::PromptTooLong { prompt_tokens: 600, context_len: 512 }.to_string();
    assert!(message.contains("600") && message.contains("512"), "{message}");
}

#[test]
fn what_has_no_meaning_is_refused_by_name() {
    check_refused(vec![], SamplingParams::default(), &SubmitError::EmptyPrompt);
    let beyond = SubmitError::TokenOutOfRange { token: 288, vocab_size: 288 };
    check_refused(vec![1, 288, 2], SamplingParams::default(), &beyond);
    let message = "must lie between 0 and 1, not 2".to_owned();
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    check_refused(vec![1], sampling, &SubmitError::InvalidParam { param: "top_p", message });
}

#[test]
fn more_choices_than_the_engine_ever_holds_are_refused_for_good() {
    let config = EngineConfig { max_batch: 2, max_queued: 1, ..EngineConfig::default() };
    let engine = start_with(replying("a"), config);
    let refused = engine.submit(request("p", SamplingParams { n: 4, ..SamplingParams::default() }));
    let message = "must be at most 3 on this server, not 4".to_owned();
    assert_eq!(refused.err(), Some(SubmitError::InvalidParam { param: "n", message }));
    let answer = ask(&engine, request("> ", SamplingParams { n: 3, ..SamplingParams::default() }));
    assert_eq!(answer.choices.len(), 3);
}
