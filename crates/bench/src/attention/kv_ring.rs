//! A filled cache whose layers take turns.

use super::arm::{RANGE, Way};
use super::{Cases, Shape};
use crate::Error;
use crate::gpu::forms;
use crate::machine::afford;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use taper_kernels::{
    AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, HeadLayout, KvDtype, KvLayout, MatrixData, Rope, RopeKind,
    SequenceSpan, Softmax, StepInputs, StepTables, UnifiedRange, WeightType,
};

/// Rows of a step that fills the cache.
const FILL_ROWS: usize = 512;

/// The layers and the step that is computed on them.
pub(super) struct KvRing<'a, B: Backend> {
    backend: &'a B,
    shape: Shape,
    rows: usize,
    layout: KvLayout,
    ranges: Vec<UnifiedRange>,
    cache: B::KvCache,
    qkv: B::Buffer,
    out: B::Buffer,
    step: StepTables,
    /// Of the rows of the step; attention reads none.
    tokens: Vec<u32>,
    /// Layers of a lap, one call after the other.
    lap: usize,
    next_layer: usize,
    /// The first of the forms of this ring's laps.
    form: u64,
}

/// Ways to compute attention, at most.
const MAX_WAYS: usize = 16;

impl<'a, B: Backend> KvRing<'a, B> {
    /// Layers of at least so many bytes together, of which up to `lap` are attended to together.
    pub(super) fn new(
        backend: &'a B,
        shape: Shape,
        cases: &Cases,
        (ring_bytes, lap): (usize, usize),
    ) -> Result<Self, Error> {
        let HeadLayout { num_kv_heads, head_dim, .. } = shape.heads.0;
        let blocks_each = shape.len.div_ceil(BLOCK_SIZE);
        let num_blocks = shape.batch.saturating_mul(blocks_each);
        let layout = KvLayout { num_layers: 1, num_blocks, num_kv_heads, head_dim, dtype: cases.dtype };
        let layer_bytes = backend.kv_block_bytes(layout).saturating_mul(num_blocks);
        let num_layers = ring_bytes.div_ceil(layer_bytes.max(1)).max(1);
        // Whole laps, so that one takes as long as another.
        let lap = lap.min(num_layers);
        let layout = KvLayout { num_layers: num_layers.next_multiple_of(lap), ..layout };
        let rows = cases.rows.min(shape.len);
        let buffer_rows = (shape.batch * rows).max(FILL_ROWS);
        let widths = shape.heads.0.qkv_width() + shape.heads.0.q_width();
        let bytes =
            layer_bytes.saturating_mul(layout.num_layers).saturating_add(buffer_rows.saturating_mul(widths * 8));
        match backend.free_bytes() {
            Some(free) if bytes > free => return Err(Error::Memory { bytes }),
            Some(_) => {}
            None => afford(bytes)?,
        }
        let mut ring = KvRing {
            backend,
            shape,
            rows,
            layout,
            ranges: vec![RANGE; num_kv_heads],
            cache: backend.kv_cache(layout)?,
            qkv: values(backend, buffer_rows, shape.heads.0.qkv_width())?,
            out: backend.buffer(buffer_rows, shape.heads.0.q_width())?,
            step: StepTables::default(),
            tokens: Vec::new(),
            lap,
            next_layer: 0,
            form: forms(MAX_WAYS * layout.num_layers / lap),
        };
        ring.fill()?;
        ring.step = last_rows(shape, rows);
        ring.tokens = vec![0; ring.step.num_rows()];
        Ok(ring)
    }

    /// Writes all blocks of all layers, as if they were one sequence's: a place in the cache does not know whose it is. The same few
    /// rows are stored again and again, so what has memory of its own is told no more than where.
    fn fill(&mut self) -> Result<(), Error> {
        let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim: 0, inv_freq: vec![], magnitude: 1.0 };
        let angles = self.backend.buffer(FILL_ROWS, 0)?;
        let num_slots = self.layout.num_blocks * BLOCK_SIZE;
        for start in (0..num_slots).step_by(FILL_ROWS) {
            let slots: Vec<u32> = (start..num_slots.min(start + FILL_ROWS)).map(|slot| slot as u32).collect();
            let context_len = start + slots.len();
            let blocks = 0..self.layout.num_blocks;
            let step = StepTables {
                spans: vec![SequenceSpan { rows: 0..slots.len(), context_len, blocks: blocks.clone() }],
                block_tables: blocks.map(|block| block as u32).collect(),
                positions: slots.clone(),
                slots,
            };
            for layer in 0..self.layout.num_layers {
                let online = (AttentionScheme::SplitKv, Softmax::Online);
                let params = params(layer, self.shape.heads.0, online, &self.ranges);
                self.backend.rope_kv_store(&step, &rope, &angles, params, &mut self.qkv, &mut self.cache);
            }
        }
        Ok(())
    }

    /// Rows and heads that were computed again so far.
    pub(super) fn recomputed(&self) -> u64 {
        self.backend.recomputed(&self.cache).iter().sum()
    }

    /// Calls of a lap.
    pub(super) fn calls(&self) -> usize {
        self.lap
    }

    /// Laps until all layers had their turn.
    pub(super) fn laps(&self) -> usize {
        self.layout.num_layers / self.lap
    }

    /// A lap: a call on each of the next layers. Laps of one way, which has a number, over the same layers are of one form.
    pub(super) fn attend(&mut self, number: usize, way: Way) {
        assert!(number < MAX_WAYS, "every way has forms of its own");
        let form = self.form + (number * self.laps() + self.next_layer / self.lap) as u64;
        let layers = self.next_layer..self.next_layer + self.lap;
        self.next_layer = layers.end % self.layout.num_layers;
        let KvRing { backend, qkv, cache, out, ranges, step, tokens, .. } = self;
        let heads = self.shape.heads.0;
        backend.step(StepInputs { tokens, tables: step, logit_rows: &[] }, Some(form), &mut |backend| {
            for layer in layers.clone() {
                backend.attention(step, params(layer, heads, way, ranges), qkv, cache, out);
            }
        });
    }

    /// Bytes of keys and values of all layers.
    pub(super) fn bytes(&self) -> usize {
        self.backend.kv_block_bytes(self.layout) * self.layout.num_blocks * self.layout.num_layers
    }

    /// Bytes of the keys and values that a call reads.
    pub(super) fn bytes_per_call(&self) -> f64 {
        let element_bytes = match self.layout.dtype {
            KvDtype::F16 | KvDtype::BF16 => 2.0,
            KvDtype::F32 => 4.0,
            KvDtype::Q8_0 => 34.0 / 32.0,
            KvDtype::F8E4M3 => 1.0,
        };
        2.0 * element_bytes * (self.shape.batch * self.shape.len * self.shape.heads.0.kv_width()) as f64
    }

    /// Operations of a call: two for each element of a key and of a value that a query sees.
    pub(super) fn flops_per_call(&self) -> f64 {
        let keys_seen: usize = (self.shape.len - self.rows + 1..=self.shape.len).sum();
        4.0 * (self.shape.batch * keys_seen * self.shape.heads.0.q_width()) as f64
    }

    /// Bytes that a call computes in beside its operands, where the backend tells.
    pub(super) fn working_bytes(&self, way: Way) -> Option<usize> {
        self.backend.attention_working_bytes(&self.step, params(0, self.shape.heads.0, way, &self.ranges), &self.cache)
    }
}

fn params(layer: usize, heads: HeadLayout, (scheme, softmax): Way, ranges: &[UnifiedRange]) -> AttentionParams<'_> {
    let softmax = if let Softmax::Calibrated(_) = softmax { Softmax::Calibrated(ranges) } else { softmax };
    AttentionParams { layer, heads, scale: 1.0 / (heads.head_dim as f32).sqrt(), scheme, softmax }
}

/// The step of the last `rows` rows of each sequence; sequences lie behind each other in the cache.
fn last_rows(shape: Shape, rows: usize) -> StepTables {
    let blocks_each = shape.len.div_ceil(BLOCK_SIZE);
    let mut step = StepTables::default();
    for sequence in 0..shape.batch {
        let blocks = sequence * blocks_each..(sequence + 1) * blocks_each;
        let positions = shape.len - rows..shape.len;
        step.spans.push(SequenceSpan {
            rows: step.positions.len()..step.positions.len() + rows,
            context_len: shape.len,
            blocks: blocks.clone(),
        });
        step.slots.extend(positions.clone().map(|position| (blocks.start * BLOCK_SIZE + position) as u32));
        step.positions.extend(positions.map(|position| position as u32));
        step.block_tables.extend(blocks.map(|block| block as u32));
    }
    step
}

/// Rows of seeded random numbers between -1 and 1. A backend's memory is its own; a table of weights is how values get there.
fn values<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<B::Buffer, Error> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let bytes: Vec<u8> = (0..FILL_ROWS * cols).flat_map(|_| rng.random_range(-1.0_f32..1.0).to_le_bytes()).collect();
    let data = MatrixData { weight_type: WeightType::F32, rows: FILL_ROWS, cols, bytes: &bytes };
    let mut buffer = backend.buffer(rows, cols)?;
    let tokens: Vec<u32> = (0..rows).map(|row| (row % FILL_ROWS) as u32).collect();
    backend.embed(&backend.matrix(&[data])?, &tokens, &mut buffer);
    Ok(buffer)
}
