//! `taper bench bandwidth`

use super::{Bench, cpu, setup};
use crate::args::BenchBandwidthArgs;
use crate::output;
use anyhow::{Result, bail};
use std::time::Duration;
use taper_bench::{Effort, Setup, bandwidth};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchBandwidthArgs) -> Result<()> {
    let bytes = args.output.bandwidth_bytes();
    if bytes == 0 {
        bail!("--bandwidth-mib 0 leaves nothing to measure");
    }
    // The rows are the bandwidth; nothing is measured around them.
    let setup = Setup { bandwidth_bytes: 0, ..setup(&cpu(&args.compute)?.info(), bytes) };
    let threads: Vec<usize> = (1..=setup.threads).collect();
    let effort = Effort { samples: args.repeat, time: Duration::ZERO };
    let mut bench = Bench::start(&args.output, setup.clone())?;
    bench.add(bandwidth::measure(&setup, bytes, &threads, effort, &mut |row| {
        output::status(&format!("{}: {:.1} GB/s", row.case, row.summary.median));
    })?);
    bench.finish(|finished| bandwidth::plots(&finished.records).into())
}
