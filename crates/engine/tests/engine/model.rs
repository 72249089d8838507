//! Over tiny seeded models of every weight type: a token's logits are the same bits whoever shares the step, however the prompt
//! was cut, whether the sequence was preempted, how much of it the prefix cache had, whether its tokens were guessed, and how
//! many threads computed them.

use crate::support::*;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taper_checkpoint::Checkpoint;
use taper_engine::{
    Engine, EngineConfig, EngineStatus, LogitsBuffer, ModelRunner, Request, RowDraw, Runner, RunnerError, RunnerLimits,
    SamplingParams, Speculation,
};
use taper_kernels::{Backend, Cpu, CpuConfig, KvDtype, Reference};
use taper_models::{Llama, LoadOptions, SequenceSlice};
use taper_testkit::tiny::{TinyModel, TinyType};

/// Keeps a fingerprint of every row of logits that the runner inside gives.
struct Recorder<R> {
    runner: R,
    rows: Arc<Mutex<Vec<u64>>>,
    delay: Duration,
}

impl<R: Runner> Runner for Recorder<R> {
    fn limits(&self) -> RunnerLimits {
        self.runner.limits()
    }

    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        std::thread::sleep(self.delay);
        self.runner.run(step, logits)?;
        self.note(logits);
        Ok(())
    }

    /// All logits are kept to look at, and what can be drawn is.
    fn run_while(
        &mut self,
        step: &[SequenceSlice<'_>],
        draws: &[RowDraw],
        logits: &mut LogitsBuffer,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, RunnerError> {
        std::thread::sleep(self.delay);
        let draws: Vec<RowDraw> = draws.iter().map(|draw| RowDraw { keeps_logits: true, ..*draw }).collect();
        let is_done = self.runner.run_while(step, &draws, logits, is_wanted)?;
        self.note(logits);
        Ok(is_done)
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

impl<R> Recorder<R> {
    fn note(&self, logits: &LogitsBuffer) {
        for row in 0..logits.num_rows() {
            let mut hasher = DefaultHasher::new();
            logits.row(row).iter().for_each(|logit| logit.to_bits().hash(&mut hasher));
            self.rows.lock().unwrap().push(hasher.finish());
        }
    }
}

/// How a set of requests is served.
#[derive(Clone, Copy)]
struct Service {
    threads: usize,
    num_blocks: usize,
    token_budget: usize,
    is_together: bool,
    rounds: usize,
    is_guessing: bool,
}

/// One after another, by a plain engine with all memory it could want.
const ALONE: Service =
    Service { threads: 2, num_blocks: 32, token_budget: 64, is_together: false, rounds: 1, is_guessing: false };

/// What is asked of one model.
#[derive(Clone, Copy)]
struct Load {
    num_requests: usize,
    max_tokens: usize,
}

impl Load {
    /// Every third is greedy, one of them on a token that it is pushed to, which is easily guessed; another has two choices.
    fn requests(self) -> impl Iterator<Item = Request> {
        let sampling = move |number: usize| SamplingParams {
            temperature: (number % 3) as f32 * 0.5,
            seed: Some(number as u64),
            max_tokens: Some(self.max_tokens),
            ignore_eos: true,
            n: 1 + usize::from(number == 2),
            logit_bias: if number == 3 { vec![(u32::from(b'x'), 100.0)] } else { Vec::new() },
            ..SamplingParams::default()
        };
        let prompt = |number: usize| format!("the old teller hinges on {}{number}", "a hello ".repeat(number * 5 % 13));
        (0..self.num_requests).map(move |number| request(&prompt(number), sampling(number)))
    }
}

/// The answers of the last round, the fingerprints of all logits, and what the engine says about itself.
fn serve<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    load: Load,
    service: Service,
) -> (Vec<Vec<u32>>, BTreeSet<u64>, EngineStatus) {
    let options = LoadOptions {
        num_blocks: Some(service.num_blocks),
        max_rows: 64,
        max_logit_rows: 16,
        kv_dtype: KvDtype::F32,
        ..LoadOptions::default()
    };
    let network = Llama::load(backend, checkpoint, options, &mut |_| {}).unwrap();
    let rows = Arc::new(Mutex::new(Vec::new()));
    // Guesses are verified where rows cost less than steps.
    let delay = if service.is_guessing { Duration::from_micros(500) } else { Duration::ZERO };
    let runner = Recorder { runner: ModelRunner(network), rows: Arc::clone(&rows), delay };
    let config = EngineConfig {
        token_budget: Some(service.token_budget),
        speculation: if service.is_guessing { Speculation::Lookup } else { Speculation::Off },
        max_batch: 7,
        ..EngineConfig::default()
    };
    let engine = Engine::start(Box::new(runner), tokenizer(), config);
    let mut answers: Vec<Answer> = Vec::new();
    for _ in 0..service.rounds {
        answers = if service.is_together {
            let streams: Vec<_> = load.requests().map(|request| engine.submit(request).unwrap()).collect();
            streams.into_iter().map(read).collect()
        } else {
            load.requests().map(|request| ask(&engine, request)).collect()
        };
    }
    let status = engine.status();
    assert_eq!((status.failed_steps, status.free_blocks), (0, service.num_blocks));
    let tokens = answers.into_iter().flat_map(|answer| answer.choices).map(|choice| choice.tokens).collect();
    let rows = rows.lock().unwrap().iter().copied().collect();
    (tokens, rows, status)
}

fn check_company_changes_nothing<B: Backend>(backend: impl Fn(usize) -> B, model: &TinyModel, load: Load) {
    let (weight_type, checkpoint) = (model.weight_type, checkpoint(model));
    let (tokens, rows, _) = serve(backend(ALONE.threads), &checkpoint, load, ALONE);
    // Both choices of one request begin from the same row.
    assert!(rows.len() > load.num_requests * load.max_tokens, "no two rows are the same: {}", rows.len());
    let check = |what: &str, service: Service, holds: &dyn Fn(&EngineStatus) -> bool| {
        let (same_tokens, same_rows, status) = serve(backend(service.threads), &checkpoint, load, service);
        assert_eq!(same_tokens, tokens, "{what}, {weight_type:?}");
        let is_same = if service.is_guessing { same_rows.is_superset(&rows) } else { same_rows == rows };
        assert!(is_same, "bits of the logits, {what}, {weight_type:?}");
        assert!(holds(&status), "{what}, {weight_type:?}: {status:?}");
    };
    let together = Service { is_together: true, ..ALONE };
    let guessing = Service { is_guessing: true, ..together };
    let all = Service { rounds: 2, num_blocks: 4, token_budget: 9, ..guessing };
    check("batched", together, &|status| status.preemptions == 0);
    check("in chunks", Service { token_budget: 7, ..together }, &|status| status.preemptions == 0);
    check("preempted", Service { num_blocks: 4, ..together }, &|status| status.preemptions > 0);
    check("cached", Service { rounds: 2, ..ALONE }, &|status| status.cached_tokens > 0);
    check("guessed", guessing, &|status| status.right_guesses > 0);
    check("all of it", all, &|status| status.preemptions > 0 && status.right_guesses > 0);
    for threads in [1, 3] {
        check(&format!("all of it, {threads} threads"), Service { threads, ..all }, &|_| true);
    }
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).unwrap()
}

const SHORT: Load = Load { num_requests: 4, max_tokens: 30 };
const LONG: Load = Load { num_requests: 6, max_tokens: 70 };

#[test]
fn company_does_not_change_a_bit_on_the_reference() {
    for weight_type in [TinyType::F32, TinyType::Q8_0] {
        let model = TinyModel { weight_type, ..TinyModel::default() };
        check_company_changes_nothing(|_| Reference::new(), &model, LONG);
    }
}

#[test]
fn company_does_not_change_a_bit_on_the_cpu_for_any_weight_type() {
    for weight_type in TinyType::ALL {
        // Blocks of K-quants have 256 weights.
        let model = TinyModel { weight_type, hidden: 256, head_dim: 64, ffn: 256, ..TinyModel::default() };
        let load = if [TinyType::F32, TinyType::Q8_0, TinyType::Q4_1].contains(&weight_type) { LONG } else { SHORT };
        check_company_changes_nothing(cpu, &model, load);
    }
}
