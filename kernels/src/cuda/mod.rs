//! NVIDIA GPUs, by the driver alone: its library is looked for when the program runs, so the program needs none to be built
//! or to start. [`probe()`] says whether a GPU can be used, and if not, why. Kernels are CUDA C++ in `kernels/cuda`;
//! [`fatbin`] has them compiled, and nothing launches them yet.
//!
//! cudarc panics where a library or one of its functions is missing. So its driver functions are called behind
//! `library::require` only.

mod error;
pub mod fatbin;
mod library;
mod probe;
mod release;

pub use error::ProbeError;
pub use probe::{
    ComputeCapability, CudaVersion, DeviceInfo, DriverInfo, OLDEST_DEVICE, OLDEST_DRIVER, OldestDriver, driver, probe,
};
pub use release::driver_release;
