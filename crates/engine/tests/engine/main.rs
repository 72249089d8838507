//! The engine as its clients see it: over a stub runner (no weights), and over a tiny seeded model.

mod failures;
mod generation;
mod life_cycle;
mod model;
mod support;
