#![forbid(unsafe_code)]
//! Networks on top of [`taper_kernels::Backend`]. One Llama-like decoder, [`Llama`], serves every architecture of the
//! [`registry`]; they differ in options, not in code. A model is described by [`ModelConfig`], which is read from a
//! checkpoint with every key and every tensor's shape checked, so that a damaged or foreign file is refused in words.

mod calibration;
mod config;
mod error;
mod llama;
mod memory;
mod pooling;
pub mod registry;
mod rope;
mod softmax;
mod step;
mod weights;

pub use calibration::{Calibration, HeadCalibration, LayerCalibration};
pub use config::ModelConfig;
pub use error::Error;
pub use llama::{Llama, LoadOptions, LoadProgress};
pub use memory::available_bytes;
pub use pooling::{Pooler, Pooling, normalize};
pub use softmax::{AttendedRows, ModelSoftmax};
pub use step::{LogitRows, Logits, SequenceSlice};
pub use taper_kernels::cpu::processors;
/// What a caller must name to hold a network of any backend, and to cut sequences into blocks.
pub use taper_kernels::{BLOCK_SIZE, Backend, Draw, Errand, Largest, largest};
pub use weights::{MatrixShape, Quantization, matrix_shapes, part_shapes};
