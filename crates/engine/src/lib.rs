//! The engine: many requests share one model, token by token.
//!
//! A request becomes `n` sequences. The pure [`Scheduler`] decides which tokens of which sequences are computed next, the
//! [`BlockManager`] hands out blocks of the KV cache and finds those whose contents are known, a [`Runner`] computes the step, the [`Sampler`] picks tokens, and
//! events go back to whoever asked. All of it runs on one plain thread that [`Engine::start`] spawns; clients hold an
//! [`EngineHandle`] and one [`EventStream`] per request, and dropping the stream cancels the request within one step.
//!
//! What is left to others: arithmetic (`models`, `kernels`), prompts and templates (`text`), HTTP (`server`).
#![forbid(unsafe_code)]

mod block_chain;
mod block_hash;
mod block_manager;
mod delivery;
mod disk_cache;
mod event;
mod grammar;
mod handle;
mod handoff;
mod metrics;
mod model_runner;
mod outbox;
mod pace;
mod params;
mod requests;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
mod speculation;
pub mod stub;
mod submit;
mod sync;
mod thoughts;
mod worker;

pub use block_chain::BlockChain;
pub use block_hash::BlockHash;
pub use block_manager::{BlockCopy, BlockManager, BlockTable, Miss, NamedBlock};
pub use disk_cache::{DiskCache, DiskCacheError, DiskCacheStats, file_digest};
pub use event::{EngineError, Event, EventStream, FinishReason, Timings, Usage};
pub use grammar::{MaskError, MaskWorker, Masked};
pub use handle::{Engine, EngineConfig, EngineHandle, EngineParts, EngineStatus, RunningChoice, Speculation};
pub use handoff::Handoff;
pub use metrics::{EndReason, EngineMetrics, Histogram};
pub use model_runner::ModelRunner;
pub use pace::ItlTarget;
pub use params::{
    Dry, DynamicTemperature, InvalidParam, MAX_CHOICES, MAX_LOGPROBS, Mirostat, MirostatVersion, SamplingParams, Stage,
    Xtc,
};
pub use runner::{Embeddings, LogitsBuffer, RowDraw, Runner, RunnerError, RunnerLimits};
pub use sampler::{InvalidLogits, Sampled, Sampler, Scratch, TokenLogprobs};
pub use scheduler::{
    Admission, Arrival, KnownRows, Scheduler, SchedulerConfig, SequenceId, Step, StepEntry, StepLimits,
};
pub use submit::{EmbeddingRequest, QueueLimit, Request, SubmitError};
/// How a prompt becomes a vector, and how that gets the length 1.
pub use taper_models::{Pooling, normalize};
pub use thoughts::ThinkingBudget;
