//! What comes out: text, tokens, reasons, seeds, choices, and that nobody's answer depends on the company.

use crate::support::*;
use std::time::{Duration, Instant};
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, FinishReason, Miss, Request, RunnerLimits, RunningChoice, SamplingParams};

#[test]
fn a_reply_streams_as_text_and_stops_at_the_end_token() {
    let engine = start(replying("Hello, you"));
    let answer = ask(&engine, greedy("> ", 100));
    assert_eq!((answer.text(), answer.reason()), ("Hello, you", FinishReason::Stop));
    assert_eq!(answer.choices[0].pieces.len(), 11, "a piece per letter and the end: {answer:?}");
    assert_eq!(answer.choices[0].tokens, [bytes("Hello, you"), vec![end_token()]].concat());
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (2, 11));
}

#[test]
fn max_tokens_ends_with_length() {
    let engine = start(replying("Hello, you"));
    let answer = ask(&engine, greedy("> ", 5));
    assert_eq!((answer.text(), answer.reason()), ("Hello", FinishReason::Length));
    assert_eq!(answer.usage.unwrap().completion_tokens, 5);
    let exact = ask(&engine, greedy("> ", 11));
    assert_eq!((exact.text(), exact.reason()), ("Hello, you", FinishReason::Stop));
}

#[test]
fn the_end_of_the_context_ends_with_length() {
    let engine = start(StubRunner::new(RunnerLimits { context_len: 40, ..limits() }, |_| u32::from(b'x')));
    for max_tokens in [None, Some(1000), Some(usize::MAX)] {
        let answer = ask(&engine, request("12345", SamplingParams { max_tokens, ..SamplingParams::greedy() }));
        assert_eq!((answer.text(), answer.reason()), ("x".repeat(35).as_str(), FinishReason::Length));
    }
}

#[test]
fn a_prompt_that_leaves_room_for_one_token_gets_one() {
    let engine = start(StubRunner::new(RunnerLimits { context_len: 40, ..limits() }, |_| u32::from(b'x')));
    let answer = ask(&engine, request(&"p".repeat(39), SamplingParams::greedy()));
    assert_eq!((answer.text(), answer.reason()), ("x", FinishReason::Length));
}

#[test]
fn a_cache_smaller_than_the_context_ends_with_length_too() {
    let limits = RunnerLimits { context_len: 100, num_blocks: 3, block_size: 8, ..limits() };
    let engine = start(StubRunner::new(limits, |_| u32::from(b'x')));
    assert_eq!(engine.limits().context_len, 24);
    let answer = ask(&engine, request("1234", SamplingParams::greedy()));
    assert_eq!((answer.text(), answer.reason()), ("x".repeat(20).as_str(), FinishReason::Length));
}

#[test]
fn ignore_eos_goes_on_and_shows_no_text_for_it() {
    let end = end_token();
    let engine = start(StubRunner::new(limits(), move |tokens| if tokens.len() % 2 == 0 { end } else { 120 }));
    let sampling = SamplingParams { max_tokens: Some(5), ignore_eos: true, ..SamplingParams::greedy() };
    let answer = ask(&engine, request("ab", sampling));
    assert_eq!((answer.text(), answer.reason()), ("xx", FinishReason::Length));
    assert_eq!(answer.choices[0].tokens, [end, 120, end, 120, end]);
}

#[test]
fn stop_strings_over_token_borders_end_the_answer_and_never_leak() {
    let engine = start(replying("one two three. Stop here. And more"));
    let stopped = |stop: &[&str]| {
        let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
        ask(&engine, request("> ", SamplingParams { stop, ..SamplingParams::greedy() }))
    };
    for (stop, expected) in [
        (&["Stop"][..], "one two three. "),
        (&[" three. Stop here"], "one two"),
        (&["nothing like it", "two"], "one "),
        (&["tx", "th"], "one two "),
        (&["one"], ""),
    ] {
        let answer = stopped(stop);
        assert_eq!((answer.text(), answer.reason()), (expected, FinishReason::Stop), "{stop:?}");
    }
    let unmet = stopped(&["more!"]);
    assert_eq!(unmet.text(), "one two three. Stop here. And more", "a held back beginning is shown at the end");
}

#[test]
fn a_stop_string_wins_over_the_length_it_coincides_with() {
    let engine = start(replying("one two"));
    let sampling = SamplingParams { stop: vec!["two".into()], max_tokens: Some(7), ..SamplingParams::greedy() };
    let answer = ask(&engine, request("> ", sampling));
    assert_eq!((answer.text(), answer.reason()), ("one ", FinishReason::Stop));
}

#[test]
fn a_character_of_several_tokens_arrives_whole() {
    let engine = start(replying("a🦀é"));
    let answer = ask(&engine, greedy("> ", 100));
    assert_eq!(answer.choices[0].pieces, ["a", "🦀", "é", ""]);
    assert_eq!(answer.choices[0].tokens.len(), 8, "one byte, four, two, and the end");
}

fn prompts() -> Vec<String> {
    (0..12).map(|number| format!("{number} {}", "prompt ".repeat(1 + number * 3 % 7))).collect()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), max_tokens: Some(60), ..SamplingParams::default() }
}

/// Every prompt on its own, on an engine with room for all.
fn alone(sampling: &dyn Fn(u64) -> SamplingParams) -> Vec<Answer> {
    let engine = start(chaotic(limits()));
    let ask_one = |(seed, prompt): (usize, &String)| ask(&engine, request(prompt, sampling(seed as u64)));
    prompts().iter().enumerate().map(ask_one).collect()
}

fn choices(answers: &[Answer]) -> Vec<&Choice> {
    answers.iter().flat_map(|answer| &answer.choices).collect()
}

#[test]
fn batched_answers_are_those_of_each_request_alone() {
    let greedy = |_| SamplingParams { max_tokens: Some(60), ..SamplingParams::greedy() };
    for sampling in [&sampled as &dyn Fn(u64) -> SamplingParams, &greedy] {
        let (runner, gate) = chaotic(limits()).with_gate();
        let stats = runner.stats();
        let engine = start(runner);
        let submit = |(seed, prompt): (usize, &String)| engine.submit(request(prompt, sampling(seed as u64))).unwrap();
        let streams: Vec<_> = prompts().iter().enumerate().map(submit).collect();
        gate.open();
        let together: Vec<Answer> = streams.into_iter().map(read).collect();
        assert_eq!(choices(&together), choices(&alone(sampling)));
        assert_eq!(stats.max_sequences(), 12);
    }
}

#[test]
fn preempted_sequences_produce_the_same_tokens() {
    // 12 blocks of 8 tokens, and twelve sequences that grow to 10 to 15 blocks each.
    let limits = RunnerLimits { num_blocks: 16, block_size: 8, max_rows: 20, ..limits() };
    let (runner, gate) = chaotic(limits).with_gate();
    let engine = start(runner);
    let submit = |(seed, prompt): (usize, &String)| engine.submit(request(prompt, sampled(seed as u64))).unwrap();
    let streams: Vec<_> = prompts().iter().enumerate().map(submit).collect();
    gate.open();
    let together: Vec<Answer> = streams.into_iter().map(read).collect();
    assert_eq!(choices(&together), choices(&alone(&sampled)));
    let status = engine.status();
    assert!(status.preemptions > 0, "{status:?}");
    assert_eq!((status.free_blocks, status.running, status.queued), (16, 0, 0));
}

#[test]
fn the_budget_bounds_every_step() {
    let runner = chaotic(limits());
    let stats = runner.stats();
    let engine = start_with(runner, EngineConfig { token_budget: Some(10), ..EngineConfig::default() });
    let streams: Vec<_> = prompts().iter().map(|prompt| engine.submit(greedy(prompt, 20)).unwrap()).collect();
    streams.into_iter().for_each(|stream| drop(read(stream)));
    assert_eq!(stats.max_rows(), 10);
    assert!(stats.max_sequences() <= 10);
}

#[test]
fn choices_have_their_own_streams_and_choice_zero_is_that_of_one() {
    let engine = start(chaotic(limits()));
    let four = ask(&engine, request("p", SamplingParams { n: 4, ..sampled(7) }));
    let one = ask(&engine, request("p", sampled(7)));
    assert_eq!(four.choices[0], one.choices[0]);
    let mut texts: Vec<&str> = four.choices.iter().map(|choice| choice.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 4, "{texts:?}");
    let usage = four.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (1, 240));
    assert_eq!(choices(&[four]), choices(&[ask(&engine, request("p", SamplingParams { n: 4, ..sampled(7) }))]));
}

#[test]
fn unseeded_requests_differ() {
    let engine = start(chaotic(limits()));
    let unseeded = || ask(&engine, request("p", SamplingParams { seed: None, ..sampled(0) }));
    assert_ne!(unseeded().text(), unseeded().text());
}

#[test]
fn timings_say_where_the_time_went() {
    let (runner, gate) = replying("abc").with_delay(Duration::from_millis(20)).with_gate();
    let engine = start_with(runner, EngineConfig { max_batch: 1, ..EngineConfig::default() });
    let begun = Instant::now();
    let first = engine.submit(greedy("> ", 3)).unwrap();
    let second = engine.submit(greedy("> ", 3)).unwrap();
    gate.open();
    read(first);
    let timings = read(second).usage.unwrap().timings;
    let elapsed_s = begun.elapsed().as_secs_f64();
    assert!(timings.queue_s >= 0.06, "three steps of the first: {timings:?}");
    assert!(timings.prefill_s >= 0.02 && timings.decode_s >= 0.04, "{timings:?}");
    assert!(timings.sample_s >= 0.0 && timings.detokenize_s >= 0.0, "{timings:?}");
    // Neither overlaps the other, nor the steps, which take 20 ms each.
    let steps_s = 6.0 * 0.02;
    assert!(timings.sample_s + timings.detokenize_s + steps_s <= elapsed_s, "{timings:?} of {elapsed_s} s");
}

#[test]
fn recomputed_rows_are_those_of_the_steps_that_a_request_was_part_of() {
    let engine = start(replying("abc").with_recomputed_rows(5));
    let usage = ask(&engine, greedy("> ", 3)).usage.unwrap();
    assert_eq!(usage.recomputed_rows, 3 * 5, "a step for each token");
    // Choices of one request share steps, which count once.
    let two = request("> ", SamplingParams { n: 2, max_tokens: Some(3), ..SamplingParams::default() });
    assert_eq!(ask(&engine, two).usage.unwrap().recomputed_rows, 3 * 5);
}

#[test]
fn who_asks_hears_how_much_of_the_prompt_is_computed() {
    let limits = RunnerLimits { max_rows: 16, ..limits() };
    let engine = start(StubRunner::replying(limits, bytes("ok"), end_token()));
    let asked = |prompt: &str, n: usize| {
        let sampling = SamplingParams { n, ..SamplingParams::greedy() };
        Request { tells_progress: true, ..request(prompt, sampling) }
    };
    let prompt = "p".repeat(50);
    let answer = ask(&engine, asked(&prompt, 2));
    let computed: Vec<usize> = answer.progress.iter().map(|&(_, computed)| computed).collect();
    assert_eq!((computed.first(), computed.last()), (Some(&0), Some(&50)));
    assert!(computed.len() > 3 && computed.is_sorted_by(|a, b| a < b), "{computed:?}");
    assert_eq!(answer.choices[1].text, "ok");
    // Three blocks are kept.
    let again = ask(&engine, asked(&prompt, 1)).progress;
    assert_eq!((again.first(), again.last()), (Some(&(48, 48)), Some(&(48, 50))));
    assert_eq!(ask(&engine, greedy(&prompt, 5)).progress, []);
}

#[test]
fn usage_says_why_the_cache_had_no_more() {
    let engine = start(replying("ok"));
    let miss = |prompt: String| ask(&engine, greedy(&prompt, 3)).usage.unwrap();
    assert_eq!(miss("a".repeat(40)).miss, Some(Miss::New));
    let whole = miss("a".repeat(40));
    assert_eq!((whole.cached_tokens, whole.miss), (32, None));
    let near = miss(format!("{}b", "a".repeat(20)) + &"a".repeat(20));
    assert_eq!((near.cached_tokens, near.miss), (16, Some(Miss::Departs { common: 4 })));
}

#[test]
fn running_choices_are_told_with_their_requests() {
    let (runner, gate) = replying("a long enough reply").with_gate();
    let engine = start(runner);
    assert_eq!(engine.running(), []);
    let streams: Vec<_> = (0..2).map(|_| engine.submit(greedy("> ", 9)).unwrap()).collect();
    let ids: Vec<u64> = streams.iter().map(taper_engine::EventStream::id).collect();
    assert_ne!(ids[0], ids[1]);
    gate.allow(3);
    let have_begun = |running: &[RunningChoice]| running.iter().all(|running| running.generated_tokens > 0);
    eventually("both run", || engine.running().len() == 2 && have_begun(&engine.running()));
    let running = engine.running();
    assert_eq!(running.iter().map(|running| running.request).collect::<Vec<_>>(), ids);
    for running in running {
        assert_eq!((running.choice, running.prompt_tokens), (0, 2));
        assert_eq!(running.generated_tokens + running.room, 9);
    }
    gate.open();
    streams.into_iter().for_each(|stream| drop(read(stream)));
    eventually("none runs", || engine.running().is_empty());
}
