//! `taper bench gemm`

use super::{Bench, cpu, setup, setup_on};
use crate::args::{BenchGemmArgs, Device};
use crate::device::open_gpu;
use crate::output;
use anyhow::Result;
use std::time::Duration;
use taper_bench::{Effort, gemm, gpu, wall_seconds};
use taper_kernels::{Backend, WeightType};

pub(crate) fn run(args: &BenchGemmArgs) -> Result<()> {
    let cases = |takes: &dyn Fn(WeightType) -> bool| gemm::Cases {
        types: match &args.types[..] {
            [] => WeightType::ALL.into_iter().filter(|&weight_type| takes(weight_type)).collect(),
            types => types.to_vec(),
        },
        shapes: args.shapes.clone(),
        rows: args.rows.iter().map(|&rows| rows as usize).collect(),
        ring_bytes: args.ring_mib.saturating_mul(1 << 20),
        effort: Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) },
    };
    let bytes = args.output.bandwidth_bytes();
    let bench = match args.device.device {
        Device::Cuda(index) => {
            let backend = open_gpu(index)?;
            let mut bench = Bench::start(&args.output, setup_on(&backend, bytes))?;
            let mut clock = |once: &mut dyn FnMut()| {
                gpu::seconds(&**backend.device(), &mut || {
                    once();
                    Ok(())
                })
            };
            let cases = cases(&|weight_type| backend.takes(weight_type));
            bench.add(gemm::measure(&backend, &mut clock, &cases, &mut output::status)?);
            bench
        }
        Device::Auto | Device::Cpu => {
            let cpu = cpu(&args.compute)?;
            let mut bench = Bench::start(&args.output, setup(&cpu.info(), bytes))?;
            let cases = cases(&|weight_type| cpu.takes(weight_type));
            bench.add(gemm::measure(&cpu, &mut |once| Ok(wall_seconds(once)), &cases, &mut output::status)?);
            bench
        }
    };
    bench.finish(|finished| gemm::plots(&finished.records, finished.ceiling).into())
}
