//! The two products with a block of 64 keys: scores of some query vectors, and the weighted sum of values. Both walk their
//! sum in one order (elements of a head ascending, keys ascending), one fused multiply-add per step, however many query
//! vectors share the loads.

use super::super::kv_cache::Element;
use super::super::simd::{LANES, Simd};
use crate::BLOCK_SIZE;
use crate::memory::Plain;

/// Query vectors that share the loads of keys and values: with four vectors of keys, 24 accumulators, the most that fit
/// into 32 registers with their operands.
pub(super) const QUERIES: usize = 6;

/// Scores (or weights) of one query vector with the keys of a block.
pub(super) type Row = [f32; BLOCK_SIZE];

/// Memory that is asked for while a block is used: the next one. A core has few requests under way at a time, and one more
/// makes it wait, so the lines are spread evenly over the work on a block.
pub(super) struct Ahead<'a, U> {
    units: &'a [U],
    byte: usize,
    end: usize,
}

impl<'a, U: Plain> Ahead<'a, U> {
    const LINE: usize = 64;
    /// The loops over a block make at least two steps per element of a head, in which all lines are asked for: 4 per
    /// element and two bytes of its size.
    const LINES_PER_STEP: usize = if size_of::<U>() > 2 { size_of::<U>() } else { 2 };

    #[inline(always)]
    pub(super) fn of(units: &'a [U]) -> Self {
        Self { units, byte: 0, end: size_of_val(units).saturating_sub(Self::LINES_PER_STEP * Self::LINE) }
    }

    /// Nothing but lines that are at hand.
    #[inline(always)]
    pub(super) fn nothing(at_hand: &'a [U]) -> Self {
        let ahead = Self::of(at_hand);
        Self { byte: ahead.end, ..ahead }
    }

    #[inline(always)]
    fn step<S: Simd>(&mut self, s: S) {
        for line in 0..Self::LINES_PER_STEP {
            s.prefetch(self.units, self.byte + line * Self::LINE);
        }
        self.byte = self.end.min(self.byte + Self::LINES_PER_STEP * Self::LINE);
    }
}

/// `rows[r][key] = sum_d queries[d][r] * keys[d][key]`. `queries` is `[head_dim][rows.len()]`, `keys` as in the cache.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Element, U: Plain>(
    s: S,
    queries: &[f32],
    keys: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    rows: &mut [Row],
) {
    match rows.len() {
        1 => scores_of::<S, E, U, 1>(s, queries, keys, ahead, rows),
        2 => scores_of::<S, E, U, 2>(s, queries, keys, ahead, rows),
        3 => scores_of::<S, E, U, 3>(s, queries, keys, ahead, rows),
        4 => scores_of::<S, E, U, 4>(s, queries, keys, ahead, rows),
        5 => scores_of::<S, E, U, 5>(s, queries, keys, ahead, rows),
        _ => scores_of::<S, E, U, QUERIES>(s, queries, keys, ahead, rows),
    }
}

#[inline(always)]
fn scores_of<S: Simd, E: Element, U: Plain, const R: usize>(
    s: S,
    queries: &[f32],
    keys: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    rows: &mut [Row],
) {
    if S::WIDE {
        scores_with::<S, E, U, R, 4>(s, queries, keys, ahead, rows);
    } else {
        scores_with::<S, E, U, R, 1>(s, queries, keys, ahead, rows);
    }
}

/// G groups of sixteen keys at a time.
#[inline(always)]
fn scores_with<S: Simd, E: Element, U: Plain, const R: usize, const G: usize>(
    s: S,
    queries: &[f32],
    keys: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    rows: &mut [Row],
) {
    assert_eq!(rows.len(), R, "one row of scores per query vector");
    let queries = queries.as_chunks::<R>().0;
    let head_dim = queries.len();
    let keys: &[[E::Bits; LANES]] = keys.as_chunks().0;
    assert_eq!(keys.len(), head_dim * (BLOCK_SIZE / LANES), "a whole block of keys");
    for (index, groups) in keys.chunks_exact(head_dim * G).enumerate() {
        let mut sums = [[s.splat(0.0); G]; R];
        for (d, query) in queries.iter().enumerate() {
            ahead.step(s);
            let mut key = [s.splat(0.0); G];
            for g in 0..G {
                key[g] = E::load(s, &groups[g * head_dim + d]);
            }
            for r in 0..R {
                let query = s.splat(query[r]);
                for g in 0..G {
                    sums[r][g] = s.fma(query, key[g], sums[r][g]);
                }
            }
        }
        for r in 0..R {
            let lanes = rows[r].as_chunks_mut::<LANES>().0;
            for g in 0..G {
                s.store(sums[r][g], &mut lanes[index * G + g]);
            }
        }
    }
}

/// `sums[r] += sum over keys of rows[r][key] * values[key]`, for the keys of `from..to`. `sums` is `[rows.len()][stride]`.
#[inline(always)]
pub(super) fn weighted_sum<S: Simd, E: Element, U: Plain>(
    s: S,
    rows: &[Row],
    keys: std::ops::Range<usize>,
    values: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    sums: &mut [f32],
) {
    match rows.len() {
        0 => {}
        1 => weighted_sum_of::<S, E, U, 1>(s, rows, keys, values, ahead, sums),
        2 => weighted_sum_of::<S, E, U, 2>(s, rows, keys, values, ahead, sums),
        3 => weighted_sum_of::<S, E, U, 3>(s, rows, keys, values, ahead, sums),
        4 => weighted_sum_of::<S, E, U, 4>(s, rows, keys, values, ahead, sums),
        5 => weighted_sum_of::<S, E, U, 5>(s, rows, keys, values, ahead, sums),
        _ => weighted_sum_of::<S, E, U, QUERIES>(s, rows, keys, values, ahead, sums),
    }
}

#[inline(always)]
fn weighted_sum_of<S: Simd, E: Element, U: Plain, const R: usize>(
    s: S,
    rows: &[Row],
    keys: std::ops::Range<usize>,
    values: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    sums: &mut [f32],
) {
    let Some(rows) = rows.as_array::<R>() else { panic!("one row of weights per query vector") };
    let width = sums.len() / (R * LANES);
    let mut column = 0;
    if S::WIDE {
        while column + 4 <= width {
            weighted_columns::<S, E, U, R, 4>(s, rows, keys.clone(), values, ahead, sums, column);
            column += 4;
        }
    }
    while column < width {
        weighted_columns::<S, E, U, R, 1>(s, rows, keys.clone(), values, ahead, sums, column);
        column += 1;
    }
}

/// V vectors of values at a time, from vector `column` of each row.
#[inline(always)]
fn weighted_columns<S: Simd, E: Element, U: Plain, const R: usize, const V: usize>(
    s: S,
    rows: &[Row; R],
    keys: std::ops::Range<usize>,
    values: &[E::Bits],
    ahead: &mut Ahead<'_, U>,
    sums: &mut [f32],
    column: usize,
) {
    let sums = sums.as_chunks_mut::<LANES>().0;
    let width = sums.len() / R;
    let values: &[[E::Bits; LANES]] = values.as_chunks().0;
    let mut totals = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            totals[r][v] = s.load(&sums[r * width + column + v]);
        }
    }
    let keys = keys.start..keys.end.min(BLOCK_SIZE);
    let values = &values[keys.start * width..];
    for (key, value) in keys.zip(values.chunks_exact(width)) {
        let value = &value[column..column + V];
        ahead.step(s);
        let mut vectors = [s.splat(0.0); V];
        for v in 0..V {
            vectors[v] = E::load(s, &value[v]);
        }
        for r in 0..R {
            let weight = s.splat(rows[r][key]);
            for v in 0..V {
                totals[r][v] = s.fma(weight, vectors[v], totals[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            s.store(totals[r][v], &mut sums[r * width + column + v]);
        }
    }
}
