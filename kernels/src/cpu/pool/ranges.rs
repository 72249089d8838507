//! A loop over ranges of items: each thread goes through a part of its own, and then helps others.

use super::Pool;
use super::shared::THREAD;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl Pool {
    /// Calls `f` with ranges that together are `0..num_items`, each of at most `piece` items where threads share. Every
    /// thread goes through a contiguous part of its own, piece after piece from the front, so that what it asks of memory
    /// ahead of time is what it will use; a thread without one takes pieces from the back of others. Otherwise as [`Pool::run`].
    ///
    /// # Panics
    /// When `f` panics, when `piece` is zero and threads share, and when there are 2^32 items or more.
    pub fn run_ranges<F: Fn(Range<usize>) + Sync>(&self, num_items: usize, piece: usize, f: F) {
        let piece = u32::try_from(piece.min(num_items)).expect("fewer than 2^32 items");
        let _ = u32::try_from(num_items).expect("fewer than 2^32 items");
        let parts = self.threads().min(num_items.div_ceil(piece.max(1) as usize));
        let Some(held) = (parts > 1).then(|| self.hold()).flatten() else {
            if num_items > 0 {
                f(0..num_items);
            }
            return;
        };
        assert!(piece > 0, "a piece has items");
        let ranges = &self.ranges[..parts];
        for (part, range) in ranges.iter().enumerate() {
            range.0.set(part * num_items / parts, (part + 1) * num_items / parts);
        }
        // The first chunks are the parts, which nobody shares as long as one is unclaimed; the others help where help is due.
        held.run(2 * parts - 1, |chunk| {
            if chunk < parts {
                let mine = THREAD.get();
                let part = (mine..mine + parts).map(|part| part % parts).find(|&part| ranges[part].0.claim());
                let part = &ranges[part.expect("as many parts as claims")].0;
                while let Some(range) = part.take_front(piece) {
                    f(range);
                }
            } else {
                for range in ranges {
                    while let Some(range) = range.0.take_back(piece) {
                        f(range);
                    }
                }
            }
        });
    }
}

/// What is left of a range of items: `first | end`, 32 bits each, and whether a thread has made the range its own. The
/// items are claims and guard no data, so no order of memory hangs on them; the loop that they belong to begins and ends
/// with its own.
#[derive(Default)]
pub(super) struct Rest(AtomicU64, AtomicBool);

impl Rest {
    fn set(&self, first: usize, end: usize) {
        self.0.store((first as u64) << 32 | end as u64, Ordering::Relaxed);
        self.1.store(false, Ordering::Relaxed);
    }

    /// Whether the range was nobody's before.
    fn claim(&self) -> bool {
        !self.1.swap(true, Ordering::Relaxed)
    }

    fn take_front(&self, piece: u32) -> Option<Range<usize>> {
        self.take(|first, end| (first..end.min(first.saturating_add(piece)), true))
    }

    fn take_back(&self, piece: u32) -> Option<Range<usize>> {
        self.take(|first, end| (first.max(end.saturating_sub(piece))..end, false))
    }

    /// Claims what `choose` takes of (first, end): from the front, or from the back.
    fn take(&self, choose: impl Fn(u32, u32) -> (Range<u32>, bool)) -> Option<Range<usize>> {
        let mut taken = 0..0;
        let rest = |word: u64| {
            let (first, end) = ((word >> 32) as u32, word as u32);
            let (range, front) = choose(first, end);
            let (first, end) = if front { (range.end, end) } else { (first, range.start) };
            taken = range;
            (!taken.is_empty()).then_some(u64::from(first) << 32 | u64::from(end))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()?;
        Some(taken.start as usize..taken.end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, AtomicUsize};
    use std::thread;

    #[test]
    fn every_item_of_a_range_runs_exactly_once_in_pieces_of_at_most_the_size_asked_for() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for (num_items, piece) in [(0, 1), (1, 1), (5, 1), (5, 2), (64, 7), (1000, 3), (6, 100)] {
                for _ in 0..100 {
                    let calls: Vec<AtomicU32> = (0..num_items).map(|_| AtomicU32::new(0)).collect();
                    pool.run_ranges(num_items, piece, |range| {
                        assert!(threads == 1 || range.len() <= piece);
                        range.for_each(|item| _ = calls[item].fetch_add(1, Ordering::Relaxed));
                    });
                    assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_thread_that_is_done_takes_over_what_a_slow_one_has_left() {
        let pool = Pool::new(2);
        let slow = AtomicU32::new(0);
        pool.run_ranges(100, 1, |range| {
            // Item 0 opens the first part; it ends only when all others are done.
            if range.start == 0 {
                while slow.load(Ordering::Relaxed) < 99 {
                    std::hint::spin_loop();
                }
            } else {
                slow.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(slow.into_inner(), 99);
    }

    #[test]
    fn a_thread_begins_with_the_part_that_it_was_to_read_ahead() {
        let pool = Pool::new(4);
        for _ in 0..200 {
            // A part's first piece waits for all of them, so that no thread has two.
            let begun = AtomicUsize::new(0);
            pool.run_ranges(8, 1, |range| {
                if range.start % 2 == 0 {
                    assert_eq!(THREAD.get(), range.start / 2, "every thread has its own part");
                    begun.fetch_add(1, Ordering::Relaxed);
                    while begun.load(Ordering::Relaxed) < 4 {
                        std::hint::spin_loop();
                    }
                }
            });
        }
    }

    #[test]
    fn a_panic_in_a_range_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for round in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run_ranges(50, 2, |range| assert!(!range.contains(&round), "item {round} fails"));
            }));
            let message = *result.expect_err("one range panics").downcast::<String>().expect("a formatted message");
            assert_eq!(message, format!("item {round} fails"));
            let sum = AtomicUsize::new(0);
            pool.run_ranges(10, 1, |range| _ = sum.fetch_add(range.sum(), Ordering::Relaxed));
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn nested_and_concurrent_loops_over_ranges_finish() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        let add = |range: Range<usize>| _ = count.fetch_add(range.len(), Ordering::Relaxed);
        let inner = |range: Range<usize>| range.for_each(|_| pool.run_ranges(3, 1, add));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| pool.run_ranges(5, 1, inner)));
            }
        });
        assert_eq!(count.into_inner(), 4 * 100 * 5 * 3);
    }
}
