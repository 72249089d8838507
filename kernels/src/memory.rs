//! Memory that a backend owns: zeroed, aligned to a cache line, and refused with an error instead of an abort.
//!
//! Zeroed by the allocator, so that pages nobody has written cost nothing: a KV cache sized for the longest context
//! takes memory only as sequences grow.

use crate::Error;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every allocation: one cache line, one AVX-512 vector.
pub(crate) const ALIGNMENT: usize = 64;

/// Types for which all-zero bytes are a value and which need no drop.
pub(crate) trait Plain: Copy + Default + Send + Sync + 'static {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for f32 {}

/// A fixed number of `T`, 64-byte aligned, zero at first.
pub(crate) struct AlignedVec<T: Plain> {
    /// What the allocator gave; the elements begin at its first cache line.
    allocation: NonNull<u8>,
    pointer: NonNull<T>,
    len: usize,
}

impl<T: Plain> AlignedVec<T> {
    /// `len` zeroes; `what` names the purpose should memory be short.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Self, Error> {
        if len == 0 {
            return Ok(Self { allocation: NonNull::dangling(), pointer: NonNull::dangling(), len: 0 });
        }
        let out_of_memory = || Error::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) };
        let layout = Self::layout(len).ok_or_else(out_of_memory)?;
        // SAFETY: the layout has a non-zero size: it holds a cache line more than the elements.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        let to_cache_line = allocation.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: `to_cache_line` is less than ALIGNMENT, which the layout has to spare beyond the elements.
        let pointer = unsafe { allocation.add(to_cache_line) }.cast::<T>();
        Ok(Self { allocation, pointer, len })
    }

    /// The elements and a cache line to align them in. The allocator itself is not asked for the alignment: beyond its own
    /// (16 bytes) Rust's system allocator zeroes by writing, and every page of an empty KV cache would be touched.
    fn layout(len: usize) -> Option<Layout> {
        let bytes = Layout::array::<T>(len).ok()?.size().checked_add(ALIGNMENT)?;
        Layout::from_size_align(bytes, align_of::<T>()).ok()
    }
}

impl<T: Plain> Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `pointer` is valid for `len` initialised (zeroed, then only written as T) elements, or dangling and `len` 0.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for AlignedVec<T> {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated in `zeroed` with this very layout; nobody can use it after drop.
            unsafe { dealloc(self.allocation.as_ptr(), layout) };
        }
    }
}

// SAFETY: the memory is owned by this value alone, and T is Send.
unsafe impl<T: Plain> Send for AlignedVec<T> {}
// SAFETY: `&AlignedVec` only gives `&[T]`, and T is Sync.
unsafe impl<T: Plain> Sync for AlignedVec<T> {}

impl<T: Plain> std::fmt::Debug for AlignedVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedVec({} elements)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_starts_on_a_cache_line() {
        let mut memory = AlignedVec::<f32>::zeroed(1000, "a test").unwrap();
        assert!(memory.iter().all(|&x| x == 0.0));
        assert_eq!(memory.as_ptr().addr() % ALIGNMENT, 0);
        memory[999] = 1.0;
        assert_eq!(memory[999], 1.0);
        assert!(AlignedVec::<u16>::zeroed(0, "nothing").unwrap().is_empty());
    }

    #[test]
    fn more_memory_than_there_is_gives_an_error_that_says_so() {
        for len in [usize::MAX, isize::MAX as usize / 4, 1 << 60] {
            let error = AlignedVec::<f32>::zeroed(len, "the KV cache").unwrap_err().to_string();
            assert!(error.contains("the KV cache"), "{error}");
        }
    }
}
