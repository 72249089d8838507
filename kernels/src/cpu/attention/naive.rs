//! The baseline: all scores of a row and head in memory, softmax in three passes, then the weighted sum of values.

use super::super::kv_cache::{F32, Format, Geometry, Storage};
use super::super::pool::Pool;
use super::super::simd::{Kernel, LANES, Simd, run};
use super::super::vector_math::exp2_from;
use super::blocks::{Ahead, Row, scores, weighted_sum};
use super::{Call, WORTH_SHARING, for_each, state, with_thread_scratch};
use crate::BLOCK_SIZE;

/// One task per row and KV head.
pub(super) fn naive<F: Format>(call: Call<'_>, pool: &Pool, storage: &Storage<F>) {
    let heads = call.params.heads;
    let num_keys: usize = call.step.positions.iter().map(|&position| position as usize + 1).sum();
    let alone = num_keys * heads.q_width() < WORTH_SHARING;
    for span in 0..call.step.spans.len() {
        let rows = call.step.spans[span].rows.clone();
        for_each(pool, alone, rows.len() * heads.num_kv_heads, |task| {
            let (row, kv_head) = (rows.start + task / heads.num_kv_heads, task % heads.num_kv_heads);
            let len = scratch_len(call.step.positions[row] as usize + 1, storage.geometry);
            with_thread_scratch(len, |scratch| run(call.isa, Naive { call, storage, span, row, kv_head, scratch }));
        });
    }
}

/// Elements of the scratch of a task that sees so many keys.
pub(super) fn scratch_len(num_keys: usize, geometry: Geometry) -> usize {
    let wide = BLOCK_SIZE * geometry.value_stride();
    num_keys.next_multiple_of(BLOCK_SIZE) + state::len(geometry) + wide + geometry.head_dim()
}

struct Naive<'a, F: Format> {
    call: Call<'a>,
    storage: &'a Storage<F>,
    span: usize,
    row: usize,
    kv_head: usize,
    scratch: &'a mut [f32],
}

impl<F: Format> Kernel for Naive<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, storage, span, row, kv_head, scratch } = self;
        let num_keys = call.step.positions[row] as usize + 1;
        let blocks = &call.blocks(span)[..num_keys.div_ceil(BLOCK_SIZE)];
        let (weights, scratch) = scratch.split_at_mut(blocks.len() * BLOCK_SIZE);
        let weights: &mut [Row] = weights.as_chunks_mut().0;
        let (answer, scratch) = scratch.split_at_mut(state::len(storage.geometry));
        let (wide, scratch) = scratch.split_at_mut(BLOCK_SIZE * storage.geometry.value_stride());
        let query = &mut scratch[..storage.geometry.head_dim()];
        let scale = call.log2_scale();
        for head in kv_head * call.group()..(kv_head + 1) * call.group() {
            for (query, x) in query.iter_mut().zip(call.query(row, head)) {
                *query = x * scale;
            }
            for (&block, weights) in blocks.iter().zip(weights.iter_mut()) {
                let (keys, _) = storage.keys_and_values(storage.piece(call.params.layer, block as usize, kv_head));
                let (ahead, weights) = (&mut Ahead::nothing(keys), std::slice::from_mut(weights));
                if let Some(keys) = F::in_place(keys) {
                    scores::<S, F::Element, _>(s, query, keys, ahead, weights);
                } else {
                    let wide = &mut wide[..BLOCK_SIZE * query.len()];
                    F::widen_keys(s, keys, wide);
                    scores::<S, F32, _>(s, query, wide, ahead, weights);
                }
            }
            softmax(s, weights, num_keys);
            state::clear(answer);
            answer[1] = 1.0; // the weights are divided already
            for (index, (&block, weights)) in blocks.iter().zip(weights.iter()).enumerate() {
                let (_, values) = storage.keys_and_values(storage.piece(call.params.layer, block as usize, kv_head));
                let visible = (num_keys - index * BLOCK_SIZE).min(BLOCK_SIZE);
                let (ahead, weights) = (&mut Ahead::nothing(values), std::slice::from_ref(weights));
                if let Some(values) = F::in_place(values) {
                    weighted_sum::<S, F::Element, _>(s, weights, 0..visible, values, ahead, &mut answer[LANES..]);
                } else {
                    F::widen_values(s, values, wide);
                    weighted_sum::<S, F32, _>(s, weights, 0..visible, wide, ahead, &mut answer[LANES..]);
                }
            }
            // SAFETY: this task alone has this row and the heads of this KV head, and asks for one after the other.
            state::finish(s, answer, unsafe { call.answer(row, head) });
        }
    }
}

/// Softmax of the first `num_keys` scores in three passes: maximum, exponentials and their sum, division.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [Row], num_keys: usize) {
    let lowest = s.splat(f32::NEG_INFINITY);
    let scores = scores.as_flattened_mut().as_chunks_mut::<LANES>().0;
    let mut largest = lowest;
    for (index, x) in scores.iter().enumerate() {
        let visible = num_keys.saturating_sub(index * LANES);
        largest = s.max(s.first_lanes(visible, s.load(x), lowest), largest);
    }
    let reference = s.splat(s.largest(s.floor(largest)));
    let mut total = s.splat(0.0);
    for (index, x) in scores.iter_mut().enumerate() {
        let visible = num_keys.saturating_sub(index * LANES);
        let p = s.first_lanes(visible, exp2_from(s, s.load(x), reference), s.splat(0.0));
        total = s.add(total, p);
        s.store(p, x);
    }
    let total = s.splat(s.sum(total));
    for p in scores.iter_mut() {
        s.store(s.div(s.load(p), total), p);
    }
}
