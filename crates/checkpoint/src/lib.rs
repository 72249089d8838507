//! GGUF files as named tensors and typed metadata.
//!
//! [`Checkpoint::open`] maps the file and trusts nothing in it: `header` walks the whole header with every length,
//! count and extent checked against the file, and only then does candle-core read it. So a hostile or damaged file is
//! an [`Error`] that names the key or tensor, never a panic and never an allocation that the file does not justify.
//!
//! Tensors stay in the mapping as they are stored ([`TensorView::bytes`]); [`TensorView::to_f32`] expands one with
//! candle's block decoders, meant for small tensors and tests.
//!
//! What the numbers mean (architectures, tensor names, tokenizers) is left to `models` and `text`.
#![deny(unsafe_code)] // allowed twice, for the call that maps the file and the one that drops its pages

mod checkpoint;
mod dtype;
mod error;
mod extent;
mod header;
mod kind;
mod looks_like;
mod metadata;
mod tensor;
mod value;

pub use checkpoint::Checkpoint;
pub use dtype::DType;
pub use error::Error;
pub use metadata::Metadata;
pub use tensor::TensorView;
