//! The wait for what was sent. A step keeps all cores busy for milliseconds; if it begins while the threads that carry the tokens of
//! the step before to the clients still wake up, they wait until the operating system takes a core away from it, and the clients get
//! two tokens at a time. So the engine thread gives them a moment: until the streams have taken what they were sent, and
//! never longer than a small share of a step. Then they have a core, and keep it for what is left to do. It waits awake: the threads
//! of the kernels rest between two steps, so that there is a core for the others, and who sleeps may wake up on a core where another
//! computes. Where there is one core it sleeps.
//!
//! Measured in turns on two cores (Zen 4, 4.2 ms a step, a client on the same two, kernels' threads with slices of 100 ms): of the
//! times between two tokens the 98th and 99th percentile are 5.4 and 6.5 ms waiting awake, 6.3 and 7.1 ms asleep, and 6.7 and
//! 7.6 ms without a wait. The speed differs by less than that of two starts of one program.
//!
//! The wait is behind the bookkeeping between two steps, which needs no other core. What a worker of the kernels hands off
//! (`handoff.rs`) is not waited for.
//!
//! To wait until the streams ask for more makes a token of 7.6 ms 0.8 % slower (Zen 3, in turns of 64 tokens within one server).
//!
//! A stream that does not take anything, because its client reads slowly, is waited for once and then not before it has caught up.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The wait is this part of a step at most,
const MAX_SHARE: u32 = 20;
/// and this long: to wake a thread and to write to a socket takes tens of microseconds.
const MAX_WAIT: Duration = Duration::from_micros(200);

/// A shorter wait is none: the operating system wakes a thread up so much too late.
const LEAST_WAIT: Duration = Duration::from_micros(50);

/// Turns of a wait between two looks at the clock.
const SPINS: u32 = 50;

/// What is under way from the engine thread to the streams.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// Round (32 bits, never 0) | streams that have not taken what they were sent in it.
    word: AtomicU64,
    engine: OnceLock<Thread>,
    has_one_core: bool,
}

impl Default for Delivery {
    fn default() -> Self {
        // Asked here, for the engine thread may have one processor of several.
        let has_one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        Delivery { word: AtomicU64::default(), engine: OnceLock::new(), has_one_core }
    }
}

impl Delivery {
    /// Begins a round, on the engine thread: what was sent in earlier ones is not waited for any more.
    pub(crate) fn begin(&self) {
        self.engine.get_or_init(std::thread::current);
        let round = self.round().wrapping_add(1).max(1);
        self.word.store(u64::from(round) << 32, Ordering::SeqCst);
    }

    /// Waits until each stream has taken of what it was sent in this round, or as long as it is worth after a step of this duration.
    pub(crate) fn wait(&self, step: Duration) {
        // Under shuttle no time goes by.
        if cfg!(feature = "shuttle") {
            return;
        }
        let most = MAX_WAIT.min(step / MAX_SHARE);
        if most < LEAST_WAIT {
            return;
        }
        let deadline = Instant::now() + most;
        while self.is_due() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.has_one_core {
                std::thread::park_timeout(left);
            } else {
                (0..SPINS).for_each(|_| std::hint::spin_loop());
            }
        }
    }

    fn round(&self) -> u32 {
        (self.word.load(Ordering::SeqCst) >> 32) as u32
    }

    /// Whether a stream has not taken what it was sent in this round.
    pub(crate) fn is_due(&self) -> bool {
        self.word.load(Ordering::SeqCst) & u64::from(u32::MAX) != 0
    }
}

/// The part of one stream.
#[derive(Debug)]
pub(crate) struct Receipt {
    delivery: Arc<Delivery>,
    /// The round in which it was sent something and has taken nothing since, or 0.
    round: AtomicU32,
}

impl Receipt {
    pub(crate) fn new(delivery: Arc<Delivery>) -> Receipt {
        Receipt { delivery, round: AtomicU32::new(0) }
    }

    /// Something is about to be sent: called by the engine thread, within a round.
    pub(crate) fn sending(&self) {
        let round = self.delivery.round();
        // Counted before it can be counted down.
        self.delivery.word.fetch_add(1, Ordering::SeqCst);
        if self.round.compare_exchange(0, round, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.delivery.word.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Who takes events has one, or is gone.
    pub(crate) fn taken(&self) {
        let round = self.round.swap(0, Ordering::SeqCst);
        if round == 0 {
            return;
        }
        let Delivery { word, engine, .. } = &*self.delivery;
        // Of an earlier round, nothing is waited for.
        let count_down = |word: u64| (word >> 32 == u64::from(round)).then(|| word - 1);
        let before = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down);
        if before.is_ok_and(|word| word & u64::from(u32::MAX) == 1)
            && let Some(engine) = engine.get()
        {
            engine.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery_to<const N: usize>() -> (Arc<Delivery>, [Receipt; N]) {
        let delivery = Arc::new(Delivery::default());
        let receipts = std::array::from_fn(|_| Receipt::new(Arc::clone(&delivery)));
        (delivery, receipts)
    }

    #[test]
    fn a_round_is_over_when_every_stream_has_taken() {
        let (delivery, [one, two, three]) = delivery_to();
        delivery.begin();
        assert!(!delivery.is_due());
        // Several events of one stream count once.
        [&one, &one, &two].into_iter().for_each(Receipt::sending);
        one.taken();
        three.taken();
        assert!(delivery.is_due());
        two.taken();
        two.taken();
        assert!(!delivery.is_due());
    }

    #[test]
    fn a_stream_that_lags_is_waited_for_in_one_round_only() {
        let (delivery, [slow, quick]) = delivery_to();
        delivery.begin();
        slow.sending();
        delivery.begin();
        slow.sending();
        quick.sending();
        quick.taken();
        assert!(!delivery.is_due());
        // What it takes late belongs to no round; then it is waited for again.
        quick.sending();
        slow.taken();
        assert!(delivery.is_due());
        quick.taken();
        slow.sending();
        assert!(delivery.is_due());
    }

    #[test]
    fn the_engine_wakes_up_when_the_last_stream_has_taken() {
        let (delivery, [one, two]) = delivery_to();
        for _ in 0..1000 {
            delivery.begin();
            [&one, &two].into_iter().for_each(Receipt::sending);
            std::thread::scope(|scope| {
                scope.spawn(|| one.taken());
                scope.spawn(|| two.taken());
                while delivery.is_due() {
                    std::thread::park();
                }
            });
        }
    }
}
