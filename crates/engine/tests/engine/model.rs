//! Over a tiny seeded model: a token's logits are the same bits whoever shares the step, however the prompt was cut, whether
//! the sequence was preempted, how much of it the prefix cache had, and whether its tokens were guessed.

use crate::support::*;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use taper_engine::{
    Engine, EngineConfig, EngineStatus, LogitsBuffer, ModelRunner, Request, Runner, RunnerError, RunnerLimits,
    SamplingParams, Speculation,
};
use taper_kernels::{Backend, Cpu, CpuConfig, KvDtype, Reference};
use taper_models::{Llama, LoadOptions, SequenceSlice};
use taper_testkit::tiny::{TinyModel, TinyType};

/// Keeps a fingerprint of every row of logits that the runner inside gives.
struct Recorder<R> {
    runner: R,
    rows: Arc<Mutex<Vec<u64>>>,
}

impl<R: Runner> Runner for Recorder<R> {
    fn limits(&self) -> RunnerLimits {
        self.runner.limits()
    }

    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        self.runner.run(step, logits)?;
        for row in 0..logits.num_rows() {
            let mut hasher = DefaultHasher::new();
            logits.row(row).iter().for_each(|logit| logit.to_bits().hash(&mut hasher));
            self.rows.lock().unwrap().push(hasher.finish());
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), RunnerError> {
        self.runner.copy_block(from, to)
    }

    fn export_block(&self, block: u32, out: &mut Vec<u8>) -> Result<(), RunnerError> {
        self.runner.export_block(block, out)
    }

    fn import_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), RunnerError> {
        self.runner.import_block(block, bytes)
    }

    fn block_bytes(&self) -> usize {
        self.runner.block_bytes()
    }

    fn identity(&self) -> String {
        self.runner.identity()
    }
}

/// How a set of requests is served.
#[derive(Clone, Copy)]
struct Service {
    num_blocks: usize,
    token_budget: usize,
    is_together: bool,
    rounds: usize,
    speculation: Speculation,
}

/// Every third is greedy, which repeats itself sooner or later, and one has two choices.
fn requests() -> Vec<Request> {
    let sampling = |number: usize| SamplingParams {
        temperature: (number % 3) as f32 * 0.5,
        seed: Some(number as u64),
        max_tokens: Some(70),
        ignore_eos: true,
        n: 1 + usize::from(number == 4),
        ..SamplingParams::default()
    };
    let prompt = |number: usize| format!("the old teller hinges on {}{number}", "a hello ".repeat(number * 5 % 13));
    (0..6).map(|number| request(&prompt(number), sampling(number))).collect()
}

/// The answers of the last round, the fingerprints of all logits, and what the engine says about itself.
fn serve<B: Backend>(backend: B, model: &TinyModel, service: Service) -> (Vec<Vec<u32>>, BTreeSet<u64>, EngineStatus) {
    let options = LoadOptions {
        num_blocks: Some(service.num_blocks),
        max_rows: 64,
        max_logit_rows: 16,
        kv_dtype: KvDtype::F32,
        ..LoadOptions::default()
    };
    let network = Llama::load(backend, &checkpoint(model), options, &mut |_| {}).unwrap();
    let rows = Arc::new(Mutex::new(Vec::new()));
    let runner = Recorder { runner: ModelRunner(network), rows: Arc::clone(&rows) };
    let Service { token_budget, speculation, .. } = service;
    let config =
        EngineConfig { token_budget: Some(token_budget), speculation, max_batch: 7, ..EngineConfig::default() };
    let engine = Engine::start(Box::new(runner), tokenizer(), config);
    let mut answers: Vec<Answer> = Vec::new();
    for _ in 0..service.rounds {
        answers = if service.is_together {
            let streams: Vec<_> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
            streams.into_iter().map(read).collect()
        } else {
            requests().into_iter().map(|request| ask(&engine, request)).collect()
        };
    }
    let status = engine.status();
    assert_eq!((status.failed_steps, status.free_blocks), (0, service.num_blocks));
    let tokens = answers.into_iter().flat_map(|answer| answer.choices).map(|choice| choice.tokens).collect();
    let rows = rows.lock().unwrap().iter().copied().collect();
    (tokens, rows, status)
}

fn check_company_changes_nothing<B: Backend>(backend: impl Fn() -> B, weight_type: TinyType) {
    let model = TinyModel { weight_type, ..TinyModel::default() };
    let alone =
        Service { num_blocks: 32, token_budget: 64, is_together: false, rounds: 1, speculation: Speculation::Off };
    let (tokens, rows, _) = serve(backend(), &model, alone);
    // Both choices of one request begin from the same row.
    assert_eq!(rows.len(), 7 * 70 - 1);
    let check = |what: &str, service: Service, holds: &dyn Fn(&EngineStatus) -> bool| {
        let (same_tokens, same_rows, status) = serve(backend(), &model, service);
        assert_eq!(same_tokens, tokens, "{what}, {weight_type:?}");
        let is_guessing = service.speculation != Speculation::Off;
        let is_same = if is_guessing { same_rows.is_superset(&rows) } else { same_rows == rows };
        assert!(is_same, "bits of the logits, {what}, {weight_type:?}");
        assert!(holds(&status), "{what}, {weight_type:?}: {status:?}");
    };
    let together = Service { is_together: true, ..alone };
    let never_preempted = |status: &EngineStatus| status.preemptions == 0;
    check("batched", together, &never_preempted);
    check("in chunks", Service { token_budget: 7, ..together }, &never_preempted);
    check("preempted", Service { num_blocks: 4, ..together }, &|status| status.preemptions > 0);
    check("cached", Service { rounds: 2, ..alone }, &|status| status.cached_tokens > 0);
    let guessing = Service { speculation: Speculation::Lookup, ..together };
    check("guessed", guessing, &|status| status.right_guesses > 0);
    let all = Service { rounds: 2, num_blocks: 4, token_budget: 9, ..guessing };
    check("all of it", all, &|status| status.preemptions > 0 && status.right_guesses > 0);
}

#[test]
fn company_does_not_change_a_bit_on_the_reference() {
    check_company_changes_nothing(Reference::new, TinyType::F32);
    check_company_changes_nothing(Reference::new, TinyType::Q8_0);
}

#[test]
fn company_does_not_change_a_bit_on_the_cpu() {
    let cpu = || Cpu::new(CpuConfig { threads: Some(2), ..CpuConfig::default() }).unwrap();
    for weight_type in [TinyType::F32, TinyType::Q8_0, TinyType::Q4_1] {
        check_company_changes_nothing(cpu, weight_type);
    }
}
