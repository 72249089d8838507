//! Grammar masks, computed on a thread of their own while the model runs.
//!
//! After a sequence's token was accepted, its [`Grammar`] goes to the thread with [`MaskWorker::request`]; before the next
//! token is sampled, [`MaskWorker::take`] brings it back with the mask. A mask takes tens of microseconds and a step a
//! millisecond or more, so the wait is nearly always nothing. Some grammars take milliseconds for each mask, and many
//! sequences of them seconds: [`MaskWorker::is_ready`] tells, and the engine puts their tokens off, not everybody's.
//!
//! Two things save work. Where the grammar leaves no choice, the thread goes on through the forced tokens, and the mask is
//! for the place behind them: the engine appends them without sampling. Where tokens are guessed, there is one mask per row
//! that is verified, as far as the grammar allows the guesses.
//!
//! Of several requests the thread takes that of the sequence whose last mask took least time, so that a heavy grammar holds
//! up no light one. A panic while a mask is computed fails that request only.

use crate::SequenceId;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taper_text::{BitMask, Grammar, GrammarError};

/// A sequence's grammar and what may come next.
#[derive(Debug)]
pub struct Masked {
    /// The grammar, with `forced` accepted and no guess accepted.
    pub grammar: Grammar,
    /// Tokens that come next whatever the model says; none where tokens were guessed.
    pub forced: Vec<u32>,
    /// What may follow `forced`; where tokens were guessed, also what may follow each guess, up to the first guess that the
    /// grammar refuses. So there are one to `guesses + 1` masks.
    pub masks: Vec<BitMask>,
    /// How long [`MaskWorker::take`] waited.
    pub waited: Duration,
    /// Processor time that the thread took: what others took of its core meanwhile is not in it.
    pub computed: Duration,
}

/// Why there is no mask. The sequence cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// The grammar cannot be followed further.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Computing the mask panicked.
    #[error("computing a grammar mask crashed; report it if it persists")]
    Panicked,
}

/// What the thread is given, and what its turn depends on.
struct Job<W> {
    key: SequenceId,
    ticket: u64,
    /// What the sequence's last one took.
    last_took: Duration,
    /// Whether somebody still wants it.
    is_wanted: Weak<()>,
    work: W,
}

/// What there is to do for one sequence.
struct Work {
    grammar: Grammar,
    guesses: Vec<u32>,
    masks: Vec<BitMask>,
}

/// What the thread gives back.
#[derive(Debug)]
struct Done {
    key: SequenceId,
    ticket: u64,
    outcome: Result<(Grammar, Vec<u32>, Vec<BitMask>), MaskError>,
    computed: Duration,
}

/// The thread's other end: belongs to the engine thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct MaskWorker {
    /// `None` only while dropping.
    jobs: Option<Sender<Job<Work>>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// The last request's number. It tells a sequence's request from one that was abandoned.
    last_ticket: u64,
    /// Requests that are neither taken nor abandoned, by their tickets; the thread sees what is dropped here.
    open: HashMap<SequenceId, (u64, Arc<()>)>,
    /// What the last masks of living sequences took.
    last_took: HashMap<SequenceId, Duration>,
    /// Their results that came while another was waited for.
    ready: HashMap<SequenceId, Done>,
}

impl MaskWorker {
    /// Starts the thread.
    pub fn start() -> std::io::Result<MaskWorker> {
        let (jobs, inbox) = channel::<Job<Work>>();
        let (outbox, done) = channel();
        let work = move || {
            // The engine thread, which starts this one, may have a processor to itself.
            taper_models::processors::use_all();
            let mut waiting = Vec::new();
            while let Some(job) = next(&inbox, &mut waiting) {
                let begin = processor_time();
                let (key, ticket) = (job.key, job.ticket);
                // The grammar that panicked is dropped with the job; grammars share nothing that a panic could spoil.
                let outcome = catch_unwind(AssertUnwindSafe(|| compute(job.work)));
                let outcome = outcome.unwrap_or(Err(MaskError::Panicked));
                let computed = processor_time().saturating_sub(begin);
                if outbox.send(Done { key, ticket, outcome, computed }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("taper-grammar".to_owned()).spawn(work)?;
        Ok(MaskWorker {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            last_ticket: 0,
            open: HashMap::new(),
            last_took: HashMap::new(),
            ready: HashMap::new(),
        })
    }

    /// Has the masks of a sequence computed: what may come next, and behind each of `guesses`. The memory of `recycled` is
    /// used again. One request per sequence at a time: it is taken or abandoned before the next.
    pub fn request(&mut self, key: SequenceId, grammar: Grammar, guesses: Vec<u32>, recycled: Vec<BitMask>) {
        self.last_ticket += 1;
        let wanted = Arc::new(());
        let (is_wanted, ticket) = (Arc::downgrade(&wanted), self.last_ticket);
        let previous = self.open.insert(key, (ticket, wanted));
        assert!(previous.is_none(), "{key:?} has a request already");
        let last_took = self.last_took.get(&key).copied().unwrap_or_default();
        let work = Work { grammar, guesses, masks: recycled };
        let job = Job { key, ticket, last_took, is_wanted, work };
        if let Some(jobs) = &self.jobs {
            // A thread that is gone is noticed by `take`.
            let _ = jobs.send(job);
        }
    }

    /// Whether [`MaskWorker::take`] need not wait, after waiting until `deadline` if it must.
    pub fn is_ready(&mut self, key: SequenceId, deadline: Instant) -> bool {
        while !self.ready.contains_key(&key) {
            match self.done.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(done) => self.keep(done),
                Err(RecvTimeoutError::Timeout) => return false,
                // The thread is gone, and `take` says so.
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        true
    }

    /// Takes what was requested for a sequence, waiting for it if need be.
    pub fn take(&mut self, key: SequenceId) -> Result<Masked, MaskError> {
        assert!(self.open.contains_key(&key), "nothing was requested for {key:?}");
        let begin = Instant::now();
        let result = loop {
            if let Some(done) = self.ready.remove(&key) {
                break done;
            }
            let Ok(done) = self.done.recv() else { return Err(MaskError::Panicked) };
            self.keep(done);
        };
        self.open.remove(&key);
        let waited = begin.elapsed();
        self.last_took.insert(key, result.computed);
        let (grammar, forced, masks) = result.outcome?;
        Ok(Masked { grammar, forced, masks, waited, computed: result.computed })
    }

    /// Forgets a sequence that ended, and what was requested for it, if anything was.
    pub fn abandon(&mut self, key: SequenceId) {
        self.last_took.remove(&key);
        self.open.remove(&key);
        self.ready.remove(&key);
    }

    fn keep(&mut self, done: Done) {
        if self.open.get(&done.key).is_some_and(|&(ticket, _)| ticket == done.ticket) {
            self.ready.insert(done.key, done);
        }
    }
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        self.open.clear();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Its panics are caught where they happen.
            let _ = thread.join();
        }
    }
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative.
    Duration::new(tv_sec.try_into().unwrap_or_default(), tv_nsec.try_into().unwrap_or_default())
}

/// The job to do next: of those that came and are still wanted the one that is likely to take least, the oldest among equals.
/// Waits while there is none; none at all when nobody can ask any more.
fn next<W>(inbox: &Receiver<Job<W>>, waiting: &mut Vec<Job<W>>) -> Option<Job<W>> {
    loop {
        waiting.extend(inbox.try_iter());
        waiting.retain(|job| job.is_wanted.strong_count() > 0);
        let lightest = (0..waiting.len()).min_by_key(|&place| (waiting[place].last_took, waiting[place].ticket));
        match lightest {
            Some(place) => return Some(waiting.swap_remove(place)),
            None => waiting.push(inbox.recv().ok()?),
        }
    }
}

fn compute(work: Work) -> Result<(Grammar, Vec<u32>, Vec<BitMask>), MaskError> {
    let Work { mut grammar, guesses, masks: mut spare } = work;
    let mut masks = Vec::with_capacity(guesses.len() + 1);
    let mut mask_of = |grammar: &mut Grammar| -> Result<BitMask, GrammarError> {
        let mut mask = spare.pop().unwrap_or_else(|| grammar.empty_mask());
        grammar.mask(&mut mask)?;
        Ok(mask)
    };
    let forced = if guesses.is_empty() { grammar.forced()? } else { Vec::new() };
    for &token in &forced {
        grammar.accept(token)?;
    }
    masks.push(mask_of(&mut grammar)?);
    let mut num_guessed = 0;
    for guess in guesses {
        // The mask is narrower than what would be accepted: only it decides what is sampled.
        if !masks[num_guessed].contains(guess) {
            break;
        }
        grammar.accept(guess)?;
        num_guessed += 1;
        masks.push(mask_of(&mut grammar)?);
    }
    grammar.rollback(num_guessed)?;
    Ok((grammar, forced, masks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_work_goes_first_and_what_nobody_wants_is_left_out() {
        let (jobs, inbox) = channel();
        let mut wanted: Vec<Arc<()>> = Vec::new();
        for (ticket, ms) in [(1, 9), (2, 2), (3, 1), (4, 2), (5, 0)] {
            wanted.push(Arc::new(()));
            let is_wanted = wanted.last().map(Arc::downgrade).unwrap();
            let last_took = Duration::from_millis(ms);
            jobs.send(Job { key: SequenceId(ticket), ticket, last_took, is_wanted, work: () }).unwrap();
        }
        drop(wanted.remove(2));
        drop(jobs);
        let mut waiting = Vec::new();
        let order: Vec<u64> = std::iter::from_fn(|| next(&inbox, &mut waiting)).map(|job| job.ticket).collect();
        assert_eq!(order, [5, 2, 4, 1]);
    }
}
