//! `taper perplexity`, in llama-perplexity's way so that figures compare: the text is tokenized once and cut into chunks of
//! `ctx` tokens that know nothing of each other. In each, tokens `ctx/2 + 1 .. ctx` are scored by what the model expected
//! before them; perplexity is e to the mean negative log-probability, and its error that mean's standard error times it.
//! Where the model wants a BOS, it takes the place of each chunk's first token.

use crate::args::PerplexityArgs;
use crate::load::{self, ModelTask};
use crate::output;
use crate::progress::Bars;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use taper_kernels::{BLOCK_SIZE, Backend};
use taper_models::{AttendedRows, Llama, LoadOptions, LogitRows, SequenceSlice};
use taper_text::EncodeOptions;

/// Rows of one step; those that are scored have a vocabulary of floats each.
const STEP_ROWS: usize = 256;

/// More than anyone scores; a device that never ends should not fill the memory.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// All of a text file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    read_at_most(path, MAX_TEXT_BYTES)
}

fn read_at_most(path: &Path, max_bytes: u64) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max_bytes + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > max_bytes {
        bail!("{} is longer than {max_bytes} bytes", path.display());
    }
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let text = read_text(&args.file)?;
    let progress = Bars::new();
    let resolved = load::resolve(&args.model.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let tokenizer = load::tokenizer(&checkpoint)?;

    let ctx = args.ctx as usize;
    let tokens = tokenizer.encode(&text, EncodeOptions { parse_special: false, add_bos: true })?;
    if tokens.len() < 2 * ctx {
        bail!(
            "{} has {} tokens; at least {} (two chunks of --ctx {ctx}) are needed for a figure that means something",
            args.file.display(),
            tokens.len(),
            2 * ctx
        );
    }
    let chunks = (tokens.len() / ctx).min(args.chunks.unwrap_or(usize::MAX));
    let options = LoadOptions {
        context_len: Some(ctx),
        num_blocks: Some(ctx.div_ceil(BLOCK_SIZE)),
        max_rows: STEP_ROWS,
        max_logit_rows: STEP_ROWS,
        attention: args.model.attention.scheme(),
        kv_dtype: args.model.kv_dtype()?,
        ..LoadOptions::default()
    };
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let task = Score { tokens: &tokens, chunks, ctx, bos };
    let Scored { losses, softmax, attended } = load::with_model(&args.model, &checkpoint, options, &progress, task)?;

    let (perplexity, error) = losses.perplexity();
    if args.json {
        let json = json!({
            "perplexity": perplexity, "stderr": error, "chunks": chunks, "ctx": ctx, "scored_tokens": losses.count,
            "softmax": softmax,
            "attended_rows": attended.iter().map(|layer| layer.computed).collect::<Vec<_>>(),
            "recomputed_rows": attended.iter().map(|layer| layer.recomputed).collect::<Vec<_>>(),
        });
        output::line(&json.to_string())?;
    } else {
        output::line(&format!("perplexity {perplexity:.4} +/- {error:.5} ({chunks} chunks of {ctx} tokens)"))?;
    }
    Ok(())
}

/// Negative log-probabilities of tokens, summed.
#[derive(Debug, Default)]
struct Losses {
    count: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Losses {
    fn add(&mut self, loss: f64) {
        self.count += 1;
        self.sum += loss;
        self.sum_of_squares += loss * loss;
    }

    /// Perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let count = self.count as f64;
        let mean = self.sum / count;
        let variance = (self.sum_of_squares / count - mean * mean).max(0.0);
        let perplexity = mean.exp();
        (perplexity, (variance / (count - 1.0)).sqrt() * perplexity)
    }
}

/// What scoring gives.
struct Scored {
    losses: Losses,
    /// Name of the softmax that ran.
    softmax: &'static str,
    /// What attention computed, per layer.
    attended: Vec<AttendedRows>,
}

struct Score<'a> {
    tokens: &'a [u32],
    chunks: usize,
    ctx: usize,
    bos: Option<u32>,
}

impl ModelTask for Score<'_> {
    type Output = Scored;

    fn run<B: Backend + Clone>(self, mut model: Llama<B>) -> Result<Scored> {
        let mut losses = Losses::default();
        let block_table: Vec<u32> = (0..self.ctx.div_ceil(BLOCK_SIZE) as u32).collect();
        for (index, chunk) in self.tokens.chunks_exact(self.ctx).take(self.chunks).enumerate() {
            let mut chunk = chunk.to_vec();
            chunk[0] = self.bos.unwrap_or(chunk[0]);
            score_chunk(&mut model, &chunk, &block_table, &mut losses)?;
            let so_far = (losses.sum / losses.count as f64).exp();
            output::status(&format!("[{}/{}] {so_far:.4}", index + 1, self.chunks));
        }
        Ok(Scored { losses, softmax: model.softmax().name(), attended: model.attended() })
    }
}

/// Scores the second half of one chunk. Its last token is expected, never seen.
fn score_chunk<B: Backend>(
    model: &mut Llama<B>,
    chunk: &[u32],
    block_table: &[u32],
    losses: &mut Losses,
) -> Result<()> {
    let first = chunk.len() / 2;
    for (range, logits) in [(0..first, LogitRows::None), (first..chunk.len() - 1, LogitRows::All)] {
        for start in range.clone().step_by(STEP_ROWS) {
            let tokens = &chunk[start..range.end.min(start + STEP_ROWS)];
            let rows = model.forward(&[SequenceSlice { tokens, start, block_table, logits }])?;
            for row in 0..rows.num_rows() {
                losses.add(negative_log_probability(rows.row(row), chunk[start + row + 1]));
            }
        }
    }
    Ok(())
}

/// `-log softmax(logits)[token]`, in double precision.
fn negative_log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_end_is_refused() {
        let refused = read_at_most(Path::new("/dev/zero"), 1000).map_err(|error| error.to_string());
        assert_eq!(refused, Err("/dev/zero is longer than 1000 bytes".to_owned()));
    }

    #[test]
    fn equal_logits_make_every_token_equally_unlikely() {
        assert!((negative_log_probability(&[3.0; 8], 5) - 8f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let loss = negative_log_probability(&[1000.0, 999.0], 1);
        assert!((loss - (1.0 + (1.0 + (-1f64).exp()).ln())).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn perplexity_is_e_to_the_mean_and_knows_its_error() {
        let mut losses = Losses::default();
        losses.add(1.0);
        losses.add(3.0);
        let (perplexity, error) = losses.perplexity();
        assert!((perplexity - 2f64.exp()).abs() < 1e-12);
        assert!((error - 2f64.exp()).abs() < 1e-12, "variance 1, two values: {error}");
    }
}
