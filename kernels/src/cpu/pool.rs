//! Threads that share one loop: [`Pool::run`] calls a closure once for every chunk index, on the workers and on the caller,
//! and returns when all calls have ended.
//!
//! One word holds `generation | next chunk | number of chunks`. Whoever wants a chunk raises `next` by compare-and-swap, so
//! a slow worker costs nothing: the others take its share, and the caller never waits for a thread that has claimed nothing.
//! Idle threads spin for a moment (a token is hundreds of loops, microseconds apart) and then park; nothing is pinned and
//! nothing yields, both of which collapse on a busy machine.
//!
//! Why a worker can never call the closure of a loop that is over: it reads the closure only after its swap succeeded, a
//! swap succeeds only on the present value of the word, that value had an unclaimed chunk, and the loop that owns the chunk
//! cannot end before the claimer counts it as done. The generation is in the word for the waiting, not for this argument:
//! should it wrap around while a worker sleeps between its load and its swap, the swap still claims a live chunk.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Turns of `spin_loop` before a thread parks: 10-40 us, longer than the serial gaps between the loops of a token and
/// shorter than anybody's time slice.
const SPINS: u32 = 1000;
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Puts hot words on cache lines of their own (two, because the prefetcher of x86 fetches pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// The closure of the running loop, without its type.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

/// Memory that a thread asks for while it has nothing to do, as addresses: what is next, and the end.
#[derive(Default)]
struct ReadAhead {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Cache lines that are asked for between two looks for work.
const LINES_AT_ONCE: usize = 8;
const LINE: usize = 64;

impl ReadAhead {
    /// Asks for some lines; false when all were asked for. Only addresses are passed around, nothing is read, so it does
    /// not matter when the range changes on the way.
    fn step(&self) -> bool {
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

struct Shared {
    /// generation (16 bits) | next chunk (24) | number of chunks (24)
    word: Padded<AtomicU64>,
    /// Chunks of the running loop that have not ended.
    pending: Padded<AtomicUsize>,
    /// Written by the caller between two loops, read by whoever holds a claim.
    job: UnsafeCell<Job>,
    caller_waits: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    panicked: AtomicBool,
    shutdown: AtomicBool,
    /// For each worker: parked, or about to park.
    parked: Vec<Padded<AtomicBool>>,
    /// For each thread, the caller first.
    read_ahead: Vec<Padded<ReadAhead>>,
}

// SAFETY: everything but `job` is Sync by itself. `job` is written only while no chunk is pending (by the holder of
// `Pool::busy`) and read only under a claim, that is while a chunk is pending; the word's release and acquire order the two.
// The pointer in it is to a `Sync` closure.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointers in `job` are only followed under a claim.
unsafe impl Send for Shared {}

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
        let shared = Arc::new(Shared {
            word: Padded(AtomicU64::new(0)),
            pending: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { data: std::ptr::null(), call: no_job }),
            caller_waits: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            parked: (0..num_workers).map(|_| Padded(AtomicBool::new(false))).collect(),
            read_ahead: (0..=num_workers).map(|_| Padded(ReadAhead::default())).collect(),
        });
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

    /// Gives threads memory to ask for while they wait for work, in place of what they had: `range(i, n)` are the addresses
    /// for thread i of n. Thread i begins [`Pool::run_ranges`] with part i of n.
    pub fn read_ahead(&self, range: impl Fn(usize, usize) -> Range<usize>) {
        let threads = self.threads();
        for (thread, ahead) in self.shared.read_ahead.iter().take(threads).enumerate() {
            let Range { start, end } = range(thread, threads);
            // Nothing between the two stores, so that no mixture of two ranges is walked.
            ahead.0.end.store(0, Ordering::Relaxed);
            ahead.0.next.store(start, Ordering::Relaxed);
            ahead.0.end.store(end, Ordering::Relaxed);
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
        let shared = &self.pool.shared;
        shared.run(num_chunks, &f, &self.pool.workers);
        let panic = if shared.panicked.swap(false, Ordering::Relaxed) { lock(&shared.panic).take() } else { None };
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

/// What is left of a range of items: `first | end`, 32 bits each, and whether a thread has made the range its own. The
/// items are claims and guard no data, so no order of memory hangs on them; the loop that they belong to begins and ends
/// with its own.
#[derive(Default)]
struct Rest(AtomicU64, AtomicBool);

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

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what chunks throw, so an error here has no one to tell.
            let _ = worker.join();
        }
    }
}

/// Ends the process when a panic drops it: a loop that is left while chunks are pending would leave workers with a closure
/// on a stack that is gone. Panics of chunks are caught, so it takes an error in this file.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    /// The caller's side of one loop; the caller holds `busy`, so there is one at a time.
    fn run<F: Fn(usize) + Sync>(&self, num_chunks: usize, f: &F, workers: &[JoinHandle<()>]) {
        // SAFETY: no chunk is pending (the previous loop returned only then), so nobody reads `job`.
        unsafe { *self.job.get() = Job { data: std::ptr::from_ref(f).cast(), call: call_closure::<F> } };
        self.pending.0.store(num_chunks, Ordering::Relaxed);
        let unfinished = AbortOnUnwind;
        let generation = (self.word.0.load(Ordering::Relaxed) >> (2 * COUNT_BITS)).wrapping_add(1);
        // The release side of this store publishes `job` and `pending` to every claimer: claims are read-modify-writes, so
        // each continues the release sequence that this store heads. SeqCst pairs it with the workers' `parked` flags.
        self.word.0.store(generation << (2 * COUNT_BITS) | num_chunks as u64, Ordering::SeqCst);
        for (parked, worker) in self.parked.iter().zip(workers).take(num_chunks - 1) {
            if parked.0.load(Ordering::SeqCst) && parked.0.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        while self.claim_and_run() {}
        self.wait_for_pending();
        std::mem::forget(unfinished);
    }

    fn wait_for_pending(&self) {
        for _ in 0..SPINS {
            if self.pending.0.load(Ordering::Acquire) == 0 {
                return;
            }
            self.idle();
        }
        *lock(&self.caller) = Some(thread::current());
        self.caller_waits.store(true, Ordering::SeqCst);
        // Either this load sees the last decrement, or the thread that made it sees `caller_waits`: both are SeqCst. The
        // handle stays in place until the loop is over, because a thread late from an earlier loop may also use it.
        while self.pending.0.load(Ordering::SeqCst) != 0 {
            thread::park();
        }
        self.caller_waits.store(false, Ordering::SeqCst);
    }

    /// Takes one chunk of whatever loop runs and calls it; false when none is left.
    fn claim_and_run(&self) -> bool {
        let mut word = self.word.0.load(Ordering::Relaxed);
        let index = loop {
            let next = (word >> COUNT_BITS) & COUNT_MASK;
            if next >= word & COUNT_MASK {
                return false;
            }
            let claimed = word + (1 << COUNT_BITS);
            match self.word.0.compare_exchange_weak(word, claimed, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break next as usize,
                Err(present) => word = present,
            }
        };
        if !self.panicked.load(Ordering::Relaxed) {
            // SAFETY: we hold an unfinished claim on the running loop, so its caller still waits: `job` is not written, and
            // the closure that it points to is alive.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe {
                let job = *self.job.get();
                (job.call)(job.data, index);
            }));
            if let Err(payload) = result {
                // Only the first has someone to tell. Another is leaked, because dropping it may panic once more.
                let mut first = lock(&self.panic);
                match *first {
                    None => *first = Some(payload),
                    Some(_) => std::mem::forget(payload),
                }
                drop(first);
                self.panicked.store(true, Ordering::Relaxed);
            }
        }
        // From here on the loop may be over: only fields of the pool are touched.
        if self.pending.0.fetch_sub(1, Ordering::SeqCst) == 1
            && self.caller_waits.load(Ordering::SeqCst)
            && let Some(caller) = lock(&self.caller).as_ref()
        {
            caller.unpark();
        }
        true
    }

    fn has_chunks(&self, order: Ordering) -> bool {
        let word = self.word.0.load(order);
        (word >> COUNT_BITS) & COUNT_MASK < word & COUNT_MASK
    }

    /// A moment of waiting.
    fn idle(&self) {
        // A worker of a larger pool that runs a loop here has an index of its own pool, and no place in this one.
        if !self.read_ahead.get(THREAD.get()).is_some_and(|ahead| ahead.0.step()) {
            std::hint::spin_loop();
        }
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        THREAD.set(index + 1);
        loop {
            while self.claim_and_run() {}
            let mut spins = 0;
            while !self.has_chunks(Ordering::Relaxed) && !self.shutdown.load(Ordering::Relaxed) && spins < SPINS {
                spins += 1;
                self.idle();
            }
            if self.shutdown.load(Ordering::SeqCst) {
                return;
            }
            if self.has_chunks(Ordering::Relaxed) {
                continue;
            }
            self.parked[index].0.store(true, Ordering::SeqCst);
            // Either this load sees the new loop, or its caller sees the flag and unparks: both are SeqCst.
            if !self.has_chunks(Ordering::SeqCst) && !self.shutdown.load(Ordering::SeqCst) {
                thread::park();
            }
            self.parked[index].0.store(false, Ordering::SeqCst);
        }
    }
}

thread_local! {
    /// Which thread of its pool this is: workers begin at 1, any other thread is 0. A worker that runs a loop of another
    /// pool keeps its own index, which may be beyond the threads of that pool.
    static THREAD: Cell<usize> = const { Cell::new(0) };
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

/// # Safety
/// `data` points to a live `F`.
unsafe fn call_closure<F: Fn(usize) + Sync>(data: *const (), index: usize) {
    // SAFETY: the caller's obligation.
    unsafe { (*data.cast::<F>())(index) }
}

unsafe fn no_job(_: *const (), _: usize) {}

/// A lock whose holder panicked still guards a plain value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
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
                thread << 40..(thread << 40) + round * 1000
            });
            pool.run(7, |_| {});
        }
    }

    #[test]
    fn plain_writes_of_chunks_are_seen_by_the_caller_and_by_the_next_loop() {
        // Each loop reads what the previous one wrote without atomics of its own: a missing edge would lose counts.
        struct Cells(Vec<UnsafeCell<u64>>);
        // SAFETY: chunk i touches only cells i of this loop, and loops are ordered.
        unsafe impl Sync for Cells {}
        let pool = Pool::new(4);
        let cells = Cells((0..13).map(|_| UnsafeCell::new(0)).collect());
        let cells = &cells;
        for _ in 0..20_000 {
            // SAFETY: each chunk index is handed out once, so the cell is ours during the call.
            pool.run(13, |chunk| unsafe { *cells.0[chunk].get() += 1 });
        }
        // SAFETY: no loop runs.
        assert!(cells.0.iter().all(|cell| unsafe { *cell.get() } == 20_000));
    }

    #[test]
    fn closures_on_the_stack_are_never_called_after_their_loop() {
        // Short loops with oversubscribed workers: a stale call would see another loop's number.
        let pool = Pool::new(8);
        for round in 0..5_000_u64 {
            let expected = round.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let captured = [expected; 4];
            let wrong = AtomicU32::new(0);
            pool.run(3, |chunk| {
                if captured[chunk] != expected {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(wrong.into_inner(), 0);
        }
    }

    #[test]
    fn parked_workers_wake_up_again() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(2));
            let both = std::sync::Barrier::new(3);
            // Three chunks that wait for each other end only when three threads run them.
            pool.run(3, |_| {
                both.wait();
            });
        }
    }

    #[test]
    fn a_caller_that_had_to_park_wakes_up_again() {
        let pool = Pool::new(2);
        let caller = thread::current().id();
        for _ in 0..10 {
            let both = std::sync::Barrier::new(2);
            pool.run(2, |_| {
                both.wait();
                if thread::current().id() != caller {
                    thread::sleep(Duration::from_millis(3));
                }
            });
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
