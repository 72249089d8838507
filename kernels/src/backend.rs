//! The seam between networks and arithmetic. A backend owns its memory (associated types, never slices, so that device
//! memory fits) and offers about a dozen operations; one conformance suite runs over every implementation.
//!
//! Shapes: an activation [`Backend::Buffer`] is row-major `[rows, cols]` of float32, allocated once at its largest; an
//! operation is told how many leading rows are live. What only our own code can get wrong (shapes, indices) is asserted;
//! what the world can get wrong (memory, weights) is an [`Error`].

use crate::{BLOCK_SIZE, ScoreStatistics, WeightType};
use std::ops::Range;

/// What any thread can do; see [`Backend::send_out`].
pub type Errand = Box<dyn FnOnce() + Send>;

/// What a backend cannot do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes of a weight do not match its shape and type.
    #[error("a {weight_type:?} matrix of {rows} x {cols} needs {expected} bytes, but {actual} were given")]
    WeightSize {
        /// Type of the matrix.
        weight_type: WeightType,
        /// Output rows.
        rows: usize,
        /// Input columns.
        cols: usize,
        /// Bytes the shape asks for.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A row is not a whole number of blocks.
    #[error("{weight_type:?} stores blocks of {block} elements, and a row of {cols} is not a whole number of them")]
    PartialBlock {
        /// Type of the matrix.
        weight_type: WeightType,
        /// Elements per block.
        block: usize,
        /// Input columns.
        cols: usize,
    },
    /// The machine has not enough memory.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size of the request.
        bytes: usize,
    },
    /// A weight that the type it should be stored as does not hold.
    #[error("a weight of magnitude {value:e} has no place in {weight_type:?}, which holds numbers up to {most:e}")]
    Unstorable {
        /// The weight's magnitude, or what is not a number.
        value: f32,
        /// The type.
        weight_type: WeightType,
        /// The largest that it holds.
        most: f32,
    },
    /// Bytes that are not a block of this KV cache.
    #[error("a block of this KV cache takes {expected} bytes, and {actual} were given")]
    BlockSize {
        /// Bytes of one block of all layers.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A setting of the backend that this machine cannot honour.
    #[error("{0}")]
    Unsupported(String),
}

/// Rows of a weight matrix as the file stores them; several stacked parts make one matrix (q, k and v; gate and up), so
/// that one operation reads its input once. Parts may differ in type.
#[derive(Debug, Clone, Copy)]
pub struct MatrixData<'a> {
    /// Storage type.
    pub weight_type: WeightType,
    /// Output rows N.
    pub rows: usize,
    /// Input columns K; the same for all parts of one matrix.
    pub cols: usize,
    /// Row-major blocks, `rows * weight_type.row_bytes(cols)` bytes.
    pub bytes: &'a [u8],
}

impl MatrixData<'_> {
    /// Bytes of one row, after checking that the bytes are exactly those of the shape.
    pub(crate) fn checked_row_bytes(&self) -> Result<usize, Error> {
        let &Self { weight_type, rows, cols, bytes } = self;
        let row_bytes = weight_type.row_bytes(cols).ok_or(Error::PartialBlock {
            weight_type,
            block: weight_type.block_len(),
            cols,
        })?;
        let expected = row_bytes.saturating_mul(rows);
        if expected != bytes.len() {
            return Err(Error::WeightSize { weight_type, rows, cols, expected, actual: bytes.len() });
        }
        Ok(row_bytes)
    }
}

/// Which pairs of a head RoPE turns together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// Elements (2i, 2i+1): GGUF's llama and mistral files, whose q and k rows are permuted for it.
    AdjacentPairs,
    /// Elements (i, i + rotary_dim/2): qwen2, qwen3 and the NeoX family.
    HalfSplit,
}

/// Rotary position embedding of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Which pairs turn together.
    pub kind: RopeKind,
    /// Leading elements of each head that turn; the rest pass unchanged.
    pub rotary_dim: usize,
    /// Radians per position of each of the `rotary_dim / 2` pairs, all scaling included.
    pub inv_freq: Vec<f64>,
    /// Factor on cos and sin (YaRN's attention factor); 1 otherwise.
    pub magnitude: f32,
}

impl Rope {
    /// Asserts that there is one frequency per pair.
    pub(crate) fn check(&self) {
        assert!(self.rotary_dim.is_multiple_of(2), "elements turn in pairs, {} is odd", self.rotary_dim);
        assert_eq!(self.inv_freq.len(), self.rotary_dim / 2, "one frequency per pair");
    }
}

/// Head counts and size of one attention layer. A fused qkv row is `[q heads | k heads | v heads]`, each `head_dim` wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Width of the query part of a row.
    pub fn q_width(self) -> usize {
        self.num_heads * self.head_dim
    }
    /// Width of the key (or value) part of a row.
    pub fn kv_width(self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    /// Width of a fused qkv row.
    pub fn qkv_width(self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}

/// Storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDtype {
    /// float16, the default of `Cpu`.
    #[default]
    F16,
    /// bfloat16: the range of float32 with eight significant bits.
    BF16,
    /// float32: exact, for the reference.
    F32,
    /// Signed bytes times a float16 scale per 32 elements of a head: 8.5 bits per element.
    Q8_0,
    /// Floats of eight bits, e4m3, times a power of two for each key and value of a head, as GPUs hold them (the processor and the
    /// reference hold more): of four significant bits down to 2^-13 of the head's largest element, fewer below.
    F8E4M3,
}

/// Size of a paged KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that store keys.
    pub num_layers: usize,
    /// Blocks of [`crate::BLOCK_SIZE`] keys, shared by all sequences; a block id addresses the same block in every layer.
    pub num_blocks: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Storage type; a backend may hold more precision than asked, never less.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Elements that share a scale in a [`KvDtype::Q8_0`] cache.
    pub(crate) const SCALE_GROUP: usize = 32;

    /// Whether heads divide into what the storage type needs.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.dtype == KvDtype::Q8_0 && !self.head_dim.is_multiple_of(Self::SCALE_GROUP) {
            return Err(Error::Unsupported(format!(
                "a Q8_0 KV cache needs heads of a multiple of {} elements, and these have {}; F16 takes any",
                Self::SCALE_GROUP,
                self.head_dim
            )));
        }
        Ok(())
    }
}

/// The rows that one sequence has in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceSpan {
    /// Its rows of the step's buffers; consecutive positions, ending at `context_len - 1`.
    pub rows: Range<usize>,
    /// Keys that its last row sees, itself included.
    pub context_len: usize,
    /// Its part of [`StepTables::block_tables`]; entry j holds positions `j * BLOCK_SIZE ..`.
    pub blocks: Range<usize>,
}

/// One step in tables: everything an operation must know about who is in the batch.
#[derive(Debug, Clone, Default)]
pub struct StepTables {
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Where each row's key and value go: `block_id * BLOCK_SIZE + position % BLOCK_SIZE`.
    pub slots: Vec<u32>,
    /// The sequences, in row order.
    pub spans: Vec<SequenceSpan>,
    /// Block ids of all sequences, one after the other.
    pub block_tables: Vec<u32>,
}

impl StepTables {
    /// Rows of this step.
    pub fn num_rows(&self) -> usize {
        self.positions.len()
    }
    /// Whether every sequence has one row: each is a token that follows what the cache has.
    pub fn has_one_row_each(&self) -> bool {
        self.spans.len() == self.num_rows()
    }
    /// Asserts that the tables fit together and address only what the cache has: loops below may trust them.
    pub(crate) fn check(&self, heads: HeadLayout, layout: KvLayout) {
        assert_eq!(heads.num_kv_heads, layout.num_kv_heads, "the cache has the KV heads of the layer");
        assert_eq!(heads.head_dim, layout.head_dim, "the cache has the head size of the layer");
        assert!(heads.num_heads.is_multiple_of(heads.num_kv_heads), "every KV head serves equally many query heads");
        assert_eq!(self.slots.len(), self.num_rows(), "one slot per row");
        let num_slots = layout.num_blocks * BLOCK_SIZE;
        assert!(self.slots.iter().all(|&slot| (slot as usize) < num_slots), "every slot lies in the cache");
        let mut next_row = 0;
        for span in &self.spans {
            assert_eq!(span.rows.start, next_row, "spans follow each other");
            assert!(
                span.rows.end >= span.rows.start && span.context_len >= span.rows.len(),
                "rows are part of the context"
            );
            next_row = span.rows.end;
            let first_position = span.context_len - span.rows.len();
            for (row, position) in span.rows.clone().zip(first_position..) {
                assert_eq!(self.positions[row] as usize, position, "positions are consecutive and end the context");
            }
            assert!(span.context_len.div_ceil(BLOCK_SIZE) <= span.blocks.len(), "the block table covers the context");
            let blocks = &self.block_tables[span.blocks.clone()];
            assert!(blocks.iter().all(|&block| (block as usize) < layout.num_blocks), "every block lies in the cache");
        }
        assert_eq!(next_row, self.num_rows(), "spans cover all rows");
    }
    /// Empties the tables and keeps their memory.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.slots.clear();
        self.spans.clear();
        self.block_tables.clear();
    }
}

/// How attention is computed. The answer does not depend on it, up to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionScheme {
    /// Scores never in memory: per split of the keys a state (m, l, o), merged in index order.
    #[default]
    SplitKv,
    /// All scores of a row materialised, three-pass softmax, then the weighted sum: the baseline.
    Naive,
}

/// What a row subtracts from its scores before they become weights `2^(x - reference)`, in [`AttentionScheme::SplitKv`].
/// References are whole numbers in log2 units; the answer does not depend on them, up to weights too small to matter. A row
/// and head whose fixed reference turns out unfit is computed again in the same call, online.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Softmax<'a> {
    /// The floor of the largest score so far: sums are rescaled whenever it grows.
    #[default]
    Online,
    /// As `Online`, but a reference stays until that floor is more than 8 above it (the rule of FlashAttention-4), so that fewer sums
    /// are rescaled. A backend may raise references sooner: those of the processor and the reference are the ones of `Online`.
    OnlineThreshold,
    /// `floor(B) - 100`, where `B = |q| max|k| scale log2(e)` bounds all scores of the row: exponentials cannot overflow.
    Bounded,
    /// A reference per KV head. A score at or above the head's range stops its row.
    Calibrated(&'a [UnifiedRange]),
    /// As `Calibrated`, and a score at or below the range stops its row as well, though it does no harm: the literal rule of
    /// FlashDecoding++, for measurements.
    CalibratedTwoSided(&'a [UnifiedRange]),
}

impl Softmax<'_> {
    /// Whether references are chosen before a row's scores are known.
    pub(crate) fn is_fixed(&self) -> bool {
        !matches!(self, Softmax::Online | Softmax::OnlineThreshold)
    }
}

/// What calibration found for the scores x of one KV head, in log2 units: nearly all lie in `a < x - phi < b`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnifiedRange {
    /// The reference.
    pub phi: i32,
    /// Lower end, relative to `phi`.
    pub a: f32,
    /// Upper end, relative to `phi`; what is beyond 127 counts as 127, the limit of the exponent.
    pub b: f32,
}

/// What attention is told beside its operands.
#[derive(Debug, Clone, Copy)]
pub struct AttentionParams<'a> {
    /// Which layer of the cache.
    pub layer: usize,
    /// Heads of the layer.
    pub heads: HeadLayout,
    /// Factor on q.k, normally `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Which implementation.
    pub scheme: AttentionScheme,
    /// Which references.
    pub softmax: Softmax<'a>,
}

/// How one token is drawn from a row of logits: the tokens with the weights `e^((logit - largest) / temperature)` that all filters, in the
/// order of these fields, leave, and of these the one at a share of their weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Divides the logits; not negative. 0 takes the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// Least weight of a token, as a share of the largest; 0 keeps all.
    pub min_p: f32,
    /// Most tokens, by weight, the lower ids among equals; 0 keeps all.
    pub top_k: u32,
    /// The fewest tokens, in that order, with this share of the weight; 1 keeps all.
    pub top_p: f32,
    /// The share at which the token lies, by ascending id, in units of 2^-64.
    pub unit: u64,
}

impl Draw {
    /// `log2 e / temperature`: finite, so that a distance of zero stays one.
    pub(crate) fn inverse_temperature(&self) -> f32 {
        (std::f64::consts::LOG2_E / f64::from(self.temperature)).min(1e30) as f32
    }
}

/// What one step is told: everything that differs between two steps of the same form.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// The token of each row.
    pub tokens: &'a [u32],
    /// Who is in the batch.
    pub tables: &'a StepTables,
    /// The rows that need logits.
    pub logit_rows: &'a [u32],
}

/// A norm that goes before a product.
pub struct Norm<'a, B: Backend> {
    /// What is normalised.
    pub x: &'a B::Buffer,
    /// One weight per column.
    pub weight: &'a B::Vector,
    /// What is added to the mean of the squares.
    pub eps: f32,
    /// Room for the normalised rows; unspecified afterwards.
    pub normed: &'a mut B::Buffer,
}

/// How the queries and keys of a step are made ready for attention.
pub struct Turn<'a, B: Backend> {
    /// Norms of queries and keys, and what is added to the mean of the squares.
    pub qk_norm: Option<(&'a B::Vector, &'a B::Vector, f32)>,
    /// Which pairs turn.
    pub rope: &'a Rope,
    /// [`Backend::rope_angles`] of the step.
    pub angles: &'a B::Buffer,
}

/// What is about to be asked for, and steps over it.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// Storage type, rows and columns of the parts of each matrix.
    pub matrices: &'a [Vec<(WeightType, usize, usize)>],
    /// Elements of each vector.
    pub vectors: &'a [usize],
    /// Rows and columns of each buffer.
    pub buffers: &'a [(usize, usize)],
    /// The KV cache.
    pub cache: KvLayout,
    /// Heads of a layer.
    pub heads: HeadLayout,
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that have logits.
    pub max_logit_rows: usize,
    /// Positions of a sequence.
    pub context_len: usize,
}

/// What a backend says about itself; ends in `taper doctor`, benchmark rows and `system_fingerprint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// `reference` or `cpu`.
    pub name: &'static str,
    /// Instruction set in use: `portable`, `neon`, `neon-dot`, `avx2`, `avx512`, `avx512bf16`, `amx`.
    pub isa: &'static str,
    /// Worker threads, the caller included.
    pub threads: usize,
    /// How activations are rounded and in what order sums run; equal classes give equal bits.
    pub numerics_class: &'static str,
}

/// The operations that a network needs. `rows` is the number of live leading rows of every activation operand.
pub trait Backend: Send + Sync + 'static {
    /// Activations, `[rows, cols]` float32.
    type Buffer: Send;
    /// A weight matrix, prepared for this backend.
    type Matrix: Send + Sync;
    /// A float32 vector of weights (norm weights, biases).
    type Vector: Send + Sync;
    /// The paged KV cache of all layers.
    type KvCache: Send;

    /// What this backend is.
    fn info(&self) -> BackendInfo;

    /// Bytes that can still be allocated, where that is not the host's memory.
    fn free_bytes(&self) -> Option<usize> {
        None
    }
    /// Takes memory for what is asked for next, and for the work of steps over it, in one piece: so nothing is refused half-way, and no
    /// step takes memory. It may be left out; a backend in the host's memory has no need of it.
    ///
    /// # Errors
    /// When there is not so much memory.
    fn reserve(&self, demand: &Demand<'_>) -> Result<(), Error> {
        let _ = demand;
        Ok(())
    }
    /// Whether there are products with weights of this type: a matrix of another is refused.
    fn takes(&self, weight_type: WeightType) -> bool {
        let _ = weight_type;
        true
    }
    /// Allocates zeroed activations.
    fn buffer(&self, rows: usize, cols: usize) -> Result<Self::Buffer, Error>;
    /// Activations `[values.len() / cols, cols]` with these values, for tests and measurements: a step's are computed. A backend's memory
    /// is its own, so they go through a table whose rows are looked up.
    ///
    /// # Errors
    /// When there is not so much memory.
    fn buffer_of(&self, cols: usize, values: &[f32]) -> Result<Self::Buffer, Error> {
        let rows = values.len() / cols;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let table = self.matrix(&[MatrixData { weight_type: WeightType::F32, rows, cols, bytes: &bytes }])?;
        let mut buffer = self.buffer(rows, cols)?;
        self.embed(&table, &(0..rows as u32).collect::<Vec<_>>(), &mut buffer);
        Ok(buffer)
    }
    /// Prepares a matrix of stacked parts (at least one, all with the same `cols`). Quantized blocks stay quantized.
    fn matrix(&self, parts: &[MatrixData<'_>]) -> Result<Self::Matrix, Error>;
    /// Bytes that one full read of the matrix moves.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;
    /// Prepares a vector.
    fn vector(&self, values: &[f32]) -> Result<Self::Vector, Error>;
    /// Allocates a zeroed cache.
    fn kv_cache(&self, layout: KvLayout) -> Result<Self::KvCache, Error>;

    /// Takes the memory of all blocks of a cache now, where it would else be taken as they are first written: two to three
    /// milliseconds of page faults for every 64 tokens of a small model.
    fn populate_kv_cache(&self, cache: &mut Self::KvCache) {
        let _ = cache;
    }
    /// Bytes that one block of one layer takes, keys and values together.
    fn kv_block_bytes(&self, layout: KvLayout) -> usize;
    /// Makes block `to` what block `from` is, in every layer: keys and values, and whatever the backend keeps beside them.
    fn copy_kv_block(&self, cache: &mut Self::KvCache, from: u32, to: u32);
    /// Appends the bytes of a block, all layers of it, to `out`: [`Backend::kv_block_bytes`] of them for each layer.
    fn export_kv_block(&self, cache: &Self::KvCache, block: u32, out: &mut Vec<u8>);
    /// Makes a block what was exported, to the bit, from a cache of the same layout but for the number of blocks.
    ///
    /// # Errors
    /// When the bytes are not as many as a block has; the block stays what it was.
    fn import_kv_block(&self, cache: &mut Self::KvCache, block: u32, bytes: &[u8]) -> Result<(), Error>;
    /// Per layer, how many (row, head) pairs [`Backend::attention`] over this cache has computed again because their fixed
    /// reference did not fit ([`Softmax`]), since the cache was made.
    fn recomputed(&self, cache: &Self::KvCache) -> Vec<u64>;
    /// Copies `rows` of a buffer to the host; `out` is `[rows.len(), cols]`.
    fn read_rows(&self, buffer: &Self::Buffer, rows: Range<usize>, out: &mut [f32]);
    /// Draws tokens from rows of logits, where to copy a row to the host costs more: one for each of `draws`, which name their rows, into
    /// `tokens`, which is cleared before; none from a row where a logit is not a number, or the largest is infinite. Whether that was
    /// done: a backend may leave all of them to its caller, as those whose logits lie on the host do when a draw is more than the largest
    /// logit. All backends draw the same token from the same logits.
    fn choose(&self, logits: &Self::Buffer, draws: &[(usize, Draw)], tokens: &mut Vec<Option<u32>>) -> bool {
        let _ = (logits, draws, tokens);
        false
    }

    /// Runs the operations of a step; of tokens, tables and rows they are told these. Steps of one `form` with as many rows, as many
    /// rows of logits, and one row per sequence or not, ask for the same operations on the same memory: a backend may record
    /// those of one and replay them for another, without calling `operations` again. Nothing else may depend on their being called,
    /// and what leaves the backend (rows that are read, counts) is asked for afterwards. Without a form they are always called.
    fn step(&self, inputs: StepInputs<'_>, form: Option<u64>, operations: &mut dyn FnMut(&Self))
    where
        Self: Sized,
    {
        let _ = (inputs, form);
        operations(self);
    }

    /// Whether an operation is done when it returns. Only then does it save anything to ask for no more of a step, and only then may
    /// less be asked for than a step's form has.
    fn is_done_at_once(&self) -> bool {
        false
    }

    /// `out[r] = table[tokens[r]]`, decoded to float32. Token ids are below the table's rows.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut Self::Buffer);
    /// `out = x * weight / sqrt(mean(x^2) + eps)`, per row.
    fn rms_norm(&self, rows: usize, x: &Self::Buffer, weight: &Self::Vector, eps: f32, out: &mut Self::Buffer);
    /// A hint: the calling thread asks for operations from now on, and may be given a processor to itself. It is said again before
    /// each step, so that the processors can be given out anew when another thread does, or does no more.
    fn settle(&self) {}
    /// Has something done that nobody waits for, by a thread of the backend that has nothing to do, or by the calling one.
    fn send_out(&self, errand: Errand) {
        errand();
    }
    /// A hint: the product after the next one is with this matrix, and whatever waits for work may fetch it. It decides no bit.
    fn soon(&self, _matrix: &Self::Matrix) {}
    /// `out = x * matrix^T (+ bias)`; `x` is `[rows, K]`, `out` `[rows, N]`, N the sum over the parts.
    fn linear(
        &self,
        rows: usize,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    );
    /// [`linear`](Backend::linear) for the logits of a network, where a rounding error meets no later layer that could average
    /// it out: a backend that has a finer way takes it.
    fn logits(&self, rows: usize, x: &Self::Buffer, head: &Self::Matrix, out: &mut Self::Buffer) {
        self.linear(rows, x, head, None, out);
    }
    /// Qwen3's norm of every query and key head over `head_dim`, in place in a fused qkv buffer.
    fn qk_norm(
        &self,
        rows: usize,
        qkv: &mut Self::Buffer,
        heads: HeadLayout,
        q_weight: &Self::Vector,
        k_weight: &Self::Vector,
        eps: f32,
    );
    /// `out` row r = `[cos of the rotary_dim/2 pairs | sin of the same]` at `positions[r]`, computed in float64, rounded once,
    /// times `magnitude`. Once per step, shared by all layers; `out` is `[rows, rotary_dim]`.
    fn rope_angles(&self, rope: &Rope, positions: &[u32], out: &mut Self::Buffer);
    /// Turns q and k of a fused qkv buffer in place and stores k and v of each row at `step.slots`.
    fn rope_kv_store(
        &self,
        step: &StepTables,
        rope: &Rope,
        angles: &Self::Buffer,
        params: AttentionParams<'_>,
        qkv: &mut Self::Buffer,
        cache: &mut Self::KvCache,
    );
    /// Causal attention of every row over its sequence's keys; reads q from the fused qkv buffer, `out` is
    /// `[rows, num_heads * head_dim]`. What had to be computed again is counted ([`Backend::recomputed`]).
    fn attention(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Self::Buffer,
        cache: &Self::KvCache,
        out: &mut Self::Buffer,
    );
    /// Bytes that a call of [`Backend::attention`] computes in beside its operands, before it computes any row again, where a
    /// backend tells.
    fn attention_working_bytes(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        cache: &Self::KvCache,
    ) -> Option<usize> {
        let _ = (step, params, cache);
        None
    }
    /// Adds the scores of every row over the keys that it sees to `statistics`, one per KV head. For calibration, between
    /// [`Backend::rope_kv_store`] and [`Backend::attention`].
    fn observe_scores(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Self::Buffer,
        cache: &Self::KvCache,
        statistics: &mut [ScoreStatistics],
    );
    /// `out = silu(gate) * up`; a row of `gate_up` is `[gate | up]`, each as wide as `out`.
    fn silu_mul(&self, rows: usize, gate_up: &Self::Buffer, out: &mut Self::Buffer);
    /// [`Backend::linear`] into `gate_up`, then [`Backend::silu_mul`] into `out`, to the same bits: what a backend can do
    /// in one pass. `gate_up` is `[rows, N]` and left unspecified, `out` `[rows, N / 2]`.
    fn linear_silu_mul(
        &self,
        rows: usize,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        gate_up: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        self.linear(rows, x, matrix, None, gate_up);
        self.silu_mul(rows, gate_up, out);
    }
    /// A norm, then [`Backend::linear`] of it, to the same bits: what a backend can do in one pass.
    fn norm_linear(
        &self,
        rows: usize,
        norm: Norm<'_, Self>,
        matrix: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    ) where
        Self: Sized,
    {
        self.rms_norm(rows, norm.x, norm.weight, norm.eps, norm.normed);
        self.linear(rows, norm.normed, matrix, bias, out);
    }
    /// A norm, then [`Backend::linear_silu_mul`] of it, to the same bits.
    fn norm_linear_silu_mul(
        &self,
        rows: usize,
        norm: Norm<'_, Self>,
        matrix: &Self::Matrix,
        gate_up: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) where
        Self: Sized,
    {
        self.rms_norm(rows, norm.x, norm.weight, norm.eps, norm.normed);
        self.linear_silu_mul(rows, norm.normed, matrix, gate_up, out);
    }
    /// [`Backend::linear`] into `delta`, then [`Backend::add`] of it, to the same bits. `delta` is as wide as `residual` and left
    /// unspecified.
    fn linear_add(
        &self,
        rows: usize,
        x: &Self::Buffer,
        matrix: &Self::Matrix,
        delta: &mut Self::Buffer,
        residual: &mut Self::Buffer,
    ) {
        self.linear(rows, x, matrix, None, delta);
        self.add(rows, residual, delta);
    }
    /// [`Backend::qk_norm`] where there is one, [`Backend::rope_kv_store`], then [`Backend::attention`], to the same bits. `qkv` is
    /// left unspecified.
    fn rope_attention(
        &self,
        step: &StepTables,
        turn: Turn<'_, Self>,
        params: AttentionParams<'_>,
        qkv: &mut Self::Buffer,
        cache: &mut Self::KvCache,
        out: &mut Self::Buffer,
    ) where
        Self: Sized,
    {
        self.turn_and_store(step, turn, params, qkv, cache);
        self.attention(step, params, qkv, cache, out);
    }
    /// The part of [`Backend::rope_attention`] before attention; `qkv` has the turned rows.
    fn turn_and_store(
        &self,
        step: &StepTables,
        turn: Turn<'_, Self>,
        params: AttentionParams<'_>,
        qkv: &mut Self::Buffer,
        cache: &mut Self::KvCache,
    ) where
        Self: Sized,
    {
        if let Some((q_norm, k_norm, eps)) = turn.qk_norm {
            self.qk_norm(step.num_rows(), qkv, params.heads, q_norm, k_norm, eps);
        }
        self.rope_kv_store(step, turn.rope, turn.angles, params, qkv, cache);
    }
    /// `residual += delta`.
    fn add(&self, rows: usize, residual: &mut Self::Buffer, delta: &Self::Buffer);
    /// `out[i] = x[rows[i]]`: the rows that need logits.
    fn gather_rows(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer);
}
