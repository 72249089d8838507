//! Memory that threads ask for while they wait.

use super::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A range of memory that a thread asks for while it has nothing to do, as addresses: what is next, and the end.
#[derive(Default)]
pub(super) struct ReadAhead {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Cache lines that are asked for between two looks for work.
const LINES_AT_ONCE: usize = 8;
const LINE: usize = 64;

impl ReadAhead {
    /// Asks for some lines; false when all were asked for. Only addresses are passed around, nothing is read, so it does
    /// not matter when the range changes on the way.
    pub(super) fn step(&self) -> bool {
        let (next, end) = (self.next.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        if next >= end {
            return false;
        }
        let after = next.saturating_add(LINES_AT_ONCE * LINE);
        (next..after).step_by(LINE).for_each(prefetch_to_second_cache);
        // Where another range was set meanwhile, it stays.
        let _ = self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed);
        true
    }
}

impl Pool {
    /// Gives threads memory to ask for while they wait for work, in place of what they had: `ranges(i, n)` are the addresses
    /// for thread i of n, one range after the other. Thread i begins [`Pool::run_ranges`] with part i of n.
    pub fn read_ahead(&self, ranges: impl Fn(usize, usize) -> [Range<usize>; 2]) {
        let threads = self.threads();
        for (thread, ahead) in self.shared.read_ahead.iter().take(threads).enumerate() {
            for (ahead, Range { start, end }) in ahead.0.iter().zip(ranges(thread, threads)) {
                // Nothing between the two stores, so that no mixture of two ranges is walked.
                ahead.end.store(0, Ordering::Relaxed);
                ahead.next.store(start, Ordering::Relaxed);
                ahead.end.store(end, Ordering::Relaxed);
            }
        }
    }
}

/// Asks for the cache line of an address.
fn prefetch_to_second_cache(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, and no address makes it fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above. (The intrinsic is not in stable Rust.)
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{address}]", address = in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_to_read_ahead_is_walked_once_and_may_change_at_any_time() {
        let ahead = ReadAhead::default();
        assert!(!ahead.step(), "nothing is asked for at first");
        ahead.end.store(3 * LINES_AT_ONCE * LINE, Ordering::Relaxed);
        assert_eq!((0..10).filter(|_| ahead.step()).count(), 3);
        // Addresses of nothing, on every thread, while loops run.
        let pool = Pool::new(3);
        for round in 0..100 {
            pool.read_ahead(|thread, threads| {
                assert_eq!(threads, 3);
                [0, 1].map(|half| {
                    let start = (2 * thread + half) << 40;
                    start..start + round * 1000
                })
            });
            pool.run(7, |_| {});
        }
    }
}
