//! Threads that share one loop: [`Pool::run`] calls a closure once for every chunk index, on the workers and on the caller,
//! and returns when all calls have ended. `shared.rs` has how threads agree on who does what.

mod errand;
mod long_slices;
mod ranges;
mod read_ahead;
mod seat;
mod shared;

use ranges::Rest;
use shared::{COUNT_MASK, Padded, Shared};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A fixed set of worker threads. Dropping it joins them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// For each thread what is left of its range in [`Pool::run_ranges`]; used by the holder of `busy` only.
    ranges: Vec<Padded<Rest>>,
    busy: AtomicBool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] included; at least one. When the system refuses a thread the
    /// pool goes on with those it has.
    pub fn new(threads: usize) -> Pool {
        let num_workers = threads.max(1) - 1;
        let shared = Arc::new(Shared::new(num_workers));
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("taper-{index}")).spawn(move || shared.work(index)).ok()
        };
        let workers: Vec<_> = (0..num_workers).map_while(spawn).collect();
        let ranges = (0..=workers.len()).map(|_| Padded(Rest::default())).collect();
        Pool { shared, workers, ranges, busy: AtomicBool::new(false) }
    }

    /// Threads that work in [`Pool::run`], the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(i)` once for every `i < num_chunks`, in any order and on any thread, and returns when all calls have ended.
    /// A panic in `f` is carried to the caller (chunks not yet begun are then left out); the pool stays usable. A call from
    /// inside `f`, or while another thread runs a loop, does its chunks on its own thread.
    ///
    /// # Panics
    /// When `f` panics, and when there are 2^24 chunks or more.
    pub fn run<F: Fn(usize) + Sync>(&self, num_chunks: usize, f: F) {
        assert!(num_chunks as u64 <= COUNT_MASK, "a loop of {num_chunks} chunks is over the limit of 2^24 - 1");
        let alone = num_chunks <= 1 || self.workers.is_empty();
        match (!alone).then(|| self.hold()).flatten() {
            Some(held) => held.run(num_chunks, f),
            None => (0..num_chunks).for_each(f),
        }
    }

    /// The right to run a loop on all threads; none while another one runs.
    fn hold(&self) -> Option<Held<'_>> {
        let free = self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then(|| Held { pool: self })
    }
}

/// The right to run one loop on all threads of a pool.
struct Held<'a> {
    pool: &'a Pool,
}

impl Held<'_> {
    fn run<F: Fn(usize) + Sync>(self, num_chunks: usize, f: F) {
        long_slices::ask();
        let shared = &self.pool.shared;
        shared.run(num_chunks, &f, &self.pool.workers);
        let panic = shared.take_panic();
        drop(self);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.busy.store(false, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shut_down();
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what chunks throw, so an error here has no one to tell.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, AtomicUsize};
    use std::time::{Duration, Instant};

    fn every_chunk_once(threads: usize, num_chunks: usize) {
        let pool = Pool::new(threads);
        for _ in 0..200 {
            let calls: Vec<AtomicU32> = (0..num_chunks).map(|_| AtomicU32::new(0)).collect();
            pool.run(num_chunks, |chunk| {
                calls[chunk].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn every_chunk_runs_exactly_once() {
        for threads in [0, 1, 2, 3, 7] {
            for num_chunks in [0, 1, 2, 5, 64] {
                every_chunk_once(threads, num_chunks);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for round in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(16, |chunk| assert!(chunk != round % 16, "chunk {chunk} fails"));
            }));
            let message = *result.expect_err("one chunk panics").downcast::<String>().expect("a formatted message");
            assert_eq!(message, format!("chunk {} fails", round % 16));
            let sum = AtomicUsize::new(0);
            pool.run(10, |chunk| {
                sum.fetch_add(chunk, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn panics_whose_payloads_panic_when_dropped_reach_the_caller_once() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("a payload is dropped");
            }
        }
        let pool = Pool::new(3);
        for _ in 0..20 {
            // Three chunks that wait for each other all panic.
            let all = std::sync::Barrier::new(3);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(3, |_| {
                    all.wait();
                    std::panic::panic_any(Payload);
                });
            }));
            let payload = result.expect_err("three chunks panic");
            assert!(payload.is::<Payload>());
            std::mem::forget(payload);
        }
    }

    #[test]
    fn nested_and_concurrent_loops_finish() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        let add = |_| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| pool.run(5, |_| pool.run(3, add))));
            }
        });
        assert_eq!(count.into_inner(), 4 * 100 * 5 * 3);
    }

    #[test]
    fn a_worker_of_a_large_pool_runs_and_waits_for_a_loop_of_a_small_one() {
        let (large, small) = (Pool::new(4), Pool::new(2));
        let (small, done, begun) = (&small, AtomicUsize::new(0), AtomicUsize::new(0));
        // Four chunks that wait for each other: every thread of the large pool has one, and some wait in the small one.
        large.run(4, |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 4 {
                std::hint::spin_loop();
            }
            for _ in 0..100 {
                let local = [7_usize; 8];
                small.run(2, |chunk| {
                    let until = Instant::now() + Duration::from_micros(300);
                    while Instant::now() < until {}
                    assert_eq!(local[chunk], 7);
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(done.into_inner(), 4 * 100 * 2);
    }

    #[test]
    fn dropping_the_pool_joins_its_workers() {
        let pool = Pool::new(4);
        let shared = Arc::clone(&pool.shared);
        pool.run(8, |_| {});
        drop(pool);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
