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

/// `rows[r][key] = sum_d queries[d][r] * keys[d][key]`. `queries` is `[head_dim][rows.len()]`, `keys` as in the cache.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Element>(s: S, queries: &[f32], keys: &[E], rows: &mut [Row]) {
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
fn scores_of<S: Simd, E: Element, const R: usize>(s: S, queries: &[f32], keys: &[E], rows: &mut [Row]) {
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
    keys: &[E],
    rows: &mut [Row],
) {
    assert_eq!(rows.len(), R, "one row of scores per query vector");
    let queries = queries.as_chunks::<R>().0;
    let head_dim = queries.len();
    let keys = keys.as_chunks::<LANES>().0;
    assert_eq!(keys.len(), head_dim * (BLOCK_SIZE / LANES), "a whole block of keys");
    for (index, groups) in keys.chunks_exact(head_dim * G).enumerate() {
        let mut sums = [[s.splat(0.0); G]; R];
        for (d, query) in queries.iter().enumerate() {
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
    values: &[E],
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
    values: &[E],
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
    values: &[E],
    sums: &mut [f32],
    column: usize,
) {
    let sums = sums.as_chunks_mut::<LANES>().0;
    let width = sums.len() / R;
    let values = values.as_chunks::<LANES>().0;
    let mut totals = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            totals[r][v] = s.load(&sums[r * width + column + v]);
        }
    }
    let keys = keys.start..keys.end.min(BLOCK_SIZE);
    for (key, value) in keys.clone().zip(values[keys.start * width..].chunks_exact(width)) {
        let value = &value[column..column + V];
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
