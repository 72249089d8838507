//! What is counted and timed while the engine runs, for dashboards; the bounds of the histograms are vLLM's.
//!
//! As in vLLM, each choice of a request with `n > 1` counts like a request of its own, in everything but
//! [`EngineMetrics::num_choices`], [`EngineMetrics::max_tokens`] and [`EngineMetrics::longest_choice`]. Latencies are observed when a choice ends with an answer;
//! one that was dropped or failed is only counted, by its [`EndReason`]. A prompt that becomes a vector counts like a choice without
//! tokens.
//!
//! Only the engine thread writes, but for the counts of requests that were refused. Every number is an atomic of its own, so that a step takes no lock for them and a reader
//! holds nobody up; it may see the count of an observation a moment before its sum.

use crate::speculation::MAX_GUESSES;
use crate::{FinishReason, Masked, QueueLimit, SamplingParams};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bounds in seconds for the first token.
const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Bounds in seconds for every other token.
const TOKEN_S: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Bounds in seconds for a request and its phases.
const REQUEST_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// Bounds in seconds for grammar masks, which take microseconds where a step takes milliseconds.
const MASK_S: [f64; 15] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_4, 0.000_5, 0.001, 0.002, 0.005, 0.01,
    0.1, 1.0,
];
/// Bounds for the tokens of a step.
const STEP_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Bounds for `n`.
const NUM_CHOICES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
/// Bounds for how often a choice lost its blocks.
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Bounds for the tokens of a request: 1, 2, 5, 10, 20, 50, ... as far as a context goes.
fn token_bounds(context_len: usize) -> Vec<f64> {
    let decades = (0..).map(|exponent| 10_f64.powi(exponent));
    let bounds = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * decade));
    bounds.take_while(|&bound| bound <= context_len as f64).collect()
}

/// How often values fell between fixed bounds, and their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    // One more than bounds: the last counts what is above all of them.
    counts: Vec<AtomicU64>,
    // The bits of a double.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: impl Into<Vec<f64>>) -> Self {
        let bounds = bounds.into();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0.0_f64.to_bits()) }
    }

    /// Takes in a value. For the engine thread alone: no other writer may come between reading the sum and storing it.
    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.store((self.sum() + value).to_bits(), Ordering::Relaxed);
    }

    /// Upper bounds, rising and ending with infinity, each with how many values lie between it and the bound before. A
    /// value that equals a bound is not above it.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum.load(Ordering::Relaxed))
    }
}

/// Why a choice is no longer worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// As [`FinishReason::Stop`].
    Stop,
    /// As [`FinishReason::Length`].
    Length,
    /// Its stream was dropped.
    Abort,
    /// It failed, ran out of time, or was left over when the engine stopped.
    Error,
}

impl EndReason {
    /// All of them.
    pub const ALL: [EndReason; 4] = [EndReason::Stop, EndReason::Length, EndReason::Abort, EndReason::Error];

    /// vLLM's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
            EndReason::Abort => "abort",
            EndReason::Error => "error",
        }
    }
}

impl From<FinishReason> for EndReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => EndReason::Stop,
            FinishReason::Length => EndReason::Length,
        }
    }
}

/// When the tokens of a choice came.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChoiceClock {
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    num_tokens: u64,
}

/// A choice that ends with an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishedChoice {
    /// Why it ended.
    pub(crate) reason: FinishReason,
    /// Its tokens.
    pub(crate) clock: ChoiceClock,
    /// Tokens of its prompt,
    pub(crate) prompt_tokens: usize,
    /// and those of them that were computed for it: neither cached nor another choice's.
    pub(crate) computed_tokens: usize,
    /// How often it lost its blocks to another.
    pub(crate) num_preemptions: usize,
    /// When its request was submitted.
    pub(crate) submitted: Instant,
    /// When the first step began that computed some of its request; none for what was never computed.
    pub(crate) started: Option<Instant>,
}

/// See the module's documentation. What the engine counts besides is in [`crate::EngineStatus`].
#[derive(Debug)]
pub struct EngineMetrics {
    /// Seconds from submission to the first token.
    pub time_to_first_token_s: Histogram,
    /// Seconds between the steps that gave a choice tokens. A step that gives several, of guesses that were right, counts
    /// once, as in vLLM: it is the pause that a reader sees.
    pub inter_token_latency_s: Histogram,
    /// Per choice of at least two tokens: seconds per token after the first.
    pub time_per_output_token_s: Histogram,
    /// Seconds from submission to the end.
    pub e2e_latency_s: Histogram,
    /// Seconds from submission to the first step that computed some of it.
    pub queue_time_s: Histogram,
    /// Seconds from there to its last token: the two that follow together.
    pub inference_time_s: Histogram,
    /// Seconds from that step to its first token.
    pub prefill_time_s: Histogram,
    /// Seconds from there to its last token.
    pub decode_time_s: Histogram,
    /// Tokens of the prompt.
    pub prompt_tokens: Histogram,
    /// Of those, the ones that were computed for the choice: not those that the prefix cache had, nor those that it shares with another
    /// choice of its request.
    pub computed_prompt_tokens: Histogram,
    /// Tokens of the answer.
    pub generation_tokens: Histogram,
    /// Tokens of the longest choice, by request whose choices all ended with an answer.
    pub longest_choice: Histogram,
    /// How often a choice lost its blocks to another.
    pub preemptions: Histogram,
    /// Tokens computed per step that succeeded: of prompts, of answers, and guesses that were verified.
    pub step_tokens: Histogram,
    /// `n` of requests, when they reach the engine thread.
    pub num_choices: Histogram,
    /// `max_tokens` of requests that say it, when they reach the engine thread.
    pub max_tokens: Histogram,
    /// Seconds of the grammar thread per request to it: the tokens that are forced, the mask behind them, and a mask behind
    /// each guessed token.
    pub grammar_mask_s: Histogram,
    /// Seconds that the engine waited for them after the step that they belong to.
    pub grammar_wait_s: Histogram,
    num_generated: AtomicU64,
    ended: [AtomicU64; EndReason::ALL.len()],
    right_guesses: [AtomicU64; MAX_GUESSES],
    refused: [AtomicU64; QueueLimit::ALL.len()],
}

impl ChoiceClock {
    /// Tokens so far.
    pub(crate) fn num_tokens(&self) -> u64 {
        self.num_tokens
    }
}

impl EngineMetrics {
    pub(crate) fn new(context_len: usize) -> Self {
        let tokens = || Histogram::new(token_bounds(context_len));
        EngineMetrics {
            time_to_first_token_s: Histogram::new(FIRST_TOKEN_S),
            inter_token_latency_s: Histogram::new(TOKEN_S),
            time_per_output_token_s: Histogram::new(TOKEN_S),
            e2e_latency_s: Histogram::new(REQUEST_S),
            queue_time_s: Histogram::new(REQUEST_S),
            inference_time_s: Histogram::new(REQUEST_S),
            prefill_time_s: Histogram::new(REQUEST_S),
            decode_time_s: Histogram::new(REQUEST_S),
            prompt_tokens: tokens(),
            computed_prompt_tokens: tokens(),
            generation_tokens: tokens(),
            longest_choice: tokens(),
            preemptions: Histogram::new(PREEMPTIONS),
            step_tokens: Histogram::new(STEP_TOKENS),
            num_choices: Histogram::new(NUM_CHOICES),
            max_tokens: tokens(),
            grammar_mask_s: Histogram::new(MASK_S),
            grammar_wait_s: Histogram::new(MASK_S),
            num_generated: AtomicU64::new(0),
            ended: Default::default(),
            right_guesses: Default::default(),
            refused: Default::default(),
        }
    }

    /// Tokens generated so far, those of choices that did not end well included.
    pub fn num_generated(&self) -> u64 {
        self.num_generated.load(Ordering::Relaxed)
    }

    /// Choices that ended so far for this reason.
    pub fn num_ended(&self, reason: EndReason) -> u64 {
        self.ended[reason as usize].load(Ordering::Relaxed)
    }

    /// Guesses that were right so far, by their place behind the latest token.
    pub fn num_right_by_place(&self) -> impl Iterator<Item = u64> {
        self.right_guesses.iter().map(|count| count.load(Ordering::Relaxed))
    }

    /// Requests that were refused so far because of this limit, and whose clients were told so.
    pub fn num_refused(&self, limit: QueueLimit) -> u64 {
        self.refused[limit as usize].load(Ordering::Relaxed)
    }

    /// Notes that a request was refused, and that its client is told so: who tries again in silence refuses nobody. Any thread may call
    /// this.
    pub fn note_refused(&self, limit: QueueLimit) {
        self.refused[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the first so many guesses of a step were right.
    pub(crate) fn note_right_guesses(&self, num_right: usize) {
        for count in self.right_guesses.iter().take(num_right) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes what a request asks for.
    pub(crate) fn note_params(&self, sampling: &SamplingParams) {
        self.num_choices.observe(sampling.n as f64);
        if let Some(max_tokens) = sampling.max_tokens {
            self.max_tokens.observe(max_tokens as f64);
        }
    }

    /// Notes how long the grammar thread took, and how long it was waited for.
    pub(crate) fn note_masks(&self, masked: &Masked) {
        self.grammar_mask_s.observe(masked.computed.as_secs_f64());
        self.grammar_wait_s.observe(masked.waited.as_secs_f64());
    }

    /// Notes a token of a choice. Those of one step have the same `now`.
    pub(crate) fn note_token(&self, clock: &mut ChoiceClock, submitted: Instant, now: Instant) {
        self.num_generated.fetch_add(1, Ordering::Relaxed);
        clock.num_tokens += 1;
        match clock.last_token.replace(now) {
            Some(last) if last == now => {}
            Some(last) => self.inter_token_latency_s.observe(now.duration_since(last).as_secs_f64()),
            None => {
                clock.first_token = Some(now);
                self.time_to_first_token_s.observe(now.duration_since(submitted).as_secs_f64());
            }
        }
    }

    /// Notes that a choice ends with an answer at `now`.
    pub(crate) fn note_finished(&self, choice: FinishedChoice, now: Instant) {
        let clock = choice.clock;
        let first_token = clock.first_token.unwrap_or(now);
        let decode_s = clock.last_token.unwrap_or(now).duration_since(first_token).as_secs_f64();
        self.note_embedded(choice, now);
        self.decode_time_s.observe(decode_s);
        if clock.num_tokens > 1 {
            self.time_per_output_token_s.observe(decode_s / (clock.num_tokens - 1) as f64);
        }
        self.generation_tokens.observe(clock.num_tokens as f64);
    }

    /// Notes the end of a prompt that was to become a vector: all that is noted of a choice but its tokens.
    pub(crate) fn note_embedded(&self, choice: FinishedChoice, now: Instant) {
        let FinishedChoice { reason, clock, prompt_tokens, computed_tokens, num_preemptions, submitted, started } =
            choice;
        self.note_ended(reason.into(), 1);
        let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
        let started = started.unwrap_or(now);
        self.e2e_latency_s.observe(seconds(submitted, now));
        self.queue_time_s.observe(seconds(submitted, started));
        self.inference_time_s.observe(seconds(started, clock.last_token.unwrap_or(now)));
        self.prefill_time_s.observe(seconds(started, clock.first_token.unwrap_or(now)));
        self.prompt_tokens.observe(prompt_tokens as f64);
        self.computed_prompt_tokens.observe(computed_tokens as f64);
        self.preemptions.observe(num_preemptions as f64);
    }

    /// Counts choices that ended.
    pub(crate) fn note_ended(&self, reason: EndReason, num_choices: usize) {
        self.ended[reason as usize].fetch_add(num_choices as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
