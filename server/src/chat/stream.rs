//! The answers of a chat model as they come, in pieces that every protocol can write.

use std::ops::Range;
use std::task::{Context, Poll};

use taper_engine::{FinishReason, TokenLogprobs};
use taper_text::{AnswerParser, AnswerPart};

use super::Reading;
use super::stop_watch::StopWatch;
use crate::answer::{AnswerPiece, Source};
use crate::errors::ApiError;
use crate::generation::{Generation, Output, Piece, Totals, mean_logprob};

/// What a piece of an answer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatPart {
    /// More of the thoughts.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A call begins. Those of an answer are counted from 0.
    CallBegun { index: usize, id: String, name: String },
    /// More of the arguments of that call, as JSON.
    CallArguments { index: usize, text: String },
}

/// Parts of a choice, in order, and the tokens since the last piece; a part may be of tokens of an earlier piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChatPiece {
    pub(crate) parts: Vec<ChatPart>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
}

impl AnswerPiece for ChatPiece {
    fn append(&mut self, next: ChatPiece) {
        for part in next.parts {
            match (self.parts.last_mut(), part) {
                (Some(ChatPart::Text(last)), ChatPart::Text(text))
                | (Some(ChatPart::Reasoning(last)), ChatPart::Reasoning(text)) => last.push_str(&text),
                (
                    Some(ChatPart::CallArguments { index: a, text: last }),
                    ChatPart::CallArguments { index: b, text },
                ) if *a == b => {
                    last.push_str(&text);
                }
                (_, part) => self.parts.push(part),
            }
        }
        self.tokens.extend(next.tokens);
        self.logprobs.extend(next.logprobs);
    }

    fn is_blank(&self) -> bool {
        self.parts.is_empty()
    }

    fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    fn mean_logprob(&self) -> f64 {
        mean_logprob(&self.logprobs)
    }
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model ended its answer, or a stop string was met.
    Stop,
    /// The limit was reached.
    Length,
    /// The model called tools and waits for them.
    ToolCalls,
    /// A stop string was met inside a call, which can be used as little as one that a limit cut short.
    StopInCall,
}

/// One choice being read.
struct Choice {
    parser: AnswerParser,
    /// Tokens that no piece has carried yet.
    held: ChatPiece,
    reasoning_tokens: usize,
    stop_watch: Option<StopWatch>,
}

/// The answers to one conversation.
pub(crate) struct ChatStream {
    generation: Generation,
    choices: Vec<Choice>,
    tells_thoughts: bool,
    max_calls: usize,
}

impl ChatStream {
    /// Reads the choices of `generation`, each from its beginning.
    pub(crate) fn new(generation: Generation, reading: &Reading) -> ChatStream {
        let choice = || Choice {
            parser: AnswerParser::new(reading.syntax.clone()),
            held: ChatPiece::default(),
            reasoning_tokens: 0,
            stop_watch: reading.stop_watch.clone(),
        };
        let choices = (0..generation.num_choices()).map(|_| choice()).collect();
        ChatStream { generation, choices, tells_thoughts: reading.tells_thoughts, max_calls: reading.max_calls }
    }

    /// The stop string that ended a choice, where somebody watches for it.
    pub(crate) fn met_stop(&self, choice: usize) -> Option<&str> {
        self.choices[choice].stop_watch.as_ref()?.met()
    }

    /// Reads more of a choice; its tokens are held back while there is nothing to tell.
    fn read(&mut self, choice: usize, piece: Piece, is_end: bool) -> ChatPiece {
        let Choice { parser, held, reasoning_tokens, stop_watch } = &mut self.choices[choice];
        let Piece { text, tokens, logprobs } = piece;
        if let Some(watch) = stop_watch {
            watch.note(&text, &tokens);
        }
        if parser.is_reasoning() {
            *reasoning_tokens += tokens.len();
        }
        let mut parts = parser.push(&text);
        if is_end {
            parts.extend(parser.finish());
        }
        let (tells_thoughts, max_calls) = (self.tells_thoughts, self.max_calls);
        let parts = parts.into_iter().filter_map(|part| told(part, tells_thoughts, max_calls)).collect();
        held.append(ChatPiece { parts, tokens, logprobs });
        if held.is_blank() && !is_end { ChatPiece::default() } else { std::mem::take(held) }
    }

    fn ending(&self, choice: usize, reason: FinishReason) -> Ending {
        match reason {
            FinishReason::Length => Ending::Length,
            FinishReason::Stop if self.choices[choice].parser.has_open_call() => Ending::StopInCall,
            FinishReason::Stop if self.choices[choice].parser.num_calls() > 0 => Ending::ToolCalls,
            FinishReason::Stop => Ending::Stop,
        }
    }
}

fn told(part: AnswerPart, tells_thoughts: bool, max_calls: usize) -> Option<ChatPart> {
    match part {
        AnswerPart::Reasoning(text) => tells_thoughts.then_some(ChatPart::Reasoning(text)),
        AnswerPart::Text(text) => Some(ChatPart::Text(text)),
        AnswerPart::CallBegun { index, .. } | AnswerPart::CallArguments { index, .. } if index >= max_calls => None,
        AnswerPart::CallBegun { index, name } => {
            let id = format!("call_{}", uuid::Uuid::new_v4().simple());
            Some(ChatPart::CallBegun { index, id, name })
        }
        AnswerPart::CallArguments { index, text } => Some(ChatPart::CallArguments { index, text }),
    }
}

impl Source for ChatStream {
    type Piece = ChatPiece;
    type Reason = Ending;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output<ChatPiece, Ending>, ApiError>>> {
        loop {
            let output = match std::task::ready!(self.generation.poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(output)) => output,
            };
            let output = match output {
                Output::PromptLogprobs { prompt, logprobs } => Output::PromptLogprobs { prompt, logprobs },
                Output::Progress { prompt, progress } => Output::Progress { prompt, progress },
                Output::Text { choice, piece } => {
                    let piece = self.read(choice, piece, false);
                    if piece.is_blank() {
                        continue;
                    }
                    Output::Text { choice, piece }
                }
                Output::Finished { choice, reason, piece } => {
                    let piece = self.read(choice, piece, true);
                    let reason = self.ending(choice, reason);
                    if reason == Ending::ToolCalls {
                        self.generation.note_tool_calls(choice);
                    }
                    Output::Finished { choice, reason, piece }
                }
                Output::Totals(totals) => {
                    let reasoning_tokens = self.choices.iter().map(|choice| choice.reasoning_tokens).sum();
                    Output::Totals(Totals { reasoning_tokens, ..totals })
                }
            };
            return Poll::Ready(Some(Ok(output)));
        }
    }

    fn num_choices(&self) -> usize {
        self.generation.num_choices()
    }

    fn num_prompts(&self) -> usize {
        self.generation.num_prompts()
    }

    fn prompt_tokens(&self) -> usize {
        self.generation.prompt_tokens()
    }

    fn choices_of(&self, prompt: usize) -> Range<usize> {
        self.generation.choices_of(prompt)
    }

    fn totals_of(&self, prompt: usize) -> Option<Totals> {
        self.generation.totals_of(prompt)
    }
}
