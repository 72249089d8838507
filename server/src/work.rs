//! Work that takes longer than a handler may: where it runs, and how much of it at a time. The cores belong to the model; what
//! one client sends must take neither them nor the memory nor the threads from everybody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::ApiError;
use crate::limits::{MAX_BODY_BYTES, MAX_COMPILING, MAX_HELD_BYTES, SMALL_BODY_BYTES};

/// How long a request waits until its grammar may be compiled.
const COMPILE_PATIENCE: Duration = Duration::from_secs(10);

/// Behind so many bytes of a body there is a pause. The system's work for them is done by whoever reads them, the sender's for the
/// next ones too: with several large bodies at once a core would be theirs for many milliseconds.
const PIECE_BYTES: usize = 128 << 10;

/// What a chunk counts for at least: to receive a byte alone takes as long.
const CHUNK_BYTES: usize = 1 << 10;

/// Bytes a millisecond of all bodies together that are used, and of those that are thrown away.
const READING_SPEED: usize = 128 << 10;
const FORGETTING_SPEED: usize = 64 << 10;

/// The longest pause, however many bodies come. A client that has sent its last byte and waits is taken for gone when nothing is read
/// from it for longer; and what it sent stays in memory meanwhile, also when it has left.
const LONGEST_PAUSE: Duration = Duration::from_millis(30);

/// Behind each piece of memory that goes back to the system.
const RETURNING_PAUSE: Duration = Duration::from_millis(1);

/// What a server does besides computing, under way now.
#[derive(Debug)]
pub(crate) struct Work {
    reading: Arc<AtomicUsize>,
    forgetting: Arc<AtomicUsize>,
    returning: Arc<Semaphore>,
    large_bodies: Arc<Semaphore>,
    grammars: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    held_bytes: Arc<AtomicUsize>,
    max_body: usize,
}

impl Default for Work {
    fn default() -> Self {
        Self::new(MAX_BODY_BYTES)
    }
}

impl Work {
    /// None yet; bodies may have `max_body` bytes each.
    pub(crate) fn new(max_body: usize) -> Self {
        Self {
            reading: Arc::default(),
            forgetting: Arc::default(),
            returning: Arc::new(Semaphore::new(1)),
            large_bodies: Arc::new(Semaphore::new(1)),
            grammars: Arc::new(Semaphore::new(MAX_COMPILING)),
            answers: Arc::new(Semaphore::new(1)),
            held_bytes: Arc::default(),
            max_body,
        }
    }

    /// Reads a body of `len` bytes. Small ones are read at once, those that may take seconds one after another.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        len: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = if len > SMALL_BODY_BYTES { turn(&self.large_bodies).await } else { None };
        blocking(turn, work).await
    }

    /// Compiles grammars. Each compilation holds a thread while it waits for the compiler, so there are not many.
    pub(crate) async fn compile<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(turn) = tokio::time::timeout(COMPILE_PATIENCE, turn(&self.grammars)).await else {
            return Err(ApiError::busy("too many grammars are being compiled; ask again in a moment"));
        };
        blocking(turn, work).await
    }

    /// Writes an answer that may be large, one after another.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        blocking(turn(&self.answers).await, || Ok(work())).await
    }

    /// The pace at which a body comes in that is used; a short one is not held up.
    pub(crate) fn reading(&self) -> Pace {
        Pace { pausing: Arc::clone(&self.reading), speed: READING_SPEED, bytes: 0 }
    }

    /// The pace at which a body comes in that is thrown away.
    pub(crate) fn forgetting(&self) -> Pace {
        Pace { pausing: Arc::clone(&self.forgetting), speed: FORGETTING_SPEED, bytes: 0 }
    }

    /// How memory goes back to the system.
    pub(crate) fn returning(&self) -> Returning {
        Returning { turns: Arc::clone(&self.returning), held: Arc::clone(&self.held_bytes) }
    }

    /// An account of one body's bytes.
    pub(crate) fn hold(&self) -> HeldBytes {
        HeldBytes { account: Account { all: Arc::clone(&self.held_bytes), own: 0 }, max: self.max_body }
    }
}

/// How fast one body comes in. Large ones that come at the same time share the speed.
#[derive(Debug)]
pub(crate) struct Pace {
    /// How many pause.
    pausing: Arc<AtomicUsize>,
    speed: usize,
    /// Since the last pause.
    bytes: usize,
}

impl Pace {
    /// Waits behind a chunk of `len` bytes, or one of the next.
    pub(crate) async fn after(&mut self, len: usize) {
        if let Some((_pausing, pause)) = self.pause(len) {
            tokio::time::sleep(pause).await;
        }
    }

    fn pause(&mut self, len: usize) -> Option<(Pausing, Duration)> {
        self.bytes += len.max(CHUNK_BYTES);
        if self.bytes < PIECE_BYTES {
            return None;
        }
        let others = self.pausing.fetch_add(1, Ordering::Relaxed);
        let pausing = Pausing(Arc::clone(&self.pausing));
        let pause = Duration::from_millis(((others + 1) * std::mem::take(&mut self.bytes) / self.speed) as u64);
        Some((pausing, pause.min(LONGEST_PAUSE)))
    }
}

/// One that pauses.
#[derive(Debug)]
struct Pausing(Arc<AtomicUsize>);

impl Drop for Pausing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How memory goes back to the system: by pieces, which take 0.1 ms a MiB, one after another.
#[derive(Clone, Debug)]
pub(crate) struct Returning {
    turns: Arc<Semaphore>,
    held: Arc<AtomicUsize>,
}

impl Returning {
    /// An account of bytes that are going back. As long as they are here they count as held.
    pub(crate) fn account(&self, bytes: usize) -> ReturnedBytes {
        let mut account = Account { all: Arc::clone(&self.held), own: 0 };
        account.set(bytes);
        ReturnedBytes { turns: Arc::clone(&self.turns), account }
    }
}

/// Bytes that are going back.
#[derive(Debug)]
pub(crate) struct ReturnedBytes {
    turns: Arc<Semaphore>,
    account: Account,
}

impl ReturnedBytes {
    /// Gives back a piece, after which there are `left` bytes, and waits a little.
    pub(crate) async fn piece(&mut self, left: usize, give_back: impl FnOnce()) {
        let _turn = turn(&self.turns).await;
        give_back();
        self.account.set(left);
        tokio::time::sleep(RETURNING_PAUSE).await;
    }
}

/// One's part of all bytes that are held; taken off when dropped.
#[derive(Debug)]
struct Account {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl Account {
    /// Notes how many bytes it has now; returns those of all.
    fn set(&mut self, bytes: usize) -> usize {
        let before = std::mem::replace(&mut self.own, bytes);
        if bytes >= before {
            self.all.fetch_add(bytes - before, Ordering::AcqRel) + (bytes - before)
        } else {
            self.all.fetch_sub(before - bytes, Ordering::AcqRel) - (before - bytes)
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of one body, or of what an answer repeats of it, that are held; given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    account: Account,
    max: usize,
}

impl HeldBytes {
    /// The most that the body may have.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Whether there are so many that they share the allowance.
    pub(crate) fn are_many(&self) -> bool {
        self.account.own > 0
    }

    /// Notes that the body has `len` bytes by now. Large bodies share one allowance, so that however many come together, the
    /// memory is enough; small ones always have room.
    pub(crate) fn grow(&mut self, len: usize) -> Result<(), ApiError> {
        if len > SMALL_BODY_BYTES && self.account.set(len) > MAX_HELD_BYTES {
            return Err(ApiError::busy("too many large requests are being read; ask again in a moment"));
        }
        Ok(())
    }
}

/// Waits for a turn. It would be none if the turns were closed, and they never are.
async fn turn(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(turns).acquire_owned().await.ok()
}

/// Runs `work` off the asynchronous threads. The turn ends with the work: nothing stops that when the client leaves.
async fn blocking<T: Send + 'static>(
    turn: Option<OwnedSemaphorePermit>,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    let work = move || {
        let _turn = turn;
        span.in_scope(work)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "work on a request panicked");
            Err(ApiError::internal("the server failed on this request; this is a fault of the server"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::{Mutex, PoisonError};

    /// Longer than anything here takes, unless it hangs.
    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn grammars_that_take_long_leave_threads_for_other_requests() {
        let work = Arc::new(Work::default());
        let (opener, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        // More than the runtime has threads.
        let compilations: Vec<_> = (0..600)
            .map(|_| {
                let (work, gate) = (Arc::clone(&work), Arc::clone(&gate));
                let compile = move || {
                    // Until the gate opens.
                    let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    Ok(())
                };
                tokio::spawn(async move { work.compile(compile).await })
            })
            .collect();
        tokio::task::yield_now().await;
        let read = tokio::time::timeout(PATIENCE, work.read(10, || Ok("read"))).await;
        drop(opener);
        assert_eq!(read.expect("a thread is free").unwrap(), "read");
        for compilation in compilations {
            compilation.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn large_bodies_are_read_one_after_another_also_when_a_client_leaves() {
        let work = Work::default();
        let (opener, gate) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let first = work.read(SMALL_BODY_BYTES + 1, move || {
            begun.send(()).unwrap();
            // Until the gate opens.
            let _ = gate.recv();
            Ok(())
        });
        tokio::select! {
            _ = first => panic!("it was not let through"),
            // Drops the first, as when its client leaves.
            begun = has_begun => begun.unwrap(),
        }
        let mut second = Box::pin(work.read(SMALL_BODY_BYTES + 1, || Ok(())));
        tokio::select! {
            _ = &mut second => panic!("the first is still being read"),
            small = work.read(SMALL_BODY_BYTES, || Ok(())) => small.unwrap(),
        }
        drop(opener);
        tokio::time::timeout(PATIENCE, second).await.expect("its turn comes").unwrap();
    }

    #[test]
    fn large_bodies_share_a_pace_and_short_ones_are_not_held_up() {
        let work = Work::default();
        let (mut first, mut second, mut refused) = (work.reading(), work.reading(), work.forgetting());
        let ms = Duration::from_millis;
        let of = |pause: &Option<(Pausing, Duration)>| pause.as_ref().map(|(_, pause)| *pause);
        assert_eq!(of(&first.pause(PIECE_BYTES - 1)), None);
        let pausing = first.pause(PIECE_BYTES + 1);
        assert_eq!(of(&pausing), Some(ms(2)), "what came before counts too");
        assert_eq!(of(&second.pause(4 * PIECE_BYTES)), Some(ms(8)), "half the speed each");
        assert_eq!(of(&refused.pause(2 * PIECE_BYTES)), Some(ms(4)), "beside those that are used");
        drop(pausing);
        assert_eq!(of(&second.pause(2 * PIECE_BYTES)), Some(ms(2)), "who does not pause does not count");
        assert_eq!(of(&second.pause(1000 * PIECE_BYTES)), Some(LONGEST_PAUSE));
        let tiny = (1..).find(|_| first.pause(1).is_some());
        assert_eq!(tiny, Some(PIECE_BYTES / CHUNK_BYTES), "chunks of a byte are no bytes");
    }

    #[tokio::test]
    async fn what_goes_back_counts_as_held_until_it_is_gone() {
        let work = Work::default();
        let held = || work.held_bytes.load(Ordering::Acquire);
        let mut going = work.returning().account(10);
        going.piece(4, || assert_eq!(held(), 10)).await;
        assert_eq!(held(), 4);
        drop(going);
        assert_eq!(held(), 0);
    }

    #[test]
    fn large_bodies_share_an_allowance_and_small_ones_always_have_room() {
        let work = Work::default();
        let (mut first, mut second, mut small) = (work.hold(), work.hold(), work.hold());
        assert!(first.grow(MAX_HELD_BYTES - 10).is_ok());
        assert!(first.are_many() && !small.are_many());
        assert_eq!(second.grow(SMALL_BODY_BYTES + 1).unwrap_err().status(), 503);
        assert!(small.grow(SMALL_BODY_BYTES).is_ok());
        drop((first, second));
        assert!(work.hold().grow(MAX_HELD_BYTES).is_ok(), "what was held is given back");
        assert_eq!(work.held_bytes.load(Ordering::Acquire), 0);
    }
}
