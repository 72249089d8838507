//! The state (m, l, o) of a query vector over some keys, in memory: `[m, l, padding to 16 | o, padded]`.
//!
//! m is a whole number in log2 units, or minus infinity over no keys; `l = sum 2^(x - m)`, `o = sum 2^(x - m) v`. Whole
//! references make every rescaling an exact power of two. States under one fixed reference merge by addition.

use super::super::kv_cache::Geometry;
use super::super::simd::{LANES, Simd, store_part};

/// Elements of a state.
pub(super) fn len(geometry: Geometry) -> usize {
    LANES + geometry.value_stride()
}

/// Makes it the state over no keys.
#[inline(always)]
pub(super) fn clear(state: &mut [f32]) {
    state.fill(0.0);
    state[0] = f32::NEG_INFINITY;
}

/// `into` becomes the state over the keys of both, the other one given in parts. FIXED: both have the same reference, and
/// merging is adding.
#[inline(always)]
pub(super) fn merge_parts<S: Simd, const FIXED: bool>(
    s: S,
    into: &mut [f32],
    other_m: f32,
    other_l: f32,
    other_o: &[f32],
) {
    let (head, o) = into.split_at_mut(LANES);
    let parts = o.as_chunks_mut::<LANES>().0.iter_mut().zip(other_o.as_chunks::<LANES>().0);
    if FIXED {
        (head[0], head[1]) = (other_m, head[1] + other_l);
        for (o, other_o) in parts {
            s.store(s.add(s.load(o), s.load(other_o)), o);
        }
        return;
    }
    if other_m == f32::NEG_INFINITY && other_l == 0.0 {
        return;
    }
    let m = if head[0] > other_m { head[0] } else { other_m };
    let mine = s.power_of_two(s.splat(head[0] - m));
    let theirs = s.power_of_two(s.splat(other_m - m));
    let l = s.fma(s.splat(other_l), theirs, s.mul(s.splat(head[1]), mine));
    (head[0], head[1]) = (m, s.largest(l));
    for (o, other_o) in parts {
        // Adding zero makes a negative zero positive: then merging into the empty state first changes no bit.
        let other_o = s.add(s.load(other_o), s.splat(0.0));
        s.store(s.fma(other_o, theirs, s.mul(s.load(o), mine)), o);
    }
}

/// Whether a state under a fixed reference holds the softmax of that many keys: `2^-100 num_keys <= l < 2^126`, so that the
/// weights lost below `2^-126` of the reference are less than `2^-26` of l and none was clamped at `2^127`; and o is finite.
#[inline(always)]
pub(super) fn is_valid<S: Simd>(s: S, state: &[f32], num_keys: usize) -> bool {
    let (head, o) = state.split_at(LANES);
    // Zero for a finite number, not a number otherwise.
    let mut differences = s.splat(0.0);
    for o in o.as_chunks::<LANES>().0 {
        let o = s.load(o);
        differences = s.add(differences, s.sub(o, o));
    }
    let lowest = num_keys as f32 * (-100.0_f32).exp2();
    lowest <= head[1] && head[1] < 126.0_f32.exp2() && s.sum(differences) == 0.0
}

/// The answer `o / l`.
#[inline(always)]
pub(super) fn finish<S: Simd>(s: S, state: &[f32], out: &mut [f32]) {
    let (head, o) = state.split_at(LANES);
    let l = s.splat(head[1]);
    for (out, o) in out.chunks_mut(LANES).zip(o.as_chunks::<LANES>().0) {
        let answer = s.div(s.load(o), l);
        match out.as_mut_array::<LANES>() {
            Some(out) => s.store(answer, out),
            None => store_part(s, answer, out),
        }
    }
}
