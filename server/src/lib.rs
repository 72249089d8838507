#![forbid(unsafe_code)]
//! The OpenAI-compatible HTTP API, and llama-server's and Ollama's own.
//!
//! [`app`] is the router, [`run`] serves it on a listener until a future says stop, and [`ServerState`] is what both share
//! with the program that loads the model: the socket may listen (and answer 503 with a reason) before the weights are read.
//!
//! The rules of the house, each with its tests in `tests/`:
//! - a client's mistake is a 4xx with an OpenAI error body that names the field, never a 5xx ([`ApiError`]);
//! - a documented parameter works or is refused by name; a field nobody knows is accepted, logged once and reported in the
//!   `x-taper-ignored-fields` header;
//! - dropping a response cancels its sequences, because the body owns the engine's event streams.
//!
//! Scheduling and sampling are `taper-engine`'s, templates and tokens `taper-text`'s.

mod absent;
mod access;
mod access_log;
mod account_fields;
mod answer;
mod api;
mod body;
mod chat;
mod config;
mod cors;
mod embedding;
mod errors;
mod facts;
mod fields;
mod generation;
mod grammar_fields;
mod hosts;
mod http_metrics;
mod io_timeout;
mod middleware;
mod mixed_prompt;
mod models;
mod open_object;
mod parameters;
mod peer;
mod predict_limit;
mod prompt;
mod rate_limit;
mod reply;
mod report;
mod routes;
mod sampler_fields;
mod sampling_defaults;
mod serve;
mod slots;
mod sockets;
mod sse;
mod state;
mod time_limit;
mod timeouts;
mod tls;
mod token_fields;
mod token_json;
mod unsupported;
mod web;
mod work;

pub use access::{ApiKeys, ApiKeysError};
pub use config::ServerConfig;
pub use cors::{CorsOrigins, NotAnOrigin};
pub use errors::ApiError;
pub use facts::ServerFacts;
pub use generation::Totals;
pub use hosts::{AllowedHosts, NotAHost};
pub use models::{DeclaredModel, LoadedModel, ModelLimits, ModelLoader, Tell};
pub use rate_limit::{NotARate, Rate};
pub use report::{AnswerReport, RequestListener, RequestReport};
pub use sampling_defaults::{SamplingDefault, SamplingDefaults};
pub use serve::{app, run};
pub use sockets::Socket;
pub use state::{ServedModel, ServerState};
pub use timeouts::Timeouts;
pub use tls::{Tls, TlsError};

/// What one server accepts at most; each limit has an error that names it.
pub mod limits {
    /// Bytes of a request body, unless [`crate::ServerConfig`] says otherwise; more is a 413.
    pub const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;
    /// Bytes of a request's line and headers, unless [`crate::ServerConfig`] says otherwise; more is a 431.
    pub const MAX_HEADER_BYTES: usize = 64 * 1024;
    /// Headers of a request, unless [`crate::ServerConfig`] says otherwise; more is a 431.
    pub const MAX_HEADERS: usize = 100;
    /// Connections at a time, unless [`crate::ServerConfig`] says otherwise. An idle one takes some 10 KiB.
    pub const MAX_CONNECTIONS: usize = 4096;
    /// Connections beyond that, on which health and metrics are answered and all else is a 503; further ones wait.
    pub const SPARE_CONNECTIONS: usize = 64;
    /// Bytes of a body that is read by the thread that serves its client. To tokenize the slowest takes 0.15 ms, and another thread
    /// would have to be given a core first: 0.05 ms, and some milliseconds where other programs want the cores.
    pub const BRIEF_BODY_BYTES: usize = 1024;
    /// Bytes of a body that is read at once; larger ones are read one after another.
    pub const SMALL_BODY_BYTES: usize = 256 * 1024;
    /// Bytes of all larger bodies that are held at a time; more is a 503.
    pub const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;
    /// Values in one JSON body. A parsed value takes up to 40 times its two bytes of text, so the byte limit alone would
    /// let one request take gigabytes.
    pub const MAX_JSON_VALUES: usize = 1 << 19;
    /// Prompts in one completion request.
    pub const MAX_PROMPTS: usize = 512;
    /// Inputs in one request for embeddings, as in OpenAI's interface.
    pub const MAX_INPUTS: usize = 2048;
    /// Choices per prompt (`n`, `best_of`), as in OpenAI's interface.
    pub const MAX_CHOICES: u64 = 128;
    /// Choices of all prompts of one request together. Each takes memory until all are complete, those that have long ended too.
    pub const MAX_ALL_CHOICES: usize = 8192;
    /// Bytes, by a rough estimate, that one answer tells of its prompts, over all its choices: log-probabilities, ids of
    /// tokens, the text itself. A prompt costs little to compute: without a limit one request could have gigabytes written.
    pub const MAX_PROMPT_DETAIL_BYTES: usize = 64 << 20;
    /// Bytes of an answer that repeats what the request holds: its tokens, or their text.
    pub const MAX_TOLD_BYTES: usize = MAX_PROMPT_DETAIL_BYTES;
    /// Bytes of a conversation, as the model reads it, whose tokens are counted though they do not fit.
    pub const MAX_COUNTED_BYTES: usize = 8 << 20;
    /// Requests whose grammars are compiled, or wait for the compiler, at a time.
    pub const MAX_COMPILING: usize = 16;
    /// Tools per request.
    pub const MAX_TOOLS: usize = 512;
    /// Stop strings per request.
    pub const MAX_STOPS: usize = 16;
    /// Stop tokens per request.
    pub const MAX_STOP_TOKENS: usize = 256;
    /// Bad words per request.
    pub const MAX_BAD_WORDS: usize = 256;
    /// Texts of `dry_sequence_breakers`.
    pub const MAX_DRY_BREAKERS: usize = 64;
    /// Bytes of a `cache_salt`.
    pub const MAX_SALT_BYTES: usize = 1024;
    /// Bytes of one stop string, bad word or sequence breaker.
    pub const MAX_STOP_BYTES: usize = 1024;
}
