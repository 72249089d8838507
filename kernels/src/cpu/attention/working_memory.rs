//! How much memory a call computes in, beside its operands: for whoever compares ways to compute attention.

use super::super::kv_cache::{AnyStorage, KvCache, for_any_storage};
use super::super::rows::Disjoint;
use super::plan::Plan;
use super::{Call, Isa, naive, state, tile};
use crate::{AttentionParams, AttentionScheme, StepTables};

/// Bytes of scores, states, copies and references of one call, of all threads together.
pub(in crate::cpu) fn working_bytes(
    threads: usize,
    step: &StepTables,
    params: AttentionParams<'_>,
    cache: &KvCache,
) -> usize {
    let geometry = for_any_storage!(&cache.storage, storage => storage.geometry);
    let out = Disjoint::new(&mut []);
    let call = Call { isa: Isa::Portable, step, params, qkv: &[], out: &out, references: &[], unfit: &[] };
    let words = match params.scheme {
        AttentionScheme::SplitKv => {
            let mut plan = Plan::default();
            plan.fill(call, threads, |_, _| true);
            let queries = plan.tasks.iter().map(|task| task.rows.len() * call.group()).max().unwrap_or(0);
            let references = if params.softmax.is_fixed() { step.num_rows() * params.heads.num_heads } else { 0 };
            plan.num_states * state::len(geometry)
                + threads.min(plan.tasks.len()) * tile::scratch_len(queries, geometry)
                // One float and one flag each.
                + references
                + references.div_ceil(size_of::<f32>())
        }
        AttentionScheme::Naive => {
            let longest = step.spans.iter().map(|span| span.context_len).max().unwrap_or(0);
            let tasks = step.num_rows() * params.heads.num_kv_heads;
            threads.min(tasks) * naive::scratch_len(longest, geometry)
        }
    };
    words * size_of::<f32>()
}
