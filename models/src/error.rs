//! What can be wrong with a model file, in words that say what was expected and what to do.

/// Why a model cannot be loaded, or a step not be computed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file itself.
    #[error(transparent)]
    Checkpoint(#[from] taper_checkpoint::Error),
    /// The machine, or a weight that the backend cannot take.
    #[error(transparent)]
    Backend(#[from] taper_kernels::Error),
    /// A network that the registry has no row for.
    #[error(
        "the file's architecture is `{found}`, which Taper does not compute; it runs {runs}. Choose a GGUF whose \
         general.architecture is one of these; for a checkpoint of one of these families, llama.cpp's \
         convert_hf_to_gguf.py makes one"
    )]
    UnknownArchitecture {
        /// `general.architecture` of the file.
        found: String,
        /// The architectures of the registry.
        runs: String,
    },
    /// A metadata value that no model of this family can have.
    #[error("the key `{key}` is {found}, but {expected}; the file is damaged or made by a faulty converter")]
    BadKey {
        /// Full name of the key.
        key: String,
        /// What the file says.
        found: String,
        /// What it may say.
        expected: String,
    },
    /// A property of the model that the network does not compute.
    #[error("the model uses {feature}, which Taper does not compute; {advice}")]
    UnsupportedFeature {
        /// What the file asks for, with the key or tensor that says so.
        feature: String,
        /// What to use in its place.
        advice: String,
    },
    /// A tensor of another shape than the metadata promise.
    #[error(
        "the tensor `{tensor}` has shape {found:?}, but {expected:?} ([rows, columns]) follows from the metadata; \
         the file is damaged or made by a faulty converter"
    )]
    WrongShape {
        /// Name of the tensor.
        tensor: String,
        /// Row-major shape that follows from the metadata.
        expected: Vec<usize>,
        /// Row-major shape in the file.
        found: Vec<usize>,
    },
    /// Values that make no sense for a tensor.
    #[error("the tensor `{tensor}` {reason}; the file is damaged")]
    BadTensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with its values.
        reason: String,
    },
    /// Weights that cannot be stored as was asked.
    #[error("the tensor `{tensor}` cannot be quantized: {reason}; load the model as it is, or another file of it")]
    Quantization {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with its weights.
        reason: taper_kernels::Error,
    },
    /// Tensors that the network would ignore.
    #[error(
        "the file has {count} tensors that a `{architecture}` network of Taper does not use (such as {names}), so its \
         answers would be wrong; use a file without them (adapters merged, one plain text model)"
    )]
    UnexpectedTensors {
        /// Architecture of the file.
        architecture: &'static str,
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// A setting of [`crate::LoadOptions`] that cannot be honoured.
    #[error("{0}")]
    BadOption(String),
    /// A token id that the vocabulary does not have.
    #[error("the token id {token} is not in the vocabulary, whose ids are below {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Number of ids.
        vocab_size: usize,
    },
}
