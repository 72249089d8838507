//! Over a tiny seeded model: a token's logits are the same bits whoever shares the step, however the prompt was cut, and
//! whether the sequence was preempted.

use crate::support::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use taper_engine::{
    Engine, EngineConfig, LogitsBuffer, ModelRunner, Request, Runner, RunnerError, RunnerLimits, SamplingParams,
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
struct Service {
    num_blocks: usize,
    token_budget: usize,
    is_together: bool,
}

fn requests() -> Vec<Request> {
    let sampling = |number: usize| SamplingParams {
        temperature: (number % 3) as f32 * 0.5,
        seed: Some(number as u64),
        max_tokens: Some(70),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let prompt = |number: usize| format!("{number}: the old teller hinges on {}", "a hello ".repeat(number * 5 % 13));
    (0..6).map(|number| request(&prompt(number), sampling(number))).collect()
}

/// The answers, the sorted fingerprints of all logits, and the number of preemptions.
fn serve<B: Backend>(backend: B, model: &TinyModel, service: &Service) -> (Vec<Vec<u32>>, Vec<u64>, u64) {
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
    let config = EngineConfig { token_budget: Some(service.token_budget), ..EngineConfig::default() };
    let engine = Engine::start(Box::new(runner), tokenizer(), config);
    let answers: Vec<Answer> = if service.is_together {
        let streams: Vec<_> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
        streams.into_iter().map(read).collect()
    } else {
        requests().into_iter().map(|request| ask(&engine, request)).collect()
    };
    let status = engine.status();
    assert_eq!((status.failed_steps, status.free_blocks), (0, service.num_blocks));
    let tokens = answers.into_iter().flat_map(|answer| answer.choices).map(|choice| choice.tokens).collect();
    let mut rows = rows.lock().unwrap().clone();
    rows.sort_unstable();
    (tokens, rows, status.preemptions)
}

fn check_company_changes_nothing<B: Backend>(backend: impl Fn() -> B, weight_type: TinyType) {
    let model = TinyModel { weight_type, ..TinyModel::default() };
    let alone = Service { num_blocks: 32, token_budget: 64, is_together: false };
    let (tokens, rows, _) = serve(backend(), &model, &alone);
    assert_eq!(rows.len(), 6 * 70);
    for (what, num_blocks, token_budget) in [("batched", 32, 64), ("in chunks", 32, 7), ("preempted", 4, 64)] {
        let service = Service { num_blocks, token_budget, is_together: true };
        let (same_tokens, same_rows, preemptions) = serve(backend(), &model, &service);
        assert_eq!(same_tokens, tokens, "{what}, {weight_type:?}");
        assert_eq!(same_rows, rows, "bits of the logits, {what}, {weight_type:?}");
        assert_eq!(preemptions > 0, what == "preempted");
    }
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
