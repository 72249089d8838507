//! Attention of a step by `attention_plain_T` (`kernels/cuda/attention_plain.cu`).

use super::buffer::{Buffer, zeros};
use super::kv_cache::{KvCache, stored};
use super::{Cuda, int};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;
use crate::{AttentionParams, HeadLayout, KvDtype, Softmax, StepTables};
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
}

impl<D: Device> AttentionWork<D> {
    pub(super) fn new(device: &Arc<D>) -> Result<AttentionWork<D>, DeviceError> {
        Ok(AttentionWork {
            states: zeros(device, "states of splits", 1)?,
            tickets: zeros(device, "tickets of rows", 1)?,
            ranges: zeros(device, "softmax references", 3 * RANGES)?,
            recomputed: zeros(device, "the count of recomputed rows", 1)?,
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

/// Attention of every row; how many (row, head) pairs were computed again.
pub(super) fn attention<D: Device>(
    cuda: &Cuda<D>,
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &Buffer<D>,
    cache: &KvCache<D>,
    out: &mut Buffer<D>,
) -> Result<u64, DeviceError> {
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let (rows, device) = (step.num_rows(), &cuda.device);
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(out.cols(), params.heads.q_width(), "one output element per query element");
    assert!(head_dim <= MAX_HEAD_DIM, "heads of {head_dim} elements");
    let mut work = cuda.work();
    let tables = work.tables.of(device, step)?;
    let work = &mut work.attention;

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
        KvDtype::BF16 => (Kernel::AttentionPlainBf16, 2),
        KvDtype::F32 => (Kernel::AttentionPlainF32, 4),
        KvDtype::F16 | KvDtype::Q8_0 => (Kernel::AttentionPlainF16, 2),
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
