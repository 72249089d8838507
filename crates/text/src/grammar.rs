//! Grammars: which tokens may come next so that the answer has the form that a client asked for.
//!
//! A [`GrammarSpec`] is what a client asks; the [`GrammarCompiler`] of a model turns it into a [`Grammar`], the state of one
//! sequence. Before each token the grammar gives a [`BitMask`], after it the grammar accepts the token. The work below is
//! `llguidance`'s: derivatives of regular expressions make the lexer, an Earley parser runs above it, and a walk over a
//! trie of the vocabulary finds the tokens. What is ours: exact bytes of tokens (`vocabulary`), limits for hostile input
//! (`limits`), how JSON is written (`schema`) and how it ends (`json_bounds`), llama.cpp's grammars (`gbnf`), and the whole
//! answer of a chat model (`answer`).
//!
//! Sampling, and computing masks while the model runs, are left to the engine.

mod answer;
mod bit_mask;
mod compiler;
mod gbnf;
mod json_bounds;
mod lark;
mod limits;
mod rehearsal;
mod schema;
mod slices;
mod state;
mod token_trie;
mod vocabulary;

use serde_json::Value;

use json_bounds::JsonPosition;

pub use answer::{AnswerGrammar, AnswerTool, Calls};
pub use bit_mask::BitMask;
pub use compiler::GrammarCompiler;
pub use state::Grammar;

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSpec {
    /// Any JSON object.
    JsonObject,
    /// A JSON document that this schema allows.
    JsonSchema(Value),
    /// A text that the expression matches from end to end, in the syntax of Rust's `regex` without look-around.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A context-free grammar in `llguidance`'s variant of Lark; `start` is its first rule.
    Lark(String),
    /// A context-free grammar in llama.cpp's GBNF; `root` is its first rule.
    Gbnf(String),
    /// A chat model's answer with thoughts, calls of tools, or a text of one of the other forms.
    Answer(AnswerGrammar),
}

impl GrammarSpec {
    /// A grammar in either syntax: GBNF defines rules with `::=`, Lark with `:`.
    pub fn grammar(text: String) -> GrammarSpec {
        if text.contains("::=") { GrammarSpec::Gbnf(text) } else { GrammarSpec::Lark(text) }
    }

    /// What it is called in errors.
    fn kind(&self) -> &'static str {
        match self {
            GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_) => "JSON schema",
            GrammarSpec::Regex(_) => "regex",
            GrammarSpec::Choice(_) => "choice",
            GrammarSpec::Lark(_) => "grammar",
            GrammarSpec::Gbnf(_) => "GBNF grammar",
            GrammarSpec::Answer(answer) => answer.kind(),
        }
    }

    /// Where a text stands at its beginning, if all that it allows is JSON.
    fn json_start(&self) -> Option<JsonPosition> {
        match self {
            GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_) => Some(JsonPosition::default()),
            GrammarSpec::Answer(answer) => answer.json_start(),
            _ => None,
        }
    }

    /// The JSON schemas in it.
    fn schemas(&self) -> Vec<&Value> {
        match self {
            GrammarSpec::JsonSchema(schema) => vec![schema],
            GrammarSpec::Answer(answer) => answer.schemas(),
            _ => Vec::new(),
        }
    }
}

/// Why there is no grammar, or no mask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The client's mistake, or something that is not supported.
    #[error("the {kind} cannot be used: {reason}")]
    Invalid {
        /// What was given: `JSON schema`, `regex`, `choice`, `grammar`, `GBNF grammar` or `tools' grammar`.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Compiling was given up.
    #[error("the {kind} cannot be used: it was not compiled after {seconds} s; simplify it")]
    TooSlow {
        /// What was given.
        kind: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Too many others are being compiled.
    #[error("too many grammars are being compiled; ask again in a moment")]
    Busy,
    /// The model's vocabulary cannot be used with grammars.
    #[error("grammars cannot be used with this model: {0}")]
    Vocabulary(String),
    /// A grammar can no longer be followed: it is too complex, or no token of the vocabulary continues it.
    #[error("the grammar cannot be followed further: {0}")]
    Stuck(String),
    /// A token that the grammar does not allow.
    #[error("the grammar does not allow token {0} here")]
    Refused(u32),
}

impl GrammarError {
    fn invalid(kind: &'static str, reason: impl Into<String>) -> GrammarError {
        GrammarError::Invalid { kind, reason: reason.into() }
    }

    /// Whether the same request will fail again wherever it is sent: a 400.
    pub fn is_clients_mistake(&self) -> bool {
        matches!(self, GrammarError::Invalid { .. } | GrammarError::TooSlow { .. })
    }
}
