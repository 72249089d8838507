//! Statistics of attention's scores: every row and query head over the keys that it sees.

use super::attention::{KvCache, scores, visible_slots};
use super::buffer::Buffer;
use crate::{AttentionParams, ScoreStatistics, StepTables};

/// Adds the scores of all rows of a step to the statistics of their KV heads.
pub(super) fn observe_scores(
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &Buffer,
    cache: &KvCache,
    statistics: &mut [ScoreStatistics],
) {
    let heads = params.heads;
    for span in &step.spans {
        for row in span.rows.clone() {
            let slots = visible_slots(step, span, row);
            for (head, q) in qkv.row(row)[..heads.q_width()].chunks_exact(heads.head_dim).enumerate() {
                let kv_head = head / (heads.num_heads / heads.num_kv_heads);
                let scores = scores(q, kv_head, &slots, params, cache);
                statistics[kv_head].add_row(scores.into_iter().map(|x| x * std::f32::consts::LOG2_E));
            }
        }
    }
}
