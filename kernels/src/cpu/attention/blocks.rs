//! The two products with a block of 64 keys: scores of some query vectors, and the weighted sum of values. Both walk their
//! sum in one order (elements of a head ascending, keys ascending), one fused multiply-add per step, however many query
//! vectors share the loads.

use super::super::kv_cache::Element;
use super::super::simd::{LANES, Simd};
use crate::BLOCK_SIZE;

/// Query vectors that share the loads of keys and values: with four vectors of keys, 24 accumulators, the most that fit
/// into 32 registers with their operands.
pub(super) const QUERIES: usize = 6;

/// Scores (or weights) of one query vector with the keys of a block.
pub(super) type Row = [f32; BLOCK_SIZE];

/// Keys or values of a block, and those of the block after it, which are asked for while these are used: a core with one
/// stream of loads reads at half of what memory gives.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a, E> {
    pub(super) block: &'a [E],
    /// As long as `block`; the block itself where there is nothing to ask for.
    pub(super) next: &'a [E],
}

impl<'a, E: Element> Stream<'a, E> {
    /// Without anything to ask for.
    #[inline(always)]
    pub(super) fn of(block: &'a [E]) -> Self {
        Self { block, next: block }
    }

    #[inline(always)]
    fn vectors(self) -> (&'a [[E; LANES]], &'a [[E; LANES]]) {
        assert_eq!(self.block.len(), self.next.len(), "blocks are equally long");
        (self.block.as_chunks().0, self.next.as_chunks().0)
    }
}

/// Asks for the cache lines of some vectors.
#[inline(always)]
fn prefetch<S: Simd, E: Element>(s: S, vectors: &[[E; LANES]]) {
    const CACHE_LINE: usize = 64;
    for line in vectors.chunks((CACHE_LINE / (LANES * size_of::<E>())).max(1)) {
        s.prefetch(&line[0]);
    }
}

/// `rows[r][key] = sum_d queries[d][r] * keys[d][key]`. `queries` is `[head_dim][rows.len()]`, `keys` as in the cache.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Element>(s: S, queries: &[f32], keys: Stream<'_, E>, rows: &mut [Row]) {
    match rows.len() {
        1 => scores_of::<S, E, 1>(s, queries, keys, rows),
        2 => scores_of::<S, E, 2>(s, queries, keys, rows),
        3 => scores_of::<S, E, 3>(s, queries, keys, rows),
        4 => scores_of::<S, E, 4>(s, queries, keys, rows),
        5 => scores_of::<S, E, 5>(s, queries, keys, rows),
        _ => scores_of::<S, E, QUERIES>(s, queries, keys, rows),
    }
}

#[inline(always)]
fn scores_of<S: Simd, E: Element, const R: usize>(s: S, queries: &[f32], keys: Stream<'_, E>, rows: &mut [Row]) {
    if S::WIDE {
        scores_with::<S, E, R, 4>(s, queries, keys, rows);
    } else {
        scores_with::<S, E, R, 1>(s, queries, keys, rows);
    }
}

/// G groups of sixteen keys at a time.
#[inline(always)]
fn scores_with<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    queries: &[f32],
    keys: Stream<'_, E>,
    rows: &mut [Row],
) {
    assert_eq!(rows.len(), R, "one row of scores per query vector");
    let queries = queries.as_chunks::<R>().0;
    let head_dim = queries.len();
    let (keys, next) = keys.vectors();
    assert_eq!(keys.len(), head_dim * (BLOCK_SIZE / LANES), "a whole block of keys");
    for (index, (groups, next)) in keys.chunks_exact(head_dim * G).zip(next.chunks_exact(head_dim * G)).enumerate() {
        let mut sums = [[s.splat(0.0); G]; R];
        for ((d, query), next) in queries.iter().enumerate().zip(next.chunks_exact(G)) {
            prefetch(s, next);
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
pub(super) fn weighted_sum<S: Simd, E: Element>(
    s: S,
    rows: &[Row],
    keys: std::ops::Range<usize>,
    values: Stream<'_, E>,
    sums: &mut [f32],
) {
    match rows.len() {
        0 => {}
        1 => weighted_sum_of::<S, E, 1>(s, rows, keys, values, sums),
        2 => weighted_sum_of::<S, E, 2>(s, rows, keys, values, sums),
        3 => weighted_sum_of::<S, E, 3>(s, rows, keys, values, sums),
        4 => weighted_sum_of::<S, E, 4>(s, rows, keys, values, sums),
        5 => weighted_sum_of::<S, E, 5>(s, rows, keys, values, sums),
        _ => weighted_sum_of::<S, E, QUERIES>(s, rows, keys, values, sums),
    }
}

#[inline(always)]
fn weighted_sum_of<S: Simd, E: Element, const R: usize>(
    s: S,
    rows: &[Row],
    keys: std::ops::Range<usize>,
    values: Stream<'_, E>,
    sums: &mut [f32],
) {
    let Some(rows) = rows.as_array::<R>() else { panic!("one row of weights per query vector") };
    let width = sums.len() / (R * LANES);
    let mut column = 0;
    if S::WIDE {
        while column + 4 <= width {
            weighted_columns::<S, E, R, 4>(s, rows, keys.clone(), values, sums, column);
            column += 4;
        }
    }
    while column < width {
        weighted_columns::<S, E, R, 1>(s, rows, keys.clone(), values, sums, column);
        column += 1;
    }
}

/// V vectors of values at a time, from vector `column` of each row.
#[inline(always)]
fn weighted_columns<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    rows: &[Row; R],
    keys: std::ops::Range<usize>,
    values: Stream<'_, E>,
    sums: &mut [f32],
    column: usize,
) {
    let sums = sums.as_chunks_mut::<LANES>().0;
    let width = sums.len() / R;
    let (values, next) = values.vectors();
    let mut totals = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            totals[r][v] = s.load(&sums[r * width + column + v]);
        }
    }
    let keys = keys.start..keys.end.min(BLOCK_SIZE);
    let (values, next) = (&values[keys.start * width..], &next[keys.start * width..]);
    for (key, (value, next)) in keys.zip(values.chunks_exact(width).zip(next.chunks_exact(width))) {
        let (value, next) = (&value[column..column + V], &next[column..column + V]);
        prefetch(s, next);
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
