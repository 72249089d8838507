//! A request while it is in the engine, and the clock readings that become its [`Timings`].

use crate::event::EventSender;
use crate::metrics::{ChoiceClock, EngineMetrics, FinishedChoice};
use crate::scheduler::SequenceId;
use crate::sequence::{Accepted, Sequence};
use crate::{Event, FinishReason, InvalidLogits, Miss, Request, Timings, TokenLogprobs, Usage};
use std::time::{Duration, Instant};
use taper_models::Pooler;

/// A request on its way to the engine thread.
pub(crate) struct Submission {
    /// Its number.
    pub(crate) id: u64,
    /// What is asked; already checked.
    pub(crate) request: Request,
    /// Gathers the vector of the prompt, where that is wanted and no answer.
    pub(crate) pooler: Option<Pooler>,
    /// Where its events go.
    pub(crate) events: EventSender,
    /// When it was submitted.
    pub(crate) submitted: Instant,
}

/// Log-probabilities of a prompt's tokens; of the first there is none.
pub(crate) struct PromptLogprobs {
    num_top: usize,
    tokens: Vec<Option<TokenLogprobs>>,
}

impl PromptLogprobs {
    fn new(num_top: usize) -> Self {
        PromptLogprobs { num_top, tokens: vec![None] }
    }

    /// Takes in the logits after the token at `position`. Those of a prompt that is computed a second time are known.
    pub(crate) fn push(&mut self, position: usize, logits: &[f32], prompt: &[u32]) -> Result<(), InvalidLogits> {
        if let Some(&next) = prompt.get(position + 1)
            && self.tokens.len() == position + 1
        {
            self.tokens.push(Some(TokenLogprobs::new(logits, next, self.num_top)?));
        }
        Ok(())
    }

    /// All of them, when they are complete.
    pub(crate) fn finished(&mut self, prompt_len: usize) -> Option<Vec<Option<TokenLogprobs>>> {
        (self.tokens.len() == prompt_len).then(|| std::mem::take(&mut self.tokens))
    }
}

/// What the engine thread keeps of a request.
pub(crate) struct ActiveRequest {
    /// Where its events go; closed when the client is gone.
    pub(crate) events: EventSender,
    /// Its choices that are not finished.
    pub(crate) unfinished: Vec<SequenceId>,
    /// Choices that begin when the prompt is computed, from the blocks of the first.
    pub(crate) unborn: Vec<SequenceId>,
    /// Whether it has not begun to run.
    pub(crate) is_queued: bool,
    /// Log-probabilities of its prompt, while they are gathered.
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// Gathers the vector of its prompt, where that is wanted and no answer.
    pub(crate) pooler: Option<Pooler>,
    /// Whether it is told how much of its prompt is computed, and how much it was told last.
    tells_progress: bool,
    told_progress: Option<usize>,
    timeout: Option<Duration>,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: usize,
    cached_tokens: usize,
    miss: Option<Miss>,
    completion_tokens: usize,
    /// Of its longest choice that ended.
    longest_choice: u64,
    guessed_tokens: usize,
    right_guesses: usize,
    recomputed_rows: u64,
    sampling: Duration,
    detokenizing: Duration,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl ActiveRequest {
    pub(crate) fn new(events: EventSender, request: &Request, submitted: Instant) -> Self {
        ActiveRequest {
            events,
            unfinished: Vec::new(),
            unborn: Vec::new(),
            is_queued: true,
            prompt_logprobs: request.sampling.prompt_logprobs.map(|num_top| PromptLogprobs::new(num_top as usize)),
            pooler: None,
            tells_progress: request.tells_progress,
            told_progress: None,
            timeout: request.timeout,
            prompt_tokens: request.prompt_tokens.len(),
            cached_tokens: 0,
            miss: None,
            completion_tokens: 0,
            longest_choice: 0,
            guessed_tokens: 0,
            right_guesses: 0,
            recomputed_rows: 0,
            sampling: Duration::ZERO,
            detokenizing: Duration::ZERO,
            submitted,
            started: None,
            first_token: None,
        }
    }

    /// Notes that it begins to run, how many tokens of its prompt the prefix cache had, and why it had no more.
    pub(crate) fn note_admitted(&mut self, cached_tokens: usize, miss: Option<Miss>) {
        self.is_queued = false;
        self.cached_tokens = cached_tokens;
        self.miss = miss;
    }

    /// News of its prompt, of which so many tokens are computed at `now`, if it wants to hear of that.
    pub(crate) fn progress(&mut self, computed_tokens: usize, now: Instant) -> Option<Event> {
        let computed_tokens = computed_tokens.min(self.prompt_tokens);
        let is_news = self.tells_progress && self.told_progress.is_none_or(|told| told < computed_tokens);
        is_news.then(|| {
            self.told_progress = Some(computed_tokens);
            let seconds = self.started.map_or(0.0, |started| now.duration_since(started).as_secs_f64());
            Event::PromptProgress { cached_tokens: self.cached_tokens, computed_tokens, seconds }
        })
    }

    /// How long it was given, if that is over at `now`.
    pub(crate) fn timed_out(&self, now: Instant) -> Option<Duration> {
        self.timeout.filter(|&timeout| now.duration_since(self.submitted) >= timeout)
    }

    /// Notes that a step beginning at `now` computes some of it.
    pub(crate) fn note_step(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// Notes a generated token of one of its choices.
    pub(crate) fn note_token(&mut self, clock: &mut ChoiceClock, metrics: &EngineMetrics, now: Instant) {
        metrics.note_token(clock, self.submitted, now);
        self.completion_tokens += 1;
        self.first_token.get_or_insert(now);
    }

    /// Notes what one of its tokens took, which was worked on since `begun`; that becomes the time when its text was made.
    pub(crate) fn note_work(&mut self, begun: &mut Instant, accepted: &Accepted) {
        let &Accepted { chosen, told, .. } = accepted;
        self.sampling += chosen.duration_since(std::mem::replace(begun, told));
        self.detokenizing += told.duration_since(chosen);
    }

    /// Notes that its prompt's log-probabilities were read from logits since `begun`.
    pub(crate) fn note_prompt_logprobs(&mut self, begun: Instant) {
        self.sampling += begun.elapsed();
    }

    /// Notes that a step that computed some of it computed so many rows of attention a second time.
    pub(crate) fn note_recomputed(&mut self, rows: u64) {
        self.recomputed_rows += rows;
    }

    /// Notes that `guessed` tokens of one of its choices were verified, and `right` of them kept.
    pub(crate) fn note_guesses(&mut self, guessed: usize, right: usize) {
        self.guessed_tokens += guessed;
        self.right_guesses += right;
    }

    /// One of its choices, when it ends.
    pub(crate) fn finished(&mut self, reason: FinishReason, choice: &Sequence) -> FinishedChoice {
        let &mut ActiveRequest { prompt_tokens, cached_tokens, submitted, started, .. } = self;
        let &Sequence { clock, num_preemptions, .. } = choice;
        let is_computed = choice.is_first() && started.is_some();
        let computed_tokens = if is_computed { prompt_tokens - cached_tokens } else { 0 };
        self.longest_choice = self.longest_choice.max(clock.num_tokens());
        FinishedChoice { reason, clock, prompt_tokens, computed_tokens, num_preemptions, submitted, started }
    }

    /// Tokens of its longest choice that ended.
    pub(crate) fn longest_choice(&self) -> u64 {
        self.longest_choice
    }

    /// Seconds since it was submitted.
    pub(crate) fn age_s(&self, now: Instant) -> f64 {
        now.duration_since(self.submitted).as_secs_f64()
    }

    /// What it cost, if it ended at `now`.
    pub(crate) fn usage(&self, now: Instant) -> Usage {
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            miss: self.miss,
            completion_tokens: self.completion_tokens,
            guessed_tokens: self.guessed_tokens,
            right_guesses: self.right_guesses,
            recomputed_rows: self.recomputed_rows,
            timings: Timings {
                queue_s: started.duration_since(self.submitted).as_secs_f64(),
                prefill_s: first_token.duration_since(started).as_secs_f64(),
                decode_s: now.duration_since(first_token).as_secs_f64(),
                sample_s: self.sampling.as_secs_f64(),
                detokenize_s: self.detokenizing.as_secs_f64(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventStream;

    #[test]
    fn timings_split_the_life_of_a_request() {
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let base = at(0);
        let after = |ms| base + Duration::from_millis(ms);
        let (events, _stream) = EventStream::channel(&std::sync::Arc::default());
        let asked =
            Request { prompt_tokens: vec![1; 7], timeout: Some(Duration::from_millis(60)), ..Request::default() };
        let mut request = ActiveRequest::new(events, &asked, base);
        request.note_admitted(3, Some(Miss::Evicted));
        assert_eq!(request.timed_out(after(59)), None);
        assert_eq!(request.timed_out(after(60)), asked.timeout);
        request.note_step(after(10));
        request.note_step(after(20));
        let (mut clock, metrics) = (ChoiceClock::default(), EngineMetrics::new(64));
        request.note_token(&mut clock, &metrics, after(30));
        request.note_token(&mut clock, &metrics, after(70));
        request.note_guesses(5, 2);
        request.note_guesses(1, 1);
        request.note_recomputed(4);
        request.note_recomputed(1);
        // Two tokens: chosen within 2 and 1 ms, and made text within 3 and 5.
        let mut begun = after(20);
        for (chosen, told) in [(22, 25), (26, 31)] {
            let (chosen, told) = (after(chosen), after(told));
            let accepted = Accepted { token: 0, event: None, is_finished: false, chosen, told };
            request.note_work(&mut begun, &accepted);
        }
        assert_eq!(begun, after(31));
        let usage = request.usage(after(70));
        assert_eq!((usage.guessed_tokens, usage.right_guesses), (6, 3));
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (7, 3, 2));
        assert_eq!((usage.recomputed_rows, usage.miss), (5, Some(Miss::Evicted)));
        let (sample_s, detokenize_s) = (0.003, 0.008);
        assert_eq!(usage.timings, Timings { queue_s: 0.01, prefill_s: 0.02, decode_s: 0.04, sample_s, detokenize_s });
    }
}
