//! The arithmetic of Taper: one [`Backend`] trait, a readable specification of it in [`Reference`], and a fast
//! implementation for CPUs in [`Cpu`]. Networks live in `models`; nothing here knows what a layer is.

mod backend;
pub mod cpu;
pub mod cuda;
pub mod heap;
mod largest;
mod memory;
pub mod reference;
mod scores;
pub mod selftest;
pub mod softmax;
mod weight_type;

pub use backend::{
    AttentionParams, AttentionScheme, Backend, BackendInfo, Demand, Draw, Errand, Error, HeadLayout, KvDtype, KvLayout,
    MatrixData, Norm, Rope, RopeKind, SequenceSpan, Softmax, StepInputs, StepTables, Turn, UnifiedRange,
};
pub use cpu::{Activations, Cpu, CpuConfig};
pub use largest::{Largest, largest};
pub use reference::Reference;
pub use scores::{Histogram, ScoreStatistics};
pub use weight_type::WeightType;

/// Keys in one block of the paged KV cache. The block is the unit of allocation for engine and models; what lies inside
/// it is the backend's own business.
pub const BLOCK_SIZE: usize = 64;

/// Raised whenever a build computes other bits than the one before, or lays out a block of the KV cache in another way: blocks
/// on disk serve only builds of their own version. `models/tests/blocks.rs` notices.
pub const NUMERICS_VERSION: u32 = 1;

/// Keys in one split of split-KV attention: four blocks. A constant, because a token's bits must not depend on how many
/// threads share the work: the splits are merged in index order whatever ran them.
pub const KV_SPLIT: usize = 256;
