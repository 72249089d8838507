//! `t_max_predict_ms`: once that much time has gone by since the first text, a request ends as soon as each of its unfinished choices
//! has a line break, as in llama-server.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

/// Watches the choices of one request.
pub(crate) struct PredictLimit {
    /// Until the first text.
    limit: Option<Duration>,
    /// From then on.
    deadline: Option<Pin<Box<Sleep>>>,
    is_late: bool,
    choices: Vec<Choice>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    has_line_break: bool,
    is_finished: bool,
}

impl PredictLimit {
    /// For so many choices; without a limit there is always time.
    pub(crate) fn new(limit: Option<Duration>, num_choices: usize) -> PredictLimit {
        PredictLimit { limit, deadline: None, is_late: false, choices: vec![Choice::default(); num_choices] }
    }

    /// Notes more of a choice.
    pub(crate) fn note(&mut self, choice: usize, text: &str) {
        if let Some(limit) = self.limit.take() {
            self.deadline = Some(Box::pin(tokio::time::sleep(limit)));
        }
        self.choices[choice].has_line_break |= text.contains('\n');
    }

    /// Notes that a choice has ended.
    pub(crate) fn finish(&mut self, choice: usize) {
        self.choices[choice].is_finished = true;
    }

    /// Choices that have not ended.
    pub(crate) fn unfinished(&self) -> Vec<usize> {
        (0..self.choices.len()).filter(|&choice| !self.choices[choice].is_finished).collect()
    }

    /// Whether the request is to end now; wakes the task of `context` when that may change by itself.
    pub(crate) fn poll_is_over(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            self.deadline = None;
            self.is_late = true;
        }
        let mut unfinished = self.choices.iter().filter(|choice| !choice.is_finished).peekable();
        self.is_late && unfinished.peek().is_some() && unfinished.all(|choice| choice.has_line_break)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    fn is_over(limit: &mut PredictLimit, context: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(limit.poll_is_over(context))
    }

    #[tokio::test]
    async fn the_time_begins_with_the_first_text_and_waits_for_line_breaks() {
        let mut limit = PredictLimit::new(Some(Duration::from_millis(1)), 2);
        assert!(!poll_fn(|context| is_over(&mut limit, context)).await);
        assert!(limit.deadline.is_none(), "nothing was said");
        limit.note(0, "a\nb");
        limit.note(1, "c");
        // Until the time is over; the second choice has no line break.
        let is_late = |limit: &mut PredictLimit, context: &mut Context<'_>| {
            assert!(!limit.poll_is_over(context));
            if limit.is_late { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(|context| is_late(&mut limit, context)).await;
        limit.note(1, "\n");
        assert!(poll_fn(|context| is_over(&mut limit, context)).await);
        assert_eq!(limit.unfinished(), [0, 1]);
        limit.finish(1);
        assert!(poll_fn(|context| is_over(&mut limit, context)).await);
        assert_eq!(limit.unfinished(), [0]);
        limit.finish(0);
        assert!(!poll_fn(|context| is_over(&mut limit, context)).await, "there is nothing left to end");
    }

    #[tokio::test]
    async fn without_a_limit_there_is_always_time() {
        let mut limit = PredictLimit::new(None, 1);
        limit.note(0, "\n");
        assert!(!poll_fn(|context| is_over(&mut limit, context)).await && limit.deadline.is_none());
    }
}
