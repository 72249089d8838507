//! Loops over rows, shared between threads when they are long enough to pay for it.

use super::pool::Pool;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements below which one thread is faster: a loop costs about a microsecond to start and join, in which one core moves
/// this much through its cache.
const WORTH_SHARING: usize = 32 * 1024;
/// Elements of one chunk of a shared loop.
const CHUNK_ELEMENTS: usize = 8 * 1024;

/// A mutable slice that several threads write in places that do not overlap.
pub(crate) struct Disjoint<'a, T> {
    pointer: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a shared `Disjoint` only gives out parts through `part`, whose caller promises that they do not overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// No other part that overlaps it is in use at the same time.
    #[allow(clippy::mut_from_ref)] // that is the purpose: the caller keeps the parts apart
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "the part lies in the slice");
        // SAFETY: in bounds by the assertion, and unique by the caller's promise; the borrow of the slice outlives self.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.end - range.start) }
    }
}

/// Calls `f(rows)` for ranges that together are `0..rows`; on several threads when `rows * cols` elements are many.
pub(crate) fn for_row_ranges(pool: &Pool, rows: usize, cols: usize, f: impl Fn(Range<usize>) + Sync) {
    if rows * cols < WORTH_SHARING || pool.threads() == 1 {
        if rows > 0 {
            f(0..rows);
        }
        return;
    }
    let rows_per_chunk = (CHUNK_ELEMENTS / cols).max(1);
    pool.run(rows.div_ceil(rows_per_chunk), |chunk| {
        let start = chunk * rows_per_chunk;
        f(start..rows.min(start + rows_per_chunk));
    });
}

/// As [`for_row_ranges`], and gives each call its rows of `data`, which is `[rows, cols]`.
pub(crate) fn for_rows_mut(pool: &Pool, data: &mut [f32], cols: usize, f: impl Fn(Range<usize>, &mut [f32]) + Sync) {
    let rows = data.len() / cols;
    let data = Disjoint::new(data);
    for_row_ranges(pool, rows, cols, |range| {
        // SAFETY: the ranges of `for_row_ranges` do not overlap.
        let part = unsafe { data.part(range.start * cols..range.end * cols) };
        f(range, part);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_given_out_once_with_its_own_memory() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for (rows, cols) in [(0, 4), (1, 7), (5, 20_000), (1000, 48), (3, 100_000)] {
                let mut data = vec![0.0; rows * cols];
                for_rows_mut(&pool, &mut data, cols, |range, part| {
                    for (row, part) in range.zip(part.chunks_exact_mut(cols)) {
                        part.iter_mut().for_each(|x| *x += 1.0 + row as f32);
                    }
                });
                assert!(data.chunks_exact(cols).enumerate().all(|(row, x)| x.iter().all(|&x| x == 1.0 + row as f32)));
            }
        }
    }
}
