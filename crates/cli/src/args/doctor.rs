//! `taper doctor` on the command line.

use super::bench::ComputeArgs;
use clap::Args;

/// `taper doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "Measuring the read bandwidth takes a few seconds and 1 GiB of memory; --bandwidth-mib 0 leaves it out."
)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Memory to read when measuring the bandwidth, MiB; 0 leaves it out.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) bandwidth_mib: usize,

    /// Print what the build says of its CUDA kernels instead: registers, shared memory, stack and spills of each.
    #[arg(long, conflicts_with = "json")]
    pub(crate) kernels: bool,

    /// Print one JSON object instead.
    #[arg(long)]
    pub(crate) json: bool,
}
