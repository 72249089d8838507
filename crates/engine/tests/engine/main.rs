//! The engine as its clients see it: over a stub runner (no weights), and over a tiny seeded model.
#![forbid(unsafe_code)]
// Helpers of tests unwrap as tests do; clippy only knows functions marked as tests.
#![allow(clippy::unwrap_used)]

mod draft;
mod embeddings;
mod failures;
mod generation;
mod grammar;
mod life_cycle;
mod metrics;
mod model;
mod sampling;
mod support;
mod thoughts;
