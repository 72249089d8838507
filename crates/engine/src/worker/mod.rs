//! The engine thread: takes commands, asks the scheduler, has the step run, tells the clients. What one step does is in
//! `step`.
//!
//! Events are collected during a step and sent after the status is published, so whoever sees a request end also sees its
//! blocks free and its place in the queue open.

use crate::handle::Shared;
use crate::requests::{ActiveRequest, Submission};
use crate::scheduler::{Scheduler, SequenceId, Step};
use crate::sequence::{Accepted, Sequence};
use crate::{EngineError, Event, LogitsBuffer, Runner, Sampler, Scratch};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use taper_text::Tokenizer;
use tokio::sync::mpsc::UnboundedSender;

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
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    context_len: usize,
    sequences: HashMap<SequenceId, Sequence>,
    requests: HashMap<u64, ActiveRequest>,
    num_accepted: u64,
    num_sequences: u64,
    logits: LogitsBuffer,
    scratch: Scratch,
    outbox: Vec<(UnboundedSender<Event>, Event)>,
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
        runner: Box<dyn Runner>,
        tokenizer: Arc<Tokenizer>,
        scheduler: Scheduler,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        let limits = runner.limits();
        Worker {
            runner,
            tokenizer,
            scheduler,
            commands,
            shared,
            context_len: limits.context_len.min(limits.num_blocks * limits.block_size),
            sequences: HashMap::new(),
            requests: HashMap::new(),
            num_accepted: 0,
            num_sequences: 0,
            logits: LogitsBuffer::new(limits.vocab_size),
            scratch: Scratch::default(),
            outbox: Vec::new(),
            failures_in_a_row: 0,
            is_closing: false,
        }
    }

    /// Works until told to stop, or drained, or left by all handles.
    pub(crate) fn run(mut self) {
        let _notice = DeathNotice(Arc::clone(&self.shared));
        while self.take_commands() {
            self.cancel_abandoned();
            let step = self.scheduler.schedule();
            self.note_preempted(&step);
            self.cut_exhausted(&step);
            if !step.entries.is_empty() {
                self.run_step(&step);
            }
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
        let Submission { request, events, submitted } = submission;
        let key = self.num_accepted;
        self.num_accepted += 1;
        let prompt = request.prompt_tokens;
        let room = self.context_len - prompt.len();
        let max_len = prompt.len() + request.sampling.max_tokens.map_or(room, |max| max.min(room));
        let mut active = ActiveRequest::new(events, prompt.len(), submitted);
        let samplers = Sampler::for_choices(&request.sampling, &prompt, self.tokenizer.end_of_generation());
        for (choice, sampler) in samplers.into_iter().enumerate() {
            let id = SequenceId(self.num_sequences);
            self.num_sequences += 1;
            self.scheduler.add(id, prompt.len());
            active.unfinished.push(id);
            let place = (key, choice);
            let sequence = Sequence::new(place, prompt.clone(), max_len, &request.sampling, sampler, &self.tokenizer);
            self.sequences.insert(id, sequence);
        }
        self.requests.insert(key, active);
    }

    /// Removes the requests whose streams were dropped.
    fn cancel_abandoned(&mut self) {
        let abandoned: Vec<u64> =
            self.requests.iter().filter(|(_, request)| request.events.is_closed()).map(|(&key, _)| key).collect();
        for key in abandoned {
            tracing::debug!(request = key, "cancelled: its stream was dropped");
            self.forget(key);
        }
    }

    fn note_preempted(&self, step: &Step) {
        for &SequenceId(sequence) in &step.preempted {
            tracing::debug!(sequence, "preempted: an older sequence needed its blocks");
        }
        self.shared.status().preemptions += step.preempted.len() as u64;
    }

    /// Ends the sequences that cannot get the blocks they need although nobody else holds one.
    fn cut_exhausted(&mut self, step: &Step) {
        for &id in &step.exhausted {
            let sequence = self.sequences.get_mut(&id).expect("the scheduler knows the same sequences");
            let accepted = sequence.cut();
            self.deliver(id, accepted, Instant::now());
        }
    }

    /// Passes on what a token did to a sequence.
    fn deliver(&mut self, id: SequenceId, accepted: Accepted, now: Instant) {
        let key = self.sequences[&id].request;
        let request = self.requests.get_mut(&key).expect("a sequence lives no longer than its request");
        self.outbox.extend(accepted.event.map(|event| (request.events.clone(), event)));
        if !accepted.is_finished {
            return;
        }
        request.unfinished.retain(|&unfinished| unfinished != id);
        if request.unfinished.is_empty() {
            self.outbox.push((request.events.clone(), Event::Done(request.usage(now))));
            let age_s = request.age_s(now);
            let mut status = self.shared.status();
            let mean = status.mean_request_s;
            status.mean_request_s = if mean == 0.0 { age_s } else { 0.8 * mean + 0.2 * age_s };
            drop(status);
            self.requests.remove(&key);
        }
        self.drop_sequence(id);
    }

    /// Ends a request with an error.
    fn fail(&mut self, key: u64, error: &EngineError) {
        if let Some(request) = self.requests.get(&key) {
            tracing::warn!(request = key, %error, "request failed");
            self.outbox.push((request.events.clone(), Event::Failed(error.clone())));
            self.forget(key);
        }
    }

    fn fail_all(&mut self, error: &EngineError) {
        let keys: Vec<u64> = self.requests.keys().copied().collect();
        for key in keys {
            self.fail(key, error);
        }
    }

    /// Removes a request and what is left of its sequences.
    fn forget(&mut self, key: u64) {
        for id in self.requests.remove(&key).map(|request| request.unfinished).unwrap_or_default() {
            self.drop_sequence(id);
        }
    }

    fn drop_sequence(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        if self.sequences.remove(&id).is_some() {
            self.shared.live.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Publishes the status, then sends the events that led to it.
    fn publish(&mut self) {
        let mut status = self.shared.status();
        status.running = self.scheduler.num_running();
        status.free_blocks = self.scheduler.blocks().num_free();
        drop(status);
        for (events, event) in self.outbox.drain(..) {
            // A closed stream is noticed before the next step.
            let _ = events.send(event);
        }
    }
}
