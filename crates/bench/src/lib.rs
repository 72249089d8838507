//! Measuring: what a model does per second, and how many bytes that moves. Printing is the caller's.
//!
//! [`Case`] names what is measured, in llama-bench's words; [`measure`] runs it on a loaded model and gives a [`Row`].
#![forbid(unsafe_code)]

mod case;
mod model;
mod statistics;

pub use case::{BATCH_GENERATED, BATCH_PROMPT, Case, CaseError};
pub use model::{MIN_SAMPLE, Row, load_options, measure};
pub use statistics::quantile;
