//! Prompts that become vectors: what comes back, and what they share with prompts that are answered.

use crate::support::*;
use std::time::Duration;
use taper_engine::stub::StubRunner;
use taper_engine::{
    EmbeddingRequest, EndReason, Engine, EngineConfig, EngineError, EngineHandle, ModelRunner, Pooling, Request,
    RunnerLimits, SamplingParams, SubmitError,
};
use taper_kernels::{Cpu, CpuConfig};
use taper_models::{Llama, LoadOptions};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

const PROMPT: &str = "a prompt that fills some blocks of the cache, and a little more than that";

/// The state of the stub's last token: how many there are, the last one, and something of all of them.
fn state(tokens: &[u32], row: &mut [f32]) {
    row[0] = tokens.len() as f32;
    row[1] = tokens[tokens.len() - 1] as f32;
    row[2] = (tokens.iter().fold(7, |hash: u32, &token| (hash ^ token).wrapping_mul(0x0100_0193)) >> 16) as f32 / 3.0;
}

/// Answers like [`chaotic`], and has states of three elements.
fn embedding(limits: RunnerLimits) -> StubRunner {
    chaotic(limits).with_states(3, state)
}

fn by_hand(pooling: Pooling, prompt: &str) -> Vec<f32> {
    let tokens = bytes(prompt);
    let row = |end| {
        let mut row = [0.0; 3];
        state(&tokens[..end], &mut row);
        row
    };
    match pooling {
        Pooling::Last => row(tokens.len()).to_vec(),
        Pooling::Mean => {
            let mut sums = [0.0_f64; 3];
            for end in 1..=tokens.len() {
                sums.iter_mut().zip(row(end)).for_each(|(sum, x)| *sum += f64::from(x));
            }
            sums.iter().map(|sum| (sum / tokens.len() as f64) as f32).collect()
        }
    }
}

fn asked(pooling: Pooling, prompt: &str) -> EmbeddingRequest {
    EmbeddingRequest { prompt_tokens: bytes(prompt), pooling, priority: 0, cache_salt: None, timeout: None }
}

fn embed(engine: &EngineHandle, pooling: Pooling, prompt: &str) -> Vec<f32> {
    let answer = read(engine.embed(asked(pooling, prompt)).unwrap());
    assert_eq!(answer.error, None);
    answer.embedding.expect("a vector")
}

#[test]
fn a_prompt_becomes_its_vector_and_nothing_else() {
    let engine = start(embedding(limits()));
    for (number, pooling) in [Pooling::Mean, Pooling::Last].into_iter().enumerate() {
        let answer = read(engine.embed(asked(pooling, PROMPT)).unwrap());
        assert_eq!(answer.embedding, Some(by_hand(pooling, PROMPT)));
        let usage = answer.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (PROMPT.len(), 0));
        let (status, metrics) = (engine.status(), engine.metrics());
        assert_eq!((status.running, status.queued, status.free_blocks), (0, 0, 64));
        assert_eq!(status.prompt_tokens, (PROMPT.len() * (number + 1)) as u64);
        assert_eq!(metrics.num_ended(EndReason::Stop), number as u64 + 1);
        assert_eq!(metrics.prompt_tokens.count(), number as u64 + 1);
        assert_eq!(
            (metrics.generation_tokens.count(), metrics.num_choices.count(), metrics.num_generated()),
            (0, 0, 0)
        );
    }
}

#[test]
fn prompts_of_one_token_and_of_a_full_context_have_vectors() {
    let engine = start(embedding(limits()));
    for pooling in [Pooling::Mean, Pooling::Last] {
        for len in [1, 2, 16, 17, 511, 512] {
            let prompt: String = (0..len).map(|place| char::from(b'a' + (place * place % 26) as u8)).collect();
            assert_eq!(embed(&engine, pooling, &prompt), by_hand(pooling, &prompt), "{pooling:?} of {len}");
        }
    }
    assert_eq!(engine.status().free_blocks, 64);
}

#[test]
fn chunks_and_company_change_nothing_of_a_vector_or_an_answer() {
    let alone = ask(&start(embedding(limits())), greedy("and a question", 30));
    let config = EngineConfig { token_budget: Some(8), max_batch: 7, ..EngineConfig::default() };
    let (runner, gate) = embedding(limits()).with_gate();
    let engine = start_with(runner, config);
    let answers: Vec<_> = (0..2).map(|_| engine.submit(greedy("and a question", 30)).unwrap()).collect();
    let prompts: Vec<String> = (0..6).map(|number| format!("{number}: {}", &PROMPT[number * 9..])).collect();
    let pooling = |number: usize| if number.is_multiple_of(2) { Pooling::Mean } else { Pooling::Last };
    let streams: Vec<_> = (prompts.iter().enumerate())
        .map(|(number, prompt)| engine.embed(asked(pooling(number), prompt)).unwrap())
        .collect();
    gate.open();
    for (number, stream) in streams.into_iter().enumerate() {
        assert_eq!(read(stream).embedding, Some(by_hand(pooling(number), &prompts[number])), "{number}");
    }
    for answer in answers {
        assert_eq!(read(answer).choices, alone.choices);
    }
}

#[test]
fn the_last_state_needs_no_more_than_its_block_and_the_mean_all_of_the_prompt() {
    let runner = embedding(limits());
    let stats = runner.stats();
    let engine = start(runner);
    // A mean leaves its blocks to those who come later.
    embed(&engine, Pooling::Mean, PROMPT);
    assert_eq!(stats.rows(), PROMPT.len());
    embed(&engine, Pooling::Last, PROMPT);
    let rest = PROMPT.len() - PROMPT.len() / 16 * 16;
    assert_eq!(stats.rows(), PROMPT.len() + rest);
    assert_eq!(ask(&engine, greedy(PROMPT, 1)).usage.unwrap().cached_tokens, PROMPT.len() - rest);
    let before = stats.rows();
    assert_eq!(embed(&engine, Pooling::Mean, PROMPT), by_hand(Pooling::Mean, PROMPT));
    assert_eq!(stats.rows(), before + PROMPT.len());
    // A prompt that ends with a block is computed from that block on.
    let whole = &PROMPT[..64];
    assert_eq!(embed(&engine, Pooling::Last, whole), by_hand(Pooling::Last, whole));
    assert_eq!(stats.rows(), before + PROMPT.len() + 16);
}

#[test]
fn a_prompt_that_lost_its_place_has_the_same_vector() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let (runner, gate) = embedding(limits()).with_gate();
        let config = EngineConfig { max_batch: 1, token_budget: Some(16), ..EngineConfig::default() };
        let engine = start_with(runner, config);
        let prompt = PROMPT.repeat(3);
        let stream = engine.embed(EmbeddingRequest { priority: 5, ..asked(pooling, &prompt) }).unwrap();
        gate.allow(3);
        eventually("it runs", || engine.status().steps >= 2);
        let urgent = engine.submit(greedy("urgent", 5)).unwrap();
        gate.open();
        assert_eq!(read(stream).embedding, Some(by_hand(pooling, &prompt)));
        assert_eq!(read(urgent).error, None);
        assert_eq!(engine.status().preemptions, 1);
    }
}

#[test]
fn dropping_the_stream_of_a_vector_frees_its_blocks() {
    let (runner, gate) = embedding(limits()).with_gate();
    let engine = start_with(runner, EngineConfig { token_budget: Some(16), max_batch: 16, ..EngineConfig::default() });
    let stream = engine.embed(asked(Pooling::Mean, &PROMPT.repeat(4))).unwrap();
    gate.allow(1);
    eventually("it runs", || engine.status().running == 1);
    drop(stream);
    // The step in progress when the stream was dropped.
    gate.allow(1);
    eventually("all blocks are free", || engine.status().free_blocks == 64 && num_live(&engine) == 0);
    assert_eq!(engine.metrics().num_ended(EndReason::Abort), 1);
}

#[test]
fn a_vector_that_takes_too_long_fails() {
    let (runner, gate) = embedding(limits()).with_gate();
    let engine = start_with(runner, EngineConfig { token_budget: Some(16), max_batch: 16, ..EngineConfig::default() });
    let timeout = Some(Duration::from_millis(5));
    let late = engine.embed(EmbeddingRequest { timeout, ..asked(Pooling::Mean, &PROMPT.repeat(4)) }).unwrap();
    gate.allow(1);
    std::thread::sleep(Duration::from_millis(6));
    gate.open();
    assert_eq!(read(late).error, Some(EngineError::TimedOut(0.005)));
    eventually("all blocks are free", || engine.status().free_blocks == 64);
}

#[test]
fn a_failed_step_fails_its_vectors_and_a_state_that_is_no_number_its_own() {
    let engine = start(embedding(limits()).failing_at(0..1));
    let failed = read(engine.embed(asked(Pooling::Mean, PROMPT)).unwrap());
    assert_eq!(failed.error, Some(EngineError::Runner("the stub fails at step 0".into())));
    assert_eq!(embed(&engine, Pooling::Mean, PROMPT), by_hand(Pooling::Mean, PROMPT));

    for pooling in [Pooling::Mean, Pooling::Last] {
        let (runner, gate) = embedding(limits()).nan_at(0..1).with_gate();
        let engine = start(runner);
        let first = engine.embed(asked(pooling, PROMPT)).unwrap();
        let second = engine.embed(asked(pooling, "another")).unwrap();
        gate.open();
        let failed = read(first);
        assert!(matches!(failed.error, Some(EngineError::InvalidEmbedding { element: 0, .. })), "{failed:?}");
        assert_eq!(read(second).embedding, Some(by_hand(pooling, "another")));
        assert_eq!((engine.status().free_blocks, engine.status().queued), (64, 0));
    }
}

#[test]
fn what_cannot_become_a_vector_is_refused() {
    let engine = start(chaotic(limits()));
    assert_eq!(engine.embeddings(), None);
    assert_eq!(engine.embed(asked(Pooling::Mean, PROMPT)).err(), Some(SubmitError::NoEmbeddings));

    let engine = start(embedding(limits()));
    let refused = |prompt_tokens| {
        engine.embed(EmbeddingRequest { prompt_tokens, ..asked(Pooling::Mean, PROMPT) }).expect_err("a refusal")
    };
    assert_eq!(refused(vec![]), SubmitError::EmptyPrompt);
    assert_eq!(refused(vec![1; 513]), SubmitError::TooLongToEmbed { prompt_tokens: 513, context_len: 512 });
    let vocab_size = vocab_size();
    let token = vocab_size as u32;
    assert_eq!(refused(vec![1, token]), SubmitError::TokenOutOfRange { token, vocab_size });
    engine.drain();
    assert_eq!(engine.embed(asked(Pooling::Mean, PROMPT)).err(), Some(SubmitError::Draining));
}

#[test]
fn random_vectors_and_answers_leave_every_block_free() {
    let limits = RunnerLimits { num_blocks: 24, block_size: 8, max_rows: 32, ..limits() };
    let config = EngineConfig { max_batch: 8, max_queued: 500, ..EngineConfig::default() };
    let engine = start_with(embedding(limits), config);
    let clients = (0..4u64).map(|seed| {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let mut rng = SplitMix::new(seed);
            for round in 0..60 {
                let prompt = "p".repeat(1 + rng.below(100));
                let pooling = if rng.chance(0.5) { Pooling::Mean } else { Pooling::Last };
                let sampling = SamplingParams { max_tokens: Some(1 + rng.below(60)), ..SamplingParams::greedy() };
                let is_vector = rng.chance(0.6);
                let stream = if is_vector {
                    let priority = rng.below(3) as i32;
                    engine.embed(EmbeddingRequest { priority, ..asked(pooling, &prompt) }).unwrap()
                } else {
                    engine.submit(Request { priority: rng.below(3) as i32, ..request(&prompt, sampling) }).unwrap()
                };
                if rng.chance(0.3) {
                    continue;
                }
                let answer = read(stream);
                assert!(answer.error.is_none(), "client {seed}, round {round}: {answer:?}");
                assert_eq!(answer.embedding, is_vector.then(|| by_hand(pooling, &prompt)));
            }
        })
    });
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    eventually("nobody is left", || num_live(&engine) == 0);
    let status = engine.status();
    assert_eq!((status.free_blocks, status.failed_steps), (24, 0), "{status:?}");
    assert_eq!((status.queued, status.running), (0, 0));
}

/// Bits of the vectors of some prompts, on a tiny network.
fn of_a_network(model: &TinyModel, threads: usize, token_budget: usize, is_together: bool) -> Vec<Vec<u32>> {
    let cpu = Cpu::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).unwrap();
    let options = LoadOptions { num_blocks: Some(24), max_rows: 64, max_logit_rows: 16, ..LoadOptions::default() };
    let network = Llama::load(cpu, &checkpoint(model), options, &mut |_| {}).unwrap();
    let config = EngineConfig { token_budget: Some(token_budget), max_batch: 6, ..EngineConfig::default() };
    let engine = Engine::start(Box::new(ModelRunner(network)), tokenizer(), config);
    assert_eq!(engine.embeddings().unwrap().hidden_size, model.hidden);
    let requests: Vec<EmbeddingRequest> = (0..6)
        .map(|number: usize| {
            let pooling = if number.is_multiple_of(2) { Pooling::Mean } else { Pooling::Last };
            asked(pooling, &format!("{number} {}", PROMPT.repeat(1 + number % 3)))
        })
        .collect();
    let answers: Vec<Answer> = if is_together {
        let company = engine.submit(greedy("in company", 40)).unwrap();
        let streams: Vec<_> = requests.into_iter().map(|request| engine.embed(request).unwrap()).collect();
        let answers = streams.into_iter().map(read).collect();
        assert_eq!(read(company).error, None);
        answers
    } else {
        requests.into_iter().map(|request| read(engine.embed(request).unwrap())).collect()
    };
    let bits = |answer: Answer| answer.embedding.expect("a vector").iter().map(|x| x.to_bits()).collect();
    answers.into_iter().map(bits).collect()
}

#[test]
fn vectors_of_a_network_have_the_same_bits_alone_and_together_and_in_chunks() {
    for weight_type in [TinyType::F32, TinyType::Q8_0] {
        let model = TinyModel { weight_type, ..TinyModel::default() };
        let alone = of_a_network(&model, 1, 64, false);
        assert!(alone.iter().all(|vector| vector.iter().any(|&bits| bits != 0)));
        for (threads, token_budget) in [(1, 64), (2, 64), (2, 9), (3, 17)] {
            let together = of_a_network(&model, threads, token_budget, true);
            assert_eq!(together, alone, "{weight_type:?}, {threads} threads, at most {token_budget} tokens a step");
        }
    }
}
