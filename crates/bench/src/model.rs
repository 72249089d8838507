//! Prompt and decode speed of a loaded model.
//!
//! A sample repeats its case for at least [`MIN_SAMPLE`] and gives tokens per second: of the whole prompt, or of the decode
//! steps alone. Tokens are random and seeded: which tokens run does not change the work, and sampling is left out, as in
//! llama-bench. The keys of a depth are computed once, or filled with random ones where that would take too long.

use crate::case::BATCH_GENERATED;
use crate::plot::{Plot, Series};
use crate::{Case, Error, Measurement, Record, Summary, params};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Map, Value};
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};
use taper_kernels::{AttentionScheme, BLOCK_SIZE, Backend, KvDtype};
use taper_models::{Llama, LoadOptions, LogitRows, ModelSoftmax, SequenceSlice};

/// Name of the benchmark.
pub const NAME: &str = "model";
/// The least time of one sample.
pub const MIN_SAMPLE: Duration = Duration::from_secs(2);

/// Where the keys of a depth come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Computed from tokens.
    Computed,
    /// Seeded random keys and values.
    Random,
}

/// The load options that `cases` need: cache for the largest of them, of float16, and logits for the widest batch.
pub fn load_options(cases: &[Case], attention: AttentionScheme) -> LoadOptions {
    let blocks = |case: &Case| case.num_sequences() * case.context_len().div_ceil(BLOCK_SIZE);
    LoadOptions {
        context_len: cases.iter().map(|case| case.context_len()).max(),
        num_blocks: cases.iter().map(blocks).max(),
        kv_cache_bytes: None,
        kv_cache_limit: None,
        max_rows: cases.iter().map(|case| case.num_sequences()).max().unwrap_or(1).max(512),
        max_logit_rows: cases.iter().map(|case| case.num_sequences()).max().unwrap_or(1),
        kv_dtype: KvDtype::F16,
        attention,
        quantization: None,
    }
}

/// One case on one model, ready to be sampled.
pub struct ModelCase<'m, B: Backend> {
    model: &'m mut Llama<B>,
    case: Case,
    fill: Fill,
    /// Tokens of each sequence, as long as the context of the case.
    tokens: Vec<Vec<u32>>,
    block_tables: Vec<Vec<u32>>,
    /// [`Llama::recomputed_rows`] before the case.
    recomputed_before: u64,
}

impl<'m, B: Backend> ModelCase<'m, B> {
    /// Fills the cache up to the depth. The model must have been loaded with [`load_options`] for this case.
    ///
    /// # Errors
    /// What the model's forward pass says.
    pub fn new(model: &'m mut Llama<B>, case: Case, fill: Fill) -> Result<Self, Error> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let vocab_size = model.config().vocab_size as u32;
        let blocks = case.context_len().div_ceil(BLOCK_SIZE) as u32;
        let sequences = case.num_sequences() as u32;
        let tokens = (0..sequences).map(|_| (0..case.context_len()).map(|_| rng.random_range(0..vocab_size)).collect());
        let tokens = tokens.collect();
        let block_tables = (0..sequences).map(|s| (s * blocks..(s + 1) * blocks).collect()).collect();
        let recomputed_before = model.recomputed_rows();
        let mut this = ModelCase { model, case, fill, tokens, block_tables, recomputed_before };
        match fill {
            Fill::Computed => this.prompt(0, case.depth())?,
            Fill::Random => {
                for block_table in &this.block_tables {
                    this.model.fill_cache(block_table, case.depth(), &mut || rng.random_range(-1.0..1.0))?;
                }
            }
        }
        Ok(this)
    }

    /// Computes attention in this way from now on.
    pub fn set_attention(&mut self, attention: AttentionScheme) {
        self.model.set_attention(attention);
    }

    /// Gives attention other references from now on; those it had.
    ///
    /// # Errors
    /// When they are not of this model.
    pub fn set_softmax(&mut self, softmax: ModelSoftmax) -> Result<ModelSoftmax, Error> {
        let before = self.model.softmax().clone();
        self.model.set_softmax(softmax)?;
        Ok(before)
    }

    /// Runs the case once and throws the time away.
    ///
    /// # Errors
    /// What the model's forward pass says.
    pub fn warm_up(&mut self) -> Result<(), Error> {
        self.run_once()
    }

    /// Tokens per second, over at least [`MIN_SAMPLE`].
    ///
    /// # Errors
    /// What the model's forward pass says.
    pub fn sample(&mut self) -> Result<f64, Error> {
        let mut sample = || {
            // What is measured between samples is another thread's.
            self.model.settle();
            let (start, mut tokens) = (Instant::now(), 0);
            while tokens == 0 || start.elapsed() < MIN_SAMPLE {
                self.run_once()?;
                tokens += self.tokens_per_run();
            }
            Ok(tokens as f64 / start.elapsed().as_secs_f64())
        };
        thread::scope(|scope| scope.spawn(&mut sample).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The row of these samples; `about` is put before what the case says of itself.
    pub fn measurement(&self, samples: &[f64], about: Map<String, Value>) -> Measurement {
        let summary = Summary::of(samples);
        let bytes = self.bytes_per_token();
        let mut params = about;
        params.extend(case_params(self.case, self.fill));
        params.insert("softmax".into(), self.model.softmax().name().into());
        params.insert("recomputed_rows".into(), (self.model.recomputed_rows() - self.recomputed_before).into());
        params.insert("samples".into(), samples.into());
        Measurement {
            bench: NAME,
            case: self.case.to_string(),
            params,
            summary,
            unit: "tokens/s",
            bytes: Some(bytes),
            gbps: Some(bytes * summary.median / 1e9),
        }
    }

    fn tokens_per_run(&self) -> usize {
        match self.case {
            Case::Prompt { tokens, .. } | Case::Generate { tokens, .. } => tokens,
            Case::Batch { sequences, .. } => sequences * BATCH_GENERATED,
        }
    }

    /// Bytes read per token: the weights once per step, and the keys and values that a token sees (half of its own run on
    /// average; those of a prompt once per step).
    fn bytes_per_token(&self) -> f64 {
        let weights = self.model.weight_bytes_per_token() as f64;
        let kv = self.model.kv_bytes_per_token() as f64;
        match self.case {
            Case::Prompt { tokens, depth } => {
                let steps = tokens.div_ceil(self.model.max_rows()) as f64;
                (weights + kv * (depth as f64 + tokens as f64 / 2.0)) * steps / tokens as f64
            }
            Case::Generate { tokens, depth } => weights + kv * (depth as f64 + tokens as f64 / 2.0),
            Case::Batch { sequences, depth } => {
                weights / sequences as f64 + kv * (depth as f64 + BATCH_GENERATED as f64 / 2.0)
            }
        }
    }

    fn run_once(&mut self) -> Result<(), Error> {
        match self.case {
            Case::Prompt { tokens, depth } => self.prompt(depth, depth + tokens),
            Case::Generate { tokens, depth } => self.decode(depth, tokens),
            Case::Batch { depth, .. } => self.decode(depth, BATCH_GENERATED),
        }
    }

    /// Computes positions `from..to` of every sequence, with logits for the last.
    fn prompt(&mut self, from: usize, to: usize) -> Result<(), Error> {
        let chunk = self.model.max_rows();
        for (tokens, block_table) in self.tokens.iter().zip(&self.block_tables) {
            for start in (from..to).step_by(chunk) {
                let end = (start + chunk).min(to);
                let logits = if end == to { LogitRows::Last } else { LogitRows::None };
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

fn case_params(case: Case, fill: Fill) -> Map<String, Value> {
    let (kind, count) = match case {
        Case::Prompt { tokens, .. } => ("prompt", tokens),
        Case::Generate { tokens, .. } => ("decode", tokens),
        Case::Batch { sequences, .. } => ("batch", sequences),
    };
    let keys = match fill {
        _ if case.depth() == 0 => "none",
        Fill::Computed => "computed",
        Fill::Random => "random",
    };
    params([("kind", kind.into()), ("n", count.into()), ("depth", case.depth().into()), ("keys", keys.into())])
}

/// Tokens per second against depth and against the size of the batch, and what decoding reads beside the bandwidth.
pub fn plots(records: &[Record], ceiling: Option<f64>) -> Vec<Plot> {
    let text = |record: &Record, name: &str| record.params.get(name).and_then(Value::as_str).unwrap_or("").to_string();
    let number = |record: &Record, name: &str| record.params.get(name).and_then(Value::as_f64);
    // Speeds of one kind against the parameter `by`, a line for each network and value of `apart`.
    let speeds = |kind: &str, (by, apart): (&str, &str)| {
        let mut series: Vec<Series> = Vec::new();
        let of_kind = |record: &&Record| record.unit == "tokens/s" && text(record, "kind") == kind;
        for record in records.iter().filter(of_kind) {
            let count = number(record, apart).unwrap_or(0.0);
            let apart = if apart == "n" { format!("{count} tokens") } else { format!("depth {count}") };
            let name = format!("{}, {apart}", text(record, "network"));
            let Some(at) = number(record, by) else { continue };
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((at, record.median)),
                None => series.push(Series { name, points: vec![(at, record.median)] }),
            }
        }
        series
    };
    let plot = |title: &str, x: &str, series| Plot {
        title: title.into(),
        x: x.into(),
        y: "tokens/s".into(),
        series,
        line: None,
    };
    let decode = records.iter().filter(|record| text(record, "kind") == "decode");
    let read = decode.filter_map(|record| Some((number(record, "depth")?, record.gbps?))).collect();
    let plots = [
        plot("Prompt", "keys before", speeds("prompt", ("depth", "n"))),
        plot("Decode, one sequence", "keys before", speeds("decode", ("depth", "n"))),
        Plot {
            y: "GB/s".into(),
            line: ceiling.map(|ceiling| ("read bandwidth".into(), ceiling)),
            ..plot("Decode, memory read", "keys before", vec![Series { name: "taper".into(), points: read }])
        },
        plot("Decode, batches", "sequences", speeds("batch", ("n", "depth"))),
    ];
    plots.into_iter().filter(Plot::has_points).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_checkpoint::Checkpoint;
    use taper_kernels::Reference;
    use taper_testkit::tiny::TinyModel;

    fn row(name: &str, fill: Fill) -> Measurement {
        let case: Case = name.parse().unwrap();
        let checkpoint = Checkpoint::from_bytes("tiny.gguf", TinyModel::default().to_gguf()).unwrap();
        let options = load_options(&[case], AttentionScheme::SplitKv);
        let mut model = Llama::load(Reference::new(), &checkpoint, options, &mut |_| {}).unwrap();
        let mut case = ModelCase::new(&mut model, case, fill).unwrap();
        case.warm_up().unwrap();
        case.measurement(&[10.0, 20.0, 30.0], params([("network", "taper".into())]))
    }

    #[test]
    fn a_row_says_where_the_keys_of_its_depth_come_from() {
        assert_eq!(row("tg2", Fill::Random).params["keys"], "none");
        assert_eq!(row("tg2@70", Fill::Random).params["keys"], "random");
        assert_eq!(row("b2", Fill::Computed).params["keys"], "computed");
        assert_eq!(row("pp3@70", Fill::Computed).params["keys"], "computed");
    }

    #[test]
    fn deeper_tokens_read_more_and_batched_ones_less() {
        let bytes = |name| row(name, Fill::Random).bytes.unwrap();
        assert!(bytes("tg2@70") > bytes("tg2"));
        assert!(bytes("b8@0") < bytes("b1@0"));
        assert!(bytes("pp64") < bytes("tg2"));
    }
}
