//! CUDA kernels on the CPU, for the tests of the code that launches them: the simulator of this folder behind its C interface.
//!
//! Every kernel of `kernels/cuda/*.cu` is there by name. `run` runs one grid to its end under one of eight schedules, and says
//! what the kernel did that CUDA forbids; a kernel that is right gives the same bits under all of them. Memory of the device is
//! memory of this process. What the simulator models and what it cannot see: `machine.h`.
//!
//! Empty without the feature `simulator`, which needs a C++ compiler.

#[cfg(feature = "simulator")]
mod device;
#[cfg(feature = "simulator")]
mod run;

#[cfg(feature = "simulator")]
pub use device::{Recorded, Sim, differences};
#[cfg(feature = "simulator")]
pub use run::{Fault, Launch, Schedule, run, signature};
