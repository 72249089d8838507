//! What the tests of the network share: models from bytes or files, and steps over block tables.
#![allow(dead_code, reason = "each test target uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

use std::path::{Path, PathBuf};
use taper_checkpoint::Checkpoint;
use taper_kernels::{BLOCK_SIZE, Backend, Cpu, CpuConfig};
use taper_models::{Error, Llama, LoadOptions, LogitRows, SequenceSlice};

/// Room for every row of the tests' sequences, in little memory.
pub(crate) fn options() -> LoadOptions {
    LoadOptions { num_blocks: Some(16), max_rows: 256, max_logit_rows: 256, ..LoadOptions::default() }
}

pub(crate) fn load<B: Backend>(backend: B, bytes: Vec<u8>) -> Result<Llama<B>, Error> {
    Llama::load(backend, &Checkpoint::from_bytes("tiny.gguf", bytes)?, options(), &mut |_| {})
}

pub(crate) fn load_file<B: Backend>(backend: B, path: &Path) -> Llama<B> {
    Llama::load(backend, &Checkpoint::open(path).unwrap(), options(), &mut |_| {}).unwrap()
}

pub(crate) fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).unwrap()
}

pub(crate) fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// Logits of every row of one sequence, fed in pieces of the given lengths; its blocks are `blocks`.
pub(crate) fn run_pieces<B: Backend>(
    model: &mut Llama<B>,
    tokens: &[u32],
    pieces: &[usize],
    blocks: &[u32],
) -> Vec<Vec<f32>> {
    assert_eq!(pieces.iter().sum::<usize>(), tokens.len());
    let mut rows = Vec::new();
    let mut start = 0;
    for &len in pieces {
        let tokens = &tokens[start..start + len];
        let logits =
            model.forward(&[SequenceSlice { tokens, start, block_table: blocks, logits: LogitRows::All }]).unwrap();
        rows.extend((0..logits.num_rows()).map(|row| logits.row(row).to_vec()));
        start += len;
    }
    rows
}

/// Logits of every row of one sequence, fed whole into blocks 0, 1, ...
pub(crate) fn run_whole<B: Backend>(model: &mut Llama<B>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..tokens.len().div_ceil(BLOCK_SIZE) as u32).collect();
    run_pieces(model, tokens, &[tokens.len()], &blocks)
}

pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    logits.iter().map(|&x| (f64::from(x) - log_sum) as f32).collect()
}
