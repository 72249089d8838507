//! `taper bench gemm`

use super::{Bench, cpu, setup};
use crate::args::BenchGemmArgs;
use crate::output;
use anyhow::Result;
use std::time::Duration;
use taper_bench::{Effort, gemm};
use taper_kernels::{Backend, WeightType};

pub(crate) fn run(args: &BenchGemmArgs) -> Result<()> {
    let cpu = cpu(&args.compute)?;
    let cases = gemm::Cases {
        types: if args.types.is_empty() { WeightType::ALL.into() } else { args.types.clone() },
        shapes: args.shapes.clone(),
        rows: args.rows.iter().map(|&rows| rows as usize).collect(),
        ring_bytes: args.ring_mib.saturating_mul(1 << 20),
        effort: Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) },
    };
    let mut bench = Bench::start(&args.output, setup(&cpu.info(), args.output.bandwidth_bytes()))?;
    bench.add(gemm::measure(&cpu, &cases, &mut output::status)?);
    bench.finish(|finished| gemm::plots(&finished.records, finished.ceiling).into())
}
