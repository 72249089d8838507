//! One HTTP request at the engine: its prompts are submitted a window at a time, and their events become one stream in
//! which choice `j` of prompt `i` is number `i * n + j`.
//!
//! The body of the response owns the [`Generation`]; dropping it drops the event streams, which cancels the sequences.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use taper_engine::{
    EngineError, EngineHandle, Event, EventStream, FinishReason, Miss, Request, SamplingParams, SubmitError,
    ThinkingBudget, Timings, TokenLogprobs, Usage,
};
use taper_text::Grammar;
use tokio::time::Sleep;

use crate::access_log::Cost;
use crate::answer::{AnswerPiece, Source};
use crate::errors::ApiError;
use crate::limits::MAX_ALL_CHOICES;
use crate::parameters::Parameters;
use crate::peer::Computing;
use crate::predict_limit::PredictLimit;
use crate::slots::{SlotGuard, SlotRequest, Slots};
use crate::state::{ActiveGuard, Served};
use crate::time_limit::TimeLimit;

/// Prompts of one request that are at the engine at once; a larger batch must not fill the queue for everyone.
pub(crate) const MAX_IN_FLIGHT: usize = 32;
/// How long a batch that has begun waits before it asks a full queue again.
pub(crate) const QUEUE_PAUSE: Duration = Duration::from_millis(50);

/// What a generation costs in all, when it is complete.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Of those, the ones that the prefix cache spared.
    pub cached_tokens: usize,
    /// Why the prefix cache spared no more, if a full block of the prompt was not there; only for one prompt.
    pub miss: Option<Miss>,
    /// Tokens of all answers.
    pub completion_tokens: usize,
    /// Of those, the ones that the model thought with, as far as its thoughts were told apart.
    pub reasoning_tokens: usize,
    /// Guesses of tokens that were verified.
    pub guessed_tokens: usize,
    /// Of those, the ones that were right.
    pub right_guesses: usize,
    /// Rows of attention computed a second time in its steps; only for one prompt, since prompts of a batch share steps.
    pub recomputed_rows: Option<u64>,
    /// Where the time went; only for one prompt, since prompts of a batch overlap.
    pub timings: Option<Timings>,
}

impl Totals {
    /// Of one prompt; `prompt_only` where nothing was asked for but what is told of it.
    pub(crate) fn of(usage: Usage, prompt_only: bool) -> Totals {
        Totals {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            miss: usage.miss,
            // The one token that was chosen at the end of a prompt asked about alone is nobody's.
            completion_tokens: if prompt_only { 0 } else { usage.completion_tokens },
            reasoning_tokens: 0,
            guessed_tokens: usage.guessed_tokens,
            right_guesses: usage.right_guesses,
            recomputed_rows: Some(usage.recomputed_rows),
            timings: Some(usage.timings),
        }
    }
}

/// Text of a choice, the tokens it came with, and their log-probabilities if they were asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
}

impl AnswerPiece for Piece {
    fn append(&mut self, next: Piece) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.logprobs.extend(next.logprobs);
    }

    fn is_blank(&self) -> bool {
        self.text.is_empty()
    }

    fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    fn mean_logprob(&self) -> f64 {
        mean_logprob(&self.logprobs)
    }
}

/// How probable the model found a text, per token. Every token had its log-probability asked for.
pub(crate) fn mean_logprob(logprobs: &[TokenLogprobs]) -> f64 {
    let sum: f64 = logprobs.iter().map(|found| f64::from(found.logprob)).sum();
    sum / logprobs.len().max(1) as f64
}

/// How much of a prompt is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Its tokens.
    pub(crate) total: usize,
    /// Of those, the ones that the prefix cache spared,
    pub(crate) cached: usize,
    /// and all that need not be computed any more.
    pub(crate) computed: usize,
    /// Since the first step that computed some of it.
    pub(crate) seconds: f64,
}

/// One piece of an answer; `P` is what a choice is made of, `R` why one ends.
#[derive(Debug)]
pub(crate) enum Output<P = Piece, R = FinishReason> {
    /// Before all text of the prompt's choices.
    PromptLogprobs {
        prompt: usize,
        logprobs: Vec<Option<TokenLogprobs>>,
    },
    /// Before all text of the prompt's choices, as often as there is news.
    Progress {
        prompt: usize,
        progress: Progress,
    },
    Text {
        choice: usize,
        piece: P,
    },
    Finished {
        choice: usize,
        reason: R,
        piece: P,
    },
    Totals(Totals),
}

struct Running {
    prompt: usize,
    events: EventStream,
    _slot: SlotGuard,
}

/// The merged events of a request's prompts.
pub(crate) struct Generation {
    engine: EngineHandle,
    prompt_param: &'static str,
    sampling: SamplingParams,
    /// One per prompt, if answers must have a form.
    grammars: Vec<Arc<Grammar>>,
    /// The field that asked for it.
    form_field: &'static str,
    thinking: Option<ThinkingBudget>,
    tells_progress: bool,
    slots: Arc<Slots>,
    /// What it asks for, for who asks about slots.
    asked: Arc<SlotRequest>,
    priority: i32,
    cache_salt: Option<String>,
    prompt_only: bool,
    /// Tokens of each prompt.
    prompt_lens: Vec<usize>,
    waiting: VecDeque<(usize, Vec<u32>)>,
    running: Vec<Running>,
    /// Where the next round of polling begins, so that no prompt is always last.
    turn: usize,
    time_limit: TimeLimit,
    pause: Option<Pin<Box<Sleep>>>,
    totals: Totals,
    /// Of the prompts that are done.
    usages: Vec<Option<Usage>>,
    /// Of the choices that are done.
    finish_reasons: Vec<&'static str>,
    limit: PredictLimit,
    /// When it began, and how long after that the first text came.
    begun: Instant,
    first_text: Option<Duration>,
    /// Tokens of each choice that were passed on.
    num_passed: Vec<usize>,
    /// What is told of choices that were ended here.
    last_words: VecDeque<Output>,
    ended: bool,
    span: tracing::Span,
    /// Where the request's line in the log finds what it cost.
    cost: Arc<Cost>,
    _active: ActiveGuard,
    _computing: Computing,
}

impl Generation {
    /// Submits the first prompts. Everything that can be refused is refused here, before an answer begins.
    pub(crate) async fn start(
        served: &Arc<Served>,
        prompts: Vec<Vec<u32>>,
        parameters: &Parameters,
        prompt_param: &'static str,
        (active, time_limit): (ActiveGuard, TimeLimit),
    ) -> Result<Self, ApiError> {
        let num_choices = prompts.len().saturating_mul(parameters.sampling.n);
        if num_choices > MAX_ALL_CHOICES {
            let message = format!(
                "{} prompts with {} choices each are {num_choices} choices, and at most {MAX_ALL_CHOICES} are taken in one request; ask \
                 about fewer prompts at a time, or for fewer choices",
                prompts.len(),
                parameters.sampling.n
            );
            return Err(ApiError::invalid("n", message));
        }
        let engine = served.model.engine.clone();
        let context_len = served.model.context_len.min(engine.limits().context_len);
        if let Some(too_long) = prompts.iter().find(|tokens| tokens.len() >= context_len) {
            return Err(ApiError::context_overflow(prompt_param, too_long.len(), context_len, true));
        }
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::from_submit(SubmitError::EmptyPrompt, prompt_param));
        }
        let computing = Computing::begin().await;
        let mut generation = Self {
            engine,
            prompt_param,
            sampling: parameters.sampling.clone(),
            thinking: parameters.thinking.clone(),
            tells_progress: parameters.tells_progress && parameters.stream,
            slots: Arc::clone(&served.slots),
            asked: Arc::new(SlotRequest {
                sampling: parameters.sampling.clone(),
                samplers: parameters.samplers.clone(),
                stream: parameters.stream,
            }),
            priority: parameters.priority,
            cache_salt: parameters.cache_salt.clone(),
            prompt_only: parameters.prompt_only,
            prompt_lens: prompts.iter().map(Vec::len).collect(),
            grammars: parameters.grammars.clone(),
            form_field: parameters.form.as_ref().map_or("allowed_token_ids", |form| form.field),
            running: Vec::new(),
            turn: 0,
            time_limit,
            pause: None,
            totals: Totals::default(),
            usages: vec![None; prompts.len()],
            finish_reasons: vec![""; prompts.len() * parameters.sampling.n],
            limit: PredictLimit::new(parameters.predict_limit, prompts.len() * parameters.sampling.n),
            begun: Instant::now(),
            first_text: None,
            num_passed: vec![0; prompts.len() * parameters.sampling.n],
            last_words: VecDeque::new(),
            waiting: prompts.into_iter().enumerate().collect(),
            ended: false,
            span: tracing::Span::current(),
            cost: Cost::current(),
            _active: active,
            _computing: computing,
        };
        generation.cost.submit(&served.model.id);
        generation.submit_waiting()?;
        Ok(generation)
    }

    /// Notes that a choice ended with calls of tools, for who asks how requests end.
    pub(crate) fn note_tool_calls(&mut self, choice: usize) {
        if let Some(reason) = self.finish_reasons.get_mut(choice) {
            *reason = "tool_calls";
        }
    }

    /// Ends the choices that have not ended: what came so far is their answer.
    pub(crate) fn cut(&mut self) {
        self.running.clear();
        self.waiting.clear();
        let span = self.span.clone();
        let _in_span = span.enter();
        tracing::info!("cut: the request's own limit for its answer is reached");
        for choice in self.limit.unfinished() {
            let reason = FinishReason::Length;
            self.finish_reasons[choice] = reason.as_str();
            self.last_words.push_back(Output::Finished { choice, reason, piece: Piece::default() });
        }
        for prompt in 0..self.prompt_lens.len() {
            if self.usages[prompt].is_none() {
                let usage = self.usage_so_far(prompt);
                self.usages[prompt] = Some(usage);
                self.add(usage);
            }
        }
        let totals = self.complete();
        self.last_words.push_back(totals);
    }

    /// What a prompt has cost that the engine has not done with, as far as that is known here.
    fn usage_so_far(&self, prompt: usize) -> Usage {
        let first_text = self.first_text.unwrap_or_default();
        Usage {
            prompt_tokens: self.prompt_lens[prompt],
            completion_tokens: self.num_passed[self.choices_of(prompt)].iter().sum(),
            timings: Timings {
                prefill_s: first_text.as_secs_f64(),
                decode_s: self.begun.elapsed().saturating_sub(first_text).as_secs_f64(),
                ..Timings::default()
            },
            ..Usage::default()
        }
    }

    /// Notes what is passed on.
    fn note(&mut self, output: &Output) {
        match output {
            Output::Text { choice, piece } => self.note_piece(*choice, piece),
            Output::Finished { choice, piece, .. } => {
                self.note_piece(*choice, piece);
                self.limit.finish(*choice);
            }
            Output::PromptLogprobs { .. } | Output::Progress { .. } | Output::Totals(_) => {}
        }
    }

    fn note_piece(&mut self, choice: usize, piece: &Piece) {
        self.first_text.get_or_insert_with(|| self.begun.elapsed());
        self.num_passed[choice] += piece.tokens.len();
        self.limit.note(choice, &piece.text);
    }

    /// Submits prompts until the window is full. A full queue refuses a request that has not begun, and makes one that has
    /// begun wait.
    fn submit_waiting(&mut self) -> Result<(), ApiError> {
        while self.running.len() < MAX_IN_FLIGHT
            && let Some((prompt, tokens)) = self.waiting.pop_front()
        {
            let timeout = self.time_limit.left();
            if timeout.is_some_and(|left| left.is_zero()) {
                return Err(self.time_limit.error());
            }
            let request = Request {
                prompt_tokens: tokens.clone(),
                sampling: self.sampling.clone(),
                grammar: self.grammars.get(prompt).map(|grammar| Grammar::clone(grammar)),
                thinking: self.thinking.clone(),
                tells_progress: self.tells_progress,
                priority: self.priority,
                cache_salt: self.cache_salt.clone(),
                timeout,
            };
            match self.engine.submit(request) {
                Ok(events) => {
                    let slot = self.slots.enter(events.id(), &self.asked);
                    self.running.push(Running { prompt, events, _slot: slot });
                }
                Err(SubmitError::QueueFull { .. }) if prompt > 0 => {
                    self.waiting.push_front((prompt, tokens));
                    self.pause = Some(Box::pin(tokio::time::sleep(QUEUE_PAUSE)));
                    break;
                }
                Err(error) => return Err(ApiError::of_engine(&self.engine, error, self.prompt_param)),
            }
        }
        Ok(())
    }

    /// The next piece of the request.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        if self.limit.poll_is_over(context) && !self.ended {
            self.cut();
        }
        if let Some(output) = self.last_words.pop_front() {
            return Poll::Ready(Some(Ok(output)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Some(pause) = &mut self.pause
                && pause.as_mut().poll(context).is_ready()
            {
                self.pause = None;
            }
            if self.pause.is_none()
                && let Err(error) = self.submit_waiting()
            {
                return Poll::Ready(Some(Err(self.fail(error))));
            }
            if self.pause.is_some() && self.running.is_empty() {
                // A pause that was just made has not been polled yet: go round once so that it wakes this task.
                match self.pause.as_mut().map(|pause| pause.as_mut().poll(context)) {
                    Some(Poll::Pending) => return Poll::Pending,
                    _ => continue,
                }
            }
            if self.running.is_empty() {
                return Poll::Ready(Some(Ok(self.complete())));
            }
            match self.poll_running(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
                Poll::Ready(Some(result)) => {
                    if let Ok(output) = &result {
                        self.note(output);
                    }
                    return Poll::Ready(Some(result));
                }
            }
        }
    }

    /// The next event of any running prompt; `Ready(None)` when it is none for the client: a prompt is done, and another may
    /// begin.
    fn poll_running(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        for step in 0..self.running.len() {
            let index = (self.turn + step) % self.running.len();
            let running = &mut self.running[index];
            let first_choice = running.prompt * self.sampling.n;
            let Poll::Ready(event) = running.events.poll_recv(context) else { continue };
            self.turn = index + 1;
            return Poll::Ready(match event {
                Some(Event::PromptLogprobs(logprobs)) => {
                    Some(Ok(Output::PromptLogprobs { prompt: running.prompt, logprobs }))
                }
                Some(Event::PromptProgress { cached_tokens, computed_tokens, seconds }) => {
                    let total = self.prompt_lens[running.prompt];
                    let progress = Progress { total, cached: cached_tokens, computed: computed_tokens, seconds };
                    Some(Ok(Output::Progress { prompt: running.prompt, progress }))
                }
                // Of prompts that become vectors, which are none of a generation's.
                Some(Event::Embedding(_)) => None,
                Some(Event::Text { .. }) if self.prompt_only => None,
                Some(Event::Text { choice, text, tokens, logprobs }) => {
                    Some(Ok(Output::Text { choice: first_choice + choice, piece: Piece { text, tokens, logprobs } }))
                }
                Some(Event::Finished { choice, .. }) if self.prompt_only => {
                    let (choice, reason) = (first_choice + choice, FinishReason::Length);
                    self.finish_reasons[choice] = reason.as_str();
                    Some(Ok(Output::Finished { choice, reason, piece: Piece::default() }))
                }
                Some(Event::Finished { choice, reason, text, tokens, logprobs }) => {
                    let (choice, piece) = (first_choice + choice, Piece { text, tokens, logprobs });
                    self.finish_reasons[choice] = reason.as_str();
                    Some(Ok(Output::Finished { choice, reason, piece }))
                }
                Some(Event::Done(usage)) => {
                    let done = self.running.swap_remove(index);
                    self.usages[done.prompt] = Some(usage);
                    self.add(usage);
                    None
                }
                Some(Event::Failed(error)) => Some(Err(self.fail(self.refusal(&error)))),
                None => Some(Err(self.fail(ApiError::internal("the engine ended a request without a last word")))),
            });
        }
        Poll::Pending
    }

    fn add(&mut self, usage: Usage) {
        let Totals { prompt_tokens, cached_tokens, completion_tokens, guessed_tokens, right_guesses, .. } =
            Totals::of(usage, self.prompt_only);
        self.totals.prompt_tokens += prompt_tokens;
        self.totals.cached_tokens += cached_tokens;
        self.totals.completion_tokens += completion_tokens;
        self.totals.guessed_tokens += guessed_tokens;
        self.totals.right_guesses += right_guesses;
        if self.prompt_lens.len() == 1 {
            self.totals.miss = usage.miss;
            self.totals.recomputed_rows = Some(usage.recomputed_rows);
            self.totals.timings = Some(usage.timings);
        }
    }

    fn complete(&mut self) -> Output {
        self.ended = true;
        self.cost.set(self.totals, std::mem::take(&mut self.finish_reasons));
        Output::Totals(self.totals)
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.ended = true;
        self.running.clear();
        self.waiting.clear();
        let _in_span = self.span.enter();
        if error.status().is_server_error() {
            tracing::error!(error = %error, "a request failed after it was accepted");
        } else {
            tracing::info!(error = %error, "a request could not be finished");
        }
        error
    }

    fn refusal(&self, error: &EngineError) -> ApiError {
        match error {
            // The same request would fail again, so it is the client's to change.
            EngineError::Grammar(reason) => ApiError::invalid(self.form_field, reason.clone()),
            other => refusal(&self.engine, self.time_limit, other),
        }
    }
}

impl Source for Generation {
    type Piece = Piece;
    type Reason = FinishReason;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, ApiError>>> {
        self.poll(context)
    }

    fn num_choices(&self) -> usize {
        self.prompt_lens.len() * self.sampling.n
    }

    fn num_prompts(&self) -> usize {
        self.prompt_lens.len()
    }

    fn prompt_tokens(&self) -> usize {
        self.prompt_lens.iter().sum()
    }

    fn choices_of(&self, prompt: usize) -> Range<usize> {
        prompt * self.sampling.n..(prompt + 1) * self.sampling.n
    }

    fn totals_of(&self, prompt: usize) -> Option<Totals> {
        self.usages[prompt].map(|usage| Totals::of(usage, self.prompt_only))
    }
}

/// What a client hears of a request that failed. An engine that stops on purpose, or fails at every step, is a 503 that another
/// server can cure; the rest are faults.
pub(crate) fn refusal(engine: &EngineHandle, time_limit: TimeLimit, error: &EngineError) -> ApiError {
    match error {
        // What its handles hear when its thread dies.
        EngineError::Stopped if !engine.is_healthy() => ApiError::failed("the engine crashed; restart the server"),
        EngineError::Stopped => ApiError::draining(),
        EngineError::TimedOut(_) => time_limit.error(),
        EngineError::Runner(_) | EngineError::Panicked(_) if !engine.is_healthy() => {
            ApiError::failed(&format!("its last steps failed: {error}"))
        }
        other => ApiError::internal(other.to_string()),
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            let _in_span = self.span.enter();
            tracing::info!(unfinished = self.running.len() + self.waiting.len(), "the client left; cancelled");
        }
    }
}
