//! Whether the device that was asked for can compute, which is known before anything is read, fetched or bound.

use crate::args::{Command, Device};
use anyhow::{Result, anyhow};
use taper_kernels::cuda::{self, fatbin};

/// What to do where a GPU was asked for.
const OTHERWISE: &str = "--device cpu (or TAPER_DEVICE=cpu) computes on the processor";

/// An error, unless the device can compute what the command asks of it.
pub(crate) fn check(command: &Command) -> Result<()> {
    let Some(device @ Device::Cuda(index)) = command.device() else { return Ok(()) };
    let gpu = cuda::probe(index).map_err(|error| anyhow!("--device {device}: {error}; {OTHERWISE}"))?;
    let found =
        format!("--device {device}: there is GPU {index}, {}, compute capability {}", gpu.name, gpu.compute_capability);
    match command {
        Command::Selftest(_) => fatbin::image().map(drop).map_err(|error| anyhow!("{found}, but {error}; {OTHERWISE}")),
        _ => Err(anyhow!("{found}, but nothing but `taper selftest` computes on GPUs yet; {OTHERWISE}")),
    }
}
