//! Statistics of the scores: the products of attention, counted instead of weighted. One task per KV head.

use super::super::kv_cache::{F32, Format, Storage};
use super::super::pool::Pool;
use super::super::rows::Disjoint;
use super::super::simd::{Kernel, Simd, run};
use super::blocks::{Ahead, Row, scores};
use super::{Call, with_thread_scratch};
use crate::{BLOCK_SIZE, ScoreStatistics};

/// Adds the scores of all rows of a step to the statistics of their KV heads.
pub(super) fn observe<F: Format>(
    call: Call<'_>,
    pool: &Pool,
    storage: &Storage<F>,
    statistics: &Disjoint<'_, ScoreStatistics>,
) {
    pool.run(call.params.heads.num_kv_heads, |kv_head| {
        // SAFETY: each KV head is the business of one task.
        let statistics = &mut unsafe { statistics.part(kv_head..kv_head + 1) }[0];
        with_thread_scratch((BLOCK_SIZE + 1) * call.params.heads.head_dim, |scratch| {
            run(call.isa, Observe { call, storage, kv_head, statistics, scratch });
        });
    });
}

struct Observe<'a, F: Format> {
    call: Call<'a>,
    storage: &'a Storage<F>,
    kv_head: usize,
    statistics: &'a mut ScoreStatistics,
    /// Room for a query and for the keys of a block in float32.
    scratch: &'a mut [f32],
}

impl<F: Format> Kernel for Observe<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, storage, kv_head, statistics, scratch } = self;
        let (query, wide) = scratch.split_at_mut(call.params.heads.head_dim);
        let scale = call.log2_scale();
        for (index, span) in call.step.spans.iter().enumerate() {
            for row in span.rows.clone() {
                let num_keys = call.step.positions[row] as usize + 1;
                let blocks = &call.blocks(index)[..num_keys.div_ceil(BLOCK_SIZE)];
                for head in kv_head * call.group()..(kv_head + 1) * call.group() {
                    for (query, x) in query.iter_mut().zip(call.query(row, head)) {
                        *query = x * scale;
                    }
                    let mut left = num_keys;
                    statistics.add_row(blocks.iter().flat_map(|&block| {
                        let mut of_block: Row = [0.0; BLOCK_SIZE];
                        let piece = storage.piece(call.params.layer, block as usize, kv_head);
                        let (keys, _) = storage.keys_and_values(piece);
                        let (ahead, out) = (&mut Ahead::nothing(keys), std::slice::from_mut(&mut of_block));
                        if let Some(keys) = F::in_place(keys) {
                            scores::<S, F::Element, _>(s, query, keys, ahead, out);
                        } else {
                            F::widen_keys(s, keys, wide);
                            scores::<S, F32, _>(s, query, wide, ahead, out);
                        }
                        let visible = left.min(BLOCK_SIZE);
                        left -= visible;
                        of_block.into_iter().take(visible)
                    }));
                }
            }
        }
    }
}
