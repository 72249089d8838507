//! The backend for CPUs: threads that claim chunks of work, and kernels per instruction set.
//!
//! Outside the matrix product ([`gemm`]) kernels are written once over sixteen lanes (`simd.rs`) and compiled for portable
//! Rust, AVX2 and AVX-512. What an operation computes for a row has the same bits whatever the instruction set, the number
//! of threads, and the other rows of the step.

mod attention;
mod buffer;
pub mod cores;
pub mod gemm;
pub mod isa;
mod kv_cache;
mod norm;
mod operations;
pub mod pool;
pub mod processors;
mod read;
mod rope;
pub(crate) mod rows;
mod silu;
pub(crate) mod simd;
pub(crate) mod vector_math;

pub use buffer::{Buffer, Vector};
pub use gemm::Activations;
pub use kv_cache::KvCache;
pub use operations::{Operation, operations};
pub use read::read;

use crate::reference::angles_row;
use crate::{
    AttentionParams, Backend, BackendInfo, Draw, Errand, Error, HeadLayout, KvLayout, MatrixData, Rope,
    ScoreStatistics, StepTables, WeightType, largest,
};
use attention::AttentionScratch;
use cores::Cores;
use gemm::{GemmScratch, PackedMatrix, Tuning};
use isa::Isa;
use pool::Pool;
use rows::{Disjoint, for_rows_mut};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Multiply-adds, or what takes as long, below which storing keys stays on one thread.
const WORTH_SHARING: usize = 32 * 1024;

/// Bytes that a waiting thread asks for of the next product's weights: a part of its second cache. With 64 to 512 KiB a token
/// of SmolLM2-135M takes 3 to 5 % less time than with none (Zen 5, 2 threads, in turns within one run).
const READ_AHEAD_BYTES: usize = 256 * 1024;

/// More threads than the largest machine has; a number beyond it is a slip, and could not be started.
const MOST_THREADS: usize = 1024;

/// Settings of [`Cpu`].
#[derive(Debug, Clone, Default)]
pub struct CpuConfig {
    /// Threads, the caller included; `None` takes [`Cores::threads`].
    pub threads: Option<usize>,
    /// `portable`, `neon`, `neon-dot`, `avx2`, `avx512`, `avx512bf16` or `amx`; `None` takes the best this machine has.
    pub isa: Option<String>,
}

/// The CPU backend. Clones share the threads and the working memory.
#[derive(Debug, Clone)]
pub struct Cpu {
    shared: Arc<Shared>,
    tuning: Arc<Tuning>,
    activations: Activations,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    isa: Isa,
    scratch: Mutex<Scratch>,
}

/// Working memory that operations keep between calls.
#[derive(Debug, Default)]
struct Scratch {
    gemm: GemmScratch,
    attention: AttentionScratch,
}

impl Cpu {
    /// Starts the threads.
    pub fn new(config: CpuConfig) -> Result<Self, Error> {
        let isa = match config.isa {
            Some(name) => Isa::parse(&name)?,
            None => Isa::best(),
        };
        let threads = match config.threads {
            Some(0) => return Err(Error::Unsupported("0 threads cannot work; give at least 1".into())),
            Some(threads) if threads > MOST_THREADS => {
                let reason = format!(
                    "{threads} threads are too many; at most {MOST_THREADS} are started, and more than the cores do not help"
                );
                return Err(Error::Unsupported(reason));
            }
            Some(threads) => threads,
            None => Cores::of_this_machine().threads,
        };
        let shared = Shared { pool: Pool::new(threads), isa, scratch: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), tuning: Arc::default(), activations: Activations::default() })
    }

    /// Takes measured choices of implementations for the matrices that it will prepare. No answer depends on them.
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        Self { tuning: Arc::new(tuning), ..self }
    }

    /// Rounds the activations that meet quantized weights so.
    pub fn with_activations(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    fn product(
        &self,
        activations: Activations,
        rows: usize,
        x: &Buffer,
        matrix: &PackedMatrix,
        bias: Option<&Vector>,
        out: &mut Buffer,
    ) {
        assert_eq!(x.cols(), matrix.cols(), "the input is as wide as the matrix");
        assert_eq!(out.cols(), matrix.rows(), "the output is as wide as the matrix is high");
        let context = self.context(activations);
        let bias = bias.map(Vector::values);
        gemm::gemm(context, rows, x.rows(rows), matrix, bias, out.rows_mut(rows), &mut self.scratch().gemm);
    }

    fn context(&self, activations: Activations) -> gemm::Context<'_> {
        gemm::Context { activations, ..gemm::Context::new(self.isa(), self.pool()) }
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    fn isa(&self) -> Isa {
        self.shared.isa
    }

    /// Scratch holds nothing between operations, so one that panicked left nothing to repair.
    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.shared.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Cpu {
    type Buffer = Buffer;
    type Matrix = PackedMatrix;
    type Vector = Vector;
    type KvCache = KvCache;

    fn info(&self) -> BackendInfo {
        let numerics_class = self.activations.class();
        BackendInfo { name: "cpu", isa: self.isa().name(), threads: self.pool().threads(), numerics_class }
    }

    fn takes(&self, weight_type: WeightType) -> bool {
        WeightType::OF_FILES.contains(&weight_type)
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer, Error> {
        Buffer::new(rows, cols)
    }

    fn matrix(&self, parts: &[MatrixData<'_>]) -> Result<PackedMatrix, Error> {
        let mut matrix = PackedMatrix::pack(parts, self.pool())?;
        matrix.tune(&self.tuning);
        Ok(matrix)
    }

    fn matrix_bytes(&self, matrix: &PackedMatrix) -> usize {
        matrix.bytes()
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, Error> {
        Vector::new(values)
    }

    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache, Error> {
        KvCache::new(layout)
    }

    fn populate_kv_cache(&self, cache: &mut KvCache) {
        cache.populate(self.pool());
    }

    fn kv_block_bytes(&self, layout: KvLayout) -> usize {
        kv_cache::block_bytes(layout)
    }

    fn copy_kv_block(&self, cache: &mut KvCache, from: u32, to: u32) {
        cache.copy_block(from as usize, to as usize);
    }

    fn export_kv_block(&self, cache: &KvCache, block: u32, out: &mut Vec<u8>) {
        cache.export_block(block as usize, out);
    }

    fn import_kv_block(&self, cache: &mut KvCache, block: u32, bytes: &[u8]) -> Result<(), Error> {
        cache.import_block(block as usize, bytes)
    }

    fn recomputed(&self, cache: &KvCache) -> Vec<u64> {
        cache.recomputed.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn read_rows(&self, buffer: &Buffer, rows: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&buffer.rows(rows.end)[rows.start * buffer.cols()..]);
    }

    fn choose(&self, logits: &Buffer, draws: &[(usize, Draw)], tokens: &mut Vec<Option<u32>>) -> bool {
        if draws.iter().any(|(_, draw)| draw.temperature != 0.0) {
            return false;
        }
        // A row has just been written by all threads: parts of it lie in each one's cache.
        let (parts, cols) = (self.pool().threads(), logits.cols());
        let len = cols.div_ceil(parts);
        let mut found = vec![largest(&[]); draws.len() * parts];
        let places = Disjoint::new(&mut found);
        self.pool().run(draws.len() * parts, |place| {
            let (row, part) = (draws[place / parts].0, place % parts);
            let row = &logits.rows(row + 1)[row * cols..];
            // SAFETY: each place is that of one call.
            let found = unsafe { &mut places.part(place..place + 1)[0] };
            *found = largest(&row[(part * len).min(cols)..((part + 1) * len).min(cols)]);
        });
        tokens.clear();
        tokens.extend(found.chunks_exact(parts).map(|parts| {
            let whole = parts.iter().enumerate().fold(largest(&[]), |all, (part, &next)| all.then(part * len, next));
            (whole.value.is_finite() && !whole.has_nan).then_some(whole.index as u32)
        }));
        true
    }

    fn embed(&self, table: &PackedMatrix, tokens: &[u32], out: &mut Buffer) {
        let cols = table.cols();
        assert_eq!(out.cols(), cols, "the output is as wide as the table");
        for_rows_mut(self.pool(), out.rows_mut(tokens.len()), cols, |rows, out| {
            for (out, &token) in out.chunks_exact_mut(cols).zip(&tokens[rows]) {
                table.embed_row(token as usize, out);
            }
        });
    }

    fn rms_norm(&self, rows: usize, x: &Buffer, weight: &Vector, eps: f32, out: &mut Buffer) {
        let cols = weight.values().len();
        assert_eq!((x.cols(), out.cols()), (cols, cols), "input, weight and output are equally wide");
        let x = x.rows(rows);
        for_rows_mut(self.pool(), out.rows_mut(rows), cols, |rows, out| {
            norm::rms_norm(self.isa(), &x[rows.start * cols..rows.end * cols], weight.values(), eps, out);
        });
    }

    fn linear(&self, rows: usize, x: &Buffer, matrix: &PackedMatrix, bias: Option<&Vector>, out: &mut Buffer) {
        self.product(self.activations, rows, x, matrix, bias, out);
    }

    fn logits(&self, rows: usize, x: &Buffer, head: &PackedMatrix, out: &mut Buffer) {
        self.product(Activations::Full, rows, x, head, None, out);
    }

    fn is_done_at_once(&self) -> bool {
        true
    }

    fn settle(&self) {
        self.pool().settle();
    }

    fn send_out(&self, errand: Errand) {
        self.pool().send_out(errand);
    }

    fn soon(&self, matrix: &PackedMatrix) {
        self.pool().read_ahead(|thread, threads| matrix.first_addresses((thread, threads), READ_AHEAD_BYTES));
    }

    fn qk_norm(
        &self,
        rows: usize,
        qkv: &mut Buffer,
        heads: HeadLayout,
        q_weight: &Vector,
        k_weight: &Vector,
        eps: f32,
    ) {
        let width = heads.qkv_width();
        assert_eq!(qkv.cols(), width, "qkv holds the heads it is said to");
        let (q_weight, k_weight) = (q_weight.values(), k_weight.values());
        assert_eq!((q_weight.len(), k_weight.len()), (heads.head_dim, heads.head_dim), "one weight per head element");
        for_rows_mut(self.pool(), qkv.rows_mut(rows), width, |_, qkv| {
            norm::qk_norm(self.isa(), qkv, heads, q_weight, k_weight, eps);
        });
    }

    fn rope_angles(&self, rope: &Rope, positions: &[u32], out: &mut Buffer) {
        rope.check();
        assert_eq!(out.cols(), rope.rotary_dim, "a cosine and a sine per pair");
        if rope.rotary_dim == 0 {
            return;
        }
        for_rows_mut(self.pool(), out.rows_mut(positions.len()), rope.rotary_dim, |rows, out| {
            for (out, &position) in out.chunks_exact_mut(rope.rotary_dim).zip(&positions[rows]) {
                angles_row(rope, position, out);
            }
        });
    }

    fn rope_kv_store(
        &self,
        step: &StepTables,
        rope: &Rope,
        angles: &Buffer,
        params: AttentionParams<'_>,
        qkv: &mut Buffer,
        cache: &mut KvCache,
    ) {
        let (heads, rotary_dim, num_rows) = (params.heads, rope.rotary_dim, step.num_rows());
        rope.check();
        step.check(heads, cache.layout());
        assert!(params.layer < cache.layout().num_layers, "layer {} is not in the cache", params.layer);
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(angles.cols(), rotary_dim, "the angles are of this rope");
        assert!(rotary_dim <= heads.head_dim, "no more elements turn than a head has");
        let angles = angles.rows(num_rows);
        for_rows_mut(self.pool(), qkv.rows_mut(num_rows), heads.qkv_width(), |rows, qkv| {
            let angles = &angles[rows.start * rotary_dim..rows.end * rotary_dim];
            rope::rotate_rows(self.isa(), rope.kind, heads, angles, rotary_dim, qkv);
        });
        let rows = kv_cache::StoreRows {
            layer: params.layer,
            qkv: qkv.rows(num_rows),
            width: heads.qkv_width(),
            slots: &step.slots,
        };
        let alone = num_rows * heads.kv_width() < WORTH_SHARING;
        cache.store(self.isa(), rows, |num_tasks, task| {
            if alone { (0..num_tasks).for_each(task) } else { self.pool().run(num_tasks, task) }
        });
    }

    fn attention(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Buffer,
        cache: &KvCache,
        out: &mut Buffer,
    ) {
        let heads = params.heads;
        step.check(heads, cache.layout());
        assert!(params.layer < cache.layout().num_layers, "layer {} is not in the cache", params.layer);
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(out.cols(), heads.q_width(), "one output element per query element");
        let num_rows = step.num_rows();
        let scratch = &mut self.scratch().attention;
        let on = (self.isa(), self.pool(), scratch);
        let recomputed = attention::attention(on, step, params, qkv.rows(num_rows), cache, out.rows_mut(num_rows));
        cache.recomputed[params.layer].fetch_add(recomputed, Ordering::Relaxed);
    }

    fn attention_working_bytes(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        cache: &KvCache,
    ) -> Option<usize> {
        step.check(params.heads, cache.layout());
        Some(attention::working_bytes(self.pool().threads(), step, params, cache))
    }

    fn observe_scores(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Buffer,
        cache: &KvCache,
        statistics: &mut [ScoreStatistics],
    ) {
        step.check(params.heads, cache.layout());
        assert!(params.layer < cache.layout().num_layers, "layer {} is not in the cache", params.layer);
        assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(statistics.len(), params.heads.num_kv_heads, "statistics of every KV head");
        let on = (self.isa(), self.pool());
        attention::observe_scores(on, step, params, qkv.rows(step.num_rows()), cache, statistics);
    }

    fn silu_mul(&self, rows: usize, gate_up: &Buffer, out: &mut Buffer) {
        let width = out.cols();
        assert_eq!(gate_up.cols(), 2 * width, "gate and up are each as wide as the output");
        let gate_up = gate_up.rows(rows);
        for_rows_mut(self.pool(), out.rows_mut(rows), width, |rows, out| {
            silu::silu_mul(self.isa(), &gate_up[rows.start * 2 * width..rows.end * 2 * width], width, out);
        });
    }

    fn linear_silu_mul(&self, rows: usize, x: &Buffer, matrix: &PackedMatrix, gate_up: &mut Buffer, out: &mut Buffer) {
        if !matrix.is_pair() || matrix.cols() == 0 {
            self.linear(rows, x, matrix, None, gate_up);
            self.silu_mul(rows, gate_up, out);
            return;
        }
        assert_eq!(x.cols(), matrix.cols(), "the input is as wide as the matrix");
        assert_eq!(gate_up.cols(), matrix.rows(), "gate and up are as wide as the matrix is high");
        assert_eq!(gate_up.cols(), 2 * out.cols(), "gate and up are each as wide as the output");
        let outs = (gate_up.rows_mut(rows), out.rows_mut(rows));
        gemm::gemm_silu_mul(self.context(self.activations), rows, x.rows(rows), matrix, outs, &mut self.scratch().gemm);
    }

    fn add(&self, rows: usize, residual: &mut Buffer, delta: &Buffer) {
        let cols = residual.cols();
        assert_eq!(cols, delta.cols(), "both sides are equally wide");
        let delta = delta.rows(rows);
        for_rows_mut(self.pool(), residual.rows_mut(rows), cols, |rows, residual| {
            norm::add(self.isa(), residual, &delta[rows.start * cols..rows.end * cols]);
        });
    }

    fn gather_rows(&self, x: &Buffer, rows: &[u32], out: &mut Buffer) {
        let cols = x.cols();
        assert_eq!(cols, out.cols(), "both sides are equally wide");
        for (out, &row) in out.rows_mut(rows.len()).chunks_exact_mut(cols).zip(rows) {
            out.copy_from_slice(&x.rows(row as usize + 1)[row as usize * cols..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_honoured_are_refused_with_the_reason() {
        let refused = |threads, isa: Option<&str>| {
            Cpu::new(CpuConfig { threads, isa: isa.map(String::from) }).unwrap_err().to_string()
        };
        assert!(refused(Some(0), None).contains("at least 1"));
        assert!(refused(Some(usize::MAX), None).contains("at most 1024"));
        assert!(refused(None, Some("sse9")).contains("sse9"));
    }

    #[test]
    fn a_cache_larger_than_memory_is_an_error_and_not_an_abort() {
        let cpu = Cpu::new(CpuConfig { threads: Some(1), isa: None }).unwrap();
        let dtype = crate::KvDtype::F16;
        let layout = KvLayout { num_layers: 100, num_blocks: 1 << 40, num_kv_heads: 64, head_dim: 128, dtype };
        assert!(matches!(cpu.kv_cache(layout), Err(Error::OutOfMemory { what: "the KV cache", .. })));
    }
}
