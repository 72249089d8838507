//! The determinism contract, by weight type and by how activations are rounded: a sequence's logits have the same bits alone
//! and among 32 sequences, in one piece and in chunks of 1, 7 and 64 tokens, with 1, 2 and 3 threads.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use support::{cpu, run_pieces, run_whole};
use taper_checkpoint::Checkpoint;
use taper_kernels::{Activations, Cpu};
use taper_models::{Llama, LoadOptions, LogitRows, SequenceSlice};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

/// Tokens of the prompt that is cut: three cache blocks, the last in part.
const PROMPT_LEN: usize = 135;
const NUM_SEQUENCES: usize = 32;
/// Blocks for each sequence of the batch.
const BLOCKS: usize = 2;

/// Logits of some rows, as bits.
type Rows = Vec<Vec<u32>>;

fn bits(rows: &[Vec<f32>]) -> Rows {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

fn tokens(seed: u64, len: usize) -> Vec<u32> {
    let mut rng = SplitMix::new(seed);
    (0..len).map(|_| rng.below(256) as u32).collect()
}

/// 32 sequences of 34 to 65 tokens: most lie in one cache block, the longest in two.
fn sequences() -> Vec<Vec<u32>> {
    (0..NUM_SEQUENCES).map(|index| tokens(2 + index as u64, 34 + index)).collect()
}

fn block_table(index: usize) -> Vec<u32> {
    (index * BLOCKS..(index + 1) * BLOCKS).map(|block| block as u32).collect()
}

fn load(checkpoint: &Checkpoint, threads: usize, activations: Activations) -> Llama<Cpu> {
    let options = LoadOptions { num_blocks: Some(NUM_SEQUENCES * BLOCKS), ..support::options() };
    Llama::load(cpu(threads).with_activations(activations), checkpoint, options, &mut |_| {}).unwrap()
}

/// Logits of every row of the sequences, computed together: in each step every one that is not at its end has seven more
/// tokens, or one when it is near its end, so that prompts and generated tokens share steps.
fn together(model: &mut Llama<Cpu>, sequences: &[Vec<u32>]) -> Vec<Rows> {
    let block_tables: Vec<Vec<u32>> = (0..sequences.len()).map(block_table).collect();
    let mut rows = vec![Rows::new(); sequences.len()];
    loop {
        let unfinished: Vec<usize> = (0..sequences.len()).filter(|&s| rows[s].len() < sequences[s].len()).collect();
        if unfinished.is_empty() {
            return rows;
        }
        let slice = |&s: &usize| {
            let start = rows[s].len();
            let len = if sequences[s].len() - start > 10 { 7 } else { 1 };
            let tokens = &sequences[s][start..start + len];
            SequenceSlice { tokens, start, block_table: &block_tables[s], logits: LogitRows::All }
        };
        let slices: Vec<SequenceSlice<'_>> = unfinished.iter().map(slice).collect();
        let lens: Vec<usize> = slices.iter().map(|slice| slice.tokens.len()).collect();
        let logits = model.forward(&slices).unwrap();
        let owners = unfinished.iter().zip(lens).flat_map(|(&s, len)| std::iter::repeat_n(s, len));
        for (row, owner) in owners.enumerate() {
            rows[owner].push(logits.row(row).iter().map(|x| x.to_bits()).collect());
        }
    }
}

fn check(weight_type: TinyType) {
    // Rows of 256 fill a block of every type.
    let model = TinyModel { weight_type, hidden: 256, head_dim: 64, ffn: 256, ..TinyModel::default() };
    let checkpoint = Checkpoint::from_bytes("tiny.gguf", model.to_gguf()).unwrap();
    let (prompt, sequences) = (tokens(1, PROMPT_LEN), sequences());
    let mut wholes = Vec::new();
    for activations in [Activations::Full, Activations::Mixed] {
        let mut model = load(&checkpoint, 1, activations);
        let whole = bits(&run_whole(&mut model, &prompt));
        let alone = |(index, tokens): (usize, &Vec<u32>)| {
            bits(&run_pieces(&mut model, tokens, &[tokens.len()], &block_table(index)))
        };
        let alone: Vec<Rows> = sequences.iter().enumerate().map(alone).collect();
        for threads in [1, 2, 3] {
            let mut model = load(&checkpoint, threads, activations);
            for chunk in [PROMPT_LEN, 64, 7, 1] {
                let pieces: Vec<usize> = prompt.chunks(chunk).map(<[u32]>::len).collect();
                let cut = bits(&run_pieces(&mut model, &prompt, &pieces, &[5, 3, 4]));
                assert!(cut == whole, "{activations:?}: chunks of {chunk} with {threads} threads differ");
            }
            for (index, (together, alone)) in together(&mut model, &sequences).iter().zip(&alone).enumerate() {
                assert!(together == alone, "{activations:?}: sequence {index} differs with {threads} threads");
            }
        }
        wholes.push(whole);
    }
    let is_quantized = weight_type.block_len() > 1;
    assert_eq!(wholes[0] != wholes[1], is_quantized, "activations are rounded in two ways where weights are quantized");
}

macro_rules! weight_types {
    ($($name:ident: $weight_type:ident;)*) => {
        $(#[test]
        fn $name() {
            check(TinyType::$weight_type);
        })*

        const NAMED: &[TinyType] = &[$(TinyType::$weight_type),*];
    };
}

weight_types! {
    logits_of_f32_weights_depend_on_their_sequence_alone: F32;
    logits_of_f16_weights_depend_on_their_sequence_alone: F16;
    logits_of_bf16_weights_depend_on_their_sequence_alone: BF16;
    logits_of_q4_0_weights_depend_on_their_sequence_alone: Q4_0;
    logits_of_q4_1_weights_depend_on_their_sequence_alone: Q4_1;
    logits_of_q5_0_weights_depend_on_their_sequence_alone: Q5_0;
    logits_of_q5_1_weights_depend_on_their_sequence_alone: Q5_1;
    logits_of_q8_0_weights_depend_on_their_sequence_alone: Q8_0;
    logits_of_q2_k_weights_depend_on_their_sequence_alone: Q2_K;
    logits_of_q3_k_weights_depend_on_their_sequence_alone: Q3_K;
    logits_of_q4_k_weights_depend_on_their_sequence_alone: Q4_K;
    logits_of_q5_k_weights_depend_on_their_sequence_alone: Q5_K;
    logits_of_q6_k_weights_depend_on_their_sequence_alone: Q6_K;
}

#[test]
fn every_weight_type_has_its_test() {
    assert_eq!(NAMED, TinyType::ALL);
}
