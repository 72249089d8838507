//! Hidden states and what is pooled of them: they are what logits are made of, they are pooled as the plain loop over the reference's
//! says, and a prompt's vector has the same bits whole and in pieces, alone and in company, with any number of threads.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use support::{cpu, load, run_whole};
use taper_checkpoint::Checkpoint;
use taper_kernels::{Backend, Reference};
use taper_models::{Llama, LogitRows, ModelConfig, Pooler, Pooling, SequenceSlice};
use taper_testkit::approx::assert_close;
use taper_testkit::gguf::Value;
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

/// More than two cache blocks of tokens.
const LENGTH: usize = 150;

fn tokens(seed: u64, len: usize) -> Vec<u32> {
    let mut rng = SplitMix::new(seed);
    (0..len).map(|_| rng.below(256) as u32).collect()
}

fn models() -> Vec<TinyModel> {
    let model = |architecture, weight_type| TinyModel { architecture, weight_type, ..TinyModel::default() };
    vec![model("llama", TinyType::F32), model("qwen2", TinyType::Q4_1), model("qwen3", TinyType::F16)]
}

/// The vector of one sequence, computed in pieces of the given lengths.
fn pooled<B: Backend>(
    model: &mut Llama<B>,
    pooling: Pooling,
    tokens: &[u32],
    pieces: &[usize],
    blocks: &[u32],
) -> Vec<f32> {
    assert_eq!(pieces.iter().sum::<usize>(), tokens.len());
    let mut pooler = Pooler::new(pooling, model.config().hidden_size);
    let mut start = 0;
    for &len in pieces {
        let rows = pooling.rows(start + len == tokens.len());
        let slice = SequenceSlice { tokens: &tokens[start..start + len], start, block_table: blocks, logits: rows };
        assert_eq!(model.compute(&[slice]).unwrap(), 0, "no row of logits");
        pooler.push(start + len - rows.hidden_of(len), model.read_hidden());
        start += len;
    }
    pooler.finish()
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

/// Hidden states of a sequence on the reference, row by row.
fn reference_states(model: &TinyModel, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut model = load(Reference::new(), model.to_gguf()).unwrap();
    let width = model.config().hidden_size;
    let slice = SequenceSlice { tokens, start: 0, block_table: &[0, 1, 2], logits: LogitRows::AllHidden };
    model.compute(&[slice]).unwrap();
    model.read_hidden().chunks(width).map(<[f32]>::to_vec).collect()
}

#[test]
fn hidden_states_are_what_logits_are_made_of() {
    for model in models() {
        let tokens = tokens(1, LENGTH);
        let states = reference_states(&model, &tokens);
        let checkpoint = Checkpoint::from_bytes("tiny.gguf", model.to_gguf()).unwrap();
        // The head of a tied model.
        let head = checkpoint.tensor("token_embd.weight").unwrap().to_f32();
        let logits = run_whole(&mut load(Reference::new(), model.to_gguf()).unwrap(), &tokens);
        assert_eq!(states.len(), logits.len());
        for (state, logits) in states.iter().zip(&logits) {
            let product = |row: &[f32]| row.iter().zip(state).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
            let by_hand: Vec<f32> = head.chunks(state.len()).map(|row| product(row) as f32).collect();
            assert_close(logits, &by_hand, 2e-3, 0.0);
        }
    }
}

#[test]
fn vectors_are_what_a_plain_loop_makes_of_the_states() {
    for model in models() {
        let tokens = tokens(2, LENGTH);
        let states = reference_states(&model, &tokens);
        let mut mean = vec![0.0_f64; model.hidden];
        for state in &states {
            for (sum, &x) in mean.iter_mut().zip(state) {
                *sum += f64::from(x) / LENGTH as f64;
            }
        }
        let mean: Vec<f32> = mean.iter().map(|&x| x as f32).collect();
        let blocks = [4, 2, 7];
        let mut reference = load(Reference::new(), model.to_gguf()).unwrap();
        let ours = pooled(&mut reference, Pooling::Mean, &tokens, &[LENGTH], &blocks);
        assert_close(&ours, &mean, 1e-5, 0.0);
        let ours = pooled(&mut reference, Pooling::Last, &tokens, &[LENGTH], &blocks);
        assert_eq!(bits(&ours), bits(&states[LENGTH - 1]));
        // On the processor keys have sixteen bits.
        let mut fast = load(cpu(2), model.to_gguf()).unwrap();
        assert_close(&pooled(&mut fast, Pooling::Mean, &tokens, &[LENGTH], &blocks), &mean, 0.05, 0.0);
        assert_close(&pooled(&mut fast, Pooling::Last, &tokens, &[LENGTH], &blocks), &states[LENGTH - 1], 0.1, 0.0);
    }
}

#[test]
fn a_prompt_in_pieces_with_any_number_of_threads_gives_the_bits_of_the_whole() {
    for model in models() {
        let tokens = tokens(3, LENGTH);
        for pooling in [Pooling::Mean, Pooling::Last] {
            let mut alone = load(cpu(1), model.to_gguf()).unwrap();
            let whole = bits(&pooled(&mut alone, pooling, &tokens, &[LENGTH], &[0, 1, 2]));
            for threads in [1, 2, 3] {
                let mut model = load(cpu(threads), model.to_gguf()).unwrap();
                for pieces in [vec![1; LENGTH], vec![63, 2, 85], vec![64, 64, 22], vec![149, 1], vec![LENGTH]] {
                    let cut = pooled(&mut model, pooling, &tokens, &pieces, &[9, 3, 5]);
                    assert_eq!(bits(&cut), whole, "{pooling:?}, {threads} threads, pieces {pieces:?}");
                }
            }
        }
    }
}

#[test]
fn company_changes_no_bit_of_a_state_or_of_a_logit() {
    for model in models() {
        let (a, b, c) = (tokens(4, 70), tokens(5, 37), tokens(6, 66));
        let mut model = load(cpu(2), model.to_gguf()).unwrap();
        let width = model.config().hidden_size;
        let mean_a = pooled(&mut model, Pooling::Mean, &a, &[70], &[0, 1]);
        let last_c = pooled(&mut model, Pooling::Last, &c, &[66], &[3, 4]);
        let slice = |tokens, block_table, logits| SequenceSlice { tokens, start: 0, block_table, logits };
        let alone_b = model.forward(&[slice(&b, &[2], LogitRows::Last)]).unwrap().row(0).to_vec();
        let together = [
            slice(&a, &[5, 6], LogitRows::AllHidden),
            slice(&b, &[7], LogitRows::Last),
            slice(&c, &[8, 9], LogitRows::LastHidden),
        ];
        assert_eq!(model.compute(&together).unwrap(), 1);
        let states = model.read_hidden().to_vec();
        assert_eq!(states.len(), 71 * width);
        let mut pooler = Pooler::new(Pooling::Mean, width);
        pooler.push(0, &states[..70 * width]);
        assert_eq!(bits(&pooler.finish()), bits(&mean_a));
        assert_eq!(bits(&states[70 * width..]), bits(&last_c));
        let mut logits_b = vec![0.0; alone_b.len()];
        model.read_logits(0..1, &mut logits_b);
        assert_eq!(bits(&logits_b), bits(&alone_b));
    }
}

#[test]
fn a_step_after_one_with_states_gives_none_of_them_again() {
    let mut model = load(Reference::new(), TinyModel::default().to_gguf()).unwrap();
    let tokens = tokens(7, 9);
    pooled(&mut model, Pooling::Mean, &tokens, &[9], &[0]);
    run_whole(&mut model, &tokens);
    assert_eq!(model.read_hidden(), [] as [f32; 0]);
}

#[test]
fn the_file_says_how_its_states_are_pooled() {
    let pooling = |number: Option<u32>| {
        let extra = number.map(|number| ("llama.pooling_type".to_owned(), Value::U32(number))).into_iter().collect();
        let bytes = TinyModel { extra, ..TinyModel::default() }.to_gguf();
        ModelConfig::from_checkpoint(&Checkpoint::from_bytes("tiny.gguf", bytes).unwrap()).unwrap().pooling
    };
    for (number, expected) in [
        (None, Some(Pooling::Mean)),
        (Some(0), Some(Pooling::Mean)),
        (Some(1), Some(Pooling::Mean)),
        (Some(2), None),
        (Some(3), Some(Pooling::Last)),
        (Some(4), None),
    ] {
        assert_eq!(pooling(number), expected, "{number:?}");
    }
}
