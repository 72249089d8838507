//! `taper selftest` on the command line.

use super::DeviceArgs;
use super::bench::ComputeArgs;
use clap::Args;

/// `taper selftest`
#[derive(Debug, Args)]
#[command(
    after_help = "Every operation gets seeded random operands and is held against plain loops, for each weight type, KV type and softmax, and for each instruction set of this machine unless --isa names one. The exit status is not zero when a check fails."
)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Print every check, not only those that fail.
    #[arg(long)]
    pub(crate) all: bool,
}
