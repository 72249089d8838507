//! Moved blocks of a whole network: copied, or taken out and put into another one, they give the logits they gave before,
//! bit for bit.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use support::{cpu, load, run_pieces};
use taper_checkpoint::Checkpoint;
use taper_kernels::{Activations, AttentionScheme, Backend, KvDtype, NUMERICS_VERSION, Reference};
use taper_models::{BLOCK_SIZE, Llama, LoadOptions, ModelSoftmax};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

/// Two whole blocks and some tokens of a third.
const LEN: usize = 2 * BLOCK_SIZE + 5;

fn model() -> TinyModel {
    TinyModel { head_dim: 32, ..TinyModel::default() }
}

fn tokens() -> Vec<u32> {
    let mut rng = SplitMix::new(5);
    (0..LEN).map(|_| rng.below(256) as u32).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Logits after the second block, whose keys and values are read from `blocks`.
fn tail<B: Backend>(model: &mut Llama<B>, blocks: &[u32]) -> Vec<Vec<u32>> {
    let tokens = tokens();
    let rest = &tokens[2 * BLOCK_SIZE..];
    let slice = taper_models::SequenceSlice {
        tokens: rest,
        start: 2 * BLOCK_SIZE,
        block_table: blocks,
        logits: taper_models::LogitRows::All,
    };
    let logits = model.forward(&[slice]).unwrap();
    bits(&(0..logits.num_rows()).map(|row| logits.row(row).to_vec()).collect::<Vec<_>>())
}

fn exported<B: Backend>(model: &Llama<B>, block: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    model.export_block(block, &mut bytes);
    bytes
}

fn check<B: Backend + Clone>(backend: &B) {
    let file = model().to_gguf();
    let mut first = load(backend.clone(), file.clone()).unwrap();
    let expected = bits(&run_pieces(&mut first, &tokens(), &[LEN], &[0, 1, 2]))[2 * BLOCK_SIZE..].to_vec();

    first.copy_block(0, 9);
    first.copy_block(1, 7);
    assert!(tail(&mut first, &[9, 7, 3]) == expected, "copied blocks");

    let bytes = [0, 1].map(|block| exported(&first, block));
    assert_eq!(bytes[0].len(), first.block_bytes());
    let mut second = load(backend.clone(), file).unwrap();
    second.import_block(4, &bytes[0]).unwrap();
    second.import_block(2, &bytes[1]).unwrap();
    assert!(tail(&mut second, &[4, 2, 8]) == expected, "imported blocks");
    assert!(second.import_block(4, &bytes[0][1..]).is_err());
    assert!(tail(&mut second, &[4, 2, 8]) == expected, "a block that was refused changed nothing");
    assert!(tail(&mut second, &[2, 4, 8]) != expected, "the test sees which block is which");
}

#[test]
fn moved_blocks_of_the_cpu_give_the_same_logits() {
    check(&cpu(2));
}

#[test]
fn moved_blocks_of_the_reference_give_the_same_logits() {
    check(&Reference::new());
}

#[test]
fn whatever_decides_the_bytes_of_a_block_is_in_the_identity() {
    let checkpoint = Checkpoint::from_bytes("tiny.gguf", model().to_gguf()).unwrap();
    let load = |activations, kv_dtype, attention| {
        let options = LoadOptions { kv_dtype, attention, ..support::options() };
        Llama::load(cpu(1).with_activations(activations), &checkpoint, options, &mut |_| {}).unwrap()
    };
    let plain = || load(Activations::Full, KvDtype::F16, AttentionScheme::SplitKv);
    assert_ne!(plain().identity(), plain().identity(), "files without a name are never the same");

    let identity_with = |mut model: Llama<taper_kernels::Cpu>, digest: &str, softmax| {
        model.set_file_digest(digest.into());
        model.set_softmax(softmax).unwrap();
        model.identity()
    };
    let identity = |model| identity_with(model, "a", ModelSoftmax::Online);
    assert_eq!(identity(plain()), identity(plain()));
    let others = [
        identity_with(plain(), "b", ModelSoftmax::Online),
        identity_with(plain(), "a", ModelSoftmax::Bounded),
        identity_with(plain(), "a", ModelSoftmax::OnlineThreshold),
        identity(load(Activations::Mixed, KvDtype::F16, AttentionScheme::SplitKv)),
        identity(load(Activations::Full, KvDtype::Q8_0, AttentionScheme::SplitKv)),
        identity(load(Activations::Full, KvDtype::F8E4M3, AttentionScheme::SplitKv)),
        identity(load(Activations::Full, KvDtype::F16, AttentionScheme::Naive)),
    ];
    assert!(others.iter().all(|other| *other != identity(plain())));
}

/// FNV-1a, the 64-bit variant.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Of a block by weight type, with full and with mixed activations.
const BITS: [u64; 8] = [
    0xb803_bf9b_d69c_8554,
    0xb803_bf9b_d69c_8554,
    0xfe0f_25ed_cfb5_0739,
    0xfe0f_25ed_cfb5_0739,
    0x95e6_5f9a_95e1_7bca,
    0x99d8_37b3_203e_86d7,
    0x1ab9_2e00_a12f_5cfa,
    0x2a11_a9c2_c748_483c,
];

/// Blocks on disk outlive the build that wrote them. When this test fails, bits have changed: raise
/// `taper_kernels::NUMERICS_VERSION` and write the new numbers here.
#[test]
fn blocks_of_this_version_have_the_bits_that_they_always_had() {
    let mut found = Vec::new();
    for weight_type in [TinyType::F32, TinyType::BF16, TinyType::Q4_0, TinyType::Q6_K] {
        for activations in [Activations::Full, Activations::Mixed] {
            let model = TinyModel { weight_type, hidden: 256, head_dim: 64, ffn: 256, ..TinyModel::default() };
            let mut model = load(cpu(1).with_activations(activations), model.to_gguf()).unwrap();
            run_pieces(&mut model, &tokens(), &[LEN], &[0, 1, 2]);
            found.push(fnv(&exported(&model, 1)));
        }
    }
    assert_eq!((NUMERICS_VERSION, found.as_slice()), (1, BITS.as_slice()), "{found:#018x?}");
}
