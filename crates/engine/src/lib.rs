//! The engine: many requests share one model, token by token.
//!
//! A request becomes `n` sequences. The pure [`Scheduler`] decides which tokens of which sequences are computed next, the
//! [`BlockManager`] hands out blocks of the KV cache, a [`Runner`] computes the step, the [`Sampler`] picks tokens, and
//! events go back to whoever asked. All of it runs on one plain thread that [`Engine::start`] spawns; clients hold an
//! [`EngineHandle`] and one [`EventStream`] per request, and dropping the stream cancels the request within one step.
//!
//! What is left to others: arithmetic (`models`, `kernels`), prompts and templates (`text`), HTTP (`server`).
#![forbid(unsafe_code)]

mod block_manager;
mod event;
mod grammar;
mod handle;
mod model_runner;
mod params;
mod requests;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
pub mod stub;
mod submit;
mod worker;

pub use block_manager::{BlockManager, BlockTable};
pub use event::{EngineError, Event, EventStream, FinishReason, Timings, Usage};
pub use grammar::{MaskError, MaskTimes, MaskWorker, Masked};
pub use handle::{Engine, EngineConfig, EngineHandle, EngineStatus};
pub use model_runner::ModelRunner;
pub use params::{InvalidParam, MAX_CHOICES, SamplingParams};
pub use runner::{LogitsBuffer, Runner, RunnerError, RunnerLimits};
pub use sampler::{InvalidLogits, Sampler, Scratch};
pub use scheduler::{Scheduler, SchedulerConfig, SequenceId, Step, StepEntry};
pub use submit::{Request, SubmitError};
