//! Vector pieces of rows that the schemes share, and the loop over rows.

use super::state::State;
use super::{Context, LOWEST};
use crate::cpu::rows::for_rows_mut;
use crate::cpu::simd::{Kernel, LANES, Simd, run};
use crate::cpu::vector_math::exp2_from;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements that are summed on their own before they join a longer sum, which keeps long sums accurate, and between two
/// corrections of a running state: few enough to be read again from the first cache, enough for a correction to cost little.
pub(super) const BLOCK: usize = 256;

/// What masked scores are read as: finite, and below [`LOWEST`] by so much that their weight is zero under any reference.
const MASKED: f32 = 2.0 * LOWEST;

/// Up to sixteen scores, masked ones behind them.
#[inline(always)]
pub(super) fn load_scores<S: Simd>(s: S, from: &[f32]) -> S::F {
    // In this order `max` keeps NaN.
    s.max(s.splat(MASKED), load_or(s, from, MASKED))
}

/// Up to sixteen elements, zeros behind them.
#[inline(always)]
pub(super) fn load<S: Simd>(s: S, from: &[f32]) -> S::F {
    load_or(s, from, 0.0)
}

/// Up to sixteen elements, `other` behind them.
#[inline(always)]
fn load_or<S: Simd>(s: S, from: &[f32], other: f32) -> S::F {
    if let Some(from) = from.as_array::<LANES>() {
        return s.load(from);
    }
    // Element by element: a copy of unknown length would be a call, before which every loop around this one had to put its
    // vectors into memory.
    let mut lanes = [other; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        if let Some(x) = from.get(i) {
            *lane = *x;
        }
    }
    s.load(&lanes)
}

/// Writes as many leading lanes as `to` holds, up to sixteen.
#[inline(always)]
pub(super) fn store<S: Simd>(s: S, x: S::F, to: &mut [f32]) {
    if let Some(to) = to.as_mut_array::<LANES>() {
        return s.store(x, to);
    }
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    for (i, lane) in lanes.into_iter().enumerate() {
        if let Some(to) = to.get_mut(i) {
            *to = lane;
        }
    }
}

/// The reference of a row: the floor of its largest score, at least [`LOWEST`].
#[inline(always)]
pub(super) fn reference<S: Simd>(s: S, x: &[f32]) -> f32 {
    let lowest = s.splat(LOWEST);
    let mut largest = [lowest; 4];
    let (groups, rest) = x.as_chunks::<{ 4 * LANES }>();
    for group in groups {
        for (largest, x) in largest.iter_mut().zip(group.as_chunks::<LANES>().0) {
            // In this order `max` leaves NaN out; it returns through the sum.
            *largest = s.max(s.load(x), *largest);
        }
    }
    for (largest, x) in largest.iter_mut().zip(rest.chunks(LANES)) {
        *largest = s.max(load_scores(s, x), *largest);
    }
    let [a, b, c, d] = largest;
    s.largest(s.floor(s.max(s.max(a, b), s.max(c, d))))
}

/// `out = 2^(x - m)`, and the sum of it.
#[inline(always)]
pub(super) fn weights<S: Simd>(s: S, m: f32, x: &[f32], out: &mut [f32]) -> f32 {
    let m = s.splat(m);
    let mut l = s.splat(0.0);
    for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let mut sum = s.splat(0.0);
        for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
            let p = exp2_from(s, load_scores(s, x), m);
            sum = s.add(sum, p);
            store(s, p, out);
        }
        l = s.add(l, sum);
    }
    s.sum(l)
}

/// `out = 2^(x - m) / l`.
#[inline(always)]
pub(super) fn normalise<S: Simd>(s: S, state: State, x: &[f32], out: &mut [f32]) {
    let (m, l) = (s.splat(state.m), s.splat(state.divisor()));
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        store(s, s.div(exp2_from(s, load_scores(s, x), m), l), out);
    }
}

/// `out = out * scale / l`.
#[inline(always)]
pub(super) fn scale_and_divide<S: Simd>(s: S, out: &mut [f32], scale: f32, l: f32) {
    let (scale, l) = (s.splat(scale), s.splat(l));
    for out in out.chunks_mut(LANES) {
        store(s, s.div(s.mul(load(s, out), scale), l), out);
    }
}

/// `out = out * factor`.
#[inline(always)]
pub(super) fn scale<S: Simd>(s: S, out: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    for out in out.chunks_mut(LANES) {
        store(s, s.mul(load(s, out), factor), out);
    }
}

/// A running state per lane: lane i has seen elements i, i + 16, ...
#[derive(Clone, Copy)]
pub(super) struct Running<F> {
    m: F,
    l: F,
}

impl<F: Copy> Running<F> {
    #[inline(always)]
    pub(super) fn empty<S: Simd<F = F>>(s: S) -> Self {
        Self { m: s.splat(LOWEST), l: s.splat(0.0) }
    }

    /// Takes in up to [`BLOCK`] elements: `m' = max(m, floor of the largest)`, `l' = l 2^(m - m') + sum 2^(x - m')`.
    #[inline(always)]
    pub(super) fn take_in<S: Simd<F = F>>(&mut self, s: S, block: &[f32]) {
        let mut largest = self.m;
        for x in block.chunks(LANES) {
            largest = s.max(load_scores(s, x), largest);
        }
        let m = s.floor(largest);
        let mut sum = s.splat(0.0);
        for x in block.chunks(LANES) {
            sum = s.add(sum, exp2_from(s, load_scores(s, x), m));
        }
        let correction = s.power_of_two(s.sub(self.m, m));
        (self.m, self.l) = (m, s.fma(self.l, correction, sum));
    }

    /// Merges the lanes as a tree.
    #[inline(always)]
    pub(super) fn finish<S: Simd<F = F>>(self, s: S) -> State {
        let m = s.largest(self.m);
        let scale = s.power_of_two(s.sub(self.m, s.splat(m)));
        State { m, l: s.sum(s.mul(self.l, scale)) }
    }
}

/// A scheme that works on rows one at a time.
pub(super) trait RowScheme: Copy + Sync {
    /// Writes the softmax of a row; whether it had to be recomputed.
    fn row<S: Simd>(self, s: S, x: &[f32], out: &mut [f32]) -> bool;
}

/// Runs a scheme on rows of `cols` elements, on several threads where there are many; the number of recomputed rows.
pub(super) fn for_each_row<R: RowScheme>(
    context: Context<'_>,
    scheme: R,
    x: &[f32],
    cols: usize,
    out: &mut [f32],
) -> usize {
    check(x, cols, out);
    let recomputed = AtomicUsize::new(0);
    for_rows_mut(context.pool, out, cols.max(1), |rows, out| {
        let mut count = 0;
        let x = &x[rows.start * cols..rows.end * cols];
        run(context.isa, Rows { scheme, x, cols, out, recomputed: &mut count });
        recomputed.fetch_add(count, Ordering::Relaxed);
    });
    recomputed.into_inner()
}

/// The shapes that every scheme asks for.
pub(super) fn check(x: &[f32], cols: usize, out: &[f32]) {
    assert_eq!(x.len(), out.len(), "one output per score");
    assert!(x.is_empty() || (cols > 0 && x.len().is_multiple_of(cols)), "{} elements, rows of {cols}", x.len());
}

struct Rows<'a, R> {
    scheme: R,
    x: &'a [f32],
    cols: usize,
    out: &'a mut [f32],
    recomputed: &'a mut usize,
}

impl<R: RowScheme> Kernel for Rows<'_, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks_exact(self.cols).zip(self.out.chunks_exact_mut(self.cols)) {
            *self.recomputed += usize::from(self.scheme.row(s, x, out));
        }
    }
}
