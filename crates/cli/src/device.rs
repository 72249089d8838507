//! The GPU that was asked for: whether it can compute, which is known before anything is read, fetched or bound; and opening it.

use crate::args::{BenchCommand, Command, Device};
use anyhow::{Result, anyhow};
use std::sync::Arc;
use taper_kernels::cuda::{self, Cuda, Driver, fatbin};

/// What to do where a GPU was asked for.
const OTHERWISE: &str = "--device cpu (or TAPER_DEVICE=cpu) computes on the processor";
/// What a command does that no GPU could do for it.
const OF_PROCESSORS: &str = "compares what processors alone have: roundings of activations";

/// An error, unless the device can compute what the command asks of it.
pub(crate) fn check(command: &Command) -> Result<()> {
    let Some(device @ Device::Cuda(index)) = command.device() else { return Ok(()) };
    let gpu = cuda::probe(index).map_err(|error| anyhow!("--device {device}: {error}; {OTHERWISE}"))?;
    let found =
        format!("--device {device}: there is GPU {index}, {}, compute capability {}", gpu.name, gpu.compute_capability);
    match command {
        Command::Bench(args) if matches!(args.what, BenchCommand::Chat(_)) => {
            Err(anyhow!("{found}, but `taper bench chat` {OF_PROCESSORS}; {OTHERWISE}"))
        }
        _ => fatbin::image().map(drop).map_err(|error| anyhow!("{found}, but {error}; {OTHERWISE}")),
    }
}

/// A GPU with the kernels of this program.
pub(crate) fn open_gpu(index: usize) -> Result<Cuda<Driver>> {
    Ok(Cuda::new(Arc::new(Driver::open(index, &fatbin::image()?)?))?)
}
