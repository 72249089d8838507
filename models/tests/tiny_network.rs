//! What a step may not change: a sequence's logits depend on its tokens only, whoever else is in the batch, however it was
//! cut into steps, wherever its cache blocks lie and however many threads work. On `Cpu` that holds to the bit.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use std::cell::Cell;
use support::{cpu, load, run_pieces, run_whole};
use taper_checkpoint::Checkpoint;
use taper_kernels::{AttentionScheme, Backend, KvDtype, Reference};
use taper_models::{Error, Llama, LoadOptions, LogitRows, SequenceSlice};
use taper_testkit::approx::assert_close;
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

/// More than one cache block of tokens.
const LENGTH: usize = 150;

fn tokens(seed: u64, len: usize) -> Vec<u32> {
    let mut rng = SplitMix::new(seed);
    (0..len).map(|_| rng.below(256) as u32).collect()
}

/// Models that between them use every option and a few weight types.
fn models() -> Vec<TinyModel> {
    let model = |architecture, weight_type| TinyModel { architecture, weight_type, ..TinyModel::default() };
    vec![
        model("llama", TinyType::F32),
        TinyModel { tied: false, ..model("llama", TinyType::Q8_0) },
        model("qwen2", TinyType::Q4_1),
        TinyModel { head_dim: 32, ..model("qwen3", TinyType::F16) },
    ]
}

/// Bits, so that equality means what it says.
fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Runs a check for every model on both backends.
fn on_both(check: impl Fn(&str, &mut dyn Steps)) {
    for model in models() {
        let name = format!("{} {:?}", model.architecture, model.weight_type);
        check(&format!("{name} on Reference"), &mut load(Reference::new(), model.to_gguf()).unwrap());
        check(&format!("{name} on Cpu"), &mut load(cpu(2), model.to_gguf()).unwrap());
    }
}

/// The part of a model that the checks use, whatever its backend.
trait Steps {
    fn pieces(&mut self, tokens: &[u32], pieces: &[usize], blocks: &[u32]) -> Vec<Vec<f32>>;
    fn step(&mut self, sequences: &[SequenceSlice<'_>]) -> Vec<Vec<f32>>;
}

impl<B: Backend> Steps for Llama<B> {
    fn pieces(&mut self, tokens: &[u32], pieces: &[usize], blocks: &[u32]) -> Vec<Vec<f32>> {
        run_pieces(self, tokens, pieces, blocks)
    }
    fn step(&mut self, sequences: &[SequenceSlice<'_>]) -> Vec<Vec<f32>> {
        let logits = self.forward(sequences).unwrap();
        (0..logits.num_rows()).map(|row| logits.row(row).to_vec()).collect()
    }
}

#[test]
fn a_prompt_in_pieces_gives_the_bits_of_the_whole() {
    on_both(|name, model| {
        let tokens = tokens(1, LENGTH);
        let whole = model.pieces(&tokens, &[LENGTH], &[0, 1, 2]);
        for pieces in [vec![1; LENGTH], vec![63, 2, 85], vec![64, 64, 22], vec![149, 1]] {
            let cut = model.pieces(&tokens, &pieces, &[0, 1, 2]);
            assert_eq!(bits(&cut), bits(&whole), "{name}, pieces {pieces:?}");
        }
    });
}

#[test]
fn scattered_cache_blocks_give_the_bits_of_ordered_ones() {
    on_both(|name, model| {
        let tokens = tokens(2, LENGTH);
        let ordered = model.pieces(&tokens, &[LENGTH], &[0, 1, 2]);
        assert_eq!(bits(&model.pieces(&tokens, &[70, 80], &[15, 3, 9])), bits(&ordered), "{name}");
    });
}

#[test]
fn sequences_together_give_the_bits_of_each_alone() {
    on_both(|name, model| {
        let (a, b, c) = (tokens(3, 100), tokens(4, 37), tokens(5, 66));
        let alone_a = model.pieces(&a, &[99, 1], &[0, 1]);
        let alone_b = model.pieces(&b, &[37], &[2]);
        let alone_c = model.pieces(&c, &[65, 1], &[3, 4]);
        // All keys are in the cache now; the last row of `a` and `c` and the whole of `b` once more, in one step.
        let all = model.step(&[
            SequenceSlice { tokens: &a[99..], start: 99, block_table: &[0, 1], logits: LogitRows::Last },
            SequenceSlice { tokens: &b, start: 0, block_table: &[2], logits: LogitRows::All },
            SequenceSlice { tokens: &c[65..], start: 65, block_table: &[3, 4], logits: LogitRows::Last },
        ]);
        assert_eq!(bits(&all[..1]), bits(&alone_a[99..]), "{name}");
        assert_eq!(bits(&all[1..38]), bits(&alone_b), "{name}");
        assert_eq!(bits(&all[38..]), bits(&alone_c[65..]), "{name}");
    });
}

#[test]
fn logits_come_for_the_rows_that_are_asked_for_in_the_order_of_the_slices() {
    on_both(|name, model| {
        let (a, b, c) = (tokens(6, 5), tokens(7, 9), tokens(8, 4));
        let (whole_a, whole_c) = (model.pieces(&a, &[5], &[0]), model.pieces(&c, &[4], &[2]));
        let slice = |tokens, block_table, logits| SequenceSlice { tokens, start: 0, block_table, logits };
        let rows = model.step(&[
            slice(&a, &[0], LogitRows::Last),
            slice(&b, &[1], LogitRows::None),
            slice(&c, &[2], LogitRows::All),
        ]);
        assert_eq!(bits(&rows[..1]), bits(&whole_a[4..]), "{name}");
        assert_eq!(bits(&rows[1..]), bits(&whole_c), "{name}");
    });
}

#[test]
fn a_step_without_logits_still_fills_the_cache() {
    on_both(|name, model| {
        let tokens = tokens(9, 80);
        let whole = model.pieces(&tokens, &[80], &[0, 1]);
        let first = SequenceSlice { tokens: &tokens[..79], start: 0, block_table: &[4, 5], logits: LogitRows::None };
        let last = SequenceSlice { tokens: &tokens[79..], start: 79, block_table: &[4, 5], logits: LogitRows::Last };
        assert!(model.step(&[first]).is_empty());
        assert_eq!(bits(&model.step(&[last])), bits(&whole[79..]), "{name}");
    });
}

/// How often a step asks whether it is wanted before it is left at answer `leave_at`; none if it is done.
fn asked_until_left<B: Backend>(model: &mut Llama<B>, step: &[SequenceSlice<'_>], leave_at: usize) -> Option<usize> {
    let asked = Cell::new(0);
    let is_wanted = || asked.replace(asked.get() + 1) < leave_at;
    let rows = model.compute_while(step, &is_wanted).unwrap();
    rows.is_none().then(|| asked.get())
}

#[test]
fn a_step_is_left_at_any_layer_and_what_it_stored_does_not_matter() {
    for model in models() {
        let (all, others) = (tokens(1, LENGTH), tokens(2, LENGTH));
        let whole = |tokens| [SequenceSlice { tokens, start: 0, block_table: &[0, 1, 2], logits: LogitRows::Last }];
        let mut plain = load(cpu(2), model.to_gguf()).unwrap();
        let mut left = load(cpu(2), model.to_gguf()).unwrap();
        let expected = bits(&plain.step(&whole(&all)));
        let num_layers = left.config().num_layers;
        for layer in 0..num_layers {
            assert_eq!(asked_until_left(&mut left, &whole(&others), layer), Some(layer + 1));
            assert_eq!(bits(&left.step(&whole(&all))), expected);
        }
        assert_eq!(asked_until_left(&mut left, &whole(&all), num_layers), None);
        assert_eq!(left.attended()[0].computed, plain.attended()[0].computed * (num_layers as u64 + 1));
        let mut reference = load(Reference::new(), model.to_gguf()).unwrap();
        assert_eq!(asked_until_left(&mut reference, &whole(&all), 0), Some(1));
    }
}

#[test]
fn an_empty_step_gives_nothing() {
    on_both(|_, model| assert!(model.step(&[]).is_empty()));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for model in models() {
        let tokens = tokens(10, LENGTH);
        let [one, two, three] = [1, 2, 3].map(|threads| {
            let mut model = load(cpu(threads), model.to_gguf()).unwrap();
            bits(&run_whole(&mut model, &tokens))
        });
        assert!(one == two && two == three, "{} {:?}", model.architecture, model.weight_type);
    }
}

#[test]
fn materialised_attention_and_wider_keys_change_no_more_than_rounding() {
    for model in models() {
        let tokens = tokens(12, LENGTH);
        let checkpoint = Checkpoint::from_bytes("tiny.gguf", model.to_gguf()).unwrap();
        let run = |attention, kv_dtype| {
            let options = LoadOptions { attention, kv_dtype, ..support::options() };
            let mut model = Llama::load(cpu(2), &checkpoint, options, &mut |_| {}).unwrap();
            run_whole(&mut model, &tokens).concat()
        };
        let split = run(AttentionScheme::SplitKv, KvDtype::F32);
        assert_close(&run(AttentionScheme::Naive, KvDtype::F32), &split, 4e-3, 0.0);
        assert_close(&run(AttentionScheme::SplitKv, KvDtype::F16), &split, 0.03, 0.0);
    }
}

#[test]
fn an_unknown_token_is_refused_and_the_model_goes_on() {
    let mut model = load(Reference::new(), TinyModel::default().to_gguf()).unwrap();
    let vocab_size = model.config().vocab_size;
    let slice = |tokens| SequenceSlice { tokens, start: 0, block_table: &[0], logits: LogitRows::Last };
    let tokens = [1, vocab_size as u32];
    let error = model.forward(&[slice(&tokens)]).unwrap_err();
    assert!(matches!(error, Error::TokenOutOfRange { token, .. } if token as usize == vocab_size), "{error}");
    assert_eq!(model.forward(&[slice(&tokens[..1])]).unwrap().num_rows(), 1);
}

#[test]
#[should_panic(expected = "rows in a step with room for 256")]
fn a_step_beyond_the_room_is_a_bug_of_the_caller() {
    let mut model = load(Reference::new(), TinyModel { context: 512, ..TinyModel::default() }.to_gguf()).unwrap();
    run_whole(&mut model, &tokens(11, 257));
}

#[test]
fn progress_runs_from_nothing_to_all_bytes() {
    let checkpoint = Checkpoint::from_bytes("tiny.gguf", TinyModel::default().to_gguf()).unwrap();
    let mut seen = Vec::new();
    Llama::load(Reference::new(), &checkpoint, support::options(), &mut |progress| seen.push(progress)).unwrap();
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert_eq!(first.done, 0);
    assert_eq!(last.done, last.total);
    assert!(seen.is_sorted_by_key(|progress| progress.done) && seen.len() > 10);
}

#[test]
fn a_tied_head_is_counted_once_in_the_bytes_of_a_token() {
    let bytes = |tied| {
        let model = TinyModel { tied, weight_type: TinyType::F32, ..TinyModel::default() };
        load(Reference::new(), model.to_gguf()).unwrap().weight_bytes_per_token()
    };
    // Untied models read the head in the place of the embedding, of which a token reads one row.
    assert_eq!(bytes(true), bytes(false));
    let model = TinyModel::default();
    let layer = model.hidden * (2 * 64 + 2 * 32 + 3 * model.ffn);
    assert_eq!(bytes(true), 4 * (model.layers * layer + model.vocab * model.hidden));
}

#[test]
fn a_cache_filled_with_random_keys_is_read_like_any_other() {
    let mut model = load(cpu(2), TinyModel::default().to_gguf()).unwrap();
    let blocks = [3, 1, 2];
    let mut decode = |seed| {
        let mut rng = SplitMix::new(seed);
        model.fill_cache(&blocks, LENGTH, &mut || rng.below(2000) as f32 / 1000.0 - 1.0).unwrap();
        let step = SequenceSlice { tokens: &[5], start: LENGTH, block_table: &blocks, logits: LogitRows::Last };
        bits(&[model.forward(&[step]).unwrap().row(0).to_vec()])
    };
    let (first, other) = (decode(1), decode(2));
    assert_eq!(first, decode(1), "the same keys give the same answer");
    assert_ne!(first, other, "the keys are read");
    assert!(first[0].iter().all(|&bits| f32::from_bits(bits).is_finite()));
}
