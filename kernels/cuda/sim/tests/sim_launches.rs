//! The launch code of `taper_kernels::cuda` on the simulator: what a GPU would be given computes what it should, in every
//! schedule.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use taper_cuda_sim::{Schedule, Sim, differences};
use taper_kernels::cuda::read::Stream;
use taper_kernels::cuda::softmax::{SoftmaxForm, SoftmaxRows};
use taper_kernels::cuda::{Cuda, Device, Kernel, ProductChoice, TileChoice};
use taper_kernels::{Backend, MatrixData, Norm, WeightType};

fn schedules() -> impl Iterator<Item = Schedule> {
    (0..Schedule::COUNT).map(Schedule)
}

/// Scores of both signs, some masked.
fn scores(rows: usize, cols: usize) -> Vec<f32> {
    let score = |i: usize| if i % 11 == 5 { f32::NEG_INFINITY } else { ((i * 7919 + 13) % 1009) as f32 / 20.0 - 25.0 };
    (0..rows * cols).map(score).collect()
}

/// In float64.
fn reference(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = row.iter().map(|&x| f64::from(x - largest).exp2()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn check(out: &[f32], x: &[f32], cols: usize, what: &str) {
    for (row, (out, x)) in out.chunks(cols).zip(x.chunks(cols)).enumerate() {
        for (i, (&y, expected)) in out.iter().zip(reference(x)).enumerate() {
            assert!(
                (f64::from(y) - expected).abs() <= 1e-5 * expected + 1e-30,
                "{what}, row {row}, {i}: {y}, {expected}"
            );
        }
    }
}

#[test]
fn every_kernel_has_the_parameters_that_its_launches_give() {
    assert_eq!(differences(), Vec::<String>::new());
    assert!(Kernel::ALL.len() >= 6);
}

#[test]
fn every_form_of_softmax_is_right_and_the_same_in_every_schedule() {
    for (rows, cols) in [(1, 1), (3, 33), (2, 5000), (1, 20_000)] {
        let x = scores(rows, cols);
        for form in SoftmaxForm::ALL {
            let mut first: Option<Vec<u32>> = None;
            for schedule in schedules() {
                let device = Arc::new(Sim::new(schedule));
                if !form.can_run(device.properties(), rows, cols) {
                    continue;
                }
                let mut softmax = SoftmaxRows::new(&device, rows, cols).unwrap();
                softmax.scores().write(0, &x).unwrap();
                let mut out = vec![f32::NAN; x.len()];
                // Again, because a launch leaves its counters as it found them.
                for _ in 0..2 {
                    softmax.run(&device, form).unwrap();
                    softmax.weights().read(0, &mut out).unwrap();
                    check(&out, &x, cols, form.name());
                }
                let bits: Vec<u32> = out.iter().map(|y| y.to_bits()).collect();
                assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{form:?} {rows} x {cols} {schedule:?}");
            }
        }
    }
}

#[test]
fn a_graph_computes_from_what_memory_holds_when_it_is_replayed() {
    let (rows, cols) = (2, 5000);
    let device = Arc::new(Sim::new(Schedule(2)));
    let mut softmax = SoftmaxRows::new(&device, rows, cols).unwrap();
    softmax.scores().write(0, &vec![1.0; rows * cols]).unwrap();
    let graph = device.capture(&mut || softmax.run(&device, SoftmaxForm::Chunks)).unwrap();
    let mut out = vec![7.0; rows * cols];
    softmax.weights().read(0, &mut out).unwrap();
    assert!(out.iter().all(|&y| y == 0.0), "recording runs nothing");
    let x = scores(rows, cols);
    softmax.scores().write(0, &x).unwrap();
    // SAFETY: the rows are there.
    unsafe { device.replay(&graph).unwrap() };
    softmax.weights().read(0, &mut out).unwrap();
    check(&out, &x, cols, "a replay");
}

#[test]
fn a_read_stream_reads_every_word_once() {
    for words in [4, 64, 16_388, 140_000] {
        let device = Arc::new(Sim::new(Schedule(3)));
        let mut stream = Stream::new(&device, words).unwrap();
        let values: Vec<u32> = (0..words as u32).map(|i| i.wrapping_mul(2_654_435_761).rotate_left(i % 32)).collect();
        stream.words().write(0, &values).unwrap();
        stream.run(&device).unwrap();
        assert_eq!(stream.found().unwrap(), values.iter().fold(0, |sum, word| sum ^ word), "{words}");
    }
}

/// Rows go to the device 4 MiB at a time, whole panels of them: here in two pieces, the first of which ends within the second
/// tensor.
#[test]
fn a_matrix_that_comes_in_pieces_has_all_of_its_rows() {
    let (cols, rows) = (1024, [100, 1979]);
    let backend = Cuda::new(Arc::new(Sim::new(Schedule(5)))).unwrap();
    let bits = |row: usize, col: usize| ((row * 31 + col * 7919) % 0x7f80) as u16;
    let tensor = |rows: std::ops::Range<usize>| -> Vec<u8> {
        rows.flat_map(|row| (0..cols).flat_map(move |col| bits(row, col).to_le_bytes())).collect()
    };
    let tensors = [tensor(0..rows[0]), tensor(rows[0]..rows[0] + rows[1])];
    let part = |i: usize| MatrixData { weight_type: WeightType::BF16, rows: rows[i], cols, bytes: &tensors[i] };
    let matrix = backend.matrix(&[part(0), part(1)]).unwrap();
    assert_eq!(backend.matrix_bytes(&matrix), 2080 * 2 * cols, "panels are whole");
    let tokens = [0, 99, 100, 2047, 2048, 2078];
    let mut out = backend.buffer(tokens.len(), cols).unwrap();
    backend.embed(&matrix, &tokens, &mut out);
    let mut values = vec![0.0; tokens.len() * cols];
    backend.read_rows(&out, 0..tokens.len(), &mut values);
    for (&token, row) in tokens.iter().zip(values.chunks(cols)) {
        let expected = (0..cols).map(|col| u32::from(bits(token as usize, col)) << 16);
        assert!(row.iter().map(|x| x.to_bits()).eq(expected), "row {token}");
    }
}

/// What `taper tune` may choose between decides no bit: neither of products alone nor of those that are joined with a norm, an
/// addition or a gate.
#[test]
fn every_choice_of_a_launch_gives_the_same_bits() {
    let cases = [
        (WeightType::Q8_0, 96, 64, vec![1, 3, 9, 33]),
        (WeightType::F8E4M3, 64, 96, vec![2, 12, 40]),
        (WeightType::Q4_K, 64, 256, vec![2, 17]),
        (WeightType::Q6_K, 64, 256, vec![1, 65]),
        (WeightType::BF16, 100, 50, vec![5]),
        // Staged whole by kernels of few rows, and in pieces by those of many.
        (WeightType::Q4_0, 32, 2048, vec![3]),
    ];
    for (weight_type, outputs, cols, numbers) in cases {
        let most = numbers.iter().copied().max().unwrap();
        let mut cuda = Cuda::new(Arc::new(Sim::new(Schedule(1)))).unwrap();
        let block = weight_type.row_bytes(cols).unwrap();
        // Floats and scales of any size are ordinary numbers below 2, of both signs.
        let bytes: Vec<u8> = (0..outputs * block).map(|i| ((i * 7919 + i / 256) % 251) as u8 & 0xbf).collect();
        let matrix = cuda.matrix(&[MatrixData { weight_type, rows: outputs, cols, bytes: &bytes }]).unwrap();
        let values: Vec<f32> = (0..most * cols).map(|i| ((i * 31) % 97) as f32 / 48.0 - 1.0).collect();
        let x = cuda.buffer_of(cols, &values).unwrap();
        let weight = cuda.vector(&vec![0.75; cols]).unwrap();
        for &rows in &numbers {
            let mut expected: Option<Vec<u32>> = None;
            for choice in TileChoice::candidates(rows) {
                cuda.force_choice(Some(ProductChoice::Tiles(choice)));
                let [mut out, mut joined, mut delta] = [(); 3].map(|()| cuda.buffer(rows, outputs).unwrap());
                cuda.linear(rows, &x, &matrix, None, &mut out);
                cuda.linear_add(rows, &x, &matrix, &mut delta, &mut joined);
                let mut normed = cuda.buffer(rows, cols).unwrap();
                let mut gated = cuda.buffer(rows, outputs / 2).unwrap();
                let norm = Norm { x: &x, weight: &weight, eps: 1e-5, normed: &mut normed };
                cuda.norm_linear_silu_mul(rows, norm, &matrix, &mut delta, &mut gated);
                let bits = [(&out, outputs), (&joined, outputs), (&gated, outputs / 2)].map(|(buffer, width)| {
                    let mut values = vec![0.0; rows * width];
                    cuda.read_rows(buffer, 0..rows, &mut values);
                    values.iter().map(|value: &f32| value.to_bits()).collect::<Vec<u32>>()
                });
                assert!(
                    bits[0].iter().any(|&bits| f32::from_bits(bits) != 0.0),
                    "{weight_type:?}: something is summed"
                );
                let bits = bits.concat();
                let expected = expected.get_or_insert_with(|| bits.clone());
                assert!(*expected == bits, "{weight_type:?} {outputs}x{cols}, {rows} rows: {choice:?} has other bits");
            }
        }
    }
}
