//! `taper perplexity`: how well a model predicts a text, in llama-perplexity's way, so that figures compare.
//!
//! The text is cut into independent chunks of `--ctx` tokens (the rest is left out). In each the first half is context
//! alone; every token of the second half is predicted from all before it. With `nll` the mean of `-ln p`, the perplexity is
//! `exp(nll)` and its standard error `exp(nll) * sqrt((mean(ln² p) - nll²) / (count - 1))`.

use crate::load::{Capacity, ModelArgs};
use crate::output;
use crate::progress::TerminalProgress;
use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use taper_engine::{LogitsBuffer, Runner};
use taper_hub::Progress;
use taper_models::{LogitRows, SequenceSlice};
use taper_text::EncodeOptions;

/// Rows of logits kept at once.
const LOGIT_ROWS: usize = 128;

/// Arguments of `taper perplexity`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Text file
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of a chunk
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    ctx: u32,
    /// Score only the first so many chunks
    #[arg(long)]
    chunks: Option<usize>,
    /// Print one JSON object instead of a sentence
    #[arg(long)]
    json: bool,
}

/// Sums over scored tokens.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    count: usize,
    nll: f64,
    nll_squared: f64,
}

#[derive(Debug, Serialize)]
struct Summary {
    perplexity: f64,
    stderr: f64,
    tokens: usize,
    chunks: usize,
    ctx: usize,
}

impl Score {
    fn add(&mut self, logits: &[f32], target: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let nll = sum.ln() - f64::from(logits[target as usize] - max);
        self.count += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }

    /// Perplexity and its standard error.
    fn result(&self) -> (f64, f64) {
        let n = self.count as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        (mean.exp(), mean.exp() * (variance / (n - 1.0).max(1.0)).sqrt())
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ctx = args.ctx as usize;
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", args.file.display()))?;
    let capacity = Capacity { context_len: Some(ctx), max_logit_rows: LOGIT_ROWS, single_sequence: true };
    let mut model = args.model.load(capacity, None)?;
    let mut tokens = model.tokenizer.encode(&text, EncodeOptions { parse_special: false, add_bos: true })?;
    let num_chunks = (tokens.len() / ctx).min(args.chunks.unwrap_or(usize::MAX));
    if num_chunks == 0 {
        bail!("{} has {} tokens, and one chunk needs {ctx}", args.file.display(), tokens.len());
    }
    let bos = model.tokenizer.bos().filter(|_| model.tokenizer.adds_bos());
    let progress = TerminalProgress::new();
    progress.start("scoring tokens", Some((num_chunks * ctx) as u64));
    let mut score = Score::default();
    for chunk in tokens.chunks_exact_mut(ctx).take(num_chunks) {
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        score_chunk(model.runner.as_mut(), chunk, &mut score)?;
        progress.advance(ctx as u64);
    }
    progress.finish();
    let (perplexity, stderr) = score.result();
    if args.json {
        let summary = Summary { perplexity, stderr, tokens: score.count, chunks: num_chunks, ctx };
        output::line(&serde_json::to_string(&summary)?)?;
    } else {
        output::line(&format!("perplexity {perplexity:.4} +/- {stderr:.5} over {num_chunks} chunks of {ctx} tokens"))?;
    }
    Ok(())
}

/// Scores the second half of one chunk.
fn score_chunk(runner: &mut dyn Runner, chunk: &[u32], score: &mut Score) -> anyhow::Result<()> {
    let limits = runner.limits();
    let block_table: Vec<u32> = (0..chunk.len().div_ceil(limits.block_size) as u32).collect();
    let mut logits = LogitsBuffer::new(limits.vocab_size);
    let first = chunk.len() / 2;
    let mut start = 0;
    while start < chunk.len() - 1 {
        // The last token predicts nothing that is scored.
        let (end, rows) = if start < first {
            ((start + limits.max_rows).min(first), LogitRows::None)
        } else {
            ((start + limits.max_rows.min(LOGIT_ROWS)).min(chunk.len() - 1), LogitRows::All)
        };
        logits.clear();
        let slice = SequenceSlice { tokens: &chunk[start..end], start, block_table: &block_table, logits: rows };
        runner.run(&[slice], &mut logits)?;
        for row in 0..logits.num_rows() {
            score.add(logits.row(row), chunk[start + row + 1]);
        }
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_odds_among_four_have_perplexity_four() {
        let mut score = Score::default();
        score.add(&[1.5; 4], 2);
        score.add(&[-3.0; 4], 0);
        let (perplexity, stderr) = score.result();
        assert!((perplexity - 4.0).abs() < 1e-9 && stderr < 1e-6, "{perplexity} {stderr}");
    }
}
