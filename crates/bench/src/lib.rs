//! Measuring: what memory, kernels and models do per second, and how many bytes that moves; and what a [server](load) under load does
//! for its users. Printing is the caller's.
//!
//! A [`Run`] measures the read bandwidth before and after whatever is put into it; each benchmark is a module that gives
//! [`Measurement`]s and, from the finished [`Record`]s, [`Findings`]: columns, plots for the [`report`], sentences. Adding one
//! is adding such a module and its command.
#![forbid(unsafe_code)]

pub mod attention;
pub mod bandwidth;
pub mod candle;
mod case;
pub mod chat;
mod error;
mod findings;
pub mod gemm;
pub mod gpu;
pub mod load;
mod machine;
pub mod model;
mod peer;
pub mod plot;
mod record;
pub mod report;
mod run;
pub mod softmax;
mod statistics;
pub mod tune;

pub use case::{BATCH_DEPTH, BATCH_GENERATED, Case, CaseError};
pub use error::Error;
pub use findings::{Column, Findings};
pub use machine::{CpuCache, Machine};
pub use peer::Peer;
pub use record::{Measurement, Record, figure, params};
pub use run::{Computes, Finished, Run, Setup};
pub use statistics::{Effort, Summary, quantile, wall_seconds};

/// So many of a thing, `1 shape` or `2 shapes`.
pub fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
