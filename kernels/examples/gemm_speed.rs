//! Speed of matrix products: for one row the bandwidth of the weights, for many the arithmetic rate.
//!
//! `cargo run --release -p taper-kernels --example gemm_speed -- [threads] [isa] [type|all] [MiB]` walks a ring of distinct matrices,
//! 256 MiB together unless told otherwise: larger than any cache, so weights come from memory as they do in a model. The read
//! bandwidth of plain loads, measured in the same run, stands above the table.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;
use taper_kernels::cpu::gemm::{Context, GemmScratch, PackedMatrix, gemm};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{MatrixData, WeightType};

/// Bytes of matrices to walk through.
const RING_BYTES: usize = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.first().map_or(2, |threads| threads.parse().unwrap());
    let isa = arguments.get(1).map_or(Isa::best(), |name| Isa::parse(name).unwrap());
    let only = arguments.get(2).filter(|only| *only != "all");
    let ring_bytes = arguments.get(3).map_or(RING_BYTES, |mebibytes| mebibytes.parse::<usize>().unwrap() << 20);
    let pool = Pool::new(threads);
    let context = Context::new(isa, &pool);
    println!("{} threads, {}, plain reads {:.1} GB/s", pool.threads(), isa.name(), read_bandwidth(&pool));
    println!("type        N x K       rows  us: median  best      GB/s: median  best   GFLOP/s: median  best");
    let model = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
    let mut cases: Vec<(WeightType, usize, usize, &[usize])> = Vec::new();
    for (n, k) in model {
        cases.push((WeightType::Q4_1, n, k, &[1, 2, 4, 8, 16, 64, 512]));
    }
    cases.push((WeightType::Q8_0, 49152, 576, &[1, 2, 4, 8, 64]));
    for weight_type in WeightType::ALL {
        cases.push((weight_type, 2048, 2048, &[1, 2, 3, 4, 8, 512]));
    }
    for (weight_type, n, k, rows) in cases {
        if only.is_none_or(|only| *only == format!("{weight_type:?}")) {
            measure(context, ring_bytes, (weight_type, n, k), rows);
        }
    }
}

/// Times products of each row count over the ring and prints medians.
fn measure(context: Context<'_>, ring_bytes: usize, matrix: (WeightType, usize, usize), row_counts: &[usize]) {
    let (weight_type, n, k) = matrix;
    let bytes = vec![1; n * weight_type.row_bytes(k).unwrap()];
    let count = (ring_bytes / bytes.len()).max(1);
    let data = MatrixData { weight_type, rows: n, cols: k, bytes: &bytes };
    let ring: Vec<PackedMatrix> = (0..count).map(|_| PackedMatrix::pack(&[data], context.pool).unwrap()).collect();
    let most = *row_counts.iter().max().unwrap();
    let x: Vec<f32> = (0..most * k).map(|i| (i % 61) as f32 - 30.0).collect();
    let mut out = vec![0.0; most * n];
    let mut scratch = GemmScratch::default();
    for &rows in row_counts {
        let mut next = 0;
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 5 || begin.elapsed().as_secs_f64() < 0.4 {
            // One sample is several products, long enough for the clock.
            let repeats = if rows == 1 && n < 40_000 { 20 } else { 1 };
            let start = Instant::now();
            for _ in 0..repeats {
                gemm(context, rows, &x, &ring[next], None, &mut out, &mut scratch);
                next = (next + 1) % ring.len();
            }
            times.push(start.elapsed().as_secs_f64() / f64::from(repeats));
        }
        black_box(&out);
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[0]);
        let (bytes, flops) = (ring[0].bytes() as f64, 2.0 * (rows * n * k) as f64);
        println!(
            "{:6} {n:>6} x {k:<6} {rows:>5}   {:>9.1} {:>9.1}   {:>8.1} {:>8.1}   {:>9.1} {:>9.1}",
            format!("{weight_type:?}"),
            median * 1e6,
            best * 1e6,
            bytes / median / 1e9,
            bytes / best / 1e9,
            flops / median / 1e9,
            flops / best / 1e9
        );
    }
}

/// Bandwidth of summing memory, eight streams to a thread: the ceiling for one row.
fn read_bandwidth(pool: &Pool) -> f64 {
    const STREAMS: usize = 8;
    let words = vec![1_u64; RING_BYTES / 8];
    let parts = 64;
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        let start = Instant::now();
        pool.run(parts, |part| {
            let part = &words[part * (words.len() / parts)..][..words.len() / parts];
            let streams: [&[u64]; STREAMS] =
                std::array::from_fn(|s| &part[s * (part.len() / STREAMS)..][..part.len() / STREAMS]);
            let mut sums = [[0_u64; 8]; STREAMS];
            for at in (0..streams[0].len() / 8 * 8).step_by(8) {
                for (sums, stream) in sums.iter_mut().zip(streams) {
                    for (sum, word) in sums.iter_mut().zip(&stream[at..at + 8]) {
                        *sum = sum.wrapping_add(*word);
                    }
                }
            }
            black_box(sums);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    RING_BYTES as f64 / best / 1e9
}
