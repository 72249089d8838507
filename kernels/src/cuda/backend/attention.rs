//! Attention of a step by `attention_plain_T`, and the baseline by `attention_naive_T` (`kernels/cuda/attention_*.cu`).

use super::buffer::{Buffer, grow, zeros};
use super::kv_cache::{KvCache, stored};
use super::tables::Addresses;
use super::{Cuda, Work, int, kind_of};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;
use crate::{AttentionParams, AttentionScheme, HeadLayout, Softmax, StepTables, Turn};
use std::sync::Arc;

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
    pub(super) fn new(device: &Arc<D>) -> Result<AttentionWork<D>, DeviceError> {
        Ok(AttentionWork {
            states: zeros(device, "states of splits", 1)?,
            tickets: zeros(device, "tickets of rows", 1)?,
            scores: zeros(device, "scores of a step", 1)?,
        })
    }

    /// Where memory is that may move.
    pub(super) fn addresses(&self) -> [DevicePtr; 2] {
        [self.states.address(), self.tickets.address()]
    }

    /// Room for so many rows times groups of heads.
    fn reserve(&mut self, device: &Arc<D>, units: usize, head_dim: usize) -> Result<(), DeviceError> {
        grow(&mut self.states, device, "states of splits", units * MAX_SPLITS * HEADS * (head_dim + 2))?;
        grow(&mut self.tickets, device, "tickets of rows", units)
    }
}

/// All scores of a row and head in memory, at most so many rows at once as have room.
fn naive<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &Buffer<D>) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    let mut work = cuda.work();
    let tables = work.tables.of(&cuda.device, step)?;
    let work = &mut work.attention;
    let stride = step.spans.iter().map(|span| span.context_len).max().unwrap_or(0);
    let (rows, of_row) = (step.num_rows(), num_heads * stride);
    let rows_at_once = (MAX_SCORES / of_row.max(1)).clamp(1, rows.max(1));
    grow(&mut work.scores, &cuda.device, "scores of a step", rows_at_once * of_row)?;
    let kernels = [Kernel::AttentionNaiveF16, Kernel::AttentionNaiveBf16, Kernel::AttentionNaiveF32];
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

impl<D: Device> Clone for Call<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Call<'_, D> {}

/// What `attention_plain_T` and `attention_decode_T` are told alike.
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
    out: &Buffer<D>,
) -> Result<Prepared, DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let (rows, device) = (step.num_rows(), &cuda.device);
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    let tables = work.tables.of(device, step)?;
    let groups = num_kv_heads * (num_heads / num_kv_heads).div_ceil(HEADS);
    let wanted = BLOCKS_PER_MULTIPROCESSOR * device.properties().multiprocessors as usize;
    let splits = (wanted / (rows * groups).max(1)).clamp(1, MAX_SPLITS);
    let (mut states, mut tickets) = (DevicePtr(0), DevicePtr(0));
    if splits > 1 {
        let attention = &mut work.attention;
        attention.reserve(device, rows * groups, head_dim)?;
        (states, tickets) = (attention.states.address(), attention.tickets.address());
    }
    let (arm, references): (i32, Vec<f32>) = match params.softmax {
        Softmax::Online => (0, Vec::new()),
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
            work.softmax_references(device, &references)?
        }
        _ => Argument::Pointer(DevicePtr(0)),
    };
    let keys: usize = step.spans.iter().map(|span| span.context_len).sum();
    let bytes = 2 * keys * num_kv_heads * head_dim * stored(cache.layout.dtype).bytes()
        + 2 * rows * params.heads.q_width() * size_of::<f32>();
    let log2_scale = params.scale * std::f32::consts::LOG2_E;
    Ok(Prepared { tables, groups, splits, states, tickets, references, arm, log2_scale, bytes })
}

/// Attention of every row; the cache counts the (row, head) pairs that were computed again.
pub(super) fn attention<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &mut Buffer<D>) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    if params.scheme == AttentionScheme::Naive {
        return naive(cuda, call, out);
    }
    let mut work = cuda.work();
    let prepared = prepare(cuda, &mut work, call, out)?;
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

/// Norms, rotation, store and attention of rows of which no two are of one sequence.
pub(super) fn rope_attention<D: Device>(
    cuda: &Cuda<D>,
    call: Call<'_, D>,
    turn: &Turn<'_, Cuda<D>>,
    out: &mut Buffer<D>,
) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    turn.rope.check();
    assert_eq!(turn.angles.cols(), turn.rope.rotary_dim, "the angles are of this rotation");
    assert!(turn.rope.rotary_dim <= head_dim, "no more turns than a head has");
    let null = Argument::Pointer(DevicePtr(0));
    let (q_weight, k_weight, eps) = turn.qk_norm.map_or((null, null, 0.0), |(q_weight, k_weight, eps)| {
        (q_weight.elements(head_dim), k_weight.elements(head_dim), eps)
    });
    let mut work = cuda.work();
    let prepared = prepare(cuda, &mut work, call, out)?;
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
        Argument::F32(eps),
        Argument::F32(prepared.log2_scale),
        Argument::I32(prepared.arm),
    ];
    let kernels = [Kernel::AttentionDecodeF16, Kernel::AttentionDecodeBf16, Kernel::AttentionDecodeF32];
    let (kernel, grid) = (stored(cache.layout.dtype).kernel(kernels), [rows, prepared.groups, prepared.splits]);
    // SAFETY: as in `attention`; the caller has made sure that no two rows are of one sequence; norms, if there are any, have a weight
    // per element of a head, and angles a row of `rotary_dim` for each row.
    unsafe { cuda.launch(kernel, grid, 128, &arguments, prepared.bytes) };
    Ok(())
}
