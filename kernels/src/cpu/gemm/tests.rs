//! Products of every weight type on every instruction set: the same bits whatever the row count, thread count and kernels,
//! and right against float64.

use super::format::{BLOCK, Format};
use super::{Activations, Choice, Context, GemmScratch, PackedMatrix, gemm};
use crate::cpu::isa::Isa;
use crate::cpu::pool::Pool;
use crate::reference::dequantize::dequantize_row;
use crate::reference::dequantize::tests::random_row;
use crate::{Error, MatrixData, WeightType};
use proptest::prelude::*;

/// The instruction sets of this machine, and the one that is emulated.
fn sets() -> Vec<Isa> {
    let emulated = [Isa::AmxEmulated].into_iter().filter(|isa| isa.is_available());
    Isa::available().into_iter().chain(emulated).collect()
}

/// A matrix of the file and what it decodes to.
struct Weights {
    weight_type: WeightType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Weights {
    fn random(weight_type: WeightType, rows: usize, cols: usize, seed: u64) -> Weights {
        let bytes = (0..rows as u64).flat_map(|row| random_row(weight_type, cols, seed * 1000 + row)).collect();
        Weights { weight_type, rows, cols, bytes }
    }

    fn data(&self) -> MatrixData<'_> {
        MatrixData { weight_type: self.weight_type, rows: self.rows, cols: self.cols, bytes: &self.bytes }
    }

    fn decoded(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        let row_bytes = self.weight_type.row_bytes(self.cols).unwrap();
        for (bytes, out) in self.bytes.chunks_exact(row_bytes).zip(out.chunks_exact_mut(self.cols)) {
            dequantize_row(self.weight_type, bytes, out);
        }
        out
    }
}

fn random_x(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // A few large values, as hidden states have.
    (0..rows * cols).map(|i| unit() * if i % 97 == 0 { 20.0 } else { 1.0 }).collect()
}

fn multiply(isa: Isa, pool: &Pool, rows: usize, x: &[f32], matrix: &PackedMatrix, bias: Option<&[f32]>) -> Vec<f32> {
    // Some blocks of such activations are fine, and others are not.
    multiply_in(Context { activations: Activations::Mixed, ..Context::new(isa, pool) }, rows, x, matrix, bias)
}

fn multiply_in(context: Context<'_>, rows: usize, x: &[f32], matrix: &PackedMatrix, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * matrix.rows()];
    gemm(context, rows, x, matrix, bias, &mut out, &mut GemmScratch::default());
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The definition: one row at a time, plain Rust, one thread.
fn expected(x: &[f32], matrix: &PackedMatrix, bias: Option<&[f32]>) -> Vec<f32> {
    let pool = Pool::new(1);
    x.chunks_exact(matrix.cols()).flat_map(|row| multiply(Isa::Portable, &pool, 1, row, matrix, bias)).collect()
}

fn cols_for(weight_type: WeightType) -> [usize; 3] {
    match weight_type.block_len() {
        1 => [1, 40, 333],
        32 => [32, 576, 32 * 11],
        _ => [256, 512, 768],
    }
}

fn every_kernel_gives_the_same_bits(weight_type: WeightType) {
    let pools = [1, 2, 3].map(Pool::new);
    for cols in cols_for(weight_type) {
        for outputs in [1, 17, 40, 192] {
            let weights = Weights::random(weight_type, outputs, cols, 7);
            let matrix = PackedMatrix::pack(&[weights.data()], &pools[1]).unwrap();
            let x = random_x(64, cols, 3);
            let expected = bits(&expected(&x, &matrix, None));
            for isa in sets() {
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64] {
                    let out = multiply(isa, &pools[rows % 3], rows, &x, &matrix, None);
                    assert!(
                        bits(&out) == expected[..rows * outputs],
                        "{weight_type:?} {isa:?}: {rows} rows of {cols} to {outputs}"
                    );
                }
            }
        }
    }
}

macro_rules! for_every_type {
    ($($name:ident: $weight_type:ident;)*) => {
        mod bits_are_the_same_for_every_kernel_row_count_and_thread_count {
            use super::*;
            $(#[test] fn $name() { every_kernel_gives_the_same_bits(WeightType::$weight_type); })*
        }
        mod products_are_right {
            use super::*;
            $(#[test] fn $name() { agrees_with_float64(WeightType::$weight_type); })*
        }
    };
}

for_every_type! {
    f32: F32; f16: F16; bf16: BF16; q4_0: Q4_0; q4_1: Q4_1; q5_0: Q5_0; q5_1: Q5_1; q8_0: Q8_0;
    q2_k: Q2_K; q3_k: Q3_K; q4_k: Q4_K; q5_k: Q5_K; q6_k: Q6_K;
}

/// What the contract rounds the activations of a row to, by its definition and in float64 from there on.
fn rounded(weight_type: WeightType, x: &[f32], activations: Activations) -> Vec<f64> {
    match weight_type {
        WeightType::F32 | WeightType::F16 => return x.iter().map(|&x| f64::from(x)).collect(),
        WeightType::BF16 => return x.iter().map(|&x| half::bf16::from_f32(x).to_f64()).collect(),
        _ => {}
    }
    let largest = |block: &[f32]| block.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let mean = x.chunks(BLOCK).map(largest).sum::<f32>() / x.chunks(BLOCK).len() as f32;
    let round = |block: &[f32]| {
        let is_fine = activations == Activations::Full || largest(block) > 1.5 * mean;
        let levels = if is_fine { 16256.0 } else { 127.0 };
        let (scale, factor) = (largest(block) / levels, levels / largest(block));
        block.iter().map(|x| f64::from((x * factor).round_ties_even()) * f64::from(scale)).collect::<Vec<_>>()
    };
    x.chunks(BLOCK).flat_map(round).collect()
}

fn product_in_f64(x: &[f64], weights: &[f32], cols: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>();
    x.chunks_exact(cols).flat_map(|x| weights.chunks_exact(cols).map(move |w| dot(x, w))).collect()
}

/// Norm of the difference over norm of the truth.
fn error(actual: &[f32], truth: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut actual.iter().zip(truth).map(|(&a, t)| f64::from(a) - t)) / norm(&mut truth.iter().copied())
}

fn agrees_with_float64(weight_type: WeightType) {
    let pool = Pool::new(2);
    for cols in cols_for(weight_type) {
        let weights = Weights::random(weight_type, 50, cols, 11);
        let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
        let decoded = weights.decoded();
        let x = random_x(3, cols, 5);
        let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for (activations, tolerance) in [(Activations::Mixed, 2e-2), (Activations::Full, 2e-4)] {
            let seen = x.chunks(cols).flat_map(|x| rounded(weight_type, x, activations)).collect::<Vec<_>>();
            let tolerance = if weight_type == WeightType::BF16 { 4e-3 } else { tolerance };
            for isa in sets() {
                let out = multiply_in(Context { activations, ..Context::new(isa, &pool) }, 3, &x, &matrix, None);
                let tight = error(&out, &product_in_f64(&seen, &decoded, cols));
                assert!(tight < 1e-5, "{weight_type:?} {isa:?} {cols}: {tight} from the rounded activations");
                let loose = error(&out, &product_in_f64(&exact, &decoded, cols));
                assert!(loose < tolerance, "{weight_type:?} {isa:?} {cols}: {loose} from the exact activations");
            }
        }
    }
}

/// Tiles of one row to sixteen, and panels that do not fill the kernel's group of four.
fn emulated_choices() -> Vec<Choice> {
    let isas = sets().into_iter().filter(|&isa| isa == Isa::AmxEmulated);
    let tiles = [(1, 3), (2, 1), (7, 4), (8, 6), (9, 2), (15, 5), (16, 1)];
    isas.flat_map(|isa| tiles.map(|(tile_rows, tile_panels)| Choice { isa, tile_rows, tile_panels })).collect()
}

#[test]
fn every_choice_gives_the_same_bits() {
    let pool = Pool::new(2);
    for weight_type in [WeightType::Q4_1, WeightType::Q6_K, WeightType::BF16] {
        let weights = Weights::random(weight_type, 90, 512, 5);
        let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
        let x = random_x(33, 512, 6);
        let expected = bits(&expected(&x, &matrix, None));
        for rows in [1, 2, 5, 8, 9, 33] {
            for choice in Choice::candidates(Isa::best(), rows).into_iter().chain(emulated_choices()) {
                let mut out = vec![f32::NAN; rows * 90];
                let context = Context {
                    choice: Some(choice),
                    activations: Activations::Mixed,
                    ..Context::new(Isa::best(), &pool)
                };
                gemm(context, rows, &x, &matrix, None, &mut out, &mut GemmScratch::default());
                assert!(bits(&out) == expected[..rows * 90], "{weight_type:?}, {rows} rows, {}", choice.name());
            }
        }
    }
}

#[test]
fn embedding_rows_decode_to_the_bits_of_the_file() {
    let pool = Pool::new(2);
    for weight_type in WeightType::OF_FILES {
        let cols = cols_for(weight_type)[1];
        let (top, bottom) = (Weights::random(weight_type, 21, cols, 1), Weights::random(weight_type, 5, cols, 2));
        let matrix = PackedMatrix::pack(&[top.data(), bottom.data()], &pool).unwrap();
        let decoded = [top.decoded(), bottom.decoded()].concat();
        let mut out = vec![0.0; cols];
        for (row, expected) in decoded.chunks_exact(cols).enumerate() {
            matrix.embed_row(row, &mut out);
            assert_eq!(out, expected, "{weight_type:?} row {row}");
        }
    }
}

#[test]
fn stacked_parts_of_different_types_are_one_matrix_and_the_bias_comes_last() {
    let pool = Pool::new(2);
    let types = [WeightType::Q4_K, WeightType::BF16, WeightType::Q2_K, WeightType::F16, WeightType::Q8_0];
    let parts: Vec<Weights> =
        types.iter().zip([40, 17, 3, 33, 64]).map(|(&t, rows)| Weights::random(t, rows, 512, rows as u64)).collect();
    let data: Vec<_> = parts.iter().map(Weights::data).collect();
    let matrix = PackedMatrix::pack(&data, &pool).unwrap();
    assert_eq!((matrix.rows(), matrix.cols()), (157, 512));
    let x = random_x(5, 512, 9);
    let bias: Vec<f32> = (0..157).map(|i| i as f32 / 8.0).collect();
    for isa in sets() {
        let out = multiply(isa, &pool, 5, &x, &matrix, Some(&bias));
        let mut first = 0;
        for part in &parts {
            let alone = PackedMatrix::pack(&[part.data()], &pool).unwrap();
            let alone = multiply(isa, &pool, 5, &x, &alone, None);
            for row in 0..5 {
                for output in 0..part.rows {
                    let expected = alone[row * part.rows + output] + bias[first + output];
                    assert_eq!(out[row * 157 + first + output].to_bits(), expected.to_bits());
                }
            }
            first += part.rows;
        }
    }
}

#[test]
fn what_no_file_has_is_refused_and_the_message_says_what_to_use() {
    let pool = Pool::new(1);
    let weights = Weights::random(WeightType::F8E4M3, 2, 64, 1);
    let Err(Error::Unsupported(message)) = PackedMatrix::pack(&[weights.data()], &pool) else { panic!("it was taken") };
    assert!(message.contains("F8E4M3") && message.contains("Q8_0"), "{message}");
}

#[test]
fn nothing_outside_the_live_rows_is_read_or_written() {
    let pool = Pool::new(2);
    let weights = Weights::random(WeightType::Q4_1, 40, 64, 1);
    let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
    let mut x = random_x(4, 64, 1);
    x[2 * 64..].fill(f32::NAN);
    for isa in sets() {
        let mut out = vec![-7.0; 4 * 40];
        gemm(
            Context { activations: Activations::Mixed, ..Context::new(isa, &pool) },
            2,
            &x,
            &matrix,
            None,
            &mut out,
            &mut GemmScratch::default(),
        );
        assert!(out[..2 * 40].iter().all(|x| x.is_finite()));
        assert!(out[2 * 40..].iter().all(|&x| x == -7.0));
    }
}

#[test]
fn a_row_that_is_not_finite_gives_nan_and_leaves_the_others_alone() {
    let pool = Pool::new(2);
    for weight_type in [WeightType::Q4_0, WeightType::Q4_K, WeightType::Q8_0, WeightType::F32, WeightType::BF16] {
        let weights = Weights::random(weight_type, 20, 512, 4);
        let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
        let mut x = random_x(3, 512, 4);
        let good = multiply(Isa::Portable, &pool, 3, &x, &matrix, None);
        x[512 + 100] = f32::NAN;
        for isa in sets() {
            let out = multiply(isa, &pool, 3, &x, &matrix, None);
            assert!(out[20..40].iter().all(|x| x.is_nan()), "{weight_type:?} {isa:?}");
            assert_eq!((bits(&out[..20]), bits(&out[40..])), (bits(&good[..20]), bits(&good[40..])));
        }
    }
}

#[test]
fn the_largest_integers_stay_exact() {
    // All weights and activations at their extremes, where an int16 intermediate would overflow.
    let pool = Pool::new(1);
    for weight_type in WeightType::OF_FILES {
        if Format::of(weight_type).is_none() {
            continue;
        }
        for byte in [0x00, 0x7F, 0x80, 0xFF] {
            let mut weights = Weights::random(weight_type, 16, 512, 1);
            let scales = weights.bytes.clone();
            weights.bytes.fill(byte);
            let size = weight_type.block_bytes();
            for (block, scales) in weights.bytes.chunks_exact_mut(size).zip(scales.chunks_exact(size)) {
                let range = match weight_type {
                    WeightType::Q2_K => 80..84,
                    WeightType::Q3_K => 108..110,
                    WeightType::Q6_K => 208..210,
                    WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => 0..2,
                    _ => 0..4,
                };
                block[range.clone()].copy_from_slice(&scales[range]);
            }
            let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
            for sign in [1.0, -1.0] {
                let x = vec![sign; 512];
                let truth =
                    product_in_f64(&x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), &weights.decoded(), 512);
                let multiply = |isa, activations| {
                    multiply_in(Context { activations, ..Context::new(isa, &pool) }, 1, &x, &matrix, None)
                };
                let both = [Activations::Mixed, Activations::Full];
                for (isa, activations) in sets().into_iter().flat_map(|isa| both.map(|both| (isa, both))) {
                    let out = multiply(isa, activations);
                    let expected = bits(&multiply(Isa::Portable, activations));
                    assert_eq!(bits(&out), expected, "{weight_type:?} {isa:?} {byte:#x}");
                    if truth.iter().any(|&x| x != 0.0) {
                        assert!(
                            error(&out, &truth) < 1e-4,
                            "{weight_type:?} {isa:?} {byte:#x}: {}",
                            error(&out, &truth)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn many_rows_are_divided_into_bands_without_a_change_of_bits() {
    let pool = Pool::new(2);
    let weights = Weights::random(WeightType::Q4_0, 48, 8192, 3);
    let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
    let x = random_x(150, 8192, 2);
    let expected = bits(&expected(&x, &matrix, None));
    for isa in sets() {
        assert!(bits(&multiply(isa, &pool, 150, &x, &matrix, None)) == expected, "{isa:?}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let pool = Pool::new(1);
    let weights = Weights::random(WeightType::Q4_K, 2, 512, 1);
    let pack = |data: MatrixData<'_>| PackedMatrix::pack(&[data], &pool).unwrap_err();
    let mut data = weights.data();
    data.bytes = &weights.bytes[1..];
    assert!(matches!(pack(data), Error::WeightSize { expected: 576, actual: 575, .. }));
    data = weights.data();
    data.cols = 500;
    assert!(matches!(pack(data), Error::PartialBlock { block: 256, cols: 500, .. }));
    for (rows, cols) in [(usize::MAX, 512), (2, usize::MAX / 256 * 256), (1 << 40, 1 << 40)] {
        data = MatrixData { weight_type: WeightType::Q4_K, rows, cols, bytes: &weights.bytes };
        assert!(matches!(pack(data), Error::WeightSize { .. }), "{rows} x {cols}");
    }
}

#[test]
fn empty_matrices_and_empty_batches_do_nothing() {
    let pool = Pool::new(2);
    for weight_type in [WeightType::F32, WeightType::BF16, WeightType::Q4_0, WeightType::Q4_K] {
        let data = MatrixData { weight_type, rows: 3, cols: 0, bytes: &[] };
        let matrix = PackedMatrix::pack(&[data], &pool).unwrap();
        assert_eq!(
            multiply(Isa::best(), &pool, 2, &[], &matrix, Some(&[1.0, 2.0, 3.0])),
            [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
        );
        let data = MatrixData { weight_type, rows: 0, cols: 512, bytes: &[] };
        let matrix = PackedMatrix::pack(&[data], &pool).unwrap();
        assert_eq!((matrix.rows(), matrix.bytes()), (0, 0));
        assert!(multiply(Isa::best(), &pool, 2, &[0.0; 1024], &matrix, None).is_empty());
        assert!(multiply(Isa::best(), &pool, 0, &[], &matrix, None).is_empty());
    }
}

#[test]
fn a_scratch_of_an_earlier_larger_product_changes_nothing() {
    let pool = Pool::new(2);
    let mut scratch = GemmScratch::default();
    for (weight_type, rows, cols) in [
        (WeightType::Q6_K, 40, 1024),
        (WeightType::Q4_1, 3, 576),
        (WeightType::BF16, 30, 1024),
        (WeightType::BF16, 3, 50),
        (WeightType::Q2_K, 9, 256),
        (WeightType::Q4_1, 1, 32),
    ] {
        let weights = Weights::random(weight_type, 33, cols, 1);
        let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
        let x = random_x(rows, cols, 8);
        let mut out = vec![0.0; rows * 33];
        let context = Context { activations: Activations::Mixed, ..Context::new(Isa::best(), &pool) };
        gemm(context, rows, &x, &matrix, None, &mut out, &mut scratch);
        assert_eq!(bits(&out), bits(&multiply(Isa::Portable, &pool, rows, &x, &matrix, None)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn random_shapes_give_the_bits_of_the_definition(
        kind in 0..WeightType::OF_FILES.len(),
        rows in 1_usize..40,
        outputs in 1_usize..150,
        blocks in 1_usize..20,
        threads in 1_usize..4,
        seed in 0_u64..1000,
    ) {
        let weight_type = WeightType::OF_FILES[kind];
        let cols = match weight_type.block_len() {
            1 => blocks * 13,
            32 => blocks * 32,
            _ => blocks.div_ceil(6) * 256,
        };
        let pool = Pool::new(threads);
        let weights = Weights::random(weight_type, outputs, cols, seed);
        let matrix = PackedMatrix::pack(&[weights.data()], &pool).unwrap();
        let x = random_x(rows, cols, seed);
        let bias = random_x(1, outputs, seed + 1);
        let expected = bits(&expected(&x, &matrix, Some(&bias)));
        for isa in sets() {
            prop_assert!(bits(&multiply(isa, &pool, rows, &x, &matrix, Some(&bias))) == expected, "{isa:?}");
        }
    }
}

#[test]
fn the_first_addresses_of_a_part_are_where_its_first_panel_lies() {
    let pool = Pool::new(1);
    let (first, second) = (Weights::random(WeightType::Q8_0, 48, 64, 1), Weights::random(WeightType::F16, 80, 64, 2));
    let matrix = PackedMatrix::pack(&[first.data(), second.data()], &pool).unwrap();
    let bytes = |part: usize| matrix.parts[part].data.as_ptr_range();
    // Eight panels: three of the first type, five of the second. The second of two threads begins with panel 4.
    let start = bytes(0).start.addr();
    assert_eq!(matrix.first_addresses((0, 2), 100), [start..start + 100, 0..0]);
    let start = bytes(1).start.addr() + matrix.parts[1].panel_bytes;
    assert_eq!(matrix.first_addresses((1, 2), usize::MAX), [start..bytes(1).end.addr(), 0..0]);
}

#[test]
fn the_first_addresses_of_a_part_of_a_pair_are_as_many_in_gate_as_in_up() {
    let pool = Pool::new(1);
    let (gate, up) = (Weights::random(WeightType::Q8_0, 48, 64, 1), Weights::random(WeightType::F16, 48, 64, 2));
    let matrix = PackedMatrix::pack(&[gate.data(), up.data()], &pool).unwrap();
    // Three panels each; the second of two threads begins with panel 1 of both.
    let first = |part: usize, panel: usize| {
        let part = &matrix.parts[part];
        part.data[panel * part.panel_bytes..].as_ptr().addr()
    };
    assert_eq!(matrix.first_addresses((0, 2), 100), [0, 1].map(|part| first(part, 0)..first(part, 0) + 50));
    let ends = [0, 1].map(|part| matrix.parts[part].data.as_ptr_range().end.addr());
    assert_eq!(matrix.first_addresses((1, 2), usize::MAX), [0, 1].map(|part| first(part, 1)..ends[part]));
}
