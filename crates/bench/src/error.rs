//! What can go wrong while measuring.

/// Why a benchmark did not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is not so much memory.
    #[error("{bytes} bytes are more memory than is free; less can be asked for")]
    Memory {
        /// Size of the request.
        bytes: usize,
    },
    /// A kernel cannot be had.
    #[error(transparent)]
    Kernels(#[from] taper_kernels::Error),
    /// A GPU does not do what it was asked for.
    #[error(transparent)]
    Device(#[from] taper_kernels::cuda::DeviceError),
    /// A model does not compute.
    #[error(transparent)]
    Model(#[from] taper_models::Error),
    /// A report cannot be drawn.
    #[error("cannot draw the plot `{title}`: {reason}")]
    Plot {
        /// Which.
        title: String,
        /// In the plotting library's words.
        reason: String,
    },
    /// The driver of a peer did not do what it was asked for.
    #[error("{0}")]
    Peer(String),
}
