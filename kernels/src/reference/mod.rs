//! The specification: every operation as a plain loop over float32, one file each. Slow, readable, and what the other
//! backends are compared with. Weights stay in their quantized blocks; keys and values are float32.

mod attention;
mod buffer;
mod choose;
pub mod dequantize;
mod linear;
mod norm;
mod observe;
mod parallel;
pub mod quantize;
mod rope;
mod silu;
mod softmax;

pub use attention::KvCache;
pub use buffer::{Buffer, Matrix};
pub(crate) use rope::angles_row;

use crate::{
    AttentionParams, Backend, BackendInfo, Draw, Error, HeadLayout, KvLayout, MatrixData, Rope, ScoreStatistics,
    StepTables,
};
use std::ops::Range;

/// The backend that the others are measured by.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Reference {
    /// A reference backend; it has no state.
    pub fn new() -> Self {
        Self
    }
}

impl Backend for Reference {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type KvCache = KvCache;

    fn info(&self) -> BackendInfo {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        BackendInfo { name: "reference", isa: "portable", threads, numerics_class: "float32" }
    }

    fn is_done_at_once(&self) -> bool {
        true
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer, Error> {
        Buffer::new(rows, cols)
    }

    fn matrix(&self, parts: &[MatrixData<'_>]) -> Result<Matrix, Error> {
        Matrix::new(parts)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.num_bytes()
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(values.to_vec())
    }

    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache, Error> {
        KvCache::new(layout)
    }

    fn kv_block_bytes(&self, layout: KvLayout) -> usize {
        2 * crate::BLOCK_SIZE * layout.num_kv_heads * layout.head_dim * size_of::<f32>()
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
        vec![0; cache.layout().num_layers]
    }

    fn read_rows(&self, buffer: &Buffer, rows: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&buffer.rows(rows.end)[rows.start * buffer.cols()..]);
    }

    fn choose(&self, logits: &Buffer, draws: &[(usize, Draw)], tokens: &mut Vec<Option<u32>>) -> bool {
        tokens.clear();
        tokens.extend(draws.iter().map(|(row, draw)| choose::choose(logits.row(*row), draw)));
        true
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], out: &mut Buffer) {
        linear::embed(table, tokens, out);
    }

    fn rms_norm(&self, rows: usize, x: &Buffer, weight: &Vec<f32>, eps: f32, out: &mut Buffer) {
        assert_eq!((x.cols(), out.cols()), (weight.len(), weight.len()), "input, weight and output are equally wide");
        for row in 0..rows {
            norm::rms_norm_row(x.row(row), weight, eps, out.row_mut(row));
        }
    }

    fn linear(&self, rows: usize, x: &Buffer, matrix: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buffer) {
        linear::linear(rows, x, matrix, bias.map(Vec::as_slice), out);
    }

    fn qk_norm(
        &self,
        rows: usize,
        qkv: &mut Buffer,
        heads: HeadLayout,
        q_weight: &Vec<f32>,
        k_weight: &Vec<f32>,
        eps: f32,
    ) {
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!((q_weight.len(), k_weight.len()), (heads.head_dim, heads.head_dim), "one weight per head element");
        for row in 0..rows {
            norm::qk_norm_row(qkv.row_mut(row), heads, q_weight, k_weight, eps);
        }
    }

    fn rope_angles(&self, rope: &Rope, positions: &[u32], out: &mut Buffer) {
        rope.check();
        assert_eq!(out.cols(), rope.rotary_dim, "a cosine and a sine per pair");
        for (row, &position) in positions.iter().enumerate() {
            rope::angles_row(rope, position, out.row_mut(row));
        }
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
        let heads = params.heads;
        rope.check();
        step.check(heads, cache.layout());
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(angles.cols(), rope.rotary_dim, "the angles are of this rope");
        assert!(rope.rotary_dim <= heads.head_dim, "no more elements turn than a head has");
        for (row, &slot) in step.slots.iter().enumerate() {
            let qkv = qkv.row_mut(row);
            let (qk, v) = qkv.split_at_mut(heads.q_width() + heads.kv_width());
            for head in qk.chunks_exact_mut(heads.head_dim) {
                rope::rotate_head(rope.kind, angles.row(row), head);
            }
            cache.store(params.layer, slot as usize, &qk[heads.q_width()..], v);
        }
    }

    fn attention(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Buffer,
        cache: &KvCache,
        out: &mut Buffer,
    ) {
        step.check(params.heads, cache.layout());
        attention::attention(step, params, qkv, cache, out);
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
        assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(statistics.len(), params.heads.num_kv_heads, "statistics of every KV head");
        observe::observe_scores(step, params, qkv, cache, statistics);
    }

    fn silu_mul(&self, rows: usize, gate_up: &Buffer, out: &mut Buffer) {
        assert_eq!(gate_up.cols(), 2 * out.cols(), "gate and up are each as wide as the output");
        for row in 0..rows {
            silu::silu_mul_row(gate_up.row(row), out.row_mut(row));
        }
    }

    fn add(&self, rows: usize, residual: &mut Buffer, delta: &Buffer) {
        assert_eq!(residual.cols(), delta.cols(), "both sides are equally wide");
        for (residual, delta) in residual.rows_mut(rows).iter_mut().zip(delta.rows(rows)) {
            *residual += delta;
        }
    }

    fn gather_rows(&self, x: &Buffer, rows: &[u32], out: &mut Buffer) {
        assert_eq!(x.cols(), out.cols(), "both sides are equally wide");
        for (index, &row) in rows.iter().enumerate() {
            out.row_mut(index).copy_from_slice(x.row(row as usize));
        }
    }
}
