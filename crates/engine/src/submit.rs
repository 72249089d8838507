//! What clients hand in, and why it may be refused.

use crate::{InvalidParam, Pooling, RunnerLimits, SamplingParams, ThinkingBudget};
use std::time::Duration;
use taper_text::Grammar;

/// A prompt to continue.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt; at least one token, and room for one more in the context.
    pub prompt_tokens: Vec<u32>,
    /// How to continue it.
    pub sampling: SamplingParams,
    /// The form that every choice must have, before its first token.
    pub grammar: Option<Grammar>,
    /// How long each choice may think before it answers.
    pub thinking: Option<ThinkingBudget>,
    /// Whether it is told how much of its prompt is computed.
    pub tells_progress: bool,
    /// Lower is served earlier; 0 is usual.
    pub priority: i32,
    /// Prompts share cached blocks only with prompts of the same salt.
    pub cache_salt: Option<String>,
    /// Time from submission after which it fails, finished or not; without it, the engine's.
    pub timeout: Option<Duration>,
}

/// A prompt to be made one vector.
#[derive(Debug, Clone)]
pub struct EmbeddingRequest {
    /// The prompt; at least one token, and at most as many as the context holds.
    pub prompt_tokens: Vec<u32>,
    /// How the hidden states of its tokens become one vector. A mean needs all of them, so it computes the whole prompt, whatever the
    /// prefix cache has of it.
    pub pooling: Pooling,
    /// As in [`Request`].
    pub priority: i32,
    /// As in [`Request`].
    pub cache_salt: Option<String>,
    /// As in [`Request`].
    pub timeout: Option<Duration>,
}

/// How much may run and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// [`crate::EngineConfig::max_queued`], beside what runs.
    Requests,
    /// [`crate::EngineConfig::max_queued_tokens`].
    Tokens,
}

impl QueueLimit {
    /// All of them.
    pub const ALL: [QueueLimit; 2] = [QueueLimit::Requests, QueueLimit::Tokens];

    /// vLLM's name of the setting.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueLimit::Requests => "max_num_queued_reqs",
            QueueLimit::Tokens => "max_num_queued_tokens",
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many choices, or tokens of prompts, as allowed are running or waiting.
    #[error("the queue is full; try again in {retry_after_s} s")]
    QueueFull {
        /// Which limit it would go beyond.
        limit: QueueLimit,
        /// When there may be room, guessed from how long recent requests took.
        retry_after_s: u64,
    },
    /// The engine finishes what it has and takes nothing new.
    #[error("the engine is shutting down and takes no new requests")]
    Draining,
    /// The engine thread has ended.
    #[error("the engine is not running: {0}")]
    Failed(String),
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt_tokens} tokens and the context holds {context_len}, of which at least one must be left for \
         the answer; shorten the prompt or serve the model with a larger context"
    )]
    PromptTooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// Tokens that prompt and answer may have together.
        context_len: usize,
    },
    /// The prompt of an embedding is longer than the context.
    #[error(
        "the prompt has {prompt_tokens} tokens and the context holds {context_len}; shorten the prompt or serve the model with a \
         larger context"
    )]
    TooLongToEmbed {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// Tokens that it may have.
        context_len: usize,
    },
    /// The runner gives no hidden states.
    #[error("this model gives no embeddings")]
    NoEmbeddings,
    /// There is nothing to continue.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// A sampling parameter that cannot be honoured.
    #[error("{param}: {message}")]
    InvalidParam {
        /// Name of the field.
        param: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// A token id that the model does not have.
    #[error("token {token} of the prompt is out of range: the vocabulary has {vocab_size} tokens")]
    TokenOutOfRange {
        /// The first such token.
        token: u32,
        /// Ids are below it.
        vocab_size: usize,
    },
}

impl From<InvalidParam> for SubmitError {
    fn from(InvalidParam { param, message }: InvalidParam) -> Self {
        SubmitError::InvalidParam { param, message }
    }
}

impl Request {
    /// Refuses what an engine with these limits, holding at most `max_choices` choices at a time, could never serve.
    pub(crate) fn check(&self, limits: RunnerLimits, max_choices: usize) -> Result<(), SubmitError> {
        let RunnerLimits { context_len, vocab_size, .. } = limits;
        self.sampling.validate()?;
        self.sampling.check_tokens(vocab_size)?;
        if self.sampling.n > max_choices {
            let message = format!("must be at most {max_choices} on this server, not {}", self.sampling.n);
            return Err(SubmitError::InvalidParam { param: "n", message });
        }
        let prompt_tokens = self.prompt_tokens.len();
        if prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt_tokens >= context_len {
            return Err(SubmitError::PromptTooLong { prompt_tokens, context_len });
        }
        check_tokens(&self.prompt_tokens, vocab_size)
    }
}

impl EmbeddingRequest {
    /// Refuses what an engine with these limits could never serve.
    pub(crate) fn check(&self, limits: RunnerLimits) -> Result<(), SubmitError> {
        let RunnerLimits { context_len, vocab_size, .. } = limits;
        let prompt_tokens = self.prompt_tokens.len();
        if prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt_tokens > context_len {
            return Err(SubmitError::TooLongToEmbed { prompt_tokens, context_len });
        }
        check_tokens(&self.prompt_tokens, vocab_size)
    }
}

fn check_tokens(prompt: &[u32], vocab_size: usize) -> Result<(), SubmitError> {
    match prompt.iter().find(|&&token| token as usize >= vocab_size) {
        Some(&token) => Err(SubmitError::TokenOutOfRange { token, vocab_size }),
        None => Ok(()),
    }
}
