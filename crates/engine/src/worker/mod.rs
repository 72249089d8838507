//! The engine thread: takes commands, asks the scheduler, has the step run, tells the clients. What one step does is in
//! `step`.
//!
//! Events are collected during a step and sent after the status is published, so whoever sees a request end also sees its
//! blocks free and its place in the queue open.

use crate::disk_cache::DiskCache;
use crate::grammar::MaskWorker;
use crate::handle::Shared;
use crate::handle::{EngineConfig, EngineParts, Speculation};
use crate::outbox::Outbox;
use crate::pace::Pace;
use crate::requests::{ActiveRequest, Submission};
use crate::scheduler::{Admission, Arrival, KnownRows, Scheduler, SequenceId, Step};
use crate::sequence::{Form, Sequence};
use crate::speculation::{Acceptance, Drafter, Lookup, StepCosts};
use crate::sync::mpsc::Receiver;
use crate::thoughts::Thoughts;
use crate::{BlockChain, BlockHash, EngineError, LogitsBuffer, Miss, Request, Runner, Sampler, Scratch};
use disk::Restoring;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use taper_models::{Pooler, Pooling};
use taper_text::Tokenizer;

mod disk;
mod draft;
mod embed;
mod ends;
mod form;
mod guess;
mod step;

/// What handles ask of the engine thread.
pub(crate) enum Command {
    /// Take a request.
    Submit(Box<Submission>),
    /// Finish all requests, then end.
    Drain,
    /// Fail all requests, then end.
    Stop,
}

/// Everything the engine thread owns.
pub(crate) struct Worker {
    runner: Box<dyn Runner>,
    tokenizer: Arc<Tokenizer>,
    scheduler: Scheduler,
    pace: Pace,
    costs: StepCosts,
    speculation: Speculation,
    drafter: Option<Drafter>,
    /// How good guesses were, of all sequences.
    experience: Acceptance,
    /// What the names of this runner's blocks begin with.
    identity: String,
    /// Computes masks of grammars; started by the first.
    masks: Option<MaskWorker>,
    mask_patience: Duration,
    disk: Option<DiskCache>,
    /// Sequences whose blocks are being read from disk, in the order of their arrival; the scheduler does not know them yet.
    restoring: VecDeque<Restoring>,
    /// A block's bytes on their way to or from the disk. One buffer for good: many large ones that come and go between small ones
    /// leave holes in the heap.
    block_bytes: Vec<u8>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    context_len: usize,
    sequences: HashMap<SequenceId, Sequence>,
    requests: HashMap<u64, ActiveRequest>,
    num_sequences: u64,
    logits: LogitsBuffer,
    /// Who draws from which row of them.
    draws: Vec<(SequenceId, usize)>,
    scratch: Scratch,
    /// Since when the token at hand is worked on.
    token_begun: Instant,
    outbox: Outbox,
    failures_in_a_row: u32,
    is_closing: bool,
}

/// Marks the engine unhealthy when its thread unwinds.
struct DeathNotice(Arc<Shared>);

impl Drop for DeathNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_healthy.store(false, Ordering::Release);
            tracing::error!("the engine thread died of a panic; restart the program");
        }
    }
}

impl Worker {
    pub(crate) fn new(
        parts: EngineParts,
        scheduler: Scheduler,
        config: EngineConfig,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        let EngineParts { runner, tokenizer, draft, disk } = parts;
        let limits = runner.limits();
        let drafts = matches!(config.speculation, Speculation::Draft | Speculation::All);
        let drafter = draft.filter(|_| drafts).map(|draft| Drafter::new(draft, limits.vocab_size));
        Worker {
            identity: runner.identity(),
            runner,
            tokenizer,
            scheduler,
            pace: Pace::new(config.itl_target),
            costs: StepCosts::default(),
            speculation: config.speculation,
            drafter,
            experience: Acceptance::default(),
            masks: None,
            mask_patience: config.mask_patience,
            disk,
            restoring: VecDeque::new(),
            block_bytes: Vec::new(),
            commands,
            shared,
            context_len: limits.context_len.min(limits.num_blocks * limits.block_size),
            sequences: HashMap::new(),
            requests: HashMap::new(),
            num_sequences: 0,
            logits: LogitsBuffer::new(limits.vocab_size),
            draws: Vec::new(),
            scratch: Scratch::default(),
            token_begun: Instant::now(),
            outbox: Outbox::default(),
            failures_in_a_row: 0,
            is_closing: false,
        }
    }

    /// Works until told to stop, or drained, or left by all handles.
    pub(crate) fn run(mut self) {
        let _notice = DeathNotice(Arc::clone(&self.shared));
        let mut took = Duration::ZERO;
        while self.take_commands() {
            let begin = Instant::now();
            self.cancel_abandoned();
            self.fail_late();
            self.restore();
            if self.drafter.is_some() {
                // A draft model computes as well. What is not taken by then is not waited for again before the step.
                self.shared.delivery.wait(std::mem::take(&mut took));
            }
            self.guess();
            let step = self.scheduler.schedule(self.pace.limits(self.scheduler.decoding().count()));
            self.note_admitted(&step);
            self.note_preempted(&step);
            self.cut_exhausted(&step);
            if !step.entries.is_empty() {
                self.shared.delivery.wait(took);
                self.runner.settle();
                self.run_step(&step);
            }
            took = begin.elapsed();
            self.publish();
        }
        self.fail_all(&EngineError::Stopped);
        self.publish();
    }

    /// Takes all commands there are, waiting for one when there is nothing else to do. False ends the thread.
    fn take_commands(&mut self) -> bool {
        loop {
            let is_idle = self.requests.is_empty();
            if is_idle && self.is_closing {
                return false;
            }
            let command = if is_idle { self.commands.recv().ok() } else { self.commands.try_recv().ok() };
            match command {
                Some(Command::Submit(submission)) => self.accept(*submission),
                Some(Command::Drain) => self.is_closing = true,
                Some(Command::Stop) => return false,
                // Nothing to take. An idle engine only hears this when no handle is left; a busy one goes on for those who
                // hold streams, whether or not handles are left.
                None => return !is_idle,
            }
        }
    }

    fn accept(&mut self, submission: Submission) {
        let Submission { id: key, request, pooler, events, submitted } = submission;
        let mut active = ActiveRequest::new(events, &request, submitted);
        let pooling = pooler.as_ref().map(Pooler::pooling);
        active.pooler = pooler;
        if pooling.is_none() {
            self.shared.metrics.note_params(&request.sampling);
        }
        let Request { prompt_tokens: prompt, sampling, priority, cache_salt, mut grammar, thinking, .. } = request;
        // Nothing follows a prompt that becomes a vector.
        let room = if pooling.is_some() { 0 } else { self.context_len - prompt.len() };
        let max_len = prompt.len() + sampling.max_tokens.map_or(room, |max| max.min(room));
        let rows = match pooling {
            Some(Pooling::Mean) => KnownRows::AllHidden,
            _ if sampling.prompt_logprobs.is_some() => KnownRows::AllLogits,
            _ => KnownRows::Last,
        };
        let looks_up = room > 0 && matches!(self.speculation, Speculation::Lookup | Speculation::All);
        let lookup = looks_up.then(|| Lookup::new(&prompt));
        let samplers = Sampler::for_choices(&sampling, &prompt, self.tokenizer.end_of_generation());
        let num_choices = samplers.len();
        for (choice, sampler) in samplers.into_iter().enumerate() {
            let id = SequenceId(self.num_sequences);
            self.num_sequences += 1;
            if choice == 0 {
                let root = BlockHash::root(&self.identity, cache_salt.as_deref());
                let chain = BlockChain::new(root, self.scheduler.blocks().block_size(), prompt.clone());
                self.arrive(id, Arrival { chain, priority, rows });
            } else {
                active.unborn.push(id);
            }
            active.unfinished.push(id);
            let place = (key, choice);
            let mut sequence = Sequence::new(place, prompt.clone(), max_len, &sampling, sampler, &self.tokenizer);
            sequence.lookup = lookup.clone();
            sequence.acceptance = Acceptance::after(&self.experience);
            // A copy of a grammar takes a tenth of a millisecond: the last choice has the grammar itself.
            let its = if choice + 1 == num_choices { grammar.take() } else { grammar.clone() };
            sequence.form = its.map(|grammar| Form::Idle(grammar, Vec::new()));
            sequence.thoughts = thinking.clone().map(Thoughts::new);
            self.sequences.insert(id, sequence);
        }
        self.requests.insert(key, active);
    }

    /// Notes what the prefix cache had of the prompts that begin, and says why it had not more where that is worth knowing.
    fn note_admitted(&mut self, step: &Step) {
        for &Admission { sequence, cached_tokens, cacheable_tokens, miss, is_return } in &step.admitted {
            let key = self.sequences[&sequence].request;
            let Some(request) = self.requests.get_mut(&key).filter(|_| !is_return) else { continue };
            request.note_admitted(cached_tokens, miss);
            if let Some(event) = request.progress(cached_tokens, Instant::now()) {
                self.outbox.push(&request.events, event);
            }
            if let Some(disk) = &self.disk {
                // What is served from memory should not leave the disk for it.
                let num_cached = cached_tokens / self.scheduler.blocks().block_size();
                self.scheduler.chain(sequence).names()[..num_cached].iter().for_each(|&name| disk.touch(name));
            }
            let prompt_tokens = request.prompt_tokens;
            self.shared.queued_tokens.fetch_sub(prompt_tokens, Ordering::AcqRel);
            let mut status = self.shared.status();
            status.prompt_tokens += prompt_tokens as u64;
            status.cached_tokens += cached_tokens as u64;
            status.cacheable_tokens += cacheable_tokens as u64;
            drop(status);
            tell_miss(key, prompt_tokens, cached_tokens, miss);
        }
    }

    fn note_preempted(&mut self, step: &Step) {
        for &id in &step.preempted {
            tracing::debug!(sequence = id.0, "preempted: an older sequence needed its blocks");
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.num_preemptions += 1;
            }
            if let Some(drafter) = &mut self.drafter {
                drafter.forget(id);
            }
        }
        self.shared.status().preemptions += step.preempted.len() as u64;
    }

    /// Publishes the status, then sends the events that led to it.
    fn publish(&mut self) {
        let mut status = self.shared.status();
        status.running = self.scheduler.num_running();
        status.deferred = self.scheduler.num_deferred() + self.restoring.len();
        status.free_blocks = self.scheduler.blocks().num_free();
        status.idle_blocks = self.scheduler.blocks().num_idle();
        drop(status);
        let mut running = self.shared.running();
        running.clear();
        running.extend(self.scheduler.running().filter_map(|id| Some(self.sequences.get(&id)?.running())));
        drop(running);
        self.shared.delivery.begin();
        let post = self.outbox.post();
        if !post.is_short_work() {
            return post.send();
        }
        let engine = thread::current().id();
        self.runner
            .send_out(Box::new(move || if thread::current().id() == engine { post.send() } else { post.hand_off() }));
    }
}

/// Says in the log what the prefix cache had of a prompt, and where it is worth knowing, why it had no more.
fn tell_miss(request: u64, prompt_tokens: usize, cached_tokens: usize, miss: Option<Miss>) {
    match miss {
        None => tracing::debug!(request, prompt_tokens, cached_tokens, "prefix cache: every full block was there"),
        Some(Miss::New) => tracing::debug!(request, prompt_tokens, cached_tokens, "prefix cache: the rest is new"),
        Some(Miss::Departs { common }) => tracing::info!(
            request,
            prompt_tokens,
            cached_tokens,
            "prefix cache: token {} differs from every kept prompt that begins like this one; whole blocks are shared",
            cached_tokens + common
        ),
        Some(Miss::Evicted) => tracing::info!(
            request,
            prompt_tokens,
            cached_tokens,
            "prefix cache: more was there, and its memory was needed; a larger KV cache (--kv-cache-size) keeps more"
        ),
    }
}
