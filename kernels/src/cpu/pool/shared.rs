//! How the threads of a pool agree on who does what.
//!
//! One word holds `generation | next chunk | number of chunks`. Whoever wants a chunk raises `next` by compare-and-swap, so
//! a slow worker costs nothing: the others take its share, and the caller never waits for a thread that has claimed nothing.
//! Idle threads spin for a moment (a token is hundreds of loops, microseconds apart) and then park; nothing yields, which
//! collapses on a busy machine. Which processors they have says `processors.rs`.
//!
//! Why a worker can never call the closure of a loop that is over: it reads the closure only after its swap succeeded, a
//! swap succeeds only on the present value of the word, that value had an unclaimed chunk, and the loop that owns the chunk
//! cannot end before the claimer counts it as done. The generation is in the word for the waiting, not for this argument:
//! should it wrap around while a worker sleeps between its load and its swap, the swap still claims a live chunk.

use super::long_slices;
use super::read_ahead::ReadAhead;
use crate::Errand;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Turns of `spin_loop` before the caller parks: 10-40 us, longer than the serial gaps between the loops of a token and
/// shorter than anybody's time slice.
const SPINS: u32 = 1000;
/// Turns before a worker does: between two steps it should be awake for an errand.
const WORKER_SPINS: u32 = 3 * SPINS;
const COUNT_BITS: u32 = 24;
pub(super) const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Puts hot words on cache lines of their own (two, because the prefetcher of x86 fetches pairs).
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// The closure of the running loop, without its type.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

pub(super) struct Shared {
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
    /// Of the first worker that sees it, between two loops; `errand.rs` has the rest.
    pub(super) errand: Mutex<Option<Errand>>,
    pub(super) has_errand: AtomicBool,
    /// Threads that have settled with the pool.
    pub(super) callers: AtomicUsize,
    /// For each worker: parked, or about to park.
    pub(super) parked: Vec<Padded<AtomicBool>>,
    /// For each thread, the caller first.
    pub(super) read_ahead: Vec<Padded<[ReadAhead; 2]>>,
}

// SAFETY: everything but `job` is Sync by itself. `job` is written only while no chunk is pending (by the holder of
// `Pool::busy`) and read only under a claim, that is while a chunk is pending; the word's release and acquire order the two.
// The pointer in it is to a `Sync` closure.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointers in `job` are only followed under a claim.
unsafe impl Send for Shared {}

/// Ends the process when a panic drops it: a loop that is left while chunks are pending would leave workers with a closure
/// on a stack that is gone. Panics of chunks are caught, so it takes an error in this file.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    pub(super) fn new(num_workers: usize) -> Shared {
        Shared {
            word: Padded(AtomicU64::new(0)),
            pending: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { data: std::ptr::null(), call: no_job }),
            caller_waits: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            errand: Mutex::new(None),
            has_errand: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            parked: (0..num_workers).map(|_| Padded(AtomicBool::new(false))).collect(),
            read_ahead: (0..=num_workers).map(|_| Padded(<[ReadAhead; 2]>::default())).collect(),
        }
    }

    /// What a chunk of the loop that is over threw, once.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        if self.panicked.swap(false, Ordering::Relaxed) { lock(&self.panic).take() } else { None }
    }

    /// Workers end as soon as they have nothing to do; those that are parked have to be woken up.
    pub(super) fn shut_down(&self) {
        self.shutdown.store(true, Ordering::SeqCst);
    }

    /// The caller's side of one loop; the caller holds `busy`, so there is one at a time.
    pub(super) fn run<F: Fn(usize) + Sync>(&self, num_chunks: usize, f: &F, workers: &[JoinHandle<()>]) {
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
        if !self.read_ahead.get(THREAD.get()).is_some_and(|ahead| ahead.0.iter().any(ReadAhead::step)) {
            std::hint::spin_loop();
        }
    }

    /// A worker's life.
    pub(super) fn work(&self, index: usize) {
        THREAD.set(index + 1);
        long_slices::ask();
        loop {
            while self.claim_and_run() {}
            let mut spins = 0;
            while !self.has_chunks(Ordering::Relaxed) && !self.shutdown.load(Ordering::Relaxed) && spins < WORKER_SPINS
            {
                spins += 1;
                self.idle();
                self.do_errand();
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
    pub(super) static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// # Safety
/// `data` points to a live `F`.
unsafe fn call_closure<F: Fn(usize) + Sync>(data: *const (), index: usize) {
    // SAFETY: the caller's obligation.
    unsafe { (*data.cast::<F>())(index) }
}

unsafe fn no_job(_: *const (), _: usize) {}

/// A lock whose holder panicked still guards a plain value.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

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
}
