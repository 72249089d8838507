//! A filled cache whose layers take turns.

use super::arm::{RANGE, Way};
use super::{Cases, Shape};
use crate::Error;
use crate::machine::afford;
use taper_kernels::{
    AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, Cpu, HeadLayout, KvDtype, KvLayout, MatrixData, Rope,
    RopeKind, SequenceSpan, Softmax, StepTables, UnifiedRange, WeightType,
};

/// Rows of a step that fills the cache.
const FILL_ROWS: usize = 512;

/// The layers and the step that is computed on them.
pub(super) struct KvRing<'a> {
    cpu: &'a Cpu,
    shape: Shape,
    rows: usize,
    layout: KvLayout,
    ranges: Vec<UnifiedRange>,
    cache: <Cpu as Backend>::KvCache,
    qkv: <Cpu as Backend>::Buffer,
    out: <Cpu as Backend>::Buffer,
    step: StepTables,
    next_layer: usize,
}

impl<'a> KvRing<'a> {
    pub(super) fn new(cpu: &'a Cpu, shape: Shape, cases: &Cases) -> Result<Self, Error> {
        let HeadLayout { num_kv_heads, head_dim, .. } = shape.heads.0;
        let blocks_each = shape.len.div_ceil(BLOCK_SIZE);
        let num_blocks = shape.batch.saturating_mul(blocks_each);
        let layout = KvLayout { num_layers: 1, num_blocks, num_kv_heads, head_dim, dtype: cases.dtype };
        let layer_bytes = cpu.kv_block_bytes(layout).saturating_mul(num_blocks);
        let layout = KvLayout { num_layers: cases.ring_bytes.div_ceil(layer_bytes).max(1), ..layout };
        let rows = cases.rows.min(shape.len);
        let buffer_rows = (shape.batch * rows).max(FILL_ROWS);
        let widths = shape.heads.0.qkv_width() + shape.heads.0.q_width();
        afford(layer_bytes.saturating_mul(layout.num_layers).saturating_add(buffer_rows.saturating_mul(widths * 8)))?;
        let mut ring = KvRing {
            cpu,
            shape,
            rows,
            layout,
            ranges: vec![RANGE; num_kv_heads],
            cache: cpu.kv_cache(layout)?,
            qkv: values(cpu, buffer_rows, shape.heads.0.qkv_width())?,
            out: cpu.buffer(buffer_rows, shape.heads.0.q_width())?,
            step: StepTables::default(),
            next_layer: 0,
        };
        ring.fill()?;
        ring.step = last_rows(shape, rows);
        Ok(ring)
    }

    /// Writes all blocks of all layers, as if they were one sequence's: a place in the cache does not know whose it is.
    fn fill(&mut self) -> Result<(), Error> {
        let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim: 0, inv_freq: vec![], magnitude: 1.0 };
        let angles = self.cpu.buffer(FILL_ROWS, 0)?;
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
                self.cpu.rope_kv_store(&step, &rope, &angles, params, &mut self.qkv, &mut self.cache);
            }
        }
        Ok(())
    }

    /// Rows and heads that were computed again so far.
    pub(super) fn recomputed(&self) -> u64 {
        self.cpu.recomputed(&self.cache).iter().sum()
    }

    /// One call on the next layer.
    pub(super) fn attend(&mut self, way: Way) {
        let layer = self.next_layer;
        self.next_layer = (layer + 1) % self.layout.num_layers;
        let params = params(layer, self.shape.heads.0, way, &self.ranges);
        self.cpu.attention(&self.step, params, &self.qkv, &self.cache, &mut self.out);
    }

    /// Bytes of keys and values of all layers.
    pub(super) fn bytes(&self) -> usize {
        self.cpu.kv_block_bytes(self.layout) * self.layout.num_blocks * self.layout.num_layers
    }

    /// Bytes of the keys and values that a call reads.
    pub(super) fn bytes_per_call(&self) -> f64 {
        let element_bytes = match self.layout.dtype {
            KvDtype::F16 | KvDtype::BF16 => 2.0,
            KvDtype::F32 => 4.0,
            KvDtype::Q8_0 => 34.0 / 32.0,
        };
        2.0 * element_bytes * (self.shape.batch * self.shape.len * self.shape.heads.0.kv_width()) as f64
    }

    /// Operations of a call: two for each element of a key and of a value that a query sees.
    pub(super) fn flops_per_call(&self) -> f64 {
        let keys_seen: usize = (self.shape.len - self.rows + 1..=self.shape.len).sum();
        4.0 * (self.shape.batch * keys_seen * self.shape.heads.0.q_width()) as f64
    }

    /// Bytes that a call computes in beside its operands.
    pub(super) fn working_bytes(&self, way: Way) -> usize {
        self.cpu.attention_working_bytes(&self.step, params(0, self.shape.heads.0, way, &self.ranges), &self.cache)
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

/// Rows of numbers between -1 and 1. A backend's memory is its own; a table of weights is how values get there.
fn values(cpu: &Cpu, rows: usize, cols: usize) -> Result<<Cpu as Backend>::Buffer, Error> {
    let values = (0..FILL_ROWS * cols).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let data = MatrixData { weight_type: WeightType::F32, rows: FILL_ROWS, cols, bytes: &bytes };
    let mut buffer = cpu.buffer(rows, cols)?;
    cpu.embed(&cpu.matrix(&[data])?, &(0..rows).map(|row| (row % FILL_ROWS) as u32).collect::<Vec<_>>(), &mut buffer);
    Ok(buffer)
}
