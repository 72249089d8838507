//! How much memory a network takes, all of it: taken at once when it is loaded, so that no step has to ask for any.

use super::attention::{most_shared, state_floats};
use super::buffer::Heap;
use super::kv_cache::{block_bytes, stored};
use super::tables::DeviceTables;
use super::weights::Matrix;
use super::{Cuda, INTEGERS};
use crate::cuda::device::Device;
use crate::cuda::error::DeviceError;
use crate::cuda::memory::Arena;
use crate::{BLOCK_SIZE, Demand};

/// For the constants of a network (frequencies, softmax references), which are met in its first step.
const CONSTANT_BYTES: usize = 1 << 20;
/// Block ids of a step, at most; more are rare, and memory for them is taken when they come.
const MOST_BLOCKS: usize = 1 << 18;

/// Takes it, and makes what no caller owns.
pub(super) fn reserve<D: Device>(cuda: &Cuda<D>, demand: &Demand<'_>) -> Result<(), DeviceError> {
    let &Demand { matrices, vectors, buffers, cache, heads, max_rows, max_logit_rows, context_len } = demand;
    let floats = |len: usize| Arena::<D>::bytes_of::<f32>(len);
    let sum = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0_usize, usize::saturating_add);
    let blocks = max_rows.saturating_mul(context_len.div_ceil(BLOCK_SIZE)).min(MOST_BLOCKS);
    let (states, tickets) = most_shared(cuda.device.properties(), heads, stored(cache.dtype), max_rows);
    let integers = INTEGERS.max(super::choose::words_of(max_logit_rows));
    let of_work = [
        // Of which `grow` makes powers of two.
        floats(state_floats(states, heads.head_dim).next_power_of_two()),
        floats(tickets.next_power_of_two()),
        floats(DeviceTables::<D>::integers_of(max_rows, blocks)),
        floats(integers.next_power_of_two()),
        CONSTANT_BYTES,
    ];
    // Rows of x for the library of products.
    let most_cols = matrices.iter().flatten().map(|&(_, _, cols)| cols).max().unwrap_or(0);
    let of_library = max_rows.saturating_mul(most_cols);
    let of_cache = block_bytes(cache).saturating_mul(cache.num_blocks).saturating_mul(cache.num_layers);
    let parts = [
        sum(&mut matrices.iter().map(|parts| Matrix::<D>::bytes_of(parts))),
        sum(&mut vectors.iter().map(|&len| floats(len))),
        sum(&mut buffers.iter().map(|&(rows, cols)| floats(rows.saturating_mul(cols)))),
        Arena::<D>::bytes_of::<u8>(of_cache),
        // Its counts.
        floats(cache.num_layers),
        sum(&mut of_work.into_iter()),
        if cuda.has_library { cuda.work().library.missing(of_library) } else { 0 },
    ];
    cuda.heap.reserve(sum(&mut parts.into_iter()))?;
    let heap: &Heap<D> = &cuda.heap;
    let mut work = cuda.work();
    work.attention.reserve(heap, states, heads.head_dim, tickets)?;
    work.tables.reserve(heap, max_rows, blocks)?;
    if cuda.has_library {
        work.library.reserve(heap, of_library)?;
    }
    super::buffer::grow(&mut work.integers, heap, "integers of a step", integers)
}
