//! A request while it is in the engine, and the clock readings that become its [`Timings`].

use crate::scheduler::SequenceId;
use crate::{Event, Request, Timings, Usage};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// A request on its way to the engine thread.
pub(crate) struct Submission {
    /// What is asked; already checked.
    pub(crate) request: Request,
    /// Where its events go.
    pub(crate) events: UnboundedSender<Event>,
    /// When it was submitted.
    pub(crate) submitted: Instant,
}

/// What the engine thread keeps of a request.
pub(crate) struct ActiveRequest {
    /// Where its events go; closed when the client is gone.
    pub(crate) events: UnboundedSender<Event>,
    /// Its choices that are not finished.
    pub(crate) unfinished: Vec<SequenceId>,
    prompt_tokens: usize,
    completion_tokens: usize,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl ActiveRequest {
    pub(crate) fn new(events: UnboundedSender<Event>, prompt_tokens: usize, submitted: Instant) -> Self {
        ActiveRequest {
            events,
            unfinished: Vec::new(),
            prompt_tokens,
            completion_tokens: 0,
            submitted,
            started: None,
            first_token: None,
        }
    }

    /// Notes that a step beginning at `now` computes some of it.
    pub(crate) fn note_step(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// Notes a generated token.
    pub(crate) fn note_token(&mut self, now: Instant) {
        self.completion_tokens += 1;
        self.first_token.get_or_insert(now);
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
            cached_tokens: 0,
            completion_tokens: self.completion_tokens,
            timings: Timings {
                queue_s: started.duration_since(self.submitted).as_secs_f64(),
                prefill_s: first_token.duration_since(started).as_secs_f64(),
                decode_s: now.duration_since(first_token).as_secs_f64(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventStream;
    use std::time::Duration;

    #[test]
    fn timings_split_the_life_of_a_request() {
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let base = at(0);
        let after = |ms| base + Duration::from_millis(ms);
        let (events, _stream) = EventStream::channel();
        let mut request = ActiveRequest::new(events, 7, base);
        request.note_step(after(10));
        request.note_step(after(20));
        request.note_token(after(30));
        request.note_token(after(70));
        let usage = request.usage(after(70));
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 2));
        assert_eq!(usage.timings, Timings { queue_s: 0.01, prefill_s: 0.02, decode_s: 0.04 });
    }
}
