//! Parallel reduction of (m, l): lanes within a chunk of 4096 elements, chunks on all threads, their states merged as a tree;
//! then every chunk is divided, again on all threads. Chunks have a fixed length, so the bits do not depend on the threads.

use super::row::{check, normalise};
use super::state::State;
use super::{Context, row};
use crate::cpu::rows::Disjoint;
use crate::cpu::simd::{Kernel, Simd, run};

/// Elements of a chunk: a microsecond of work, so that a loop over several pays for its start.
pub(super) const CHUNK: usize = 16 * row::BLOCK;

/// Softmax of each row of `cols` elements, all threads on one row after the other.
pub fn parallel(context: Context<'_>, x: &[f32], cols: usize, out: &mut [f32]) {
    check(x, cols, out);
    for (x, out) in x.chunks_exact(cols.max(1)).zip(out.chunks_exact_mut(cols.max(1))) {
        let state = reduce(context, x);
        let out = Disjoint::new(out);
        context.pool.run(x.len().div_ceil(CHUNK), |chunk| {
            let range = chunk * CHUNK..x.len().min((chunk + 1) * CHUNK);
            // SAFETY: chunks do not overlap, and the pool gives each index to one call.
            let out = unsafe { out.part(range.clone()) };
            run(context.isa, Normalise { state, x: &x[range], out });
        });
    }
}

/// The state of a row, its chunks reduced on all threads.
pub fn reduce(context: Context<'_>, x: &[f32]) -> State {
    State::merge_tree(&mut chunk_states(context, x))
}

/// The states of the chunks.
pub(super) fn chunk_states(context: Context<'_>, x: &[f32]) -> Vec<State> {
    let mut states = vec![State::EMPTY; x.len().div_ceil(CHUNK)];
    let shared = Disjoint::new(&mut states);
    context.pool.run(x.len().div_ceil(CHUNK), |chunk| {
        // SAFETY: each chunk has a state of its own, and the pool gives each index to one call.
        let state = unsafe { &mut shared.part(chunk..chunk + 1)[0] };
        *state = State::of(context, &x[chunk * CHUNK..x.len().min((chunk + 1) * CHUNK)]);
    });
    states
}

struct Normalise<'a> {
    state: State,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Normalise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        normalise(s, self.state, self.x, self.out);
    }
}
