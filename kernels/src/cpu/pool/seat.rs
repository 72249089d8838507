//! The thread that runs a pool's loops for good, and which processors it and the workers have.

use super::Pool;
use super::shared::Shared;
use crate::cpu::processors;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// What a thread that settled with a pool has until it ends, or settles with another.
struct Seat {
    shared: Arc<Shared>,
    /// Whether it was the only one, when processors were last given out.
    was_alone: Option<bool>,
}

impl Seat {
    fn with(shared: &Arc<Shared>) -> Seat {
        shared.callers.fetch_add(1, Ordering::Relaxed);
        Seat { shared: Arc::clone(shared), was_alone: None }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// The calling thread runs loops from now on, and says so once in a while. As long as no other thread does, it and the
    /// workers have a processor each, where there are just as many ([`processors`]); threads of which there are more than one
    /// would only be in each other's way on the first.
    pub fn settle(&self) {
        SEAT.with_borrow_mut(|seat| {
            let mine = seat.take().filter(|seat| Arc::ptr_eq(&seat.shared, &self.shared));
            let mine = seat.insert(mine.unwrap_or_else(|| Seat::with(&self.shared)));
            let is_alone = self.shared.callers.load(Ordering::Relaxed) == 1;
            if mine.was_alone.replace(is_alone) != Some(is_alone) {
                processors::settle(&self.workers, is_alone);
            }
        });
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::cpu::processors::tests::here;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_thread_has_a_processor_to_itself_while_it_alone_runs_loops() {
        let all = processors::count();
        let (pool, alone) = (Pool::new(all), if all > 1 { 1 } else { all });
        let first = || {
            pool.settle();
            here().len()
        };
        thread::scope(|scope| {
            let outer = scope.spawn(|| {
                assert_eq!([first(), first()], [alone; 2]);
                let (ask, asked) = channel::<()>();
                let (answer, answers) = channel();
                let second = scope.spawn(move || {
                    // It began with what its parent had.
                    processors::use_all();
                    answer.send(first()).expect("someone waits");
                    asked.recv().expect("who asks is there");
                    first()
                });
                assert_eq!(answers.recv(), Ok(all), "the second has what the first has not");
                assert_eq!(first(), all, "nor has the first any more");
                ask.send(()).expect("the second waits");
                assert_eq!(second.join().expect("it ends"), all);
                assert_eq!(first(), alone, "the second is gone");
            });
            // Thread-local values are dropped when a thread is joined, and a scope may end before.
            outer.join().expect("it ends");
        });
        assert_eq!(pool.shared.callers.load(Ordering::Relaxed), 0);
    }
}
