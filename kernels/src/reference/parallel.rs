//! Threads for the reference: one output is computed by one thread in one fixed way, so their number changes nothing.

use std::num::NonZero;
use std::thread;

/// Below this many multiply-adds a thread costs more than it saves.
const WORTH_A_THREAD: usize = 1 << 20;

/// Calls `compute(index, chunk)` for every chunk of `chunk_len` elements of `out`. `work` is the multiply-adds of the
/// whole, and decides whether threads are used.
pub(super) fn for_each_chunk<T: Send>(
    out: &mut [T],
    chunk_len: usize,
    work: usize,
    compute: impl Fn(usize, &mut [T]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let num_chunks = out.len() / chunk_len;
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let num_threads = cores.min(work / WORTH_A_THREAD).min(num_chunks).max(1);
    if num_threads == 1 {
        out.chunks_exact_mut(chunk_len).enumerate().for_each(|(index, chunk)| compute(index, chunk));
        return;
    }
    let per_thread = num_chunks.div_ceil(num_threads);
    thread::scope(|scope| {
        for (part, share) in out.chunks_mut(per_thread * chunk_len).enumerate() {
            let compute = &compute;
            scope.spawn(move || {
                for (index, chunk) in share.chunks_exact_mut(chunk_len).enumerate() {
                    compute(part * per_thread + index, chunk);
                }
            });
        }
    });
}
