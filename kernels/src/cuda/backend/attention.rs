//! Attention of a step by `attention_plain_T`, and the baseline by `attention_naive_T` (`kernels/cuda/attention_*.cu`).

use super::buffer::{Buffer, zeros};
use super::kv_cache::{KvCache, stored};
use super::tables::Addresses;
use super::{Cuda, int};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;
use crate::{AttentionParams, AttentionScheme, HeadLayout, KvDtype, Softmax, StepTables};
use std::sync::Arc;

/// Splits of a row, at most.
const MAX_SPLITS: usize = 32;
/// Query heads of a block of threads.
const HEADS: usize = 8;
/// The largest head.
pub(super) const MAX_HEAD_DIM: usize = 256;
/// KV heads that a calibration may have without taking more memory.
const RANGES: usize = 256;
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
    /// `[KV heads][phi, below, above]`.
    ranges: Memory<D, f32>,
    /// Rows and heads that were computed again in the last call.
    recomputed: Memory<D, u32>,
    /// `[rows][heads][longest context]` scores of the baseline.
    scores: Memory<D, f32>,
}

impl<D: Device> AttentionWork<D> {
    pub(super) fn new(device: &Arc<D>) -> Result<AttentionWork<D>, DeviceError> {
        Ok(AttentionWork {
            states: zeros(device, "states of splits", 1)?,
            tickets: zeros(device, "tickets of rows", 1)?,
            ranges: zeros(device, "softmax references", 3 * RANGES)?,
            recomputed: zeros(device, "the count of recomputed rows", 1)?,
            scores: zeros(device, "scores of a step", 1)?,
        })
    }

    /// Room for so many rows times groups of heads.
    fn reserve(&mut self, device: &Arc<D>, units: usize, head_dim: usize) -> Result<(), DeviceError> {
        let states = units * MAX_SPLITS * HEADS * (head_dim + 2);
        if self.states.len() < states {
            self.states = zeros(device, "states of splits", states.next_power_of_two())?;
        }
        if self.tickets.len() < units {
            self.tickets = zeros(device, "tickets of rows", units.next_power_of_two())?;
        }
        Ok(())
    }

    fn set_ranges(&mut self, device: &Arc<D>, ranges: &[f32]) -> Result<(), DeviceError> {
        if self.ranges.len() < ranges.len() {
            self.ranges = zeros(device, "softmax references", ranges.len())?;
        }
        self.ranges.write(0, ranges)
    }
}

/// All scores of a row and head in memory, at most so many rows at once as have room.
fn naive<D: Device>(
    cuda: &Cuda<D>,
    work: &mut AttentionWork<D>,
    tables: Addresses,
    call: Call<'_, D>,
    out: &Buffer<D>,
) -> Result<(), DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let stride = step.spans.iter().map(|span| span.context_len).max().unwrap_or(0);
    let (rows, of_row) = (step.num_rows(), num_heads * stride);
    let rows_at_once = (MAX_SCORES / of_row.max(1)).clamp(1, rows.max(1));
    if work.scores.len() < rows_at_once * of_row {
        work.scores = zeros(&cuda.device, "scores of a step", rows_at_once * of_row)?;
    }
    let kernel = match stored(cache.layout.dtype) {
        KvDtype::BF16 | KvDtype::Q8_0 => Kernel::AttentionNaiveBf16,
        KvDtype::F32 => Kernel::AttentionNaiveF32,
        KvDtype::F16 => Kernel::AttentionNaiveF16,
    };
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

/// Attention of every row; how many (row, head) pairs were computed again.
pub(super) fn attention<D: Device>(cuda: &Cuda<D>, call: Call<'_, D>, out: &mut Buffer<D>) -> Result<u64, DeviceError> {
    let Call { step, params, qkv, cache } = call;
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let (rows, device) = (step.num_rows(), &cuda.device);
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    assert!(head_dim <= MAX_HEAD_DIM, "heads of {head_dim} elements");
    let mut work = cuda.work();
    let tables = work.tables.of(device, step)?;
    let work = &mut work.attention;
    if params.scheme == AttentionScheme::Naive {
        naive(cuda, work, tables, call, out)?;
        return Ok(0);
    }

    let groups = num_kv_heads * (num_heads / num_kv_heads).div_ceil(HEADS);
    let wanted = BLOCKS_PER_MULTIPROCESSOR * device.properties().multiprocessors as usize;
    let splits = (wanted / (rows * groups).max(1)).clamp(1, MAX_SPLITS);
    if splits > 1 {
        work.reserve(device, rows * groups, head_dim)?;
    }
    let (arm, ranges): (i32, Vec<f32>) = match params.softmax {
        Softmax::Online => (0, Vec::new()),
        Softmax::Bounded => (1, Vec::new()),
        Softmax::Calibrated(ranges) => {
            (2, ranges.iter().flat_map(|range| [range.phi as f32, f32::NEG_INFINITY, range.b.min(127.0)]).collect())
        }
        Softmax::CalibratedTwoSided(ranges) => {
            (2, ranges.iter().flat_map(|range| [range.phi as f32, range.a, range.b.min(127.0)]).collect())
        }
    };
    if arm == 2 {
        assert_eq!(ranges.len(), 3 * num_kv_heads, "a range per KV head");
        work.set_ranges(device, &ranges)?;
    }
    if arm != 0 {
        work.recomputed.write(0, &[0])?;
    }

    let (states, tickets) = match splits {
        1 => (DevicePtr(0), DevicePtr(0)),
        _ => (work.states.address(), work.tickets.address()),
    };
    let arguments = [
        qkv.rows(rows),
        cache.layer(params.layer),
        tables.positions,
        tables.table_starts,
        tables.block_tables,
        Argument::Pointer(work.ranges.address()),
        Argument::Pointer(states),
        Argument::Pointer(tickets),
        Argument::Pointer(work.recomputed.address()),
        out.rows(rows),
        int(num_heads),
        int(num_kv_heads),
        int(head_dim),
        Argument::F32(params.scale * std::f32::consts::LOG2_E),
        Argument::I32(arm),
    ];
    let (kernel, element) = match stored(cache.layout.dtype) {
        KvDtype::BF16 | KvDtype::Q8_0 => (Kernel::AttentionPlainBf16, 2),
        KvDtype::F32 => (Kernel::AttentionPlainF32, 4),
        KvDtype::F16 => (Kernel::AttentionPlainF16, 2),
    };
    let keys: usize = step.spans.iter().map(|span| span.context_len).sum();
    let bytes = 2 * keys * num_kv_heads * head_dim * element + 2 * rows * params.heads.q_width() * size_of::<f32>();
    // SAFETY: the caller has checked the step, so positions, slots and block tables lie in the cache; qkv and out have `rows` rows
    // of these heads; states and tickets have room for every row and group of heads where several blocks share a row, and
    // tickets are zeros since they were made, for a launch leaves them so; heads are no larger than the kernel's.
    unsafe { cuda.launch(kernel, [rows, groups, splits], 128, &arguments, bytes) };
    if arm == 0 {
        return Ok(0);
    }
    let mut recomputed = [0];
    work.recomputed.read(0, &mut recomputed)?;
    Ok(recomputed[0].into())
}
