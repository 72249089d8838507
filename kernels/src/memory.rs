//! Memory that a backend owns: zeroed, aligned to a cache line, and refused with an error instead of an abort.
//!
//! Zeroed by the system, so that pages nobody has written cost nothing: a KV cache sized for the longest context
//! takes memory only as sequences grow, unless it is populated.

use crate::Error;
use memmap2::{MmapMut, MmapRaw};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
    /// `None` where there are no elements.
    place: Option<Place>,
    len: usize,
    elements: PhantomData<T>,
}

/// Bytes of anonymous memory that are one owner's.
struct Place {
    map: Arc<MmapRaw>,
    /// Where they begin.
    at: usize,
    len: usize,
    /// Whether other places lie in the same memory.
    is_shared: bool,
}

impl<T: Plain> AlignedVec<T> {
    /// `len` zeroes; `what` names the purpose should memory be short.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Self, Error> {
        Self::in_place(len, what, |bytes| {
            let map = Arc::new(MmapMut::map_anon(bytes).ok()?.into());
            Some(Place { map, at: 0, len: bytes, is_shared: false })
        })
    }

    /// The same in huge pages, where the system has them: what is read from one end to the other then waits for fewer page tables,
    /// and the hardware that reads ahead does not stop at every small page. Huge pages come whole, so memory of which only parts
    /// are ever used is better off without; what is smaller than one shares it with its neighbours.
    pub(crate) fn in_huge_pages(len: usize, what: &'static str) -> Result<Self, Error> {
        Self::in_place(len, what, |bytes| {
            static CHUNK: Mutex<Chunk> = Mutex::new(Chunk::NONE);
            CHUNK.lock().unwrap_or_else(PoisonError::into_inner).place(bytes)
        })
    }

    fn in_place(len: usize, what: &'static str, find: impl FnOnce(usize) -> Option<Place>) -> Result<Self, Error> {
        let out_of_memory = || Error::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let place = match bytes.ok_or_else(out_of_memory)? {
            0 => None,
            bytes => Some(find(bytes).ok_or_else(out_of_memory)?),
        };
        Ok(Self { place, len, elements: PhantomData })
    }
}

/// x86's and, with pages of 4 KiB, ARM's.
const HUGE_PAGE: usize = 2 << 20;
/// The largest page that systems have where we run: nothing of two owners lies in the same one.
const PAGE: usize = 64 << 10;
/// Of the last huge page of a chunk a half stays unused, on average.
const CHUNK_BYTES: usize = 128 << 20;

/// Memory that is given out from its beginning to its end, and lives as long as a place in it.
struct Chunk {
    map: Weak<MmapRaw>,
    /// Where the next place begins.
    next: usize,
}

impl Chunk {
    const NONE: Chunk = Chunk { map: Weak::new(), next: 0 };

    /// `None` where the system has no such memory.
    fn place(&mut self, bytes: usize) -> Option<Place> {
        let size = bytes.checked_next_multiple_of(PAGE)?;
        let begun = self.map.upgrade().filter(|map| map.len() - self.next >= size);
        let map = match begun {
            Some(map) => map,
            None => {
                // From a huge page's beginning to another's end, wherever the system puts it.
                let rounded = size.checked_add(2 * HUGE_PAGE)? / HUGE_PAGE * HUGE_PAGE;
                let map =
                    [rounded.max(CHUNK_BYTES), rounded].into_iter().find_map(|len| MmapMut::map_anon(len).ok())?;
                let map = Arc::new(MmapRaw::from(map));
                #[cfg(target_os = "linux")]
                // A wish, before anything is written: a system without them says so, and nothing is lost.
                let _ = map.advise(memmap2::Advice::HugePage);
                *self = Chunk {
                    map: Arc::downgrade(&map),
                    next: map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr(),
                };
                map
            }
        };
        let at = self.next;
        self.next += size;
        Some(Place { map, at, len: bytes, is_shared: true })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.is_shared {
            // The pages go back now, and not when the last neighbour ends. A wish as well.
            // SAFETY: the whole pages from `at` on are this place's (`Chunk::place`), which nobody reads any more.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.at, self.len) };
        }
    }
}

impl<T: Plain> AlignedVec<T> {
    /// Has the system provide all of the memory now, in huge pages where it has them, so that no later write waits for a page.
    /// Contents stay as they are. The work is shared out by `run`, which calls what it is given for every index below a
    /// number.
    pub(crate) fn populate(&self, run: &impl Fn(usize, &(dyn Fn(usize) + Sync))) {
        #[cfg(target_os = "linux")]
        if let Some(Place { map, at, len, .. }) = &self.place {
            let _ = map.advise_range(memmap2::Advice::HugePage, *at, *len);
            run(len.div_ceil(POPULATED_AT_ONCE), &|index| {
                let begin = index * POPULATED_AT_ONCE;
                // A wish as well: before Linux 5.14 pages come as they are written.
                let _ =
                    map.advise_range(memmap2::Advice::PopulateWrite, at + begin, POPULATED_AT_ONCE.min(len - begin));
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
        let Some(Place { map, at, .. }) = &self.place else { return &[] };
        // SAFETY: the place has room for `len` elements (`in_place`), begins on a page, is nobody else's, and its bytes are zeroes
        // or were written as T; both are values of a plain T.
        unsafe { std::slice::from_raw_parts(map.as_ptr().add(*at).cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(Place { map, at, .. }) = &self.place else { return &mut [] };
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().add(*at).cast(), self.len) }
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
    fn small_places_share_huge_pages_and_nothing_else() {
        let mut chunk = Chunk::NONE;
        let mut zeroed = |len| AlignedVec::<u8>::in_place(len, "a test", |bytes| chunk.place(bytes)).unwrap();
        let mut places: Vec<_> = [1, PAGE - 1, PAGE + 1, 3 * PAGE].map(&mut zeroed).into_iter().collect();
        let starts: Vec<usize> = places.iter().map(|place| place.as_ptr().addr()).collect();
        assert_eq!(starts[0] % HUGE_PAGE, 0);
        assert_eq!(starts.iter().map(|start| (start - starts[0]) / PAGE).collect::<Vec<_>>(), [0, 1, 2, 4]);
        for (number, place) in (1..).zip(&mut places) {
            assert!(place.iter().all(|&byte| byte == 0));
            place.fill(number);
        }
        assert!((1..).zip(&places).all(|(number, place)| place.iter().all(|&byte| byte == number)));
        // What does not fit begins another chunk, and a chunk of its own where it is larger than one.
        let (large, larger) = (zeroed(CHUNK_BYTES - 4 * PAGE), zeroed(CHUNK_BYTES + PAGE));
        assert!([&large, &larger].iter().all(|place| place.as_ptr().addr() % HUGE_PAGE == 0));
        assert!(zeroed(0).is_empty());
        assert!(AlignedVec::<u8>::in_place(usize::MAX / 2, "a test", |bytes| chunk.place(bytes)).is_err());
    }

    #[test]
    fn a_place_goes_back_before_its_neighbours_and_is_not_given_out_again() {
        let mut chunk = Chunk::NONE;
        let mut zeroed = |len| AlignedVec::<u8>::in_place(len, "a test", |bytes| chunk.place(bytes)).unwrap();
        let (mut first, mut second) = (zeroed(2 * PAGE), zeroed(PAGE));
        first.fill(1);
        second.fill(2);
        let map = Arc::clone(&first.place.as_ref().unwrap().map);
        let start = first.as_ptr();
        drop(first);
        assert!(second.iter().all(|&byte| byte == 2));
        assert!(zeroed(PAGE).as_ptr().addr() > second.as_ptr().addr());
        if cfg!(target_os = "linux") {
            // SAFETY: the mapping lives in `map`, and nobody writes to what was `first`.
            assert!(unsafe { std::slice::from_raw_parts(start, 2 * PAGE) }.iter().all(|&byte| byte == 0));
        }
        drop(second);
        let whole = Arc::downgrade(&map);
        drop(map);
        assert!(whole.upgrade().is_none(), "memory outlived its places");
    }

    #[test]
    fn more_memory_than_there_is_gives_an_error_that_says_so() {
        for len in [usize::MAX, isize::MAX as usize / 4, 1 << 60] {
            let error = AlignedVec::<f32>::zeroed(len, "the KV cache").unwrap_err().to_string();
            assert!(error.contains("the KV cache"), "{error}");
        }
    }
}
