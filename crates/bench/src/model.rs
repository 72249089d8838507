//! Prompt and decode speed of a loaded model.
//!
//! A sample repeats its case for at least [`MIN_SAMPLE`] and gives tokens per second of the timed part: for a prompt the
//! whole of it, for generation and batches the decode steps alone. Tokens are random and seeded: which tokens run does
//! not change the work, and sampling is left out, as in llama-bench.

use crate::Case;
use crate::case::{BATCH_GENERATED, BATCH_PROMPT};
use crate::statistics::quantile;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use std::time::{Duration, Instant};
use taper_kernels::{AttentionScheme, BLOCK_SIZE, Backend, KvDtype};
use taper_models::{Error, Llama, LoadOptions, LogitRows, SequenceSlice};

/// The least time of one sample.
pub const MIN_SAMPLE: Duration = Duration::from_secs(2);

/// The figures of one case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// Tokens per second, median of the samples.
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// All samples, tokens per second.
    pub samples: Vec<f64>,
    /// Bytes of weights and keys and values that one token reads, by count, not by measurement.
    pub bytes_per_token: f64,
    /// The bandwidth that makes at the median speed, GB/s.
    pub gb_per_s: f64,
    /// Threads that compute.
    pub threads: usize,
    /// Name of the backend.
    pub backend: String,
    /// Its instruction set.
    pub isa: String,
}

/// The load options that `cases` need: cache for the largest of them, logits for the widest batch.
pub fn load_options(cases: &[Case], attention: AttentionScheme) -> LoadOptions {
    let blocks = |case: &Case| case.num_sequences() * case.context_len().div_ceil(BLOCK_SIZE);
    LoadOptions {
        context_len: cases.iter().map(|case| case.context_len()).max(),
        num_blocks: cases.iter().map(blocks).max(),
        max_rows: cases.iter().map(|case| case.num_sequences()).max().unwrap_or(1).max(512),
        max_logit_rows: cases.iter().map(|case| case.num_sequences()).max().unwrap_or(1),
        kv_dtype: KvDtype::F16,
        attention,
    }
}

/// Measures `case` with `repeat` samples after a warm-up of one run.
///
/// # Errors
/// What the model's forward pass says. The model must have been loaded with [`load_options`] for this case.
pub fn measure<B: Backend>(model: &mut Llama<B>, case: Case, repeat: usize) -> Result<Row, Error> {
    let mut bench = Bench::new(model, case);
    bench.prepare()?;
    bench.run_once()?;
    let mut samples = Vec::with_capacity(repeat);
    for _ in 0..repeat.max(1) {
        let (mut tokens, mut spent) = (0, Duration::ZERO);
        while spent < MIN_SAMPLE {
            let (more, time) = bench.run_once()?;
            tokens += more;
            spent += time;
        }
        samples.push(tokens as f64 / spent.as_secs_f64());
    }
    let median = quantile(&samples, 0.5);
    let bytes_per_token = bytes_per_token(model, case);
    let info = model.backend().info();
    Ok(Row {
        case: case.to_string(),
        median,
        p10: quantile(&samples, 0.1),
        p90: quantile(&samples, 0.9),
        samples,
        bytes_per_token,
        gb_per_s: bytes_per_token * median / 1e9,
        threads: info.threads,
        backend: info.name.to_string(),
        isa: info.isa.to_string(),
    })
}

/// Bytes read per token: the weights once per step, and the keys and values that a token sees (half of its own run on average).
fn bytes_per_token<B: Backend>(model: &Llama<B>, case: Case) -> f64 {
    let (weights, kv) = (model.weight_bytes_per_token() as f64, model.kv_bytes_per_token() as f64);
    match case {
        Case::Prompt(tokens) => {
            weights * tokens.div_ceil(model.max_rows()) as f64 / tokens as f64 + kv * tokens as f64 / 2.0
        }
        Case::Generate { tokens, depth } => weights + kv * (depth as f64 + tokens as f64 / 2.0),
        Case::Batch(sequences) => {
            weights / sequences as f64 + kv * (BATCH_PROMPT as f64 + BATCH_GENERATED as f64 / 2.0)
        }
    }
}

/// One case on one model, with its tokens and block tables.
struct Bench<'m, B: Backend> {
    model: &'m mut Llama<B>,
    case: Case,
    /// Tokens of each sequence, as long as the context of the case.
    tokens: Vec<Vec<u32>>,
    block_tables: Vec<Vec<u32>>,
}

impl<'m, B: Backend> Bench<'m, B> {
    fn new(model: &'m mut Llama<B>, case: Case) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let vocab_size = model.config().vocab_size as u32;
        let blocks = case.context_len().div_ceil(BLOCK_SIZE) as u32;
        let sequences = case.num_sequences() as u32;
        let tokens = (0..sequences).map(|_| (0..case.context_len()).map(|_| rng.random_range(0..vocab_size)).collect());
        let tokens = tokens.collect();
        let block_tables = (0..sequences).map(|s| (s * blocks..(s + 1) * blocks).collect()).collect();
        Bench { model, case, tokens, block_tables }
    }

    /// What is done once, before anything is timed: the keys of the depth.
    fn prepare(&mut self) -> Result<(), Error> {
        match self.case {
            Case::Generate { depth, .. } => self.prefill(depth),
            _ => Ok(()),
        }
    }

    /// Runs the case once; gives the tokens and the time of the timed part.
    fn run_once(&mut self) -> Result<(usize, Duration), Error> {
        match self.case {
            Case::Prompt(tokens) => {
                let start = Instant::now();
                self.prefill(tokens)?;
                Ok((tokens, start.elapsed()))
            }
            Case::Generate { tokens, depth } => {
                let start = Instant::now();
                self.decode(depth, tokens)?;
                Ok((tokens, start.elapsed()))
            }
            Case::Batch(sequences) => {
                self.prefill(BATCH_PROMPT)?;
                let start = Instant::now();
                self.decode(BATCH_PROMPT, BATCH_GENERATED)?;
                Ok((sequences * BATCH_GENERATED, start.elapsed()))
            }
        }
    }

    /// Fills the first `len` positions of every sequence, with logits for the last.
    fn prefill(&mut self, len: usize) -> Result<(), Error> {
        let chunk = self.model.max_rows();
        for (tokens, block_table) in self.tokens.iter().zip(&self.block_tables) {
            for start in (0..len).step_by(chunk) {
                let end = (start + chunk).min(len);
                let logits = if end == len { LogitRows::Last } else { LogitRows::None };
                let _ =
                    self.model.forward(&[SequenceSlice { tokens: &tokens[start..end], start, block_table, logits }])?;
            }
        }
        Ok(())
    }

    /// `steps` decode steps of all sequences together, from position `from`.
    fn decode(&mut self, from: usize, steps: usize) -> Result<(), Error> {
        for at in from..from + steps {
            let slices: Vec<SequenceSlice<'_>> = self
                .tokens
                .iter()
                .zip(&self.block_tables)
                .map(|(tokens, block_table)| SequenceSlice {
                    tokens: &tokens[at..at + 1],
                    start: at,
                    block_table,
                    logits: LogitRows::Last,
                })
                .collect();
            let _ = self.model.forward(&slices)?;
        }
        Ok(())
    }
}
