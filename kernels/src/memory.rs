//! Memory that a backend owns: zeroed, aligned to a cache line, and refused with an error instead of an abort.
//!
//! Zeroed by the system, so that pages nobody has written cost nothing: a KV cache sized for the longest context
//! takes memory only as sequences grow, unless it is populated.

use crate::Error;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Types for which all-zero bytes are a value and which need no drop.
pub(crate) trait Plain: Copy + Default + Send + Sync + 'static {
    /// Appends the values as little-endian bytes.
    fn append_bytes(values: &[Self], out: &mut Vec<u8>);
    /// Takes the values from as many little-endian bytes.
    fn from_bytes(bytes: &[u8], values: &mut [Self]);
}

macro_rules! plain {
    ($($number:ty),*) => {
        $(impl Plain for $number {
            fn append_bytes(values: &[Self], out: &mut Vec<u8>) {
                let start = out.len();
                out.resize(start + size_of_val(values), 0);
                let (bytes, _) = out[start..].as_chunks_mut::<{ size_of::<$number>() }>();
                bytes.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            }
            fn from_bytes(bytes: &[u8], values: &mut [Self]) {
                assert_eq!(bytes.len(), size_of_val(values), "every value has its bytes");
                let (bytes, _) = bytes.as_chunks::<{ size_of::<$number>() }>();
                values.iter_mut().zip(bytes).for_each(|(value, bytes)| *value = <$number>::from_le_bytes(*bytes));
            }
        })*
    };
}
plain!(u8, u16, f32);

/// A fixed number of `T`, aligned to a page (so to a cache line and to every vector), zero at first.
pub(crate) struct AlignedVec<T: Plain> {
    /// Anonymous memory of at least `len` elements; `None` where there are none.
    map: Option<MmapMut>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Plain> AlignedVec<T> {
    /// `len` zeroes; `what` names the purpose should memory be short.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Self, Error> {
        let out_of_memory = || Error::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let map = match bytes.ok_or_else(out_of_memory)? {
            0 => None,
            bytes => Some(MmapMut::map_anon(bytes).map_err(|_| out_of_memory())?),
        };
        Ok(Self { map, len, elements: PhantomData })
    }

    /// Asks for huge pages, before the memory is first written: what is read from one end to the other then waits for fewer
    /// page tables. They come whole, so memory of which only parts are ever used is better off without.
    pub(crate) fn in_huge_pages(self) -> Self {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            // A wish: a system without them says so, and nothing is lost.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        self
    }
}

impl<T: Plain> AlignedVec<T> {
    /// Has the system provide all of the memory now, in huge pages where it has them, so that no later write waits for a page.
    /// Contents stay as they are. The work is shared out by `run`, which calls what it is given for every index below a
    /// number.
    pub(crate) fn populate(&self, run: &impl Fn(usize, &(dyn Fn(usize) + Sync))) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            let _ = map.advise(memmap2::Advice::HugePage);
            run(map.len().div_ceil(POPULATED_AT_ONCE), &|index| {
                let begin = index * POPULATED_AT_ONCE;
                // A wish as well: before Linux 5.14 pages come as they are written.
                let _ =
                    map.advise_range(memmap2::Advice::PopulateWrite, begin, POPULATED_AT_ONCE.min(map.len() - begin));
            });
        }
        #[cfg(not(target_os = "linux"))]
        let _ = run;
    }
}

/// Bytes that one thread asks for at a time; whole huge pages.
#[cfg(target_os = "linux")]
const POPULATED_AT_ONCE: usize = 16 << 20;

impl<T: Plain> Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: the mapping has room for `len` elements (`zeroed`), begins on a page, and its bytes are zeroes or were
        // written as T; both are values of a plain T.
        unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(map) = &mut self.map else { return &mut [] };
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::fmt::Debug for AlignedVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedVec({} elements)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One cache line, one AVX-512 vector.
    const ALIGNMENT: usize = 64;

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
    fn populating_changes_no_contents() {
        let mut memory = AlignedVec::<f32>::zeroed(10 << 20, "a test").unwrap();
        memory[5 << 20] = 1.0;
        memory.populate(&|num: usize, part: &(dyn Fn(usize) + Sync)| (0..num).for_each(part));
        assert_eq!(memory.iter().sum::<f32>(), 1.0);
        AlignedVec::<f32>::zeroed(0, "nothing")
            .unwrap()
            .populate(&|num: usize, part: &(dyn Fn(usize) + Sync)| (0..num).for_each(part));
    }

    #[test]
    fn more_memory_than_there_is_gives_an_error_that_says_so() {
        for len in [usize::MAX, isize::MAX as usize / 4, 1 << 60] {
            let error = AlignedVec::<f32>::zeroed(len, "the KV cache").unwrap_err().to_string();
            assert!(error.contains("the KV cache"), "{error}");
        }
    }
}
