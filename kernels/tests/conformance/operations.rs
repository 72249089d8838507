//! Every operation but attention against the reference (which has its own tests by hand).

use crate::fixture::{How, LAYER, Sequences, download, upload};
use half::{bf16, f16};
use taper_kernels::{Activations, Backend, HeadLayout, MatrixData, Reference, Rope, RopeKind, WeightType, cuda};
use taper_testkit::approx::assert_close;
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

pub(crate) fn suite<B: Backend>(backend: &B) {
    embedding_rows_are_decoded_exactly(backend);
    suite_of_products(backend);
    if is_cuda(backend) {
        products_of_activations_that_bf16_holds(backend);
    }
    norms(backend);
    elementwise(backend);
    rope(backend);
}

/// Products whose weights may be rounded as x is.
pub(crate) fn suite_of_products<B: Backend>(backend: &B) {
    float_products(backend);
    bf16_products(backend);
    quantized_products(backend);
}

/// Bytes of a matrix: random blocks whose float16 scales are made sane.
pub(crate) fn weights(rng: &mut SplitMix, weight_type: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let num_blocks = rows * cols / weight_type.block_len();
    let mut bytes = Vec::new();
    for _ in 0..num_blocks {
        let mut block = rng.bytes(weight_type.block_bytes());
        let mut scale_at = |offset: usize, size: f32| {
            block[offset..offset + 2].copy_from_slice(&f16::from_f32(size * (rng.next_f32() + 0.5)).to_le_bytes());
        };
        match weight_type {
            WeightType::F32 => block.copy_from_slice(&rng.normal().to_le_bytes()),
            WeightType::F16 => block.copy_from_slice(&f16::from_f32(rng.normal()).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&bf16::from_f32(rng.normal()).to_le_bytes()),
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => scale_at(0, 0.05),
            WeightType::Q4_1 | WeightType::Q5_1 => {
                scale_at(0, 0.1);
                scale_at(2, -0.8);
            }
            WeightType::Q4_K | WeightType::Q5_K => {
                scale_at(0, 0.003);
                scale_at(2, 0.02);
            }
            WeightType::Q2_K => {
                scale_at(80, 0.05);
                scale_at(82, 0.05);
            }
            WeightType::Q3_K => scale_at(108, 0.01),
            WeightType::Q6_K => scale_at(208, 0.0005),
            WeightType::F8E4M3 => {
                scale_at(0, 0.01);
                // Those that stand for numbers.
                block[2..].iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
            }
        }
        bytes.extend(block);
    }
    bytes
}

/// Types that a backend has products with, of these.
pub(crate) fn taken<'a, B: Backend>(backend: &'a B, types: &'a [WeightType]) -> impl Iterator<Item = WeightType> + 'a {
    types.iter().copied().filter(|&weight_type| backend.takes(weight_type))
}

fn embedding_rows_are_decoded_exactly<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(10);
    for weight_type in taken(backend, &WeightType::ALL) {
        let (rows, cols) = (37, 512);
        let bytes = weights(&mut rng, weight_type, rows, cols);
        let data = MatrixData { weight_type, rows, cols, bytes: &bytes };
        let tokens = [36, 0, 5, 5, 16, 15];
        let table = backend.matrix(&[data]).unwrap();
        let mut out = backend.buffer(8, cols).unwrap();
        backend.embed(&table, &tokens, &mut out);
        let actual = download(backend, &out, tokens.len(), cols);
        for (&token, actual) in tokens.iter().zip(actual.chunks_exact(cols)) {
            let mut expected = vec![0.0; cols];
            let row_bytes = weight_type.row_bytes(cols).unwrap();
            let row = &bytes[token as usize * row_bytes..][..row_bytes];
            taper_kernels::reference::dequantize::dequantize_row(weight_type, row, &mut expected);
            assert_close(actual, &expected, 0.0, 0.0);
        }
    }
}

/// Products of `rows` random rows with stacked matrices, of this backend and of the reference.
fn products<B: Backend>(
    backend: &B,
    rng: &mut SplitMix,
    parts: &[(WeightType, usize)],
    rows: usize,
    cols: usize,
) -> (Vec<f32>, Vec<f32>) {
    products_of(backend, rng, parts, (rows, cols), |x| x)
}

/// The same with activations as `changed` makes them.
fn products_of<B: Backend>(
    backend: &B,
    rng: &mut SplitMix,
    parts: &[(WeightType, usize)],
    (rows, cols): (usize, usize),
    changed: impl Fn(f32) -> f32,
) -> (Vec<f32>, Vec<f32>) {
    fn of<B: Backend>(b: &B, parts: &[MatrixData<'_>], bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        let (cols, num_outputs) = (parts[0].cols, parts.iter().map(|part| part.rows).sum());
        let rows = x.len() / cols;
        let matrix = b.matrix(parts).unwrap();
        assert!(b.matrix_bytes(&matrix) > 0);
        let bias = bias.map(|bias| b.vector(bias).unwrap());
        let mut out = b.buffer(rows, num_outputs).unwrap();
        b.linear(rows, &upload(b, cols, x), &matrix, bias.as_ref(), &mut out);
        download(b, &out, rows, num_outputs)
    }
    let bytes: Vec<Vec<u8>> = parts.iter().map(|&(t, part_rows)| weights(rng, t, part_rows, cols)).collect();
    let data: Vec<MatrixData<'_>> = parts
        .iter()
        .zip(&bytes)
        .map(|(&(weight_type, rows), bytes)| MatrixData { weight_type, rows, cols, bytes })
        .collect();
    let x: Vec<f32> = rng.normals(rows * cols, 1.0).into_iter().map(changed).collect();
    let bias = rng.normals(parts.iter().map(|part| part.1).sum(), 1.0);
    let bias = rng.chance(0.5).then_some(&bias[..]);
    (of(backend, &data, bias, &x), of(&Reference::new(), &data, bias, &x))
}

fn float_products<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(11);
    for weight_type in [WeightType::F32, WeightType::F16] {
        for (rows, outputs, cols) in [(1, 16, 64), (1, 37, 50), (3, 100, 576), (9, 49, 34), (70, 64, 128)] {
            let (actual, expected) = products(backend, &mut rng, &[(weight_type, outputs)], rows, cols);
            match rounded_bits(backend, weight_type) {
                Some(bits) => {
                    let (typical, worst) = of_rounding(bits, false);
                    assert_near(&actual, &expected, typical, worst, &format!("{weight_type:?}, {rows} rows of {cols}"));
                }
                None => assert_close(&actual, &expected, 1e-4, 1e-5),
            }
        }
    }
}

fn is_cuda<B: Backend>(backend: &B) -> bool {
    [cuda::NUMERICS_CLASS, cuda::NUMERICS_CLASS_BY_ROWS].contains(&backend.info().numerics_class)
}

/// To how many significant bits a backend's kernels on tensor cores round activations before they multiply them with weights of
/// this type.
fn rounded_bits<B: Backend>(backend: &B, weight_type: WeightType) -> Option<i32> {
    let bits = cuda::activation_bits(weight_type) as i32;
    (is_cuda(backend) && bits < 24).then_some(bits)
}

/// What rounding activations `m 2^e`, m from 1 to 2, to p significant bits does to products, as [`assert_near`] has it. The errors
/// are even in `+-2^(e - p)`: of root mean square `2^(e - p) / sqrt 3`. That of m is `sqrt(3 / (2 ln 2))` where `ln m` is even. The
/// terms of a sum and their errors add up alike, so the ratio of both, `2^-p / 2.55`, is that of the sums, too: the standard
/// deviation. At worst 6.5 of them; typically 1.6, because the sums are few, and 3 where the weights of outputs have a part in common,
/// for then the errors of a row have, too.
fn of_rounding(bits: i32, weights_are_alike: bool) -> (f32, f32) {
    let deviation = 2_f32.powi(-bits) / (3_f32.sqrt() * (1.5 / std::f32::consts::LN_2).sqrt());
    (if weights_are_alike { 3.0 } else { 1.6 } * deviation, 6.5 * deviation)
}

/// Rounding does nothing then, and what is left are sums of K terms in float32: K additions that err by `2^-24` of sums about as
/// large as the results, were they all to err in one direction.
fn products_of_activations_that_bf16_holds<B: Backend>(backend: &B) {
    const COLS: usize = 512;
    let mut rng = SplitMix::new(16);
    let typical = COLS as f32 * 2_f32.powi(-24);
    for weight_type in taken(backend, &WeightType::ALL[1..]) {
        for (rows, outputs) in thinned([(2, 37), (33, 20)], 2) {
            let parts = [(weight_type, outputs)];
            let round = |x| bf16::from_f32(x).to_f32();
            let (actual, expected) = products_of(backend, &mut rng, &parts, (rows, COLS), round);
            assert_near(&actual, &expected, typical, 6.5 * typical, &format!("{weight_type:?}, {rows} rows, rounded"));
        }
    }
}

/// With activations rounded to bfloat16.
fn bf16_products<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(14);
    for (rows, outputs, cols) in [(1, 16, 64), (1, 37, 50), (3, 100, 576), (9, 49, 34), (70, 64, 128)] {
        let (actual, expected) = products(backend, &mut rng, &[(WeightType::BF16, outputs)], rows, cols);
        let (typical, worst) = of_rounding(8, false);
        assert_near(&actual, &expected, typical, worst, &format!("BF16, {rows} rows of {cols}"));
    }
}

/// Activations may be rounded: to bfloat16, to fifteen bits, or to eight, with an error of about half a percent of a product's
/// typical size.
fn quantized_products<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(12);
    for weight_type in taken(backend, &WeightType::ALL[3..]) {
        for (rows, outputs) in thinned([(1, 16), (1, 48), (2, 37), (8, 100), (33, 64)], 2) {
            check_quantized(backend, &mut rng, &[(weight_type, outputs)], rows);
        }
    }
    let mixed = [(WeightType::Q4_K, 48), (WeightType::Q4_K, 20), (WeightType::Q6_K, 17), (WeightType::F16, 5)];
    for rows in [1, 5, 40] {
        check_quantized(backend, &mut rng, &mixed, rows);
    }
}

fn check_quantized<B: Backend>(backend: &B, rng: &mut SplitMix, parts: &[(WeightType, usize)], rows: usize) {
    let (actual, expected) = products(backend, rng, parts, rows, 512);
    let mixed = backend.info().numerics_class == Activations::Mixed.class();
    let (typical, worst) = match parts.iter().filter_map(|part| rounded_bits(backend, part.0)).min() {
        // The minimums of blocks are alike. A library's weights are rounded as well.
        Some(bits) => {
            let (typical, worst) = of_rounding(bits, true);
            let roundings = if backend.info().numerics_class == cuda::NUMERICS_CLASS_BY_ROWS { 2.0_f32 } else { 1.0 };
            (typical * roundings.sqrt(), worst * roundings.sqrt())
        }
        None if mixed => (1e-2, 5e-2),
        None => (1.2e-4, 6e-4),
    };
    assert_near(&actual, &expected, typical, worst, &format!("{parts:?}, {rows} rows"));
}

/// The root mean square of the differences and the largest, both in root mean squares of what is expected.
fn assert_near(actual: &[f32], expected: &[f32], typical: f32, largest: f32, what: &str) {
    let root_mean_square =
        |x: &mut dyn Iterator<Item = f32>, n: usize| (x.map(|x| x * x).sum::<f32>() / n as f32).sqrt();
    let size = root_mean_square(&mut expected.iter().copied(), expected.len());
    let difference = root_mean_square(&mut actual.iter().zip(expected).map(|(a, e)| a - e), expected.len());
    assert!(difference < typical * size, "{what}: {difference} of {size}");
    assert_close(actual, expected, largest * size, 0.0);
}

fn norms<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(13);
    let reference = Reference::new();
    for (rows, cols) in [(1, 16), (1, 576), (3, 50), (100, 576), (7, 4096), (2, 1)] {
        let (x, weight) = (rng.normals(rows * cols, 3.0), rng.normals(cols, 1.0));
        assert_close(&norm_of(backend, cols, &x, &weight), &norm_of(&reference, cols, &x, &weight), 1e-6, 2e-6);
    }
    for head_dim in [16, 64, 80, 128, 18] {
        let heads = HeadLayout { num_heads: 6, num_kv_heads: 2, head_dim };
        for rows in [1, 50] {
            let qkv = rng.normals(rows * heads.qkv_width(), 2.0);
            let (q, k) = (rng.normals(head_dim, 1.0), rng.normals(head_dim, 1.0));
            let actual = qk_norm_of(backend, heads, &qkv, &q, &k);
            assert_close(&actual, &qk_norm_of(&reference, heads, &qkv, &q, &k), 1e-6, 2e-6);
        }
    }
}

pub(crate) fn norm_of<B: Backend>(b: &B, cols: usize, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let rows = x.len() / cols;
    let mut out = b.buffer(rows, cols).unwrap();
    b.rms_norm(rows, &upload(b, cols, x), &b.vector(weight).unwrap(), 1e-5, &mut out);
    download(b, &out, rows, cols)
}

pub(crate) fn qk_norm_of<B: Backend>(b: &B, heads: HeadLayout, qkv: &[f32], q: &[f32], k: &[f32]) -> Vec<f32> {
    let width = heads.qkv_width();
    let rows = qkv.len() / width;
    let mut qkv = upload(b, width, qkv);
    b.qk_norm(rows, &mut qkv, heads, &b.vector(q).unwrap(), &b.vector(k).unwrap(), 1e-6);
    download(b, &qkv, rows, width)
}

pub(crate) fn silu_of<B: Backend>(b: &B, width: usize, gate_up: &[f32]) -> Vec<f32> {
    let rows = gate_up.len() / (2 * width);
    let mut out = b.buffer(rows, width).unwrap();
    b.silu_mul(rows, &upload(b, 2 * width, gate_up), &mut out);
    download(b, &out, rows, width)
}

fn elementwise<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(14);
    for (rows, cols) in [(1, 1536), (3, 50), (60, 1536), (1, 7)] {
        let mut gate_up = rng.normals(rows * 2 * cols, 8.0);
        gate_up[0] = -300.0;
        gate_up[1] = 300.0;
        assert_close(&silu_of(backend, cols, &gate_up), &silu_of(&Reference::new(), cols, &gate_up), 1e-30, 5e-6);

        let (x, y) = (rng.normals(rows * cols, 1.0), rng.normals(rows * cols, 1.0));
        let mut sum = upload(backend, cols, &x);
        backend.add(rows, &mut sum, &upload(backend, cols, &y));
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        assert_close(&download(backend, &sum, rows, cols), &expected, 0.0, 0.0);

        let picked = [rows as u32 - 1, 0, rows as u32 / 2];
        let mut gathered = backend.buffer(3, cols).unwrap();
        backend.gather_rows(&upload(backend, cols, &x), &picked, &mut gathered);
        let expected: Vec<f32> = picked.iter().flat_map(|&row| &x[row as usize * cols..][..cols]).copied().collect();
        assert_close(&download(backend, &gathered, 3, cols), &expected, 0.0, 0.0);
        let mut middle = vec![0.0; cols];
        backend.read_rows(&gathered, 2..3, &mut middle);
        assert_close(&middle, &expected[2 * cols..], 0.0, 0.0);
    }
}

/// Rotation of q, and of k as it comes out of the cache again.
fn rope<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(15);
    for kind in [RopeKind::AdjacentPairs, RopeKind::HalfSplit] {
        for (head_dim, rotary_dim) in thinned([(64, 64), (80, 32), (16, 16), (18, 6)], 3) {
            let inv_freq = (0..rotary_dim / 2).map(|i| 10_000_f64.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
            let rope = Rope { kind, rotary_dim, inv_freq, magnitude: 1.25 };
            let heads = HeadLayout { num_heads: 4, num_kv_heads: 2, head_dim };
            let sequences = Sequences::new(&mut rng, heads, &[200]);
            let actual = turned_and_attended(backend, &sequences, &rope);
            let expected = turned_and_attended(&Reference::new(), &sequences, &rope);
            assert_close(&actual[0], &expected[0], 0.0, 0.0);
            assert_close(&actual[1], &expected[1], 1e-6, 1e-6);
            // Keys were rounded to float16 after the rotation.
            assert_close(&actual[2], &expected[2], 1e-2, 0.0);
        }
    }
}

/// Angles, turned rows, and what attention makes of the stored keys.
fn turned_and_attended<B: Backend>(b: &B, sequences: &Sequences, rope: &Rope) -> [Vec<f32>; 3] {
    let heads = sequences.heads;
    let (step, rows) = sequences.step(&[(0, 0..200)]);
    let params = sequences.params(How::ONLINE);
    assert_eq!(params.layer, LAYER);
    let mut angles = b.buffer(200, rope.rotary_dim).unwrap();
    b.rope_angles(rope, &step.positions, &mut angles);
    let mut cache = sequences.cache(b);
    let mut qkv = upload(b, heads.qkv_width(), &rows);
    b.rope_kv_store(&step, rope, &angles, params, &mut qkv, &mut cache);
    let mut out = b.buffer(200, heads.q_width()).unwrap();
    b.attention(&step, params, &qkv, &cache, &mut out);
    [
        download(b, &angles, 200, rope.rotary_dim),
        download(b, &qkv, 200, heads.qkv_width()),
        download(b, &out, 200, heads.q_width()),
    ]
}
