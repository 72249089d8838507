//! Operations that are asked for as one have the bits of those that they are made of.

use crate::fixture::{How, Sequences, download, halves, no_rope, to_bits, upload};
use crate::operations::weights;
use std::ops::Range;
use taper_kernels::{
    AttentionParams, Backend, HeadLayout, KvDtype, MatrixData, Norm, Rope, RopeKind, Turn, WeightType,
};
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

pub(crate) fn suite<B: Backend>(backend: &B) {
    for rows in thinned([1, 2, 5, 33], 2) {
        for parts in thinned(matrices(), 2).filter(|parts| parts.iter().all(|part| backend.takes(part.0))) {
            products(backend, rows, parts);
        }
    }
    for heads in thinned(layouts(), 2) {
        attention(backend, heads);
    }
}

/// Types and rows of stacked parts; each has as many rows in its first half as in its second.
fn matrices() -> [&'static [(WeightType, usize)]; 6] {
    [
        &[(WeightType::Q4_1, 48), (WeightType::Q4_1, 48)],
        &[(WeightType::Q4_K, 24), (WeightType::Q6_K, 24)],
        &[(WeightType::F32, 12), (WeightType::F32, 12)],
        &[(WeightType::Q6_K, 17), (WeightType::Q6_K, 17)],
        &[(WeightType::BF16, 32), (WeightType::BF16, 16), (WeightType::Q8_0, 16)],
        &[(WeightType::F8E4M3, 48), (WeightType::F8E4M3, 48)],
    ]
}

fn products<B: Backend>(b: &B, rows: usize, parts: &[(WeightType, usize)]) {
    const COLS: usize = 256;
    let mut rng = SplitMix::new(41);
    let what = format!("{parts:?}, {rows} rows");
    let bytes: Vec<Vec<u8>> = parts.iter().map(|&(t, part_rows)| weights(&mut rng, t, part_rows, COLS)).collect();
    let data: Vec<MatrixData<'_>> = parts
        .iter()
        .zip(&bytes)
        .map(|(&(weight_type, rows), bytes)| MatrixData { weight_type, rows, cols: COLS, bytes })
        .collect();
    let outputs: usize = parts.iter().map(|part| part.1).sum();
    let matrix = b.matrix(&data).unwrap();
    let x = upload(b, COLS, &rng.normals(rows * COLS, 2.0));
    let (weight, bias) = (b.vector(&rng.normals(COLS, 1.0)).unwrap(), b.vector(&rng.normals(outputs, 1.0)).unwrap());
    let before = rng.normals(rows * outputs, 1.0);
    let buffer = |cols| b.buffer(rows, cols).unwrap();
    let bits = |buffer: &B::Buffer, cols| to_bits(&download(b, buffer, rows, cols));

    let (mut normed, mut one, mut other) = (buffer(COLS), buffer(outputs), buffer(outputs));
    b.rms_norm(rows, &x, &weight, 1e-5, &mut normed);
    b.linear(rows, &normed, &matrix, Some(&bias), &mut one);
    let norm = Norm { x: &x, weight: &weight, eps: 1e-5, normed: &mut buffer(COLS) };
    b.norm_linear(rows, norm, &matrix, Some(&bias), &mut other);
    assert_eq!(bits(&other, outputs), bits(&one, outputs), "norm, product; {what}");

    let (mut one, mut other, mut delta) = (upload(b, outputs, &before), upload(b, outputs, &before), buffer(outputs));
    b.linear(rows, &x, &matrix, None, &mut delta);
    b.add(rows, &mut one, &delta);
    b.linear_add(rows, &x, &matrix, &mut delta, &mut other);
    assert_eq!(bits(&other, outputs), bits(&one, outputs), "product, addition; {what}");

    let half = outputs / 2;
    let (mut one, mut other, mut gate_up) = (buffer(half), buffer(half), buffer(outputs));
    b.linear_silu_mul(rows, &normed, &matrix, &mut gate_up, &mut one);
    let norm = Norm { x: &x, weight: &weight, eps: 1e-5, normed: &mut normed };
    b.norm_linear_silu_mul(rows, norm, &matrix, &mut gate_up, &mut other);
    assert_eq!(bits(&other, half), bits(&one, half), "norm, product, gate; {what}");
}

fn layouts() -> [HeadLayout; 3] {
    [(4, 2, 16), (9, 3, 64), (10, 1, 80)].map(|(num_heads, num_kv_heads, head_dim)| HeadLayout {
        num_heads,
        num_kv_heads,
        head_dim,
    })
}

/// Rows of different sequences, at the first and the last place of a block and in between, and rows of one.
fn attention<B: Backend>(backend: &B, heads: HeadLayout) {
    let mut rng = SplitMix::new(43);
    let rotary_dim = heads.head_dim - heads.head_dim / 5 / 2 * 2;
    let inv_freq = (0..rotary_dim / 2).map(|i| 100_f64.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim, inv_freq, magnitude: 1.0 };
    let norms = [halves(&mut rng, heads.head_dim, 1.0), halves(&mut rng, heads.head_dim, 1.0)];
    let steps: [&[(usize, Range<usize>)]; 3] =
        [&[(0, 0..1), (1, 63..64), (2, 64..65), (3, 300..301)], &[(3, 299..300)], &[(1, 60..64), (3, 300..301)]];
    for dtype in [KvDtype::F16, KvDtype::F32, KvDtype::F8E4M3] {
        if dtype == KvDtype::F8E4M3 && heads.head_dim != 64 {
            continue;
        }
        let mut sequences = Sequences::new(&mut rng, heads, &[1, 64, 65, 301]);
        sequences.dtype = dtype;
        for how in thinned([How::ONLINE, How::BOUNDED, How::CALIBRATED], 2) {
            for (index, step) in steps.into_iter().enumerate() {
                let run = |fused| decoded(backend, &sequences, &rope, (index == 1).then_some(&norms), how, step, fused);
                assert_eq!(run(true), run(false), "{heads:?} {dtype:?} {how:?}, step {index}");
            }
        }
    }
}

/// Bits of the answers of a step behind the keys before it, of the blocks of the cache, and what was counted.
fn decoded<B: Backend>(
    b: &B,
    sequences: &Sequences,
    rope: &Rope,
    norms: Option<&[Vec<f32>; 2]>,
    how: How<'_>,
    step: &[(usize, Range<usize>)],
    fused: bool,
) -> (Vec<u32>, Vec<u8>, Vec<u64>) {
    let mut cache = sequences.cache(b);
    let before: Vec<(usize, Range<usize>)> =
        step.iter().filter(|(_, rows)| rows.start > 0).map(|(sequence, rows)| (*sequence, 0..rows.start)).collect();
    if !before.is_empty() {
        sequences.store(b, &mut cache, &no_rope(), &before);
    }
    let (tables, rows) = sequences.step(step);
    let params = AttentionParams { scale: 0.3, ..sequences.params(how) };
    let heads = sequences.heads;
    let mut qkv = upload(b, heads.qkv_width(), &rows);
    let mut angles = b.buffer(tables.num_rows(), rope.rotary_dim).unwrap();
    b.rope_angles(rope, &tables.positions, &mut angles);
    let norms = norms.map(|norms| [b.vector(&norms[0]).unwrap(), b.vector(&norms[1]).unwrap()]);
    let turn = Turn { qk_norm: norms.as_ref().map(|[q, k]| (q, k, 1e-6)), rope, angles: &angles };
    let mut out = b.buffer(tables.num_rows(), heads.q_width()).unwrap();
    if fused {
        b.rope_attention(&tables, turn, params, &mut qkv, &mut cache, &mut out);
    } else {
        if let Some((q, k, eps)) = turn.qk_norm {
            b.qk_norm(tables.num_rows(), &mut qkv, heads, q, k, eps);
        }
        b.rope_kv_store(&tables, rope, &angles, params, &mut qkv, &mut cache);
        b.attention(&tables, params, &qkv, &cache, &mut out);
    }
    let mut blocks = Vec::new();
    (0..sequences.num_blocks as u32).for_each(|block| b.export_kv_block(&cache, block, &mut blocks));
    (to_bits(&download(b, &out, tables.num_rows(), heads.q_width())), blocks, b.recomputed(&cache))
}
