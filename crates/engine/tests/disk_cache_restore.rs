//! Blocks of a model's KV cache that went over the disk: logits after them have the bits of a cold start.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

use std::path::Path;
use taper_checkpoint::Checkpoint;
use taper_engine::{BlockHash, DiskCache, LogitsBuffer, ModelRunner, Runner, file_digest};
use taper_kernels::{Backend, Cpu, CpuConfig, KvDtype, Reference};
use taper_models::{BLOCK_SIZE, Llama, LoadOptions, LogitRows, ModelSoftmax, SequenceSlice};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

const NUM_BLOCKS: usize = 4;
/// All blocks but the last are whole.
const LEN: usize = (NUM_BLOCKS - 1) * BLOCK_SIZE + 7;

fn tokens() -> Vec<u32> {
    let mut rng = SplitMix::new(70);
    (0..LEN).map(|_| rng.below(256) as u32).collect()
}

/// As a server would start: the model from its file, in blocks of a cache that no one has written.
fn start<B: Backend>(backend: B, file: &Path, kv_dtype: KvDtype) -> ModelRunner<B> {
    let options = LoadOptions { num_blocks: Some(8), max_rows: 256, kv_dtype, ..LoadOptions::default() };
    let mut model = Llama::load(backend, &Checkpoint::open(file).unwrap(), options, &mut |_| {}).unwrap();
    model.set_softmax(ModelSoftmax::Bounded).unwrap();
    model.set_file_digest(file_digest(file, file.parent().unwrap()).unwrap());
    ModelRunner(model)
}

/// The bits of the logits after all tokens, of which those from `start` on are computed.
fn logits(runner: &mut impl Runner, start: usize, block_table: &[u32]) -> Vec<u32> {
    let tokens = tokens();
    let slice = SequenceSlice { tokens: &tokens[start..], start, block_table, logits: LogitRows::Last };
    let mut logits = LogitsBuffer::new(runner.limits().vocab_size);
    runner.run(&[slice], &mut logits).unwrap();
    logits.row(0).iter().map(|logit| logit.to_bits()).collect()
}

/// Names of the whole blocks.
fn chain(runner: &impl Runner) -> Vec<BlockHash> {
    let next = |hash: &mut BlockHash, tokens: &[u32]| {
        *hash = hash.child(tokens);
        Some(*hash)
    };
    let root = BlockHash::root(&runner.identity(), None);
    tokens().as_chunks::<BLOCK_SIZE>().0.iter().scan(root, |hash, tokens| next(hash, tokens)).collect()
}

fn open(dir: &Path, runner: &impl Runner) -> DiskCache {
    DiskCache::open(dir, &runner.identity(), runner.block_bytes(), 1 << 30).unwrap()
}

fn check<B: Backend>(backend: impl Fn() -> B, weight_type: TinyType, kv_dtype: KvDtype) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiny.gguf");
    let model = TinyModel { weight_type, hidden: 256, head_dim: 64, ffn: 256, ..TinyModel::default() };
    std::fs::write(&file, model.to_gguf()).unwrap();

    let mut cold = start(backend(), &file, kv_dtype);
    let expected = logits(&mut cold, 0, &[0, 1, 2, 3]);
    let cache = open(dir.path(), &cold);
    let mut parent = None;
    for (block, hash) in (0..).zip(chain(&cold)) {
        let mut bytes = Vec::new();
        cold.export_block(block, &mut bytes).unwrap();
        cache.store(hash, parent, &bytes);
        parent = Some(hash);
    }
    drop((cache, cold));

    let mut restored = start(backend(), &file, kv_dtype);
    let cache = open(dir.path(), &restored);
    let block_table = [6, 2, 5, 0];
    let chain = chain(&restored);
    assert_eq!(chain.len(), NUM_BLOCKS - 1);
    for (&block, &hash) in block_table.iter().zip(&chain) {
        restored.import_block(block, &cache.load(hash).unwrap()).unwrap();
    }
    let found = logits(&mut restored, chain.len() * BLOCK_SIZE, &block_table);
    assert!(found == expected, "{weight_type:?} {kv_dtype:?}: restored blocks give other bits");
}

fn cpu() -> Cpu {
    Cpu::new(CpuConfig { threads: Some(2), ..CpuConfig::default() }).unwrap()
}

#[test]
fn restored_from_disk_is_as_cold_for_every_weight_type() {
    for weight_type in TinyType::ALL {
        check(cpu, weight_type, KvDtype::F16);
    }
}

#[test]
fn restored_from_disk_is_as_cold_for_every_storage_type() {
    for kv_dtype in [KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0] {
        check(cpu, TinyType::Q4_1, kv_dtype);
    }
}

#[test]
fn restored_from_disk_is_as_cold_on_the_reference() {
    check(Reference::new, TinyType::Q8_0, KvDtype::F32);
}
