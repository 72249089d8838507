//! A draft model: it changes how many steps an answer takes and nothing else, whether it is right, wrong or broken.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use taper_engine::stub::{StubRunner, StubStats};
use taper_engine::{
    Engine, EngineConfig, EngineHandle, EngineParts, ModelRunner, Request, Runner, RunnerLimits, SamplingParams,
    Speculation,
};
use taper_kernels::{Cpu, CpuConfig, KvDtype};
use taper_models::{Llama, LoadOptions};
use taper_testkit::tiny::{TinyModel, TinyType};

/// Steps of the large model take so long that any right guess pays.
const STEP: Duration = Duration::from_millis(2);

fn start_drafted(draft: StubRunner, config: EngineConfig) -> (EngineHandle, Arc<StubStats>) {
    let runner = chaotic(limits()).with_delay(STEP);
    let stats = runner.stats();
    let parts =
        EngineParts { runner: Box::new(runner), tokenizer: tokenizer(), draft: Some(Box::new(draft)), disk: None };
    (Engine::start_with(parts, config), stats)
}

fn drafts_only() -> EngineConfig {
    EngineConfig { speculation: Speculation::Draft, ..EngineConfig::default() }
}

/// Right about some tokens: it shares the large model's logits except after every third token.
fn half_right(limits: RunnerLimits) -> StubRunner {
    StubRunner::with_logits(limits, |tokens, logits| {
        chaotic_logits(tokens, logits);
        if tokens.len() % 3 == 0 {
            logits.rotate_left(1);
        }
    })
}

/// Six requests, greedy and drawn, one with two choices, one with penalties.
fn requests() -> Vec<Request> {
    let sampling = |number: usize| SamplingParams {
        temperature: (number % 3) as f32 * 0.5,
        seed: Some(number as u64),
        max_tokens: Some(60),
        frequency_penalty: if number == 5 { 0.5 } else { 0.0 },
        n: 1 + usize::from(number == 4),
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    (0..6)
        .map(|number| request(&format!("a prompt of its own, {}", "x".repeat(number * 9)), sampling(number)))
        .collect()
}

fn answers(engine: &EngineHandle) -> Vec<Vec<Choice>> {
    let streams: Vec<_> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
    streams.into_iter().map(|stream| without_pieces(read(stream))).collect()
}

/// Several tokens of one step may be one event, so pieces are no part of an answer.
fn without_pieces(answer: Answer) -> Vec<Choice> {
    assert_eq!(answer.error, None);
    answer.choices.into_iter().map(|choice| Choice { pieces: Vec::new(), ..choice }).collect()
}

fn plain_answers() -> Vec<Vec<Choice>> {
    answers(&start_with(chaotic(limits()), EngineConfig { speculation: Speculation::Off, ..EngineConfig::default() }))
}

#[test]
fn a_draft_model_that_is_the_large_one_is_always_right_at_any_temperature() {
    let (engine, stats) = start_drafted(chaotic(limits()), drafts_only());
    assert_eq!(answers(&engine), plain_answers());
    let status = engine.status();
    assert!(status.right_guesses == status.guessed_tokens && status.guessed_tokens > 0, "{status:?}");
    assert!(stats.steps() < 60, "{} steps for answers of 60 tokens", stats.steps());
}

#[test]
fn a_draft_model_that_is_sometimes_wrong_changes_no_token_and_no_probability() {
    let (engine, _) = start_drafted(half_right(limits()), drafts_only());
    assert_eq!(answers(&engine), plain_answers());
    let status = engine.status();
    assert!(status.right_guesses > 0 && status.right_guesses < status.guessed_tokens, "{status:?}");
    // Once more, from what both prefix caches know.
    assert_eq!(answers(&engine), plain_answers());
    assert!(engine.status().cached_tokens > 0);
}

#[test]
fn a_draft_model_that_is_always_wrong_changes_nothing() {
    let wrong = StubRunner::new(limits(), |_| u32::from(b'!')).with_delay(STEP / 2);
    let (engine, stats) = start_drafted(wrong, drafts_only());
    assert_eq!(answers(&engine), plain_answers());
    let status = engine.status();
    assert!(status.right_guesses == 0 && status.drafted_tokens > 0, "{status:?}");
    assert!(stats.steps() >= 60);
}

#[test]
fn a_draft_model_that_breaks_costs_its_guesses_and_nothing_else() {
    let broken: [fn(StubRunner) -> StubRunner; 3] =
        [|runner| runner.failing_at(3..4), |runner| runner.panicking_at(3..4), |runner| runner.nan_at(0..usize::MAX)];
    for breaks in broken {
        let (engine, _) = start_drafted(breaks(chaotic(limits())), drafts_only());
        assert_eq!(answers(&engine), plain_answers());
        assert!(engine.is_healthy() && engine.status().failed_steps == 0);
    }
}

#[test]
fn a_draft_model_with_little_room_helps_where_it_can() {
    let narrow = RunnerLimits { num_blocks: 3, context_len: 40, max_rows: 9, max_logit_rows: 2, ..limits() };
    let (engine, _) = start_drafted(chaotic(narrow), drafts_only());
    assert_eq!(answers(&engine), plain_answers());
    // Nobody leaves anything behind: the next short prompt has all the room.
    let before = engine.status().right_guesses;
    assert_eq!(ask(&engine, greedy("short", 30)).choices[0].tokens.len(), 30);
    assert!(engine.status().right_guesses > before);
}

#[test]
fn a_draft_model_of_fewer_tokens_follows_until_one_that_it_does_not_know() {
    let few = RunnerLimits { vocab_size: usize::from(b'm'), ..limits() };
    let draft = StubRunner::with_logits(few, |tokens, logits| {
        let mut all = vec![0.0; vocab_size()];
        chaotic_logits(tokens, &mut all);
        logits.copy_from_slice(&all[..logits.len()]);
    });
    let (engine, _) = start_drafted(draft, drafts_only());
    assert_eq!(answers(&engine), plain_answers());
}

#[test]
fn preempted_sequences_go_on_with_the_same_text() {
    let few = RunnerLimits { num_blocks: 9, ..limits() };
    let parts = EngineParts {
        runner: Box::new(chaotic(few).with_delay(STEP)),
        tokenizer: tokenizer(),
        draft: Some(Box::new(half_right(limits()))),
        disk: None,
    };
    let engine = Engine::start_with(parts, EngineConfig { speculation: Speculation::All, ..EngineConfig::default() });
    assert_eq!(answers(&engine), plain_answers());
    let status = engine.status();
    assert!(status.preemptions > 0 && status.right_guesses > 0, "{status:?}");
}

/// A tiny network and the same in four bits as its draft model: equal tokens and equal log-probabilities, to the bit.
#[test]
fn a_coarser_network_guesses_for_a_finer_one_without_changing_a_bit() {
    let cpu = Cpu::new(CpuConfig { threads: Some(2), ..CpuConfig::default() }).unwrap();
    let load = |weight_type| -> Box<dyn Runner> {
        let model = TinyModel { weight_type, ..TinyModel::default() };
        let options = LoadOptions {
            num_blocks: Some(32),
            max_rows: 64,
            max_logit_rows: 16,
            kv_dtype: KvDtype::F32,
            ..LoadOptions::default()
        };
        let network = Llama::load(cpu.clone(), &checkpoint(&model), options, &mut |_| {}).unwrap();
        Box::new(ModelRunner(network))
    };
    let serve = |draft: Option<Box<dyn Runner>>, speculation| {
        let parts = EngineParts { runner: load(TinyType::F32), tokenizer: tokenizer(), draft, disk: None };
        let engine = Engine::start_with(parts, EngineConfig { speculation, ..EngineConfig::default() });
        (answers(&engine), engine.status())
    };
    let (plain, _) = serve(None, Speculation::Off);
    for speculation in [Speculation::Draft, Speculation::All] {
        let (drafted, status) = serve(Some(load(TinyType::Q4_1)), speculation);
        assert_eq!(drafted, plain);
        assert!(status.drafted_tokens > 0, "{status:?}");
    }
}

/// The tokens of many seeds are distributed as the model says, although most of them were guessed by a model of another
/// distribution. Pearson's statistic over five tokens has four degrees of freedom; it exceeds 23.5 once in 10,000.
#[test]
fn drawn_tokens_have_the_large_models_distribution() {
    const WEIGHTS: [f32; 5] = [0.4, 0.25, 0.2, 0.1, 0.05];
    const DRAFT_WEIGHTS: [f32; 5] = [0.1, 0.5, 0.2, 0.1, 0.1];
    fn drawing(weights: [f32; 5]) -> StubRunner {
        StubRunner::with_logits(limits(), move |_, logits| {
            logits.fill(f32::NEG_INFINITY);
            for (token, weight) in weights.iter().enumerate() {
                logits[usize::from(b'a') + token] = weight.ln();
            }
        })
    }
    let parts = EngineParts {
        runner: Box::new(drawing(WEIGHTS).with_delay(Duration::from_micros(300))),
        tokenizer: tokenizer(),
        draft: Some(Box::new(drawing(DRAFT_WEIGHTS))),
        disk: None,
    };
    let engine = Engine::start_with(parts, drafts_only());
    let mut counts = [0u32; WEIGHTS.len()];
    for seed in 0..40 {
        let sampling = SamplingParams { seed: Some(seed), max_tokens: Some(100), ..SamplingParams::default() };
        for token in &ask(&engine, request("x", sampling)).choices[0].tokens {
            counts[*token as usize - usize::from(b'a')] += 1;
        }
    }
    let status = engine.status();
    assert!(status.right_guesses > 100 && status.right_guesses < status.guessed_tokens, "{status:?}");
    let total: u32 = counts.iter().sum();
    assert_eq!(total, 4000);
    let expected = WEIGHTS.map(|weight| f64::from(weight) * f64::from(total));
    let statistic: f64 = (counts.iter().zip(expected)).map(|(&n, e)| (f64::from(n) - e).powi(2) / e).sum();
    assert!(statistic < 23.5, "{counts:?}: {statistic}");
}
