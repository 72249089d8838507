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
//! A panic while a mask is computed fails that request only.

use crate::SequenceId;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
    /// How long the thread computed.
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

/// What the thread is given.
struct Job {
    key: SequenceId,
    ticket: u64,
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
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// The last request's number. It tells a sequence's request from one that was abandoned.
    last_ticket: u64,
    /// Requests that are neither taken nor abandoned.
    open: HashMap<SequenceId, u64>,
    /// Their results that came while another was waited for.
    ready: HashMap<SequenceId, Done>,
}

impl MaskWorker {
    /// Starts the thread.
    pub fn start() -> std::io::Result<MaskWorker> {
        let (jobs, inbox) = channel::<Job>();
        let (outbox, done) = channel();
        let work = move || {
            for job in inbox {
                let begin = Instant::now();
                let (key, ticket) = (job.key, job.ticket);
                // The grammar that panicked is dropped with the job; grammars share nothing that a panic could spoil.
                let outcome = catch_unwind(AssertUnwindSafe(|| compute(job)));
                let outcome = outcome.unwrap_or(Err(MaskError::Panicked));
                if outbox.send(Done { key, ticket, outcome, computed: begin.elapsed() }).is_err() {
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
            ready: HashMap::new(),
        })
    }

    /// Has the masks of a sequence computed: what may come next, and behind each of `guesses`. The memory of `recycled` is
    /// used again. One request per sequence at a time: it is taken or abandoned before the next.
    pub fn request(&mut self, key: SequenceId, grammar: Grammar, guesses: Vec<u32>, recycled: Vec<BitMask>) {
        self.last_ticket += 1;
        let previous = self.open.insert(key, self.last_ticket);
        assert!(previous.is_none(), "{key:?} has a request already");
        let job = Job { key, ticket: self.last_ticket, grammar, guesses, masks: recycled };
        // A thread that is gone is noticed by `take`.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
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
        let (grammar, forced, masks) = result.outcome?;
        Ok(Masked { grammar, forced, masks, waited, computed: result.computed })
    }

    /// Forgets what was requested for a sequence that ended, if anything was.
    pub fn abandon(&mut self, key: SequenceId) {
        self.open.remove(&key);
        self.ready.remove(&key);
    }

    fn keep(&mut self, done: Done) {
        if self.open.get(&done.key) == Some(&done.ticket) {
            self.ready.insert(done.key, done);
        }
    }
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Its panics are caught where they happen.
            let _ = thread.join();
        }
    }
}

fn compute(job: Job) -> Result<(Grammar, Vec<u32>, Vec<BitMask>), MaskError> {
    let Job { mut grammar, guesses, masks: mut spare, .. } = job;
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
