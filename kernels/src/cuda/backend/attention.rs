//! Attention of a step (`kernels/cuda/attention_*.cu`): on tensor cores where [`super::tensor_cores`] knows heads and cache, else by
//! multiply-adds, and the baseline.

use super::buffer::{Buffer, Heap, grow, zeros};
use super::kv_cache::{KvCache, Stored, stored};
use super::tables::Addresses;
use super::tensor_cores::Form;
use super::{Cuda, Work, int, kind_of};
use crate::cuda::device::{Argument, Device, DeviceProperties, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;
use crate::{AttentionParams, AttentionScheme, HeadLayout, Softmax, StepTables, Turn};

/// Splits of a row, at most.
const MAX_SPLITS: usize = 32;
/// Query heads of a block of threads.
const HEADS: usize = 8;
/// The largest head.
pub(super) const MAX_HEAD_DIM: usize = 256;
/// Blocks of threads that are wanted for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;

/// Scores that the baseline holds at once, unless one row has more.
const MAX_SCORES: usize = 1 << 24;

/// Memory between the blocks of threads of one call.
pub(super) struct AttentionWork<D: Device> {
    /// `[rows][groups of heads][splits]` states and sums.
    states: Memory<D, f32>,
    /// `[rows][groups of heads]`; zeros between calls.
    tickets: Memory<D, u32>,
    /// `[rows][heads][longest context]` scores of the baseline.
    scores: Memory<D, f32>,
}

impl<D: Device> AttentionWork<D> {
    pub(super) fn new(heap: &Heap<D>) -> Result<AttentionWork<D>, DeviceError> {
        Ok(AttentionWork {
            states: zeros(heap, "states of splits", 1)?,
            tickets: zeros(heap, "tickets of rows", 1)?,
            scores: zeros(heap, "scores of a step", 1)?,
        })
    }

    /// Where memory is that may move.
    pub(super) fn addresses(&self) -> [DevicePtr; 2] {
        [self.states.address(), self.tickets.address()]
    }

    /// Room for the states of so many rows and heads, and for tickets.
    pub(super) fn reserve(
        &mut self,
        heap: &Heap<D>,
        vectors: usize,
        head_dim: usize,
        tickets: usize,
    ) -> Result<(), DeviceError> {
        grow(&mut self.states, heap, "states of splits", state_floats(vectors, head_dim))?;
        grow(&mut self.tickets, heap, "tickets of rows", tickets)
    }
}

fn longest_context(step: &StepTables) -> usize {
    step.spans.iter().map(|span| span.context_len).max().unwrap_or(0)
}

/// Scores of a row of the baseline, and how many rows have theirs in memory at once.
fn scores_at_once(step: &StepTables, num_heads: usize) -> (usize, usize) {
    let of_row = num_heads * longest_context(step);
    (of_row, (MAX_SCORES / of_row.max(1)).clamp(1, step.num_rows().max(1)))
}

/// All scores of a row and head in memory, at most so many rows at once as have room.
fn naive<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &Buffer<D>) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    let mut work = cuda.work();
    let tables = work.tables.of(&cuda.heap, step)?;
    let work = &mut work.attention;
    let (rows, stride) = (step.num_rows(), longest_context(step));
    let (of_row, rows_at_once) = scores_at_once(step, num_heads);
    grow(&mut work.scores, &cuda.heap, "scores of a step", rows_at_once * of_row)?;
    let kernels =
        [Kernel::AttentionNaiveF16, Kernel::AttentionNaiveBf16, Kernel::AttentionNaiveF32, Kernel::AttentionNaiveF8];
    let kernel = stored(cache.layout.dtype).kernel(kernels);
    for first in (0..rows).step_by(rows_at_once) {
        let rows_now = rows_at_once.min(rows - first);
        let from = |rows_of: Argument, width: usize| rows_of.at(first * width);
        let arguments = [
            from(qkv.rows(rows), qkv.cols() * size_of::<f32>()),
            cache.layer(params.layer),
            from(tables.positions, size_of::<i32>()),
            from(tables.table_starts, size_of::<i32>()),
            tables.block_tables,
            Argument::Pointer(work.scores.address()),
            from(out.rows(rows), out.cols() * size_of::<f32>()),
            int(num_heads),
            int(num_kv_heads),
            int(head_dim),
            int(stride),
            Argument::F32(params.scale * std::f32::consts::LOG2_E),
        ];
        let bytes = 4 * rows_now * of_row * size_of::<f32>();
        // SAFETY: as in `attention`, for the rows from `first` on; there is room for the scores of `rows_now` rows.
        unsafe { cuda.launch(kernel, [rows_now, num_heads, 1], 128, &arguments, bytes) };
    }
    Ok(())
}

/// What attention reads.
pub(super) struct Call<'a, D: Device> {
    pub(super) step: &'a StepTables,
    pub(super) params: AttentionParams<'a>,
    pub(super) qkv: &'a Buffer<D>,
    pub(super) cache: &'a KvCache<D>,
}

impl<D: Device> Call<'_, D> {
    /// Its form on tensor cores, if those know its heads and its cache.
    fn form(&self, cuda: &Cuda<D>) -> Option<Form> {
        let stored = stored(self.cache.layout.dtype);
        Form::of(cuda.device.properties(), self.params.heads, stored, self.step.has_one_row_each())
    }
}

impl<D: Device> Clone for Call<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Call<'_, D> {}

/// How the work of a step is divided.
struct Division {
    /// Blocks of threads along the second axis, for each row.
    groups: usize,
    /// Rows that a block takes, at most.
    tile_rows: usize,
    /// Vectors of a row whose states lie in memory while blocks share them.
    vectors: usize,
    /// Blocks of threads that are wanted for each multiprocessor.
    per_multiprocessor: usize,
}

impl Division {
    /// For kernels by multiply-adds.
    fn plain(heads: HeadLayout) -> Division {
        let groups = heads.num_kv_heads * (heads.num_heads / heads.num_kv_heads).div_ceil(HEADS);
        Division { groups, tile_rows: 1, vectors: groups * HEADS, per_multiprocessor: BLOCKS_PER_MULTIPROCESSOR }
    }

    fn on_tensor_cores(heads: HeadLayout, form: &Form) -> Division {
        Division {
            groups: heads.num_kv_heads * form.parts,
            tile_rows: form.tile_rows,
            vectors: heads.num_heads,
            per_multiprocessor: form.resident.clamp(1, BLOCKS_PER_MULTIPROCESSOR),
        }
    }

    /// Blocks of threads along the third axis, which share the keys of a row.
    fn splits(&self, properties: &DeviceProperties, rows: usize) -> usize {
        let wanted = self.per_multiprocessor * properties.multiprocessors as usize;
        (wanted / (rows.div_ceil(self.tile_rows) * self.groups).max(1)).clamp(1, MAX_SPLITS)
    }
}

/// Rows and heads whose states lie in memory, and tickets, in the step of up to `max_rows` rows that has most of them.
pub(super) fn most_shared(
    properties: &DeviceProperties,
    heads: HeadLayout,
    stored: Stored,
    max_rows: usize,
) -> (usize, usize) {
    let of = |one_row_each: bool| {
        let form = Form::of(properties, heads, stored, one_row_each);
        let division = form.map_or_else(|| Division::plain(heads), |form| Division::on_tensor_cores(heads, &form));
        // As many tiles as two blocks of threads may share.
        let wanted = division.per_multiprocessor * properties.multiprocessors as usize;
        let rows = (wanted / 2 / division.groups.max(1) * division.tile_rows).min(max_rows);
        (rows * division.vectors, rows * division.groups)
    };
    let (one, other) = (of(true), of(false));
    (one.0.max(other.0), one.1.max(other.1))
}

/// Floats of the states of so many rows and heads.
pub(super) fn state_floats(vectors: usize, head_dim: usize) -> usize {
    vectors * MAX_SPLITS * (head_dim + 2)
}

/// What the kernels are told alike.
struct Prepared {
    tables: Addresses,
    /// Blocks of threads along the second and third axis.
    groups: usize,
    splits: usize,
    states: DevicePtr,
    tickets: DevicePtr,
    references: Argument,
    arm: i32,
    log2_scale: f32,
    /// Keys and values that are read, at least.
    bytes: usize,
}

/// Makes room, and has the tables of the step and the references of the layer on the device.
fn prepare<D: Device>(
    cuda: &Cuda<D>,
    work: &mut Work<D>,
    call: Call<'_, D>,
    division: &Division,
    out: &Buffer<D>,
) -> Result<Prepared, DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_kv_heads, head_dim, .. } = params.heads;
    let (rows, heap) = (step.num_rows(), &cuda.heap);
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    let tables = work.tables.of(heap, step)?;
    let &Division { groups, vectors, .. } = division;
    let splits = division.splits(cuda.device.properties(), rows);
    let (mut states, mut tickets) = (DevicePtr(0), DevicePtr(0));
    if splits > 1 {
        let attention = &mut work.attention;
        attention.reserve(heap, rows * vectors, head_dim, rows * groups)?;
        (states, tickets) = (attention.states.address(), attention.tickets.address());
    }
    let (arm, references): (i32, Vec<f32>) = match params.softmax {
        Softmax::Online => (0, Vec::new()),
        Softmax::OnlineThreshold => (3, Vec::new()),
        Softmax::Bounded => (1, Vec::new()),
        Softmax::Calibrated(ranges) => {
            (2, ranges.iter().flat_map(|range| [range.phi as f32, f32::NEG_INFINITY, range.b.min(127.0)]).collect())
        }
        Softmax::CalibratedTwoSided(ranges) => {
            (2, ranges.iter().flat_map(|range| [range.phi as f32, range.a, range.b.min(127.0)]).collect())
        }
    };
    let references = match arm {
        2 => {
            assert_eq!(references.len(), 3 * num_kv_heads, "a range per KV head");
            work.softmax_references(heap, &references)?
        }
        _ => NULL,
    };
    let keys: usize = step.spans.iter().map(|span| span.context_len).sum();
    let bytes = 2 * keys * num_kv_heads * head_dim * stored(cache.layout.dtype).bytes()
        + 2 * rows * params.heads.q_width() * size_of::<f32>();
    let log2_scale = params.scale * std::f32::consts::LOG2_E;
    Ok(Prepared { tables, groups, splits, states, tickets, references, arm, log2_scale, bytes })
}

/// Attention of every row; the cache counts the (row, head) pairs that were computed again.
pub(super) fn attention<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &mut Buffer<D>) -> Result<(), DeviceError> {
    if call.params.scheme == AttentionScheme::Naive {
        return naive(cuda, call, out);
    }
    match call.form(cuda) {
        Some(form) => on_tensor_cores(cuda, call, &form, None, out),
        None => plain(cuda, call, out),
    }
}

/// Bytes of scores, or of states and tickets where several blocks of threads share a row.
pub(super) fn working_bytes<D: Device>(
    cuda: &Cuda<D>,
    step: &StepTables,
    params: AttentionParams<'_>,
    cache: &KvCache<D>,
) -> usize {
    let HeadLayout { num_heads, head_dim, .. } = params.heads;
    if params.scheme == AttentionScheme::Naive {
        let (of_row, rows_at_once) = scores_at_once(step, num_heads);
        return of_row * rows_at_once * size_of::<f32>();
    }
    let properties = cuda.device.properties();
    let form = Form::of(properties, params.heads, stored(cache.layout.dtype), step.has_one_row_each());
    let division =
        form.map_or_else(|| Division::plain(params.heads), |form| Division::on_tensor_cores(params.heads, &form));
    match division.splits(properties, step.num_rows()) {
        1 => 0,
        splits => step.num_rows() * (division.vectors * splits * (head_dim + 2) + division.groups) * size_of::<f32>(),
    }
}

/// Norms, rotation, store and attention of rows of which no two are of one sequence. Whether they were done: a row may have more
/// heads than one block of threads takes.
pub(super) fn rope_attention<D: Device>(
    cuda: &Cuda<D>,
    call: Call<'_, D>,
    turn: &Turn<'_, Cuda<D>>,
    out: &mut Buffer<D>,
) -> Result<bool, DeviceError> {
    turn.rope.check();
    assert_eq!(turn.angles.cols(), turn.rope.rotary_dim, "the angles are of this rotation");
    assert!(turn.rope.rotary_dim <= call.params.heads.head_dim, "no more turns than a head has");
    match call.form(cuda) {
        Some(form) if form.parts > 1 => return Ok(false),
        Some(form) => on_tensor_cores(cuda, call, &form, Some(turn), out)?,
        None => decode(cuda, call, turn, out)?,
    }
    Ok(true)
}

const NULL: Argument = Argument::Pointer(DevicePtr(0));

/// Weights of norms of query and key heads, and their eps.
fn norms<D: Device>(turn: &Turn<'_, Cuda<D>>, head_dim: usize) -> [Argument; 3] {
    let (q_weight, k_weight, eps) = turn.qk_norm.map_or((NULL, NULL, 0.0), |(q_weight, k_weight, eps)| {
        (q_weight.elements(head_dim), k_weight.elements(head_dim), eps)
    });
    [q_weight, k_weight, Argument::F32(eps)]
}

/// By `attention_mma_T_D`: of rows that are turned and stored, or with the turn that is still to come.
fn on_tensor_cores<D: Device>(
    cuda: &Cuda<D>,
    call: Call<'_, D>,
    form: &Form,
    turn: Option<&Turn<'_, Cuda<D>>>,
    out: &mut Buffer<D>,
) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    let [q_weight, k_weight, eps] = turn.map_or([NULL, NULL, Argument::F32(0.0)], |turn| norms(turn, head_dim));
    // Without angles rows are turned already.
    let angles = turn.map_or(NULL, |turn| turn.angles.rows(rows));
    let (rotary_dim, kind) =
        turn.map_or((int(0), Argument::I32(0)), |turn| (int(turn.rope.rotary_dim), kind_of(turn.rope)));
    let mut work = cuda.work();
    let prepared = prepare(cuda, &mut work, call, &Division::on_tensor_cores(params.heads, form), out)?;
    let arguments = [
        qkv.rows(rows),
        angles,
        q_weight,
        k_weight,
        cache.layer(params.layer),
        prepared.tables.spans,
        prepared.tables.positions,
        prepared.tables.table_starts,
        prepared.tables.block_tables,
        prepared.references,
        Argument::Pointer(prepared.states),
        Argument::Pointer(prepared.tickets),
        cache.count(params.layer),
        out.rows(rows),
        int(num_heads),
        int(num_kv_heads),
        int(form.tile_rows),
        rotary_dim,
        kind,
        eps,
        Argument::F32(prepared.log2_scale),
        Argument::I32(prepared.arm),
    ];
    let grid = [rows, prepared.groups, prepared.splits];
    // SAFETY: as in `plain`; threads, shared memory, rows of a tile and parts are of one form; where rows are still to be turned, the
    // caller has made sure that no two are of one sequence and parts is 1, and angles and norms are as in `decode`.
    unsafe {
        cuda.launch_with_shared(form.kernel, grid, (form.threads, form.shared_bytes), &arguments, prepared.bytes);
    }
    Ok(())
}

/// By `attention_plain_T`.
fn plain<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &mut Buffer<D>) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    let mut work = cuda.work();
    let prepared = prepare(cuda, &mut work, call, &Division::plain(params.heads), out)?;
    let arguments = [
        qkv.rows(rows),
        cache.layer(params.layer),
        prepared.tables.positions,
        prepared.tables.table_starts,
        prepared.tables.block_tables,
        prepared.references,
        Argument::Pointer(prepared.states),
        Argument::Pointer(prepared.tickets),
        cache.count(params.layer),
        out.rows(rows),
        int(num_heads),
        int(num_kv_heads),
        int(head_dim),
        Argument::F32(prepared.log2_scale),
        Argument::I32(prepared.arm),
    ];
    let kernels = [Kernel::AttentionPlainF16, Kernel::AttentionPlainBf16, Kernel::AttentionPlainF32];
    let (kernel, grid) = (stored(cache.layout.dtype).kernel(kernels), [rows, prepared.groups, prepared.splits]);
    // SAFETY: the caller has checked the step, so positions, slots and block tables lie in the cache; qkv and out have `rows` rows
    // of these heads; states and tickets have room for every row and group of heads where several blocks share a row, and
    // tickets are zeros since they were made, for a launch leaves them so; heads are no larger than the kernel's, as those of a cache.
    unsafe { cuda.launch(kernel, grid, 128, &arguments, prepared.bytes) };
    Ok(())
}

/// By `attention_decode_T`.
fn decode<D: Device>(
    cuda: &Cuda<D>,
    call: Call<'_, D>,
    turn: &Turn<'_, Cuda<D>>,
    out: &mut Buffer<D>,
) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    let [q_weight, k_weight, eps] = norms(turn, head_dim);
    let mut work = cuda.work();
    let prepared = prepare(cuda, &mut work, call, &Division::plain(params.heads), out)?;
    let arguments = [
        qkv.rows(rows),
        turn.angles.rows(rows),
        q_weight,
        k_weight,
        cache.layer(params.layer),
        prepared.tables.positions,
        prepared.tables.table_starts,
        prepared.tables.block_tables,
        prepared.references,
        Argument::Pointer(prepared.states),
        Argument::Pointer(prepared.tickets),
        cache.count(params.layer),
        out.rows(rows),
        int(num_heads),
        int(num_kv_heads),
        int(head_dim),
        int(turn.rope.rotary_dim),
        kind_of(turn.rope),
        eps,
        Argument::F32(prepared.log2_scale),
        Argument::I32(prepared.arm),
    ];
    let kernels = [Kernel::AttentionDecodeF16, Kernel::AttentionDecodeBf16, Kernel::AttentionDecodeF32];
    let (kernel, grid) = (stored(cache.layout.dtype).kernel(kernels), [rows, prepared.groups, prepared.splits]);
    // SAFETY: as in `plain`; the caller has made sure that no two rows are of one sequence; norms, if there are any, have a weight
    // per element of a head, and angles a row of `rotary_dim` for each row.
    unsafe { cuda.launch(kernel, grid, 128, &arguments, prepared.bytes) };
    Ok(())
}
