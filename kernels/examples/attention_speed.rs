//! Speed of attention: for a generated token the bandwidth at which it reads the keys and values before it, for a piece of a
//! prompt the arithmetic rate.
//!
//! `cargo run --release -p taper-kernels --example attention_speed -- [threads] [isa|best] [keys,...] [rows] [type] [MiB]` walks a
//! ring of layers, 256 MiB of keys and values together unless told otherwise: larger than any cache, as in a model. The
//! softmax schemes take turns, call by call. The read bandwidth of plain loads, measured in the same run, stands above the
//! table and is what the shares are of.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{
    AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, Cpu, CpuConfig, HeadLayout, KvDtype, KvLayout, MatrixData,
    Rope, RopeKind, SequenceSpan, Softmax, StepTables, UnifiedRange, WeightType,
};

/// Bytes of keys and values to walk through.
const RING_BYTES: usize = 256 << 20;
/// Rows of a step that fills the cache, and most rows to measure.
const FILL_ROWS: usize = 512;
/// Seconds for the schemes of a case together.
const SECONDS: f64 = 1.5;

const RANGES: [UnifiedRange; 8] = [UnifiedRange { phi: 0, a: -60.0, b: 60.0 }; 8];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default| arguments.get(index).map_or(default, String::as_str);
    let threads = argument(0, "2").parse().unwrap();
    let isa = Some(argument(1, "best")).filter(|&isa| isa != "best").map(String::from);
    let lens = argument(2, "512,2048,8192,32768").split(',').map(|len| len.parse().unwrap());
    let rows: usize = argument(3, "1").parse().unwrap();
    let dtypes = [KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0];
    let dtype = dtypes.into_iter().find(|dtype| format!("{dtype:?}") == argument(4, "F16")).unwrap();
    let ring_bytes = argument(5, "256").parse::<usize>().unwrap() << 20;
    assert!((1..=FILL_ROWS).contains(&rows), "1 to {FILL_ROWS} rows");

    let cpu = Cpu::new(CpuConfig { threads: Some(threads), isa }).unwrap();
    let bandwidth = read_bandwidth(&Pool::new(threads));
    println!("{} threads, {}, plain reads {bandwidth:.1} GB/s", cpu.info().threads, cpu.info().isa);
    println!("heads       keys rows KV    softmax      us: median      best   GB/s: median   best   share   GFLOP/s");
    for len in lens {
        for (num_heads, num_kv_heads, head_dim) in [(9, 3, 64), (32, 8, 64), (32, 8, 128)] {
            let heads = HeadLayout { num_heads, num_kv_heads, head_dim };
            Case::new(&cpu, heads, len, dtype, ring_bytes).measure(rows.min(len), bandwidth);
        }
    }
}

/// A filled cache.
struct Case<'a> {
    cpu: &'a Cpu,
    heads: HeadLayout,
    layout: KvLayout,
    len: usize,
    cache: <Cpu as Backend>::KvCache,
    qkv: <Cpu as Backend>::Buffer,
}

impl<'a> Case<'a> {
    fn new(cpu: &'a Cpu, heads: HeadLayout, len: usize, dtype: KvDtype, ring_bytes: usize) -> Self {
        let (num_kv_heads, head_dim) = (heads.num_kv_heads, heads.head_dim);
        let num_blocks = len.div_ceil(BLOCK_SIZE);
        let mut layout = KvLayout { num_layers: 1, num_blocks, num_kv_heads, head_dim, dtype };
        layout.num_layers = ring_bytes.div_ceil(cpu.kv_block_bytes(layout) * num_blocks);
        let mut case = Self { cpu, heads, layout, len, cache: cpu.kv_cache(layout).unwrap(), qkv: rows(cpu, heads) };
        let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim: 0, inv_freq: vec![], magnitude: 1.0 };
        let angles = cpu.buffer(FILL_ROWS, 0).unwrap();
        for start in (0..len).step_by(FILL_ROWS) {
            let step = case.step(start..len.min(start + FILL_ROWS));
            for layer in 0..layout.num_layers {
                let params = case.params(layer, Softmax::Online);
                cpu.rope_kv_store(&step, &rope, &angles, params, &mut case.qkv, &mut case.cache);
            }
        }
        case
    }

    fn params<'b>(&self, layer: usize, softmax: Softmax<'b>) -> AttentionParams<'b> {
        let scale = 1.0 / (self.heads.head_dim as f32).sqrt();
        AttentionParams { layer, heads: self.heads, scale, scheme: AttentionScheme::SplitKv, softmax }
    }

    fn step(&self, positions: std::ops::Range<usize>) -> StepTables {
        let positions_and_slots: Vec<u32> = positions.clone().map(|position| position as u32).collect();
        let num_blocks = self.layout.num_blocks;
        let span = SequenceSpan { rows: 0..positions.len(), context_len: positions.end, blocks: 0..num_blocks };
        StepTables {
            positions: positions_and_slots.clone(),
            slots: positions_and_slots,
            spans: vec![span],
            block_tables: (0..num_blocks as u32).collect(),
        }
    }

    /// Times the last `rows` rows under every scheme.
    fn measure(&self, rows: usize, bandwidth: f64) {
        let step = self.step(self.len - rows..self.len);
        let mut out = self.cpu.buffer(rows, self.heads.q_width()).unwrap();
        let ranges = &RANGES[..self.heads.num_kv_heads];
        let schemes =
            [("online", Softmax::Online), ("bounded", Softmax::Bounded), ("calibrated", Softmax::Calibrated(ranges))];
        let mut times = schemes.map(|_| Vec::new());
        let begin = Instant::now();
        let mut layers = (0..self.layout.num_layers).cycle();
        while times[0].len() < 3 || begin.elapsed().as_secs_f64() < SECONDS {
            for (&(_, softmax), times) in schemes.iter().zip(&mut times) {
                let params = self.params(layers.next().unwrap(), softmax);
                let start = Instant::now();
                let num_recomputed = self.cpu.attention(&step, params, &self.qkv, &self.cache, &mut out);
                times.push(start.elapsed().as_secs_f64());
                assert_eq!(num_recomputed, 0, "such scores fit every scheme");
            }
        }
        black_box(&out);
        for (&(name, _), times) in schemes.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            self.print(rows, name, times[times.len() / 2], times[0], bandwidth);
        }
    }

    fn print(&self, rows: usize, name: &str, median: f64, best: f64, bandwidth: f64) {
        let HeadLayout { num_heads, num_kv_heads, head_dim } = self.heads;
        let element_bytes = match self.layout.dtype {
            KvDtype::F16 | KvDtype::BF16 => 2.0,
            KvDtype::F32 => 4.0,
            KvDtype::Q8_0 => 34.0 / 32.0,
        };
        let bytes = 2.0 * element_bytes * (self.len * self.heads.kv_width()) as f64;
        let pairs: usize = (self.len - rows..self.len).map(|position| position + 1).sum();
        let flops = 4.0 * (pairs * self.heads.q_width()) as f64;
        println!(
            "{num_heads:>2}/{num_kv_heads} x {head_dim:<3} {:>6} {rows:>4} {:4}  {name:10} {:>11.1} {:>9.1}   {:>12.1} {:>6.1}   {:>3.0} % {:>9.1}",
            self.len,
            format!("{:?}", self.layout.dtype),
            median * 1e6,
            best * 1e6,
            bytes / median / 1e9,
            bytes / best / 1e9,
            bytes / median / 1e7 / bandwidth,
            flops / median / 1e9,
        );
    }
}

/// Rows of fused queries, keys and values.
fn rows(cpu: &Cpu, heads: HeadLayout) -> <Cpu as Backend>::Buffer {
    let cols = heads.qkv_width();
    let values = (0..FILL_ROWS * cols).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let data = MatrixData { weight_type: WeightType::F32, rows: FILL_ROWS, cols, bytes: &bytes };
    let mut buffer = cpu.buffer(FILL_ROWS, cols).unwrap();
    cpu.embed(&cpu.matrix(&[data]).unwrap(), &(0..FILL_ROWS as u32).collect::<Vec<_>>(), &mut buffer);
    buffer
}

/// Bandwidth of summing memory, eight streams to a thread: the ceiling of a kernel that reads everything once.
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
