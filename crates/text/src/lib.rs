//! Between text and tokens: tokenizer, chat template, incremental detokenizer and stop strings.
//!
//! - [`Tokenizer`] reads the vocabulary of a GGUF file. The two kinds that Llama-style models use are here: byte-level
//!   BPE (`gpt2` in the file) and SentencePiece BPE (`llama`). Anything else is refused by name.
//! - [`ChatTemplate`] turns messages into the one text that a chat model was trained on.
//! - [`Prompt`] keeps the template's control tokens apart from the same characters in messages.
//! - [`Detokenizer`] turns generated tokens back into text as they come, never half a character.
//! - [`GrammarCompiler`] turns a JSON schema, a regular expression or a grammar into a [`Grammar`] that says which tokens
//!   may come next.
//! - [`AnswerParser`] finds thoughts and calls of tools in a chat model's answer; [`ToolFormat`] is how a model writes them.
//! - [`StopMatcher`] watches that text for stop strings across chunk borders.
//!
//! llama.cpp is the yardstick: the same vocabulary gives the same ids. What a token means to the network, and when to
//! stop generating, is left to `models` and `engine`.
#![forbid(unsafe_code)]

mod answer_parser;
mod byte_level;
mod chat_template;
mod detokenizer;
mod end_of_generation;
mod error;
mod grammar;
mod json;
mod pre_tokenizer;
mod prompt;
mod reasoning;
mod sentence_piece;
mod sequences;
mod special_tokens;
mod stop_matcher;
mod strftime;
#[cfg(test)]
mod test_vocabulary;
mod tokenizer;
mod tool_format;
mod vocabulary;

pub use answer_parser::{AnswerParser, AnswerPart, AnswerSyntax, ToolSyntax};
pub use chat_template::{ChatMessage, ChatTemplate, RenderContext, TemplateError, Unshown};
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use grammar::{AnswerGrammar, AnswerTool, BitMask, Calls, Grammar, GrammarCompiler, GrammarError, GrammarSpec};
pub use pre_tokenizer::supported_names as supported_pre_tokenizers;
pub use prompt::{ContinuedPrompt, Prompt};
pub use reasoning::{ReasoningMarks, ReasoningStart};
pub use stop_matcher::{StopMatcher, StopOutput};
pub use strftime::strftime;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use tool_format::{ToolFormat, with_tools_in_text};

/// These are made once and shared between request threads.
const _: fn() = || {
    fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Tokenizer>();
    shared_between_threads::<ChatTemplate>();
    shared_between_threads::<GrammarCompiler>();
};
