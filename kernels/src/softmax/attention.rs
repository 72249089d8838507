//! Block attention, online: the softmax-weighted sum of values for one query, without ever holding all scores.
//!
//! Keys come in blocks of 64. Per block: scores `x = q.k`, the reference `m' = max(m, floor of the largest x)`, weights
//! `p = 2^(x - m')`, and both sums corrected: `l' = l 2^(m - m') + sum p`, `o' = o 2^(m - m') + sum p v`. Splits of 256 keys run
//! on all threads and their (m, l, o) are merged as a tree, neighbours first; the answer is `o / l`.

use super::row::{load, reference, scale_and_divide, store, weights};
use super::state::power_of_two;
use super::{Context, LOWEST, State};
use crate::cpu::rows::Disjoint;
use crate::cpu::simd::{Kernel, LANES, Simd, run};
use crate::{BLOCK_SIZE, KV_SPLIT};
use std::ops::Range;

/// A query and what it attends to.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInput<'a> {
    /// The query, scaled so that its product with a key is a score in log2 units.
    pub query: &'a [f32],
    /// `[keys, query.len()]`.
    pub keys: &'a [f32],
    /// `[keys, out.len()]`; also the values of masked keys must be finite.
    pub values: &'a [f32],
    /// Added to the scores, one per key; minus infinity masks a key.
    pub bias: Option<&'a [f32]>,
}

/// Writes the weighted sum of the values; zeros where there is no key or all are masked.
///
/// # Panics
/// When the query is empty or the shapes do not fit.
pub fn attention(context: Context<'_>, input: AttentionInput<'_>, out: &mut [f32]) {
    assert!(!input.query.is_empty(), "a query has elements");
    let num_keys = input.keys.len() / input.query.len();
    assert_eq!(input.keys.len(), num_keys * input.query.len(), "keys are as long as the query");
    assert_eq!(input.values.len(), num_keys * out.len(), "one value as wide as the output per key");
    assert!(input.bias.is_none_or(|bias| bias.len() == num_keys), "one bias per key");
    let num_splits = num_keys.div_ceil(KV_SPLIT);
    let mut states = vec![State::EMPTY; num_splits];
    let mut sums = vec![0.0; num_splits * out.len()];
    let (all_states, all_sums) = (Disjoint::new(&mut states), Disjoint::new(&mut sums));
    context.pool.run(num_splits, |split| {
        let keys = split * KV_SPLIT..num_keys.min((split + 1) * KV_SPLIT);
        // SAFETY: each split has a state and sums of its own, and the pool gives each index to one call.
        let (state, o) = unsafe {
            (&mut all_states.part(split..split + 1)[0], all_sums.part(split * out.len()..(split + 1) * out.len()))
        };
        run(context.isa, Split { input, keys, state, o });
    });
    run(context.isa, Merge { states: &mut states, sums: &mut sums, out });
}

struct Split<'a> {
    input: AttentionInput<'a>,
    keys: Range<usize>,
    state: &'a mut State,
    o: &'a mut [f32],
}

impl Kernel for Split<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { input, keys, state, o } = self;
        let mut scores = [LOWEST; BLOCK_SIZE];
        let mut p = [0.0; BLOCK_SIZE];
        for start in keys.clone().step_by(BLOCK_SIZE) {
            let block = start..keys.end.min(start + BLOCK_SIZE);
            let (scores, p) = (&mut scores[..block.len()], &mut p[..block.len()]);
            score(s, input, block.clone(), scores);
            let largest = reference(s, scores);
            let m = if largest > state.m { largest } else { state.m };
            let correction = power_of_two(state.m - m);
            let l = state.l * correction + weights(s, m, scores, p);
            *state = State { m, l };
            let values = &input.values[block.start * o.len()..block.end * o.len()];
            weigh(s, p, values, correction, o);
        }
    }
}

/// `scores[key] = query . keys[key] + bias[key]` for the keys of a block.
#[inline(always)]
fn score<S: Simd>(s: S, input: AttentionInput<'_>, block: Range<usize>, scores: &mut [f32]) {
    let query = input.query;
    let keys = input.keys[block.start * query.len()..block.end * query.len()].chunks_exact(query.len());
    for (score, key) in scores.iter_mut().zip(keys) {
        let mut products = s.splat(0.0);
        for (q, k) in query.chunks(LANES).zip(key.chunks(LANES)) {
            products = s.fma(load(s, q), load(s, k), products);
        }
        *score = s.sum(products);
    }
    if let Some(bias) = input.bias {
        scores.iter_mut().zip(&bias[block]).for_each(|(score, bias)| *score += bias);
    }
}

/// `o = o * correction + sum over keys of p[key] * values[key]`, keys ascending.
#[inline(always)]
fn weigh<S: Simd>(s: S, p: &[f32], values: &[f32], correction: f32, o: &mut [f32]) {
    let width = o.len();
    for (column, o) in o.chunks_mut(LANES).enumerate() {
        let columns = column * LANES..column * LANES + o.len();
        let mut sum = s.mul(load(s, o), s.splat(correction));
        for (&p, value) in p.iter().zip(values.chunks_exact(width)) {
            sum = s.fma(s.splat(p), load(s, &value[columns.clone()]), sum);
        }
        store(s, sum, o);
    }
}

struct Merge<'a> {
    states: &'a mut [State],
    /// `[splits, out.len()]`
    sums: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { states, sums, out } = self;
        let width = out.len();
        let mut stride = 1;
        while stride < states.len() {
            for left in (0..states.len() - stride).step_by(2 * stride) {
                let (a, b) = (states[left], states[left + stride]);
                states[left] = a.merge(b);
                let (mine, theirs) = (power_of_two(a.m - states[left].m), power_of_two(b.m - states[left].m));
                let (left, right) = sums[left * width..(left + stride + 1) * width].split_at_mut(stride * width);
                for (o, other) in left[..width].chunks_mut(LANES).zip(right.chunks(LANES)) {
                    let scaled = s.mul(load(s, o), s.splat(mine));
                    store(s, s.fma(load(s, other), s.splat(theirs), scaled), o);
                }
            }
            stride *= 2;
        }
        let Some(state) = states.first() else {
            out.fill(0.0);
            return;
        };
        out.copy_from_slice(&sums[..width]);
        scale_and_divide(s, out, 1.0, state.divisor());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::pool::Pool;
    use crate::softmax::tests::{adversarial_rows, softmax_f64};
    use proptest::prelude::*;

    fn attend(isa: Isa, threads: usize, input: AttentionInput<'_>, width: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; width];
        attention(Context::new(isa, &Pool::new(threads)), input, &mut out);
        out
    }

    /// Values in [-1, 1) that look random.
    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// Keys of one element, the scores themselves: the softmax is the same as of a row.
    fn check_scores(name: &str, scores: &[f32], width: usize) {
        let values = values(scores.len() * width);
        let (finite, bias): (Vec<f32>, Vec<f32>) =
            scores.iter().map(|&x| if x < LOWEST { (0.0, f32::NEG_INFINITY) } else { (x, 0.0) }).unzip();
        let p = softmax_f64(scores);
        let input = AttentionInput { query: &[1.0], keys: &finite, values: &values, bias: Some(&bias) };
        let expected_bits = attend(Isa::Portable, 1, input, width);
        for (column, actual) in expected_bits.iter().enumerate() {
            let expected: f64 = p.iter().enumerate().map(|(i, p)| p * f64::from(values[i * width + column])).sum();
            assert!((f64::from(*actual) - expected).abs() < 3e-6, "{name} of {}: {actual} {expected}", scores.len());
        }
        for isa in Isa::available() {
            for threads in [1, 3] {
                assert_eq!(attend(isa, threads, input, width), expected_bits, "{name}, {}", isa.name());
            }
        }
    }

    #[test]
    fn hard_scores_around_every_block_and_split_border() {
        for len in [1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1024, 1025, 2600] {
            for (name, scores) in adversarial_rows(len) {
                check_scores(name, &scores, 5);
            }
        }
    }

    #[test]
    fn no_keys_and_masked_keys_give_zeros() {
        let none = AttentionInput { query: &[1.0, 2.0], keys: &[], values: &[], bias: None };
        assert_eq!(attend(Isa::best(), 1, none, 3), [0.0; 3]);
        let bias = Some(&[f32::NEG_INFINITY; 2][..]);
        let masked = AttentionInput { query: &[1.0], keys: &[1.0, 2.0], values: &[1.0; 6], bias };
        assert_eq!(attend(Isa::best(), 1, masked, 3), [0.0; 3]);
    }

    #[test]
    fn one_huge_key_takes_all_the_weight() {
        let mut keys = vec![0.5; 700 * 3];
        keys[600 * 3..601 * 3].fill(1e8);
        let values = values(700 * 4);
        let input = AttentionInput { query: &[1.0, 1.0, 1.0], keys: &keys, values: &values, bias: None };
        for isa in Isa::available() {
            assert_eq!(attend(isa, 2, input, 4), values[600 * 4..601 * 4]);
        }
    }

    #[test]
    fn not_a_number_in_a_key_spoils_the_answer() {
        let mut keys = vec![0.5; 700];
        keys[3] = f32::NAN;
        let input = AttentionInput { query: &[1.0], keys: &keys, values: &[1.0; 1400], bias: None };
        assert!(attend(Isa::best(), 2, input, 2).iter().all(|y| y.is_nan()));
    }

    proptest! {
        #[test]
        fn any_shape_agrees_with_float64(head_dim in 1..70_usize, width in 1..70_usize, num_keys in 1..140_usize) {
            let (query, keys) = (values(head_dim), values(num_keys * head_dim));
            let values: Vec<f32> = values(num_keys * width).into_iter().map(|v| v * 3.0).collect();
            let dot = |key: &[f32]| query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() as f32;
            let scores: Vec<f32> = keys.chunks_exact(head_dim).map(dot).collect();
            let p = softmax_f64(&scores);
            let input = AttentionInput { query: &query, keys: &keys, values: &values, bias: None };
            for (column, actual) in attend(Isa::best(), 1, input, width).into_iter().enumerate() {
                let expected: f64 = p.iter().enumerate().map(|(i, p)| p * f64::from(values[i * width + column])).sum();
                prop_assert!((f64::from(actual) - expected).abs() < 2e-5, "{} {}", actual, expected);
            }
        }
    }
}
