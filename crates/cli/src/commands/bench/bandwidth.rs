//! `taper bench bandwidth`

use super::{Bench, cpu, isa_of, setup, setup_on};
use crate::args::{BenchBandwidthArgs, Device};
use crate::device::open_gpu;
use crate::output;
use anyhow::{Result, bail};
use std::time::Duration;
use taper_bench::{Effort, Measurement, Setup, bandwidth, gpu};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchBandwidthArgs) -> Result<()> {
    let bytes = args.output.bandwidth_bytes();
    if bytes == 0 {
        bail!("--bandwidth-mib 0 leaves nothing to measure");
    }
    // The rows are the bandwidth; nothing is measured around them.
    let alone = |setup: Setup| Bench::start(&args.output, Setup { bandwidth_bytes: 0, ..setup });
    let say = |row: &Measurement| output::status(&format!("{}: {:.1} GB/s", row.case, row.summary.median));
    let effort = Effort { samples: args.repeat, time: Duration::ZERO };
    let bench = match args.device.device {
        Device::Cuda(index) => {
            let gpu = open_gpu(index)?;
            let mut bench = alone(setup_on(&gpu, bytes))?;
            let row = gpu::bandwidth(gpu.device(), bytes, effort)?;
            say(&row);
            bench.add([row]);
            bench
        }
        Device::Auto | Device::Cpu => {
            let info = cpu(&args.compute)?.info();
            let mut bench = alone(setup(&info, bytes))?;
            let threads: Vec<usize> = (1..=info.threads).collect();
            bench.add(bandwidth::measure(isa_of(&info), bytes, &threads, effort, &mut |row| say(row))?);
            bench
        }
    };
    bench.finish(|finished| bandwidth::plots(&finished.records).into())
}
