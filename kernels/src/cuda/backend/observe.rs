//! Statistics of attention's scores by `observe_scores_T` (`kernels/cuda/observe.cu`): for calibration, once per model.

use super::buffer::{Buffer, alone};
use super::kv_cache::{KvCache, stored};
use super::{Cuda, int};
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::scores::Histogram;
use crate::{AttentionParams, HeadLayout, ScoreStatistics, StepTables};

/// Adds the scores of all rows of a step to the statistics of their KV heads.
pub(super) fn observe_scores<D: Device>(
    cuda: &Cuda<D>,
    step: &StepTables,
    params: AttentionParams<'_>,
    qkv: &Buffer<D>,
    cache: &KvCache<D>,
    statistics: &mut [ScoreStatistics],
) -> Result<(), DeviceError> {
    let HeadLayout { num_heads, num_kv_heads, head_dim } = params.heads;
    let rows = step.num_rows();
    assert_eq!(qkv.cols(), params.heads.qkv_width(), "qkv holds the heads it is said to");
    assert_eq!(statistics.len(), num_kv_heads, "statistics for each KV head");
    let tables = cuda.work().tables.of(&cuda.heap, step)?;
    let counts = alone(&cuda.device, "counts of scores", 2 * num_kv_heads * Histogram::FLOORS)?;
    let arguments = [
        qkv.rows(rows),
        cache.layer(params.layer),
        tables.positions,
        tables.table_starts,
        tables.block_tables,
        Argument::Pointer(counts.address()),
        int(num_heads),
        int(num_kv_heads),
        int(head_dim),
        Argument::F32(params.scale * std::f32::consts::LOG2_E),
    ];
    let kernels =
        [Kernel::ObserveScoresF16, Kernel::ObserveScoresBf16, Kernel::ObserveScoresF32, Kernel::ObserveScoresF8];
    let kernel = stored(cache.layout.dtype).kernel(kernels);
    let bytes = rows * params.heads.q_width() * size_of::<f32>();
    // SAFETY: the caller has checked the step, so positions and block tables lie in the cache, which has heads that the kernels
    // know; qkv has `rows` rows of these heads, counts two histograms for each KV head.
    unsafe { cuda.launch(kernel, [rows, num_heads, 1], 128, &arguments, bytes) };
    let mut counted = vec![0_u32; counts.len()];
    counts.read(0, &mut counted)?;
    for (statistics, counted) in statistics.iter_mut().zip(counted.chunks_exact(2 * Histogram::FLOORS)) {
        let (all, largest) = counted.split_at(Histogram::FLOORS);
        statistics.all.add_counts(all);
        statistics.largest.add_counts(largest);
    }
    Ok(())
}
