//! A [`Runner`] without weights, for tests of the engine and of what stands on it.
//!
//! Its "model" is a function from the tokens of a sequence to its next token (or its logits). Its "KV cache" stores token
//! ids by block, each with a digest of all tokens before it, and reads every sequence's past back through the block table:
//! a wrong table, a block overwritten by another sequence, one that holds the right tokens of another past, or a token that
//! was never computed panics, where it would garble a real model.
//!
//! ```
//! use taper_engine::{Runner, stub::{StubRunner, stub_limits}};
//! // Counts upwards from the last token of the prompt.
//! let runner = StubRunner::new(stub_limits(256), |tokens| tokens[tokens.len() - 1] + 1);
//! assert_eq!(runner.limits().vocab_size, 256);
//! ```

mod key;

use crate::{Embeddings, LogitsBuffer, Pooling, RowDraw, Runner, RunnerError, RunnerLimits};
use key::{Key, keys};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taper_models::{Errand, LogitRows, SequenceSlice};

/// Limits that suit most tests: a context of 512, 64 blocks of 16, 128 rows, 16 of them with logits.
pub fn stub_limits(vocab_size: usize) -> RunnerLimits {
    RunnerLimits { context_len: 512, num_blocks: 64, block_size: 16, vocab_size, max_rows: 128, max_logit_rows: 16 }
}

/// What a [`StubRunner`] was asked to do so far.
#[derive(Debug, Default)]
pub struct StubStats {
    steps: AtomicUsize,
    rows: AtomicUsize,
    max_rows: AtomicUsize,
    max_sequences: AtomicUsize,
}

impl StubStats {
    /// Steps begun.
    pub fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }
    /// Tokens computed, recomputed ones again.
    pub fn rows(&self) -> usize {
        self.rows.load(Ordering::SeqCst)
    }
    /// Most tokens of one step.
    pub fn max_rows(&self) -> usize {
        self.max_rows.load(Ordering::SeqCst)
    }
    /// Most sequences of one step.
    pub fn max_sequences(&self) -> usize {
        self.max_sequences.load(Ordering::SeqCst)
    }
}

/// Holds a [`StubRunner`] back until a test lets it go on. Dropping it opens it for good.
#[derive(Debug)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    // Steps that may still begin.
    permits: Mutex<usize>,
    changed: Condvar,
}

impl GateState {
    fn permits(&self) -> MutexGuard<'_, usize> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, steps: usize) {
        let mut permits = self.permits();
        *permits = permits.saturating_add(steps);
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut permits = self.permits();
        while *permits == 0 {
            permits = self.changed.wait(permits).unwrap_or_else(PoisonError::into_inner);
        }
        if *permits < usize::MAX {
            *permits -= 1;
        }
    }
}

impl Gate {
    /// Lets `steps` more steps begin.
    pub fn allow(&self, steps: usize) {
        self.0.add(steps);
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.0.add(usize::MAX);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

enum Fault {
    Error,
    Panic,
    Death,
    Nan,
}

/// A value that panics when whoever caught it drops it.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("the stub ends its thread");
    }
}

type Model = Box<dyn FnMut(&[u32], &mut [f32]) + Send>;

/// What hidden states a stub has, and how they are made.
type States = (Embeddings, Box<dyn Fn(&[u32], &mut [f32]) + Send>);

/// A scripted runner. See the module's documentation.
pub struct StubRunner {
    limits: RunnerLimits,
    model: Model,
    states: Option<States>,
    // By slot; `None` was never written.
    cache: Vec<Option<Key>>,
    delay: Duration,
    gate: Option<Arc<GateState>>,
    asks: bool,
    faults: Vec<(Range<usize>, Fault)>,
    recomputed_per_step: u64,
    stats: Arc<StubStats>,
    /// A thread with time for errands, from the first on.
    helper: Option<Sender<Errand>>,
}

/// Does what it is sent, until nobody is left who could send something.
fn start_helper() -> Sender<Errand> {
    let (sender, errands) = channel::<Errand>();
    // Like a worker of the kernels it outlives an errand that panics.
    std::thread::spawn(move || errands.iter().for_each(|errand| drop(catch_unwind(AssertUnwindSafe(errand)))));
    sender
}

impl StubRunner {
    /// A model that continues `tokens` with `next(tokens)`, with certainty: the logit of that token is 30 above all others,
    /// so sampling at temperature 1 takes it as well.
    pub fn new(limits: RunnerLimits, mut next: impl FnMut(&[u32]) -> u32 + Send + 'static) -> Self {
        StubRunner::with_logits(limits, move |tokens, logits| {
            let token = next(tokens) as usize;
            assert!(token < logits.len(), "the stub's function gave token {token} of a vocabulary of {}", logits.len());
            logits[token] = 30.0;
        })
    }

    /// A model whose logits after `tokens` are what `model(tokens, logits)` makes of a row of zeros.
    pub fn with_logits(limits: RunnerLimits, model: impl FnMut(&[u32], &mut [f32]) + Send + 'static) -> Self {
        StubRunner {
            limits,
            model: Box::new(model),
            states: None,
            cache: vec![None; limits.num_blocks * limits.block_size],
            delay: Duration::ZERO,
            gate: None,
            asks: false,
            faults: Vec::new(),
            recomputed_per_step: 0,
            stats: Arc::default(),
            helper: None,
        }
    }

    /// A model that answers every prompt with `reply` and then `end`, an end-of-generation token. It knows how far it is by
    /// the longest beginning of the reply that the sequence ends with, so no prompt may end with a beginning of the reply.
    pub fn replying(limits: RunnerLimits, reply: Vec<u32>, end: u32) -> Self {
        StubRunner::new(limits, move |tokens| {
            let written = (0..=reply.len()).rev().find(|&written| tokens.ends_with(&reply[..written]));
            reply.get(written.unwrap_or(0)).copied().unwrap_or(end)
        })
    }

    /// A model that answers each of the given prompts with the tokens beside it and then `end`, an end-of-generation token. A
    /// sequence that begins with none of the prompts is a failed assertion; the longest prompt counts.
    pub fn scripted(limits: RunnerLimits, script: Vec<(Vec<u32>, Vec<u32>)>, end: u32) -> Self {
        StubRunner::new(limits, move |tokens| {
            let begins = script.iter().filter(|(prompt, _)| tokens.starts_with(prompt));
            let found = begins.max_by_key(|(prompt, _)| prompt.len());
            let (prompt, reply) = found.unwrap_or_else(|| panic!("no prompt of the script begins {tokens:?}"));
            reply.get(tokens.len() - prompt.len()).copied().unwrap_or(end)
        })
    }

    /// Gives hidden states of this size, pooled as a mean where nobody says: the one of the last of some tokens is what
    /// `state(tokens, row)` makes of a row of zeros. Without this a stub has none.
    #[must_use]
    pub fn with_states(mut self, hidden_size: usize, state: impl Fn(&[u32], &mut [f32]) + Send + 'static) -> Self {
        let embeddings = Embeddings { hidden_size, pooling: Some(Pooling::Mean) };
        self.states = Some((embeddings, Box::new(state)));
        self
    }

    /// Says that every step computes so many rows of attention a second time.
    #[must_use]
    pub fn with_recomputed_rows(mut self, per_step: u64) -> Self {
        self.recomputed_per_step = per_step;
        self
    }

    /// Sleeps in every step.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Returns an error for the steps of this range, counted from 0.
    #[must_use]
    pub fn failing_at(mut self, steps: Range<usize>) -> Self {
        self.faults.push((steps, Fault::Error));
        self
    }

    /// Panics in the steps of this range, counted from 0.
    #[must_use]
    pub fn panicking_at(mut self, steps: Range<usize>) -> Self {
        self.faults.push((steps, Fault::Panic));
        self
    }

    /// Ends the thread it runs on at step `step`, counted from 0: panics with a value whose destruction panics too.
    #[must_use]
    pub fn dying_at(mut self, step: usize) -> Self {
        self.faults.push((step..step + 1, Fault::Death));
        self
    }

    /// Puts a NaN into the first row of logits, or else the first hidden state, of the steps of this range, counted from 0.
    #[must_use]
    pub fn nan_at(mut self, steps: Range<usize>) -> Self {
        self.faults.push((steps, Fault::Nan));
        self
    }

    /// Makes every step wait for a permit of the gate, which begins closed.
    #[must_use]
    pub fn with_gate(mut self) -> (Self, Gate) {
        let state = Arc::<GateState>::default();
        self.gate = Some(Arc::clone(&state));
        (self, Gate(state))
    }

    /// Asks whether a step is wanted when it has passed the gate and slept, and leaves it if not, uncounted.
    #[must_use]
    pub fn asking(mut self) -> Self {
        self.asks = true;
        self
    }

    /// Counters that can be read while the engine owns the runner.
    pub fn stats(&self) -> Arc<StubStats> {
        Arc::clone(&self.stats)
    }

    fn slot(&self, slice: &SequenceSlice<'_>, position: usize) -> usize {
        let block = slice.block_table[position / self.limits.block_size] as usize;
        assert!(block < self.limits.num_blocks, "block {block} does not exist");
        block * self.limits.block_size + position % self.limits.block_size
    }

    /// Stores the slice's tokens, without their pasts.
    fn store_tokens(&mut self, slice: &SequenceSlice<'_>) {
        assert!(!slice.tokens.is_empty(), "a slice without tokens");
        let end = slice.start + slice.tokens.len();
        assert!(end <= self.limits.context_len, "position {} is outside the context", end - 1);
        for (position, &token) in (slice.start..end).zip(slice.tokens) {
            assert!((token as usize) < self.limits.vocab_size, "token {token} is outside the vocabulary");
            let slot = self.slot(slice, position);
            self.cache[slot] = Some(Key { token, past: 0 });
        }
    }

    /// The tokens of the sequence up to the slice's end, as the cache has them.
    fn tokens(&self, slice: &SequenceSlice<'_>) -> Vec<u32> {
        let token = |position| match self.cache[self.slot(slice, position)] {
            Some(key) => key.token,
            None => panic!("position {position} was never computed"),
        };
        (0..slice.start + slice.tokens.len()).map(token).collect()
    }

    /// Completes the slice's keys by their pasts.
    fn store_pasts(&mut self, slice: &SequenceSlice<'_>, tokens: &[u32]) {
        for (position, key) in keys(tokens).enumerate().skip(slice.start) {
            let slot = self.slot(slice, position);
            self.cache[slot] = Some(key);
        }
    }

    /// Checks that the slice's tokens are still there, and that every key that it sees was computed after the tokens that it
    /// sees before it.
    fn check_pasts(&self, slice: &SequenceSlice<'_>, tokens: &[u32]) {
        assert!(tokens.ends_with(slice.tokens), "{:?} were overwritten in the same step", slice.tokens);
        for (position, key) in keys(tokens).enumerate() {
            let is_own = self.cache[self.slot(slice, position)] == Some(key);
            assert!(
                is_own,
                "the key of position {position} was computed after other tokens than {:?}",
                &tokens[..position]
            );
        }
    }

    fn block(&self, block: u32) -> Range<usize> {
        assert!((block as usize) < self.limits.num_blocks, "block {block} does not exist");
        block as usize * self.limits.block_size..(block as usize + 1) * self.limits.block_size
    }

    fn compute(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        let number = self.stats.steps.fetch_add(1, Ordering::SeqCst);
        self.check_step(step);
        let fault = self.faults.iter().find(|(steps, _)| steps.contains(&number)).map(|(_, fault)| fault);
        let mut is_nan_due = matches!(fault, Some(Fault::Nan));
        match fault {
            Some(Fault::Error) => return Err(RunnerError(format!("the stub fails at step {number}"))),
            Some(Fault::Panic) => panic!("the stub panics at step {number}"),
            Some(Fault::Death) => std::panic::panic_any(Grenade),
            Some(Fault::Nan) | None => {}
        }
        // All keys are stored before anyone reads, as in a real step: a block held by two sequences shows.
        step.iter().for_each(|slice| self.store_tokens(slice));
        let pasts: Vec<Vec<u32>> = step.iter().map(|slice| self.tokens(slice)).collect();
        step.iter().zip(&pasts).for_each(|(slice, past)| self.store_pasts(slice, past));
        step.iter().zip(&pasts).for_each(|(slice, past)| self.check_pasts(slice, past));
        for (slice, past) in step.iter().zip(&pasts) {
            let ends = match slice.logits {
                LogitRows::None => continue,
                LogitRows::Last | LogitRows::LastHidden => past.len()..past.len() + 1,
                LogitRows::All | LogitRows::AllHidden => slice.start + 1..past.len() + 1,
            };
            for end in ends {
                if slice.num_logit_rows() == 0 {
                    let (embeddings, state) = self.states.as_ref().expect("this stub has no hidden states");
                    let mut row = vec![0.0; embeddings.hidden_size];
                    state(&past[..end], &mut row);
                    if std::mem::take(&mut is_nan_due) {
                        row[0] = f32::NAN;
                    }
                    logits.push_hidden(&row);
                    continue;
                }
                let row = logits.push_filled(0.0);
                (self.model)(&past[..end], row);
                if std::mem::take(&mut is_nan_due) {
                    row[0] = f32::NAN;
                }
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &[SequenceSlice<'_>]) {
        let rows: usize = step.iter().map(|slice| slice.tokens.len()).sum();
        let logit_rows: usize = step.iter().map(SequenceSlice::num_logit_rows).sum();
        assert!(rows <= self.limits.max_rows, "{rows} rows in a step of at most {}", self.limits.max_rows);
        assert!(logit_rows <= self.limits.max_logit_rows, "{logit_rows} of {} logit rows", self.limits.max_logit_rows);
        self.stats.rows.fetch_add(rows, Ordering::SeqCst);
        self.stats.max_rows.fetch_max(rows, Ordering::SeqCst);
        self.stats.max_sequences.fetch_max(step.len(), Ordering::SeqCst);
    }
}

impl Runner for StubRunner {
    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    /// As with the kernels another thread does it; but shuttle knows no threads but its own.
    fn send_out(&mut self, errand: Errand) {
        if cfg!(feature = "shuttle") {
            return errand();
        }
        if let Err(SendError(errand)) = self.helper.get_or_insert_with(start_helper).send(errand) {
            errand();
        }
    }

    fn embeddings(&self) -> Option<Embeddings> {
        self.states.as_ref().map(|(embeddings, _)| *embeddings)
    }

    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        self.run_while(step, &[], logits, &|| true).map(drop)
    }

    fn run_while(
        &mut self,
        step: &[SequenceSlice<'_>],
        _draws: &[RowDraw],
        logits: &mut LogitsBuffer,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, RunnerError> {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
        std::thread::sleep(self.delay);
        if self.asks && !is_wanted() {
            return Ok(false);
        }
        self.compute(step, logits)?;
        Ok(true)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), RunnerError> {
        let (from, to) = (self.block(from), self.block(to));
        self.cache.copy_within(from, to.start);
        Ok(())
    }

    fn export_block(&self, block: u32, out: &mut Vec<u8>) -> Result<(), RunnerError> {
        out.extend(self.cache[self.block(block)].iter().flat_map(|&key| Key::to_bytes(key)));
        Ok(())
    }

    fn import_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), RunnerError> {
        if bytes.len() != self.block_bytes() {
            return Err(RunnerError(format!("{} bytes for a block of {}", bytes.len(), self.block_bytes())));
        }
        let slots = self.block(block);
        for (slot, &bytes) in self.cache[slots].iter_mut().zip(bytes.as_chunks::<{ Key::BYTES }>().0) {
            *slot = Key::from_bytes(bytes);
        }
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        self.limits.block_size * Key::BYTES
    }

    fn identity(&self) -> String {
        format!("stub, {} tokens a block", self.limits.block_size)
    }

    fn recomputed_rows(&self) -> u64 {
        self.recomputed_per_step * self.stats.steps() as u64
    }
}

#[cfg(test)]
mod tests;
