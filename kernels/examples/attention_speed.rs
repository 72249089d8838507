//! Speed of decode attention: the bandwidth at which one generated token reads the keys and values before it.
//!
//! `cargo run --release -p taper-kernels --example attention_speed -- [threads] [isa] [keys,keys,...]` walks a ring of layers,
//! 256 MiB of keys and values together or more: larger than any cache, as in a model. The read bandwidth of plain loads,
//! measured in the same run, stands above the table and is what the shares are of.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{
    AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, Cpu, CpuConfig, HeadLayout, KvDtype, KvLayout, MatrixData,
    Rope, RopeKind, SequenceSpan, Softmax, StepTables, WeightType,
};

/// Bytes of keys and values to walk through.
const RING_BYTES: usize = 256 << 20;
/// Rows of a step that fills the cache.
const FILL_ROWS: usize = 512;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.first().map_or(2, |threads| threads.parse().unwrap());
    let isa = arguments.get(1).filter(|isa| *isa != "best").cloned();
    let lens: Vec<usize> = arguments
        .get(2)
        .map_or("512,2048,8192,32768", String::as_str)
        .split(',')
        .map(|len| len.parse().unwrap())
        .collect();
    let cpu = Cpu::new(CpuConfig { threads: Some(threads), isa }).unwrap();
    let bandwidth = read_bandwidth(&Pool::new(threads));
    println!("{} threads, {}, plain reads {bandwidth:.1} GB/s", cpu.info().threads, cpu.info().isa);
    println!("heads        keys  KV   scheme    us: median  best      GB/s: median  best   share of reads");
    for (num_heads, num_kv_heads, head_dim) in [(9, 3, 64), (32, 8, 64), (32, 8, 128)] {
        let heads = HeadLayout { num_heads, num_kv_heads, head_dim };
        for &len in &lens {
            Case::new(&cpu, heads, len, KvDtype::F16).measure(bandwidth);
        }
    }
}

/// A filled cache and the step of one generated token.
struct Case<'a> {
    cpu: &'a Cpu,
    heads: HeadLayout,
    layout: KvLayout,
    len: usize,
    cache: <Cpu as Backend>::KvCache,
    qkv: <Cpu as Backend>::Buffer,
}

impl<'a> Case<'a> {
    fn new(cpu: &'a Cpu, heads: HeadLayout, len: usize, dtype: KvDtype) -> Self {
        let (num_kv_heads, head_dim) = (heads.num_kv_heads, heads.head_dim);
        let num_blocks = len.div_ceil(BLOCK_SIZE);
        let mut layout = KvLayout { num_layers: 1, num_blocks, num_kv_heads, head_dim, dtype };
        layout.num_layers = (RING_BYTES / (cpu.kv_block_bytes(layout) * num_blocks)).max(1);
        let mut case = Self { cpu, heads, layout, len, cache: cpu.kv_cache(layout).unwrap(), qkv: rows(cpu, heads) };
        let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim: 0, inv_freq: vec![], magnitude: 1.0 };
        let angles = cpu.buffer(FILL_ROWS, 0).unwrap();
        for start in (0..len).step_by(FILL_ROWS) {
            let step = case.step(start..len.min(start + FILL_ROWS));
            for layer in 0..layout.num_layers {
                let params = case.params(layer);
                cpu.rope_kv_store(&step, &rope, &angles, params, &mut case.qkv, &mut case.cache);
            }
        }
        case
    }

    fn params(&self, layer: usize) -> AttentionParams<'static> {
        let scale = 1.0 / (self.heads.head_dim as f32).sqrt();
        AttentionParams { layer, heads: self.heads, scale, scheme: AttentionScheme::SplitKv, softmax: Softmax::Online }
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

    fn measure(&self, bandwidth: f64) {
        let step = self.step(self.len - 1..self.len);
        let mut out = self.cpu.buffer(1, self.heads.q_width()).unwrap();
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 5 || begin.elapsed().as_secs_f64() < 0.5 {
            for layer in 0..self.layout.num_layers {
                let start = Instant::now();
                self.cpu.attention(&step, self.params(layer), &self.qkv, &self.cache, &mut out);
                times.push(start.elapsed().as_secs_f64());
            }
        }
        black_box(&out);
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[0]);
        let bytes = (self.cpu.kv_block_bytes(self.layout) * self.layout.num_blocks) as f64;
        let HeadLayout { num_heads, num_kv_heads, head_dim } = self.heads;
        println!(
            "{num_heads:>2}/{num_kv_heads} x {head_dim:<4} {:>6}  {:4} online  {:>10.1} {:>9.1}   {:>9.1} {:>8.1}   {:>6.1} %",
            self.len,
            format!("{:?}", self.layout.dtype),
            median * 1e6,
            best * 1e6,
            bytes / median / 1e9,
            bytes / best / 1e9,
            bytes / median / 1e7 / bandwidth,
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
