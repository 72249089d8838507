//! The choices of a request while they grow.

use std::task::{Context, Poll};

use super::shape::Native;
use crate::answer::Source;
use crate::errors::ApiError;
use crate::generation::{Generation, Output, Piece};

pub(super) struct Running {
    pub(super) native: Native,
    generation: Generation,
}

impl Running {
    pub(super) fn new(native: Native, generation: Generation) -> Self {
        Self { native, generation }
    }

    /// New text of a choice; `None` when all are complete.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Piece), ApiError>>> {
        loop {
            let output = match std::task::ready!(self.generation.poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(output)) => output,
            };
            match output {
                Output::Text { choice, piece } => {
                    self.native.append(choice, piece.clone());
                    return Poll::Ready(Some(Ok((choice, piece))));
                }
                Output::Finished { choice, reason, piece } => {
                    self.native.append(choice, piece.clone());
                    self.native.finish(choice, reason);
                    if !piece.text.is_empty() {
                        return Poll::Ready(Some(Ok((choice, piece))));
                    }
                }
                // Nobody can ask for the first; the second says nothing that the totals of the prompts do not.
                Output::PromptLogprobs { .. } => {}
                Output::Totals(_) => {
                    for prompt in 0..self.generation.num_prompts() {
                        self.native.note_totals(prompt, self.generation.totals_of(prompt));
                    }
                }
            }
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
