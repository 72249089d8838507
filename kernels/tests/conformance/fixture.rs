//! Data for the suite: buffers with given contents, and sequences with keys and values in a paged cache.

use half::{bf16, f16};
use std::ops::Range;
use taper_kernels::{
    AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, HeadLayout, KvDtype, KvLayout, Rope, RopeKind, SequenceSpan,
    Softmax, StepTables, UnifiedRange,
};
use taper_testkit::rng::SplitMix;

/// A buffer with these contents.
pub(crate) fn upload<B: Backend>(backend: &B, cols: usize, values: &[f32]) -> B::Buffer {
    backend.buffer_of(cols, values).unwrap()
}

/// The leading rows of a buffer.
pub(crate) fn download<B: Backend>(backend: &B, buffer: &B::Buffer, rows: usize, cols: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; rows * cols];
    backend.read_rows(buffer, 0..rows, &mut values);
    values
}

/// Normal numbers that float16 holds exactly, so that its rounding is not part of what is compared.
pub(crate) fn halves(rng: &mut SplitMix, num: usize, deviation: f32) -> Vec<f32> {
    rng.normals(num, deviation).into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
}

/// Bits, so that comparisons see negative zeros and NaN.
pub(crate) fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// No rotation: attention can be tested apart from it.
pub(crate) fn no_rope() -> Rope {
    Rope { kind: RopeKind::HalfSplit, rotary_dim: 0, inv_freq: vec![], magnitude: 1.0 }
}

/// How attention is to be computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How<'a> {
    pub(crate) scheme: AttentionScheme,
    /// Ranges for at least as many KV heads as there are.
    pub(crate) softmax: Softmax<'a>,
}

impl<'a> How<'a> {
    pub(crate) const NAIVE: Self = Self { scheme: AttentionScheme::Naive, softmax: Softmax::Online };
    pub(crate) const ONLINE: Self = Self::split_kv(Softmax::Online);
    pub(crate) const BOUNDED: Self = Self::split_kv(Softmax::Bounded);
    /// Ranges that random data keep to.
    pub(crate) const CALIBRATED: Self = Self::split_kv(Softmax::Calibrated(&[
        UnifiedRange { phi: 2, a: -60.0, b: 40.0 },
        UnifiedRange { phi: -7, a: -60.0, b: 60.0 },
        UnifiedRange { phi: 0, a: -60.0, b: 60.0 },
    ]));
    pub(crate) const ALL: [Self; 4] = [Self::ONLINE, Self::BOUNDED, Self::CALIBRATED, Self::NAIVE];

    pub(crate) const fn split_kv(softmax: Softmax<'a>) -> Self {
        Self { scheme: AttentionScheme::SplitKv, softmax }
    }
}

/// Numbers of e4m3 times the power of two that brings the largest of them into (224, 448].
fn round_to_e4m3(head: &mut [f32]) {
    let largest = head.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let scale = (-40..40).map(|exponent| 2.0_f32.powi(exponent)).find(|scale| largest / scale <= 448.0).unwrap();
    for x in head {
        let scaled = *x / scale;
        // The last of four significant bits; 2^-9 for all below 2^-6.
        let last = 2.0_f32.powi(scaled.abs().log2().floor().max(-6.0) as i32 - 3);
        *x = (scaled / last).round_ties_even() * last * scale;
    }
}

/// Sequences of fused qkv rows, each with its blocks of a cache in random order.
pub(crate) struct Sequences {
    pub(crate) heads: HeadLayout,
    pub(crate) dtype: KvDtype,
    /// Rows of each sequence, `[len, qkv_width]`.
    pub(crate) qkv: Vec<Vec<f32>>,
    pub(crate) block_tables: Vec<Vec<u32>>,
    pub(crate) num_blocks: usize,
}

/// The layer that is used; the cache has more, which nobody may touch.
pub(crate) const LAYER: usize = 1;

impl Sequences {
    pub(crate) fn new(rng: &mut SplitMix, heads: HeadLayout, lens: &[usize]) -> Self {
        let qkv = lens.iter().map(|&len| halves(rng, len * heads.qkv_width(), 1.0)).collect();
        let num_blocks = lens.iter().map(|len| len.div_ceil(BLOCK_SIZE)).sum::<usize>() + 2;
        let mut ids: Vec<u32> = (0..num_blocks as u32).collect();
        rng.shuffle(&mut ids);
        let mut ids = ids.into_iter();
        let block_tables = lens.iter().map(|&len| ids.by_ref().take(len.div_ceil(BLOCK_SIZE)).collect()).collect();
        Self { heads, dtype: KvDtype::F16, qkv, block_tables, num_blocks }
    }

    pub(crate) fn len(&self, sequence: usize) -> usize {
        self.qkv[sequence].len() / self.heads.qkv_width()
    }

    pub(crate) fn params<'a>(&self, how: How<'a>) -> AttentionParams<'a> {
        let scale = 1.0 / (self.heads.head_dim as f32).sqrt();
        let num_kv_heads = self.heads.num_kv_heads;
        let softmax = match how.softmax {
            Softmax::Calibrated(ranges) => Softmax::Calibrated(&ranges[..num_kv_heads]),
            Softmax::CalibratedTwoSided(ranges) => Softmax::CalibratedTwoSided(&ranges[..num_kv_heads]),
            softmax => softmax,
        };
        AttentionParams { layer: LAYER, heads: self.heads, scale, scheme: how.scheme, softmax }
    }

    /// Rounds keys and values to what the storage type holds, so that its rounding is not part of what is compared, and queries to
    /// what a backend may round them to beside such keys.
    pub(crate) fn round_to_storage(&mut self) {
        let (q_width, width) = (self.heads.q_width(), self.heads.qkv_width());
        for row in self.qkv.iter_mut().flat_map(|rows| rows.chunks_exact_mut(width)) {
            let (queries, stored) = row.split_at_mut(q_width);
            if matches!(self.dtype, KvDtype::BF16 | KvDtype::Q8_0 | KvDtype::F8E4M3) {
                queries.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
            }
            match self.dtype {
                KvDtype::F32 => {}
                KvDtype::F16 => stored.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
                KvDtype::BF16 => stored.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
                // Whole numbers of 2^-5, and one of them 127: the scale is 2^-5.
                KvDtype::Q8_0 => stored.chunks_exact_mut(32).for_each(|x| {
                    x.iter_mut().for_each(|x| *x = (*x * 32.0).round().clamp(-127.0, 127.0) / 32.0);
                    x[7] = (127.0 / 32.0_f32).copysign(x[7]);
                }),
                KvDtype::F8E4M3 => stored.chunks_exact_mut(self.heads.head_dim).for_each(round_to_e4m3),
            }
        }
    }

    pub(crate) fn cache<B: Backend>(&self, backend: &B) -> B::KvCache {
        let (num_kv_heads, head_dim) = (self.heads.num_kv_heads, self.heads.head_dim);
        let layout = KvLayout { num_layers: 3, num_blocks: self.num_blocks, num_kv_heads, head_dim, dtype: self.dtype };
        backend.kv_cache(layout).unwrap()
    }

    /// The tables and fused rows of a step with these (sequence, positions).
    pub(crate) fn step(&self, parts: &[(usize, Range<usize>)]) -> (StepTables, Vec<f32>) {
        let mut step = StepTables::default();
        let mut rows = Vec::new();
        for (sequence, positions) in parts.iter().cloned() {
            let blocks = &self.block_tables[sequence];
            let (first_row, first_block) = (step.num_rows(), step.block_tables.len());
            step.positions.extend(positions.clone().map(|position| position as u32));
            step.slots.extend(
                positions
                    .clone()
                    .map(|position| blocks[position / BLOCK_SIZE] * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32),
            );
            step.block_tables.extend(blocks);
            step.spans.push(SequenceSpan {
                rows: first_row..step.num_rows(),
                context_len: positions.end,
                blocks: first_block..step.block_tables.len(),
            });
            let width = self.heads.qkv_width();
            rows.extend(&self.qkv[sequence][positions.start * width..positions.end * width]);
        }
        (step, rows)
    }

    /// Runs one step as a network does: turn, store, attend. Gives `[rows, q_width]`.
    pub(crate) fn run<B: Backend>(
        &self,
        backend: &B,
        cache: &mut B::KvCache,
        rope: &Rope,
        how: How<'_>,
        parts: &[(usize, Range<usize>)],
    ) -> Vec<f32> {
        self.run_counted(backend, cache, rope, how, parts).0
    }

    /// As [`Self::run`], with the number of (row, head) that were computed again.
    pub(crate) fn run_counted<B: Backend>(
        &self,
        backend: &B,
        cache: &mut B::KvCache,
        rope: &Rope,
        how: How<'_>,
        parts: &[(usize, Range<usize>)],
    ) -> (Vec<f32>, u64) {
        let turned = self.store(backend, cache, rope, parts);
        let (step, _) = self.step(parts);
        let mut out = backend.buffer(step.num_rows(), self.heads.q_width()).unwrap();
        let before = backend.recomputed(cache);
        backend.attention(&step, self.params(how), &turned, cache, &mut out);
        let after = backend.recomputed(cache);
        assert!((0..after.len()).all(|layer| layer == LAYER || after[layer] == before[layer]), "{before:?} {after:?}");
        (download(backend, &out, step.num_rows(), self.heads.q_width()), after[LAYER] - before[LAYER])
    }

    /// Turns and stores the rows of a step; the turned rows.
    pub(crate) fn store<B: Backend>(
        &self,
        backend: &B,
        cache: &mut B::KvCache,
        rope: &Rope,
        parts: &[(usize, Range<usize>)],
    ) -> B::Buffer {
        let (step, rows) = self.step(parts);
        let mut qkv = upload(backend, self.heads.qkv_width(), &rows);
        let mut angles = backend.buffer(step.num_rows(), rope.rotary_dim).unwrap();
        backend.rope_angles(rope, &step.positions, &mut angles);
        backend.rope_kv_store(&step, rope, &angles, self.params(How::ONLINE), &mut qkv, cache);
        qkv
    }

    /// Attention of one row in float64.
    pub(crate) fn oracle(&self, sequence: usize, position: usize) -> Vec<f64> {
        let heads = self.heads;
        let width = heads.qkv_width();
        let row = |key: usize| &self.qkv[sequence][key * width..][..width];
        let scale = f64::from(self.params(How::NAIVE).scale);
        let mut out = Vec::new();
        for head in 0..heads.num_heads {
            let kv_head = head / (heads.num_heads / heads.num_kv_heads);
            let q = &row(position)[head * heads.head_dim..][..heads.head_dim];
            let k_at = heads.q_width() + kv_head * heads.head_dim;
            let v_at = k_at + heads.kv_width();
            let dot = |key: usize| -> f64 {
                q.iter().zip(&row(key)[k_at..]).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
            };
            let scores: Vec<f64> = (0..=position).map(|key| dot(key) * scale).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..heads.head_dim {
                let sum: f64 = weights.iter().enumerate().map(|(key, w)| w * f64::from(row(key)[v_at + d])).sum();
                out.push(sum / total);
            }
        }
        out
    }
}
