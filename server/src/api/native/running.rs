//! The choices of a request while they grow.

use std::task::{Context, Poll};

use serde_json::Value;
use taper_engine::FinishReason;

use super::shape::Native;
use crate::answer::Source;
use crate::errors::ApiError;
use crate::generation::{Generation, Output, Piece};

pub(super) struct Running {
    pub(super) native: Native,
    generation: Generation,
    /// Whether a choice has ended here, and not at the engine.
    ended_here: bool,
}

impl Running {
    pub(super) fn new(native: Native, generation: Generation) -> Self {
        Self { native, generation, ended_here: false }
    }

    /// The next part of a stream; `None` when all choices are complete.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Value, ApiError>>> {
        loop {
            let output = match std::task::ready!(self.generation.poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(output)) => output,
            };
            let (choice, piece, reason) = match output {
                Output::Text { choice, piece } => (choice, piece, None),
                Output::Finished { choice, reason, piece } => (choice, piece, Some(reason)),
                Output::Progress { prompt, progress } => {
                    let choice = self.generation.choices_of(prompt).start;
                    return Poll::Ready(Some(Ok(self.native.progress(choice, &progress))));
                }
                // Nobody can ask for the first; the second says nothing that the totals of the prompts do not.
                Output::PromptLogprobs { .. } => continue,
                Output::Totals(_) => {
                    for prompt in 0..self.generation.num_prompts() {
                        self.native.note_totals(prompt, self.generation.totals_of(prompt));
                    }
                    continue;
                }
            };
            if let Some(piece) = self.take(choice, piece, reason) {
                return Poll::Ready(Some(Ok(self.native.part(choice, &piece))));
            }
        }
    }

    /// Takes more of a choice, and returns what of it is told before its last word. A choice that has ended here may go on at the
    /// engine, beside others of its prompt.
    fn take(&mut self, choice: usize, mut piece: Piece, reason: Option<FinishReason>) -> Option<Piece> {
        if self.native.is_finished(choice) {
            return None;
        }
        let end = self.native.end_of(choice, &piece.text);
        if let Some(end) = end {
            piece.text.truncate(end);
        }
        self.native.append(choice, piece.clone());
        if let Some(reason) = end.map(|_| FinishReason::Length).or(reason) {
            self.native.finish(choice, reason);
        }
        self.ended_here |= end.is_some();
        if self.ended_here && self.native.are_finished() {
            self.generation.cut();
        }
        // The tokens of the last text go with it, those without text with the last word.
        (reason.is_none() || !piece.text.is_empty()).then_some(piece)
    }

    /// Waits for all of it.
    pub(super) async fn collect(mut self) -> Result<Native, ApiError> {
        while let Some(part) = std::future::poll_fn(|context| self.poll_next(context)).await {
            part?;
        }
        Ok(self.native)
    }
}
