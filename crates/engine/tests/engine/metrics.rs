//! What the engine counts and times, over runs whose every step is known.

use crate::support::*;
use std::time::Duration;
use taper_engine::stub::StubRunner;
use taper_engine::{
    EndReason, EngineConfig, EngineHandle, EngineMetrics, Histogram, Request, RunnerLimits, SamplingParams, Speculation,
};

/// One token per step and choice, so that steps can be counted.
fn plain() -> EngineConfig {
    EngineConfig { speculation: Speculation::Off, ..EngineConfig::default() }
}

fn ended(engine: &EngineHandle) -> [u64; 4] {
    EndReason::ALL.map(|reason| engine.metrics().num_ended(reason))
}

/// Number and sum of whole values.
fn tally(histogram: &Histogram) -> (u64, u64) {
    (histogram.count(), histogram.sum() as u64)
}

/// What is observed once for each choice that ends with an answer.
fn per_answer(metrics: &EngineMetrics) -> [u64; 9] {
    let EngineMetrics { e2e_latency_s, queue_time_s, inference_time_s, prefill_time_s, decode_time_s, .. } = metrics;
    let EngineMetrics { prompt_tokens, computed_prompt_tokens, generation_tokens, preemptions, .. } = metrics;
    let times = [e2e_latency_s, queue_time_s, inference_time_s, prefill_time_s, decode_time_s];
    let counts = [prompt_tokens, computed_prompt_tokens, generation_tokens, preemptions];
    let mut all = times.into_iter().chain(counts).map(Histogram::count);
    std::array::from_fn(|_| all.next().unwrap())
}

#[test]
fn answers_are_counted_and_timed_by_choice_and_by_step() {
    let engine = start_with(replying("Hello"), plain());
    let prompt = "p".repeat(40);
    assert_eq!(ask(&engine, greedy(&prompt, 100)).text(), "Hello");
    // The first two blocks of the prompt are known by now.
    assert_eq!(ask(&engine, greedy(&prompt, 3)).text(), "Hel");
    ask(&engine, request(&"q".repeat(10), SamplingParams { n: 2, ..SamplingParams::greedy() }));

    let (metrics, status) = (engine.metrics(), engine.status());
    assert_eq!(ended(&engine), [3, 1, 0, 0]);
    assert_eq!(per_answer(metrics), [4; 9]);
    // Six tokens with the ending one, three, and twice six.
    assert_eq!((metrics.num_generated(), tally(&metrics.generation_tokens)), (21, (4, 21)));
    assert_eq!(tally(&metrics.prompt_tokens), (4, 40 + 40 + 10 + 10));
    // The second found two blocks of 16, and the last shares the blocks of the third.
    assert_eq!(tally(&metrics.computed_prompt_tokens), (4, 40 + 8 + 10));
    assert_eq!((tally(&metrics.longest_choice), tally(&metrics.preemptions)), ((3, 6 + 3 + 6), (4, 0)));
    assert_eq!(metrics.time_to_first_token_s.count(), 4);
    assert_eq!(metrics.inter_token_latency_s.count(), 21 - 4);
    assert_eq!(metrics.time_per_output_token_s.count(), 4);
    // The last token of a choice is never computed.
    assert_eq!(tally(&metrics.step_tokens), (6 + 3 + 6, (40 + 5) + (8 + 2) + (10 + 2 * 5)));
    assert_eq!((tally(&metrics.num_choices), tally(&metrics.max_tokens)), ((3, 4), (2, 103)));
    assert_eq!((status.prompt_tokens, status.cached_tokens, status.cacheable_tokens), (90, 32, 64));
    assert_eq!((status.free_blocks, status.idle_blocks), (64, 2));
}

#[test]
fn times_are_those_of_the_steps() {
    let engine = start_with(replying("abc").with_delay(Duration::from_millis(20)), plain());
    ask(&engine, greedy("> ", 3));
    let metrics = engine.metrics();
    for (histogram, least_s) in [
        (&metrics.time_to_first_token_s, 0.02),
        (&metrics.inter_token_latency_s, 0.04),
        (&metrics.prefill_time_s, 0.02),
        (&metrics.decode_time_s, 0.04),
        (&metrics.time_per_output_token_s, 0.02),
        (&metrics.e2e_latency_s, 0.06),
    ] {
        assert!(histogram.sum() >= least_s, "{histogram:?} has less than {least_s} s");
    }
    let below_20_ms = metrics.inter_token_latency_s.buckets()[0];
    assert_eq!(below_20_ms, (0.01, 0));
}

#[test]
fn a_dropped_stream_is_an_abort_of_all_its_choices_and_no_answer() {
    let (runner, gate) = StubRunner::new(limits(), |_| u32::from(b'x')).with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, ..plain() });
    let running = engine.submit(request("p", SamplingParams { n: 2, ..SamplingParams::greedy() })).unwrap();
    let waiting = engine.submit(greedy("q", 400)).unwrap();
    gate.allow(3);
    // The first step gives both choices a token, after which the batch has room for one.
    eventually("three steps are done", || engine.metrics().num_generated() == 4);
    drop(running);
    drop(waiting);
    gate.open();
    eventually("all are gone", || num_live(&engine) == 0);
    assert_eq!(ended(&engine), [0, 0, 3, 0]);
    assert_eq!(per_answer(engine.metrics()), [0; 9]);
    assert_eq!(engine.metrics().longest_choice.count(), 0);
    assert_eq!(engine.metrics().time_to_first_token_s.count(), 2);
}

#[test]
fn a_failed_step_is_an_error_of_its_choices_and_no_step_of_the_histogram() {
    let engine = start_with(replying("Hello").failing_at(1..2), plain());
    assert!(ask(&engine, request("> ", SamplingParams { n: 2, ..SamplingParams::greedy() })).error.is_some());
    assert_eq!((ended(&engine), per_answer(engine.metrics())), ([0, 0, 0, 2], [0; 9]));
    assert_eq!((engine.status().failed_steps, tally(&engine.metrics().step_tokens)), (1, (1, 2)));
}

#[test]
fn a_request_that_ran_out_of_time_is_an_error() {
    let engine = start(replying("Hello"));
    assert!(ask(&engine, Request { timeout: Some(Duration::ZERO), ..greedy("> ", 9) }).error.is_some());
    assert_eq!(ended(&engine), [0, 0, 0, 1]);
}

#[test]
fn a_preempted_choice_has_one_first_token_and_each_of_its_tokens_once() {
    // Two sequences that grow to 8 blocks each, where there are 12.
    let limits = RunnerLimits { num_blocks: 12, block_size: 8, ..limits() };
    let (runner, gate) = chaotic(limits).with_gate();
    let engine = start_with(runner, plain());
    let streams: Vec<_> = ["one", "two"].map(|prompt| engine.submit(greedy(prompt, 60)).unwrap()).into();
    gate.open();
    streams.into_iter().for_each(|stream| drop(read(stream)));
    let (metrics, status) = (engine.metrics(), engine.status());
    assert!(status.preemptions > 0, "{status:?}");
    assert_eq!((metrics.time_to_first_token_s.count(), metrics.inter_token_latency_s.count()), (2, 2 * 59));
    assert_eq!((metrics.num_generated(), tally(&metrics.generation_tokens)), (120, (2, 120)));
    assert_eq!(tally(&metrics.preemptions), (2, status.preemptions));
}

#[test]
fn tokens_of_one_step_share_one_latency() {
    let engine = start(StubRunner::new(limits(), |_| u32::from(b'x')));
    ask(&engine, greedy("p", 200));
    let (metrics, status) = (engine.metrics(), engine.status());
    assert!(status.right_guesses > 0, "{status:?}");
    assert_eq!(metrics.num_generated(), 200);
    assert_eq!(metrics.inter_token_latency_s.count(), status.steps - 1);
    let by_place: Vec<u64> = metrics.num_right_by_place().collect();
    assert!(by_place.is_sorted_by(|a, b| a >= b) && by_place[0] > 0, "{by_place:?}");
    assert_eq!(by_place.iter().sum::<u64>(), status.right_guesses);
    // The prompt of one token, then in every step the latest token and the guesses of what follows it.
    assert_eq!(tally(&metrics.step_tokens), (status.steps, status.steps + status.guessed_tokens));
}

#[test]
fn who_waits_for_blocks_of_another_is_deferred_and_not_short_of_room() {
    let (runner, gate) = StubRunner::new(limits(), |_| u32::from(b'x')).with_gate();
    // A prompt takes several steps.
    let engine = start_with(runner, EngineConfig { token_budget: Some(64), ..plain() });
    let prompt = "p".repeat(200);
    let streams: Vec<_> = (0..3).map(|_| engine.submit(greedy(&prompt, 1)).unwrap()).collect();
    gate.allow(2);
    eventually("the others wait for the first", || engine.status().deferred == 2);
    let status = engine.status();
    assert_eq!((status.running, status.queued), (1, 2));
    gate.open();
    streams.into_iter().for_each(|stream| drop(read(stream)));
    assert_eq!(engine.status().deferred, 0);
}
