//! `taper bench softmax`

use super::{Bench, cpu, isa_of, setup, setup_on};
use crate::args::{BenchSoftmaxArgs, Device};
use crate::device::open_gpu;
use crate::output;
use anyhow::Result;
use std::time::Duration;
use taper_bench::softmax::on_gpu::{self, GpuCases};
use taper_bench::{Effort, softmax};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchSoftmaxArgs) -> Result<()> {
    let lens = args.powers.iter().map(|power| 1 << power).collect();
    let ring_bytes = args.ring_mib.saturating_mul(1 << 20);
    let effort = Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) };
    if let Device::Cuda(index) = args.device.device {
        let gpu = open_gpu(index)?;
        let mut bench = Bench::start(&args.output, setup_on(&gpu, args.output.bandwidth_bytes()))?;
        let cases = GpuCases { lens, ring_bytes, effort };
        bench.add(on_gpu::measure(gpu.device(), &cases, &mut output::status)?);
        return bench.finish(|finished| softmax::findings_on_gpu(&finished.records));
    }
    let info = cpu(&args.compute)?.info();
    let cases = softmax::Cases { lens, threads: (1..=info.threads).collect(), ring_bytes, effort };
    let mut bench = Bench::start(&args.output, setup(&info, args.output.bandwidth_bytes()))?;
    bench.add(softmax::measure(isa_of(&info), &cases, &mut output::status)?);
    bench.finish(|finished| softmax::findings(&finished.records))
}
