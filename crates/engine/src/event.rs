//! What a client hears about its request, and the stream it hears it on.

use crate::delivery::{Delivery, Receipt};
use crate::{Miss, TokenLogprobs};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer, or a stop string was met.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

impl FinishReason {
    /// The name OpenAI's interface gives it.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// Where the seconds of a request went.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// From submission until the first step that computed some of it.
    pub queue_s: f64,
    /// From there until its first token was known.
    pub prefill_s: f64,
    /// From there until its last token.
    pub decode_s: f64,
    /// What the engine thread took to choose its tokens from logits, in all choices together: processors, masks, draws,
    /// log-probabilities. What a GPU draws itself is part of its step and not in here.
    pub sample_s: f64,
    /// What it took to make text of them: the detokenizer and the search for stop strings. These two are no further phases: they
    /// run between the steps, and but for the last token's they lie within the phases above.
    pub detokenize_s: f64,
}

/// What a request cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Tokens of the prompt, counted once however many choices share it.
    pub prompt_tokens: usize,
    /// Of those, the ones that the prefix cache spared.
    pub cached_tokens: usize,
    /// Why it spared no more, if a full block of the prompt was not there.
    pub miss: Option<Miss>,
    /// Tokens generated in all choices together, an end-of-generation token included.
    pub completion_tokens: usize,
    /// Guesses of its tokens that were verified, in all choices together.
    pub guessed_tokens: usize,
    /// Of those, the ones that were right.
    pub right_guesses: usize,
    /// (row, head) pairs of attention that were computed a second time in its steps, those of others in the same steps included:
    /// nobody counts them by request.
    pub recomputed_rows: u64,
    /// Where the time went.
    pub timings: Timings,
}

/// Why an accepted request ended without its answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The runner returned an error for the step that this request was part of.
    #[error("the model failed while computing this request: {0}; try again")]
    Runner(String),
    /// Something panicked in the step that this request was part of.
    #[error("the model crashed while computing this request: {0}; try again, and report it if it persists")]
    Panicked(String),
    /// The model produced logits that no token can be chosen from.
    #[error("no token could be chosen at position {position}: {reason}")]
    InvalidLogits {
        /// Position of the token that could not be chosen.
        position: usize,
        /// What was found.
        reason: String,
    },
    /// The model produced hidden states that are no numbers.
    #[error("the embedding of this prompt is not finite: its element {element} is {value}")]
    InvalidEmbedding {
        /// The first such element.
        element: usize,
        /// What it is.
        value: f32,
    },
    /// The form that was asked for cannot be kept.
    #[error("{0}")]
    Grammar(String),
    /// It took longer than it was given.
    #[error("the request was not done {0} s after it was submitted, which is its time limit")]
    TimedOut(f64),
    /// The engine was stopped before the request was done.
    #[error("the engine was stopped before this request was done")]
    Stopped,
}

/// One piece of news about a request. A stream of them ends with [`Event::Done`] or [`Event::Failed`], never both.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// What the model thought of the tokens of the prompt, each given those before it; the first has none. Comes once, before
    /// all text, and only when [`crate::SamplingParams::prompt_logprobs`] asks for it.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// So much of the prompt is computed by now. Comes before all text, and only where [`crate::Request::tells_progress`] asks for it.
    PromptProgress {
        /// Tokens that the prefix cache spared.
        cached_tokens: usize,
        /// Tokens that need not be computed any more, those included.
        computed_tokens: usize,
        /// Since the first step that computed some of it.
        seconds: f64,
    },
    /// The vector of a prompt, `[hidden_size]`, not normalised. Comes once, and only where an embedding was asked for.
    Embedding(Vec<f32>),
    /// More text of a choice. Text may lag behind the tokens (half a character, the beginning of a stop string).
    Text {
        /// Which of the `n` choices.
        choice: usize,
        /// The new text; not empty.
        text: String,
        /// The tokens since the last event of this choice.
        tokens: Vec<u32>,
        /// One for each of the tokens when [`crate::SamplingParams::logprobs`] asks for them, else none.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A choice is complete.
    Finished {
        /// Which of the `n` choices.
        choice: usize,
        /// Why it ended.
        reason: FinishReason,
        /// The last of its text, often empty.
        text: String,
        /// The tokens since the last event of this choice; an end-of-generation token is among them, its text is not.
        tokens: Vec<u32>,
        /// As in [`Event::Text`].
        logprobs: Vec<TokenLogprobs>,
    },
    /// All choices are complete.
    Done(Usage),
    /// The request ended without an answer; text sent before stays valid.
    Failed(EngineError),
}

/// The events of one request. Dropping it cancels the request within one step.
///
/// The channel is unbounded so that a slow client never holds up the engine; what can wait in it is bounded by the
/// request's own `max_tokens`.
#[derive(Debug)]
pub struct EventStream {
    id: u64,
    receiver: UnboundedReceiver<Event>,
    receipt: Arc<Receipt>,
    ended: bool,
}

/// The engine's end of an [`EventStream`].
#[derive(Debug, Clone)]
pub(crate) struct EventSender {
    sender: UnboundedSender<Event>,
    receipt: Arc<Receipt>,
}

impl EventSender {
    /// Says that an event is about to be sent: called by the engine thread, within a round of [`Delivery`].
    pub(crate) fn announce(&self) {
        self.receipt.sending();
    }

    /// Sends an event that was announced, unless the stream is gone.
    pub(crate) fn send(&self, event: Event) {
        if self.sender.send(event).is_err() {
            self.receipt.taken();
        }
    }

    /// Whether the stream was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl EventStream {
    pub(crate) fn channel(delivery: &Arc<Delivery>) -> (EventSender, EventStream) {
        let (sender, receiver) = unbounded_channel();
        let receipt = Arc::new(Receipt::new(Arc::clone(delivery)));
        (EventSender { sender, receipt: Arc::clone(&receipt) }, EventStream { id: 0, receiver, receipt, ended: false })
    }

    /// Gives it the number of its request.
    pub(crate) fn with_id(mut self, id: u64) -> EventStream {
        self.id = id;
        self
    }

    /// The number of its request, which [`crate::RunningChoice`] has as well.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event; `None` after `Done` or `Failed`.
    pub async fn recv(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// [`EventStream::recv`] for plain threads; must not be called from asynchronous code.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.receiver.blocking_recv();
        Some(self.note(event))
    }

    /// The form that a `Stream` implementation needs.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(context).map(|event| Some(self.note(event)))
    }

    /// A stream whose sender vanished without a last word belongs to an engine thread that died: say so once.
    fn note(&mut self, event: Option<Event>) -> Event {
        self.receipt.taken();
        let event = event.unwrap_or(Event::Failed(EngineError::Stopped));
        self.ended = matches!(event, Event::Done(_) | Event::Failed(_));
        event
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.receiver.close();
        self.receipt.taken();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_ends_after_the_last_event() {
        let (sender, mut stream) = EventStream::channel(&Arc::default());
        sender.send(Event::Done(Usage::default()));
        assert_eq!(stream.blocking_recv(), Some(Event::Done(Usage::default())));
        assert_eq!(stream.blocking_recv(), None);
    }

    #[test]
    fn a_lost_engine_is_a_failure_and_not_a_silent_end() {
        let (sender, mut stream) = EventStream::channel(&Arc::default());
        drop(sender);
        assert_eq!(stream.blocking_recv(), Some(Event::Failed(EngineError::Stopped)));
        assert_eq!(stream.blocking_recv(), None);
    }
}
