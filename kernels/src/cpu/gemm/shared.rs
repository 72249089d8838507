//! One buffer, written by many threads at once, each its own places.

use std::marker::PhantomData;

/// A mutable slice that chunks of a loop divide among themselves.
#[derive(Clone, Copy)]
pub(super) struct SharedMut<'a, T> {
    pointer: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: only `slice` and `at` give access, and their callers see to it that places handed out at the same time do not
// overlap; T may then be moved to and used by another thread as with `&mut [T]`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares a slice for as long as it is borrowed.
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// `len` elements from `start`.
    ///
    /// # Safety
    /// No other place that overlaps them is in use.
    #[allow(clippy::mut_from_ref)] // that is the purpose; the caller divides the slice
    pub(super) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "{start} + {len} in a buffer of {}", self.len);
        // SAFETY: inside the slice, which is borrowed for 'a; that nobody else uses the place is the caller's obligation.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), len) }
    }

    /// A pointer to element `start`, for strided writes below `len`.
    pub(super) fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.len, "{start} in a buffer of {}", self.len);
        self.pointer.wrapping_add(start)
    }
}
