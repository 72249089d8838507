//! NVIDIA GPUs, by the driver alone: its library is looked for when the program runs, so the program needs none to be built
//! or to start. [`probe()`] says whether a GPU can be used, and if not, why.
//!
//! A [`Device`] is what kernels are launched on: [`Driver`] is a GPU, [`Recorder`] counts, and the simulator in
//! `kernels/cuda/sim` runs the same kernels on the CPU for tests. Kernels are CUDA C++ in `kernels/cuda`, and [`fatbin`] has
//! them compiled; a file here for each family of them holds its launches and asserts what they ask for. [`Cuda`] is the backend.
//!
//! cudarc panics where a library or one of its functions is missing. So its functions are called behind
//! `library::require` and `cublas_lt::require` only.

mod backend;
mod cublas_lt;
mod device;
mod driver;
mod error;
pub mod fatbin;
mod kernels;
mod library;
mod memory;
mod probe;
pub mod read;
mod recorder;
mod release;
pub mod softmax;

pub use backend::{
    Buffer, Cuda, KvCache, Matrix, NUMERICS_CLASS, NUMERICS_CLASS_BY_ROWS, ProductChoice, ProductTuning, RowOrder,
    TileChoice, Vector, activation_bits,
};
pub use device::{Argument, Device, DeviceProperties, DevicePtr, Launch, LibraryProduct, MAX_ARGUMENTS};
pub use driver::{Driver, DriverEvent, DriverGraph};
pub use error::{DeviceError, ProbeError};
pub use kernels::Kernel;
pub use memory::{Arena, Memory, Part, Plain};
pub use probe::{
    ComputeCapability, CudaVersion, DeviceInfo, DriverInfo, OLDEST_DEVICE, OLDEST_DRIVER, OldestDriver, driver, probe,
};
pub use recorder::{Recorded, Recorder};
pub use release::driver_release;
