//! What a worker does while the caller goes on: telling whoever waits for a result.
//!
//! Who wakes up a thread for a core where another one runs interrupts that core, and on a virtual machine that takes both of them 20 us
//! and more. A worker that has nothing to do before the next loop, on the core where clients are served, interrupts nobody.

use super::Pool;
use super::shared::{Shared, lock};
use crate::Errand;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Turns of `spin_loop` in which a worker that is awake has seen an errand, unless its core was taken from it.
const SPINS: u32 = 100;

impl Pool {
    /// Has a worker that is awake do something, and does not wait until it is done. Where none is, it is done here.
    pub fn send_out(&self, errand: Errand) {
        let is_awake = self.shared.parked.iter().any(|parked| !parked.0.load(Ordering::Relaxed));
        match is_awake.then(|| self.hold()).flatten() {
            Some(_held) => self.shared.send_out(errand),
            None => errand(),
        }
    }
}

impl Shared {
    /// The caller's side; the caller holds `busy`, so there is one at a time.
    fn send_out(&self, errand: Errand) {
        let mut place = lock(&self.errand);
        *place = Some(errand);
        self.has_errand.store(true, Ordering::Release);
        drop(place);
        for _ in 0..SPINS {
            if !self.has_errand.load(Ordering::Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        if let Some(errand) = self.take_errand() {
            errand();
        }
    }

    /// A worker's side.
    pub(super) fn do_errand(&self) {
        if self.has_errand.load(Ordering::Relaxed)
            && let Some(errand) = self.take_errand()
        {
            // Nobody is left who could be told of a panic; its payload might panic once more when it is dropped.
            std::mem::forget(catch_unwind(AssertUnwindSafe(errand)));
        }
    }

    /// The errand, for the first who asks.
    fn take_errand(&self) -> Option<Errand> {
        let mut place = lock(&self.errand);
        // Within the lock, like the other side: one who comes too late must not hide the next errand.
        self.has_errand.store(false, Ordering::Release);
        place.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    /// Who does an errand.
    fn who(pool: &Pool) -> ThreadId {
        let (say, said) = channel();
        pool.send_out(Box::new(move || say.send(thread::current().id()).expect("someone listens")));
        said.recv_timeout(Duration::from_secs(60)).expect("errands are done")
    }

    #[test]
    fn every_errand_is_done_once_whoever_does_it() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let done = Arc::new(AtomicUsize::new(0));
            for _ in 0..2_000 {
                pool.run(threads, |_| {});
                let done = Arc::clone(&done);
                pool.send_out(Box::new(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                }));
            }
            // Workers end what they have begun.
            drop(pool);
            assert_eq!(done.load(Ordering::Relaxed), 2_000);
        }
    }

    #[test]
    fn a_worker_that_waits_for_a_loop_does_it() {
        let pool = Pool::new(2);
        let here = thread::current().id();
        let is_elsewhere = |_: &usize| {
            pool.run(2, |_| {});
            who(&pool) != here
        };
        // Now and then its core is another's.
        assert!((0..10_000).any(|turn| is_elsewhere(&turn)));
    }

    #[test]
    fn where_all_workers_sleep_it_is_done_here() {
        let pool = Pool::new(3);
        while pool.shared.parked.iter().any(|parked| !parked.0.load(Ordering::Relaxed)) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(who(&pool), thread::current().id());
        assert_eq!(who(&Pool::new(1)), thread::current().id());
    }

    #[test]
    fn within_a_loop_it_is_done_by_who_sends_it_out() {
        let pool = Pool::new(3);
        pool.run(6, |_| assert_eq!(who(&pool), thread::current().id()));
    }

    #[test]
    fn a_worker_survives_an_errand_that_panics() {
        let pool = Pool::new(2);
        for _ in 0..100 {
            pool.run(2, |_| {});
            let panics = || pool.send_out(Box::new(|| panic!("an errand fails")));
            // Here, or there.
            let _ = catch_unwind(AssertUnwindSafe(panics));
        }
        let both = std::sync::Barrier::new(2);
        pool.run(2, |_| {
            both.wait();
        });
    }
}
