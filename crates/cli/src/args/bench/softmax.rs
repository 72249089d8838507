//! `taper bench softmax` on the command line.

use super::{BenchOutputArgs, ComputeArgs, DeviceArgs, positive};
use clap::Args;
use taper_bench::softmax::{DEFAULT_POWERS, DEFAULT_RING_BYTES};

/// `taper bench softmax`
#[derive(Debug, Args)]
#[command(
    after_help = "Every scheme of the softmax family, in turns, with every number of threads from 1 to --threads: on rows that stay in the caches while they fit, and on a ring of rows in memory. A row is microseconds per row of scores; GB/s count a score read and a probability written, 8 bytes an element, of rows in memory alone. X THREE-PASS is the speed over that of three passes, OVER BOUNDED the time of online over that of bounded, which keeps no running maximum. Under the table stand the length from which online is faster than three passes, and what running maxima cost. Without flags it takes about twenty seconds."
)]
pub(crate) struct BenchSoftmaxArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Powers of two that are lengths of rows, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=26), default_values_t = DEFAULT_POWERS)]
    pub(crate) powers: Vec<u32>,

    /// Least size of scores and probabilities in memory, MiB.
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_RING_BYTES >> 20)]
    pub(crate) ring_mib: usize,

    /// Fewest samples per row.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = positive)]
    pub(crate) repeat: usize,

    /// Least time of the schemes of a length together, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub(crate) time_ms: u64,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}
