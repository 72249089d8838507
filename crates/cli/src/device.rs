//! Whether the device that was asked for can compute, which is known before anything is read, fetched or bound.

use crate::args::Device;
use anyhow::{Result, anyhow};
use taper_kernels::cuda;

/// What to do where a GPU was asked for.
const OTHERWISE: &str = "--device cpu (or TAPER_DEVICE=cpu) computes on the processor";

/// An error, unless the device can compute.
pub(crate) fn check(device: Device) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let gpu = cuda::probe(index).map_err(|error| anyhow!("--device {device}: {error}; {OTHERWISE}"))?;
    Err(anyhow!(
        "--device {device}: there is GPU {index}, {}, compute capability {}, but this build of taper has no CUDA kernels; {OTHERWISE}",
        gpu.name,
        gpu.compute_capability
    ))
}
