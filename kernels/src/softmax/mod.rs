//! Softmax over rows of float32 on the CPU, in every scheme that attention builds on; one file per scheme.
//!
//! **Units.** Scores are in log2 units: `y_i = 2^x_i / sum_j 2^x_j`. Natural logits are multiplied by log2 e first, as
//! attention does once with its query.
//!
//! **States.** A partial result is a [`State`] (m, l): a whole reference m and `l = sum 2^(x - m)`. References are whole, so
//! changing one multiplies by an exact power of two and rounds nothing: schemes that add in the same order have the same
//! bits wherever nothing is flushed to zero (a weight below `2^-126` of its reference is).
//!
//! **Masks.** A score below [`LOWEST`], minus infinity above all, is masked: its probability is zero. A row that is all
//! masked gives zeros (and not 0 / 0): it attends to nothing. NaN or plus infinity makes its own row NaN, and no other.
//!
//! **Bits.** Lane i adds elements i, i + 16, ... of a block of 256, blocks add up in order, then lanes as a tree. Results depend neither on the
//! instruction set nor on the number of threads.
//!
//! | scheme | reads and writes of an element | exponentials |
//! |---|---|---|
//! | [`three_pass()`] | x, x, out written, read, written | 1 |
//! | [`online()`] | x, x, out written | 2 |
//! | [`extend()`] | new ones as online; old ones read, written | 2 |
//! | [`parallel()`] | as online, in chunks on all threads | 2 |
//! | [`tiled()`] | per column block: new ones as three-pass; old ones read, written | 1 |
//! | [`calibrated()`], [`bounded()`] | x, out written, read, written; where recomputed, online's too | 1 |
//!
//! [`scan()`] gives the states of all prefixes, [`attention()`] weights values without keeping scores.

mod attention;
mod bounded;
mod calibrated;
mod extension;
mod online;
mod parallel;
mod row;
mod scan;
mod scheme;
mod state;
#[cfg(test)]
mod tests;
mod three_pass;
mod tiled;
mod unified;

pub use attention::{AttentionInput, attention};
pub use bounded::bounded;
pub use calibrated::{Calibration, Validity, calibrated};
pub use extension::extend;
pub use online::online;
pub use parallel::{parallel, reduce};
pub use scan::scan;
pub use scheme::{Scheme, Settings};
pub use state::State;
pub use three_pass::three_pass;
pub use tiled::{Tile, take_in_columns, tiled};

use crate::cpu::isa::Isa;
use crate::cpu::pool::Pool;

/// The lowest score that is not masked: `-2^99`, which is also the reference of a state over no elements. Being finite, it
/// needs no special case when references are subtracted.
pub const LOWEST: f32 = -6.338_253e29;

/// What a scheme runs on: an instruction set that this machine has, and threads.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    isa: Isa,
    pool: &'a Pool,
}

impl<'a> Context<'a> {
    /// Schemes take their instruction set from here alone, so none of them can meet one that the processor lacks.
    ///
    /// # Panics
    /// When this machine does not have the instruction set.
    pub fn new(isa: Isa, pool: &'a Pool) -> Self {
        assert!(isa.is_available(), "{} is not available on this machine", isa.name());
        Self { isa, pool }
    }
}
