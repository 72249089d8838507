//! The choices of a request while they grow, and `t_max_predict_ms`: once that much time has gone by since the first text, a
//! request ends as soon as each of its unfinished choices has a line break, as in llama-server.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use taper_engine::FinishReason;
use tokio::time::Sleep;

use super::shape::Native;
use crate::answer::Source;
use crate::errors::ApiError;
use crate::generation::{Generation, Output, Piece};

pub(super) struct Running {
    pub(super) native: Native,
    generation: Generation,
    limit: Option<Duration>,
    /// Runs from the first text.
    deadline: Option<Pin<Box<Sleep>>>,
    is_late: bool,
    begun: Instant,
}

impl Running {
    pub(super) fn new(native: Native, generation: Generation, limit: Option<Duration>) -> Self {
        Self { native, generation, limit, deadline: None, is_late: false, begun: Instant::now() }
    }

    /// New text of a choice; `None` when all are complete.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Piece), ApiError>>> {
        loop {
            if let Some(deadline) = &mut self.deadline
                && deadline.as_mut().poll(context).is_ready()
            {
                self.deadline = None;
                self.is_late = true;
            }
            if self.is_late && self.native.may_be_cut() {
                self.cut();
                return Poll::Ready(None);
            }
            let output = match self.generation.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(output))) => output,
            };
            match output {
                Output::Text { choice, piece } => {
                    self.note(choice, &piece);
                    return Poll::Ready(Some(Ok((choice, piece))));
                }
                Output::Finished { choice, reason, piece } => {
                    self.note(choice, &piece);
                    self.native.finish(choice, reason);
                    if !piece.text.is_empty() {
                        return Poll::Ready(Some(Ok((choice, piece))));
                    }
                }
                // Nobody can ask for the first; the second says nothing that the usage of the prompts does not.
                Output::PromptLogprobs { .. } => {}
                Output::Totals(_) => {
                    for prompt in 0..self.generation.num_prompts() {
                        self.native.note_usage(prompt, self.generation.usage_of(prompt));
                    }
                }
            }
        }
    }

    fn note(&mut self, choice: usize, piece: &Piece) {
        if let Some(limit) = self.limit.take() {
            self.deadline = Some(Box::pin(tokio::time::sleep(limit)));
            self.native.first_text_s = self.begun.elapsed().as_secs_f64();
        }
        self.native.append(choice, piece.clone());
    }

    /// Ends the choices that have not ended.
    fn cut(&mut self) {
        self.native.elapsed_s = self.begun.elapsed().as_secs_f64();
        for prompt in 0..self.generation.num_prompts() {
            self.native.note_usage(prompt, self.generation.usage_of(prompt));
        }
        self.generation.stop();
        for choice in 0..self.generation.num_choices() {
            self.native.finish_if_unfinished(choice, FinishReason::Length);
        }
    }

    /// Waits for all of it.
    pub(super) async fn collect(mut self) -> Result<Native, ApiError> {
        while let Some(piece) = std::future::poll_fn(|context| self.poll_next(context)).await {
            piece?;
        }
        Ok(self.native)
    }
}
