//! What tests of several crates share: seeded randomness, tolerance checks, a GGUF writer, tiny seeded models,
//! hostile files made from them, seeded JSON schemas, a collector of traces, and a CUDA driver for machines without one.
//!
//! It depends on none of our crates, so that what it writes is an independent opinion on the format.
#![forbid(unsafe_code)]

pub mod approx;
pub mod collector;
pub mod fake_cuda;
pub mod gguf;
pub mod half;
pub mod hostile;
mod lies;
pub mod quantize;
pub mod rng;
pub mod schemas;
pub mod thin;
pub mod tiny;
pub mod vocab;
