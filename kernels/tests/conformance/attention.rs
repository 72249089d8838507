//! Attention against float64: lengths around block and split borders, grouped heads, head sizes, and scores that are hard
//! on a softmax.

use crate::fixture::{How, Sequences, no_rope};
use taper_kernels::{Backend, HeadLayout, KvDtype, KvLayout};
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

/// Rows at the end of a prompt: several tiles of query vectors from groups of three on.
const TAIL: usize = 20;
const LENS: [usize; 9] = [1, 63, 64, 65, 255, 256, 257, 513, 1100];

pub(crate) fn suite<B: Backend>(backend: &B) {
    lengths_groups_and_head_sizes(backend);
    hard_scores(backend);
    storage_types(backend);
    values_of_a_float32_cache_are_not_rounded(backend);
    heads_that_a_storage_type_cannot_hold_are_refused(backend);
}

fn heads(group: usize, num_kv_heads: usize, head_dim: usize) -> HeadLayout {
    HeadLayout { num_heads: group * num_kv_heads, num_kv_heads, head_dim }
}

/// Compares the last rows of every sequence with float64: as the end of a prompt, and the very last as a generated token.
/// Scores are sums in float32, with an error of some `2^-24 |score|` that ends in the exponent.
fn check<B: Backend>(backend: &B, sequences: &Sequences, largest_score: f64, what: &str) {
    check_within(backend, sequences, 3e-6 + 1e-6 * largest_score, what);
}

/// What an answer may be off by beyond that where tensor cores multiply with weights: those are rounded to the type of the cache, by
/// at most `2^-8` of bfloat16 and `2^-11` of float16 and on average by half of that, which is taken here once for the weights
/// and once for their sum, by which the answer is divided. (Queries are rounded, too; those of the suite are exact.)
fn rounding_of_weights<B: Backend>(backend: &B, sequences: &Sequences) -> f64 {
    let relative = match sequences.dtype {
        _ if backend.info().name != "cuda" => 0.0,
        KvDtype::F32 => 0.0,
        KvDtype::F16 => 2.0_f64.powi(-12),
        KvDtype::BF16 | KvDtype::Q8_0 | KvDtype::F8E4M3 => 2.0_f64.powi(-9),
    };
    let heads = sequences.heads;
    let rows = sequences.qkv.iter().flat_map(|rows| rows.chunks_exact(heads.qkv_width()));
    let values = rows.flat_map(|row| &row[heads.q_width() + heads.kv_width()..]);
    2.0 * relative * values.fold(0.0, |largest, x| f64::from(x.abs()).max(largest))
}

/// The tolerance is relative to the largest value.
fn check_within<B: Backend>(backend: &B, sequences: &Sequences, tolerance: f64, what: &str) {
    let rounding = rounding_of_weights(backend, sequences);
    for sequence in 0..sequences.qkv.len() {
        let len = sequences.len(sequence);
        let first = len.saturating_sub(TAIL);
        let mut cache = sequences.cache(backend);
        sequences.store(backend, &mut cache, &no_rope(), &[(sequence, 0..len)]);
        let compared = [first, len.saturating_sub(2), len - 1];
        let expected = compared.map(|position| sequences.oracle(sequence, position));
        for how in How::ALL {
            for positions in [first..len, len - 1..len] {
                let start = positions.start;
                let rows = sequences.run(backend, &mut cache, &no_rope(), how, &[(sequence, positions)]);
                for (&position, expected) in compared.iter().zip(&expected).filter(|&(&position, _)| position >= start)
                {
                    let row = &rows[(position - start) * sequences.heads.q_width()..];
                    let largest = expected.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
                    let tolerance = tolerance * largest + rounding;
                    for (d, (&actual, expected)) in row.iter().zip(expected).enumerate() {
                        assert!(
                            (f64::from(actual) - expected).abs() <= tolerance,
                            "{what}, {how:?}, length {len}, from {start}, position {position}, element {d}: {actual} for {expected}"
                        );
                    }
                }
            }
        }
    }
}

fn lengths_groups_and_head_sizes<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(1);
    for head_dim in thinned([16, 64, 80, 128], 2) {
        for group in thinned([1, 3, 4, 8], 3) {
            let lens: Vec<usize> = thinned(LENS, 3).collect();
            let sequences = Sequences::new(&mut rng, heads(group, 1, head_dim), &lens);
            check(backend, &sequences, 10.0, &format!("group of {group}, heads of {head_dim}"));
        }
    }
    // Sizes of tiny models, not whole vectors, and several KV heads.
    let tiny = [(2, 2, 8), (1, 3, 18), (5, 2, 24), (7, 1, 2), (20, 1, 34), (60, 1, 16)];
    for (group, num_kv_heads, head_dim) in thinned(tiny, 5) {
        let sequences = Sequences::new(&mut rng, heads(group, num_kv_heads, head_dim), &[1, 70, 600]);
        check(backend, &sequences, 10.0, &format!("group of {group}, {num_kv_heads} KV heads of {head_dim}"));
    }
}

/// Replaces keys so that the score of query head 0 with key i is about `score(i)`.
fn with_scores(rng: &mut SplitMix, len: usize, score: impl Fn(usize) -> f32) -> Sequences {
    let heads = heads(3, 2, 64);
    let mut sequences = Sequences::new(rng, heads, &[len]);
    let width = heads.qkv_width();
    for (position, row) in sequences.qkv[0].chunks_exact_mut(width).enumerate() {
        // Queries are ones and keys equal numbers: the score is 64 * key / sqrt(64).
        row[..heads.q_width()].fill(1.0);
        let key = half::f16::from_f32(score(position) / 8.0).to_f32();
        row[heads.q_width()..][..heads.kv_width()].fill(key);
    }
    sequences
}

fn hard_scores<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(2);
    type Score = Box<dyn Fn(usize) -> f32>;
    let cases: [(&str, f64, Score); 8] = [
        ("alternating +150 and -150", 150.0, Box::new(|i| if i % 2 == 0 { 150.0 } else { -150.0 })),
        ("rising from -150 to 150", 150.0, Box::new(|i| -150.0 + i as f32 / 3.0)),
        ("falling from 150 to -150", 150.0, Box::new(|i| 150.0 - i as f32 / 3.0)),
        ("one huge key at the end", 10_000.0, Box::new(|i| if i == 899 { 10_000.0 } else { 0.0 })),
        ("one huge key in the first split", 10_000.0, Box::new(|i| if i == 100 { 10_000.0 } else { 0.0 })),
        ("all equal", 3.0, Box::new(|_| 3.0)),
        ("all very negative", 10_000.0, Box::new(|i| -10_000.0 - (i % 7) as f32)),
        ("all zero", 0.0, Box::new(|_| 0.0)),
    ];
    for (what, largest_score, score) in thinned(cases, 3) {
        check(backend, &with_scores(&mut rng, 900, score), largest_score, what);
    }
}

/// On keys and values that the type holds, all types have the same tolerance. On others, what rounding them adds.
fn storage_types<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(4);
    for dtype in [KvDtype::BF16, KvDtype::Q8_0, KvDtype::F8E4M3, KvDtype::F32] {
        for (group, num_kv_heads, head_dim) in thinned([(3, 2, 64), (4, 1, 32), (5, 1, 96), (1, 1, 128)], 4) {
            if dtype == KvDtype::F8E4M3 && head_dim == 32 {
                continue;
            }
            let mut sequences = Sequences::new(&mut rng, heads(group, num_kv_heads, head_dim), &[1, 64, 257, 700]);
            sequences.dtype = dtype;
            sequences.round_to_storage();
            check(backend, &sequences, 10.0, &format!("{dtype:?}, group of {group}, heads of {head_dim}"));
        }
    }
    // An element of e4m3 is off by 2^-4 of it at worst, and so is the answer of a row that sees one key; averages of many are not.
    let of_e4m3 = 2.0_f64.powi(-4) + 1e-3;
    for (dtype, tolerance) in
        [(KvDtype::F16, 1e-3), (KvDtype::BF16, 6e-3), (KvDtype::Q8_0, 1.5e-2), (KvDtype::F8E4M3, of_e4m3)]
    {
        let mut sequences = Sequences::new(&mut rng, heads(3, 1, 64), &[1, 500]);
        sequences.dtype = dtype;
        sequences.qkv.iter_mut().flatten().for_each(|x| *x *= 1.000_173);
        check_within(backend, &sequences, tolerance, &format!("{dtype:?}, rounded"));
    }
}

fn heads_that_a_storage_type_cannot_hold_are_refused<B: Backend>(backend: &B) {
    let layout = KvLayout { num_layers: 1, num_blocks: 1, num_kv_heads: 1, head_dim: 80, dtype: KvDtype::Q8_0 };
    let error = backend.kv_cache(layout).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("multiple of 32") && error.contains("80"), "{error}");
    let error = backend.kv_cache(KvLayout { dtype: KvDtype::F8E4M3, ..layout }).err().map(|error| error.to_string());
    let says_why = error.as_ref().is_some_and(|error| error.contains("64, 96, 128 or 256") && error.contains("80"));
    assert_eq!(says_why, backend.info().name == "cuda", "{error:?}");
}

fn values_of_a_float32_cache_are_not_rounded<B: Backend>(backend: &B) {
    let mut sequences = Sequences::new(&mut SplitMix::new(3), heads(3, 1, 64), &[600]);
    sequences.dtype = KvDtype::F32;
    // No float16 holds these.
    sequences.qkv[0].iter_mut().for_each(|x| *x *= 1.000_173);
    check(backend, &sequences, 10.0, "float32 cache");
}
