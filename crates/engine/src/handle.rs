//! What clients hold: [`EngineHandle`], shared by all. What it checks at the door is in `submit`.

use crate::block_manager::BlockManager;
use crate::delivery::Delivery;
use crate::disk_cache::DiskCache;
use crate::metrics::EngineMetrics;
use crate::requests::Submission;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::mpsc::{Sender, channel};
use crate::sync::{Builder, JoinHandle, Mutex, MutexGuard};
use crate::worker::{Command, Worker};
use crate::{
    EmbeddingRequest, Embeddings, EventStream, ItlTarget, QueueLimit, Request, Runner, RunnerLimits, SamplingParams,
    SubmitError,
};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use taper_models::Pooler;
use taper_text::Tokenizer;
use tokio::sync::watch;

/// Settings of an engine. The runner's limits bound them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineConfig {
    /// Most sequences that are decoded together.
    pub max_batch: usize,
    /// Most sequences accepted beyond `max_batch`; the next one is refused.
    pub max_queued: usize,
    /// Most prompt tokens of requests that wait; a request that would go beyond is refused, unless nothing waits.
    pub max_queued_tokens: usize,
    /// Most tokens of one step; without it, as many as the runner takes.
    pub token_budget: Option<usize>,
    /// What a step may take while sequences decode, which bounds the chunks of prompts.
    pub itl_target: ItlTarget,
    /// Time that requests without their own have from submission to their end; without it, any.
    pub request_timeout: Option<Duration>,
    /// Where guesses of next tokens come from. It changes speed, never an answer.
    pub speculation: Speculation,
    /// How long a step waits for masks of grammars, at least; a step that took longer waits as long as it took. Sequences whose
    /// masks are not there by then get their tokens in a later step, so that others need not wait for a slow grammar.
    pub mask_patience: Duration,
}

/// Where guesses of next tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// Nowhere: every token is computed alone.
    Off,
    /// What followed the same tokens earlier in the prompt or the answer, where that is expected to pay.
    Lookup,
    /// The draft model, where that is expected to pay.
    Draft,
    /// Whichever of the two is surer.
    #[default]
    All,
}

/// What an engine is made of.
pub struct EngineParts {
    /// Computes.
    pub runner: Box<dyn Runner>,
    /// Turns its tokens into text.
    pub tokenizer: Arc<Tokenizer>,
    /// Computes a smaller model of the same vocabulary, whose choices are guesses of what the large one will choose. Its
    /// blocks have the size of the large one's.
    pub draft: Option<Box<dyn Runner>>,
    /// A prefix cache on disk, opened for the [`Runner::identity`] of this runner.
    pub disk: Option<DiskCache>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_batch: 64,
            max_queued: 256,
            max_queued_tokens: 1 << 20,
            token_budget: None,
            itl_target: ItlTarget::default(),
            request_timeout: None,
            speculation: Speculation::default(),
            mask_patience: Duration::from_millis(20),
        }
    }
}

/// What the engine is doing, as of its latest step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineStatus {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait, those on their way to the engine included.
    pub queued: usize,
    /// Of those, the ones that wait for blocks of the KV cache which another sequence computes or the disk gives; the others wait for room.
    pub deferred: usize,
    /// KV blocks that nobody holds.
    pub free_blocks: usize,
    /// Of those, the ones that the prefix cache would find.
    pub idle_blocks: usize,
    /// KV blocks in all.
    pub num_blocks: usize,
    /// Steps begun since the start, those included that failed or were left.
    pub steps: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Prompt tokens of requests that have begun to run.
    pub prompt_tokens: u64,
    /// Of those, the ones that the prefix cache spared.
    pub cached_tokens: u64,
    /// Tokens of full blocks of prompts: what the prefix cache was asked for.
    pub cacheable_tokens: u64,
    /// Blocks of the KV cache that were read from disk.
    pub restored_blocks: u64,
    /// Times that guesses of a sequence were verified.
    pub guessed_steps: u64,
    /// Guessed tokens that were verified.
    pub guessed_tokens: u64,
    /// Of those, the ones that were right.
    pub right_guesses: u64,
    /// Tokens that the draft model chose, verified or not.
    pub drafted_tokens: u64,
    /// Times that a sequence lost its blocks to an older one.
    pub preemptions: u64,
    /// (row, head) pairs of attention computed a second time, because a fixed softmax reference did not fit.
    pub recomputed_rows: u64,
    /// Whether new requests are refused because the engine is shutting down.
    pub is_draining: bool,
    /// Moving average of the seconds from submission to the end of a request; 0 before the first.
    pub mean_request_s: f64,
}

/// A choice that holds blocks, as of the latest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningChoice {
    /// The number of its request, which [`EventStream::id`] tells.
    pub request: u64,
    /// Which of the `n` choices.
    pub choice: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// How many more it may have.
    pub room: usize,
}

/// What the engine thread tells the handles.
#[derive(Debug)]
pub(crate) struct Shared {
    /// As of the latest step.
    pub(crate) status: Mutex<EngineStatus>,
    /// False after several failed steps in a row, and when the thread died.
    pub(crate) is_healthy: AtomicBool,
    /// Sequences accepted and not ended.
    pub(crate) live: AtomicUsize,
    /// Prompt tokens of requests accepted and not begun.
    pub(crate) queued_tokens: AtomicUsize,
    /// The choices that run, as of the latest step.
    pub(crate) running: Mutex<Vec<RunningChoice>>,
    /// Tokens on their way to the streams.
    pub(crate) delivery: Arc<Delivery>,
    /// Written by the engine thread alone.
    pub(crate) metrics: EngineMetrics,
}

/// What is needed to submit. Under one lock, so that no request can slip in behind the command to drain.
struct Door {
    commands: Sender<Command>,
    is_draining: bool,
    /// Requests so far.
    num_submitted: u64,
}

/// How many sequences that came later may begin before one that waits, whatever their priorities: beside a batch of tens, some
/// seconds.
const PATIENCE: usize = 64;

/// What a request is told when there is nobody to take it.
const HAS_ENDED: &str = "its thread has ended; restart the program";

struct Inner {
    door: Mutex<Door>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: watch::Receiver<()>,
    limits: RunnerLimits,
    embeddings: Option<Embeddings>,
    kv_cache_bytes: usize,
    max_live: usize,
    /// As asked for, within the runner's limits.
    config: EngineConfig,
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts an engine thread for `runner`; `tokenizer` turns its tokens into text.
    ///
    /// # Panics
    /// When the runner's limits have a zero in them.
    pub fn start(runner: Box<dyn Runner>, tokenizer: Arc<Tokenizer>, config: EngineConfig) -> EngineHandle {
        Engine::start_with(EngineParts { runner, tokenizer, draft: None, disk: None }, config)
    }

    /// Starts an engine thread for these parts.
    ///
    /// # Panics
    /// When the limits of a runner have a zero in them, and when the blocks of the draft model have another size.
    pub fn start_with(parts: EngineParts, config: EngineConfig) -> EngineHandle {
        let EngineParts { runner, tokenizer, draft, disk } = parts;
        let mut limits = runner.limits();
        let RunnerLimits { context_len, num_blocks, block_size, vocab_size, max_rows, max_logit_rows } = limits;
        assert!(
            [context_len, num_blocks, block_size, vocab_size, max_rows, max_logit_rows].iter().all(|&limit| limit > 0),
            "a runner that can hold or do nothing: {limits:?}"
        );
        assert!(
            draft.iter().all(|draft| draft.limits().block_size == block_size),
            "blocks of the draft model are named as those of the large one are, so they hold as many tokens"
        );
        // A sequence that has the cache for itself must fit.
        limits.context_len = context_len.min(num_blocks * block_size);
        let token_budget = config.token_budget.unwrap_or(max_rows).clamp(1, max_rows);
        let max_batch = config.max_batch.clamp(1, max_logit_rows.min(token_budget));
        let scheduler = Scheduler::new(
            SchedulerConfig { max_batch, token_budget, max_logit_rows, patience: PATIENCE },
            BlockManager::new(num_blocks, block_size),
        );
        let shared = Arc::new(Shared {
            delivery: Arc::default(),
            status: Mutex::new(EngineStatus { free_blocks: num_blocks, num_blocks, ..EngineStatus::default() }),
            is_healthy: AtomicBool::new(true),
            live: AtomicUsize::new(0),
            queued_tokens: AtomicUsize::new(0),
            running: Mutex::new(Vec::new()),
            metrics: EngineMetrics::new(limits.context_len),
        });
        let kv_cache_bytes = num_blocks.saturating_mul(runner.block_bytes());
        let embeddings = runner.embeddings();
        let (commands, receiver) = channel();
        let (ends, ended) = watch::channel(());
        let parts = EngineParts { runner, tokenizer, draft, disk };
        let worker = Worker::new(parts, scheduler, config, receiver, Arc::clone(&shared));
        let thread = Builder::new().name("taper-engine".to_owned()).spawn(move || {
            // Dropped when the thread ends, which is what `drained` waits for.
            let _ends = ends;
            worker.run();
        });
        if let Err(error) = &thread {
            tracing::error!(%error, "the engine thread could not be started");
            shared.is_healthy.store(false, Ordering::Release);
        }
        EngineHandle(Arc::new(Inner {
            door: Mutex::new(Door { commands, is_draining: false, num_submitted: 0 }),
            shared,
            thread: Mutex::new(thread.ok()),
            ended,
            limits,
            embeddings,
            kv_cache_bytes,
            max_live: max_batch.saturating_add(config.max_queued),
            config: EngineConfig { max_batch, token_budget: Some(token_budget), ..config },
        }))
    }
}

/// Access to a running engine; clones share it. When the last one is dropped, the engine finishes the requests whose
/// streams are still held, and its thread ends.
#[derive(Clone)]
pub struct EngineHandle(Arc<Inner>);

impl EngineHandle {
    /// Submits a request. The events of its choices come through the stream; dropping that cancels the request.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        request.check(self.0.limits, self.0.max_live)?;
        self.enqueue(request, None)
    }

    /// Submits a prompt to be made one vector, which comes as [`crate::Event::Embedding`]; dropping the stream cancels it.
    ///
    /// # Errors
    /// Those of [`EngineHandle::submit`], and where the runner gives no hidden states.
    pub fn embed(&self, request: EmbeddingRequest) -> Result<EventStream, SubmitError> {
        let Embeddings { hidden_size, .. } = self.0.embeddings.ok_or(SubmitError::NoEmbeddings)?;
        request.check(self.0.limits)?;
        let EmbeddingRequest { prompt_tokens, pooling, priority, cache_salt, timeout } = request;
        let sampling = SamplingParams::greedy();
        let sampled = Request { prompt_tokens, sampling, ..Request::default() };
        let request = Request { priority, cache_salt, timeout, ..sampled };
        self.enqueue(request, Some(Pooler::new(pooling, hidden_size)))
    }

    /// Puts a request that was checked into the queue.
    fn enqueue(&self, mut request: Request, pooler: Option<Pooler>) -> Result<EventStream, SubmitError> {
        let inner = &*self.0;
        request.timeout = request.timeout.or(inner.config.request_timeout);
        let num_choices = request.sampling.n;
        let (events, stream) = EventStream::channel(&inner.shared.delivery);
        let mut door = inner.door();
        if door.is_draining {
            return Err(SubmitError::Draining);
        }
        // A thread that died took what it counted with it.
        if self.has_ended() {
            return Err(SubmitError::Failed(HAS_ENDED.to_owned()));
        }
        // Only submissions add to the count, and they hold the lock.
        let num_tokens = request.prompt_tokens.len();
        let queued_tokens = inner.shared.queued_tokens.load(Ordering::Acquire);
        let is_too_long =
            queued_tokens > 0 && queued_tokens.saturating_add(num_tokens) > inner.config.max_queued_tokens;
        let are_too_many = inner.shared.live.load(Ordering::Acquire) + num_choices > inner.max_live;
        if are_too_many || is_too_long {
            let limit = if are_too_many { QueueLimit::Requests } else { QueueLimit::Tokens };
            return Err(SubmitError::QueueFull { limit, retry_after_s: self.retry_after_s() });
        }
        inner.shared.live.fetch_add(num_choices, Ordering::AcqRel);
        inner.shared.queued_tokens.fetch_add(num_tokens, Ordering::AcqRel);
        let id = door.num_submitted;
        door.num_submitted += 1;
        let submission = Submission { id, request, pooler, events, submitted: Instant::now() };
        door.commands.send(Command::Submit(Box::new(submission))).map_err(|_| {
            inner.shared.live.fetch_sub(num_choices, Ordering::AcqRel);
            inner.shared.queued_tokens.fetch_sub(num_tokens, Ordering::AcqRel);
            SubmitError::Failed(HAS_ENDED.to_owned())
        })?;
        Ok(stream.with_id(id))
    }

    /// A running sequence ends, on average, once per mean duration divided by how many run.
    fn retry_after_s(&self) -> u64 {
        let status = self.0.shared.status();
        let wait = status.mean_request_s / status.running.max(1) as f64;
        // The cast saturates; an average is never negative or NaN.
        (wait.ceil() as u64).clamp(1, 60)
    }

    /// What the engine can hold. `context_len` is the longest sequence that it accepts: the model's context, or less when
    /// the KV cache holds less.
    pub fn limits(&self) -> RunnerLimits {
        self.0.limits
    }

    /// The hidden states that the runner gives; none where [`EngineHandle::embed`] is refused.
    pub fn embeddings(&self) -> Option<Embeddings> {
        self.0.embeddings
    }

    /// Time that requests without their own have; without it, any.
    pub fn request_timeout(&self) -> Option<Duration> {
        self.0.config.request_timeout
    }

    /// Its settings, `max_batch` and `token_budget` as the runner's limits leave them.
    pub fn config(&self) -> EngineConfig {
        self.0.config
    }

    /// Bytes of all blocks of the KV cache.
    pub fn kv_cache_bytes(&self) -> usize {
        self.0.kv_cache_bytes
    }

    /// What the engine is doing.
    pub fn status(&self) -> EngineStatus {
        let mut status = *self.0.shared.status();
        status.queued = self.0.shared.live.load(Ordering::Acquire).saturating_sub(status.running);
        // It is as of the latest step, and some of them may be gone by now.
        status.deferred = status.deferred.min(status.queued);
        status.is_draining = self.0.door().is_draining;
        status
    }

    /// The choices that run, in order of rank.
    pub fn running(&self) -> Vec<RunningChoice> {
        self.0.shared.running().clone()
    }

    /// Tokens of prompts that wait to be begun.
    pub fn queued_tokens(&self) -> usize {
        self.0.shared.queued_tokens.load(Ordering::Acquire)
    }

    /// What it counted and timed so far.
    pub fn metrics(&self) -> &EngineMetrics {
        &self.0.shared.metrics
    }

    /// False after three failed steps in a row (until one succeeds), and when the engine thread died.
    pub fn is_healthy(&self) -> bool {
        self.0.shared.is_healthy.load(Ordering::Acquire)
    }

    /// Whether the engine thread has ended: drained, stopped or died.
    pub fn has_ended(&self) -> bool {
        self.0.ended.has_changed().is_err()
    }

    /// Takes no new requests from now on; accepted ones are finished, then the engine thread ends. Returns at once:
    /// [`EngineHandle::drained`] or [`EngineHandle::join`] wait for the end.
    pub fn drain(&self) {
        self.close(Command::Drain);
    }

    /// Takes no new requests, fails those it has after the step in progress, and ends the engine thread. Returns at once.
    pub fn stop_now(&self) {
        self.close(Command::Stop);
    }

    fn close(&self, command: Command) {
        let mut door = self.0.door();
        door.is_draining = true;
        // An engine thread that is gone has nothing left to close.
        let _ = door.commands.send(command);
    }

    /// Waits until the engine thread has ended, which it does after [`EngineHandle::drain`] or [`EngineHandle::stop_now`].
    pub async fn drained(&self) {
        let mut ended = self.0.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// [`EngineHandle::drained`] for plain threads: blocks.
    pub fn join(&self) {
        let mut thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread was noted by its own guard.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EngineHandle").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Inner {
    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The running choices; a thread that died while holding them leaves plain numbers behind.
    pub(crate) fn running(&self) -> MutexGuard<'_, Vec<RunningChoice>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status; a thread that died while holding it leaves plain numbers behind.
    pub(crate) fn status(&self) -> MutexGuard<'_, EngineStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
