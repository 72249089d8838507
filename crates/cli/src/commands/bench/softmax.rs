//! `taper bench softmax`

use super::{Bench, cpu, setup};
use crate::args::BenchSoftmaxArgs;
use crate::output;
use anyhow::Result;
use std::time::Duration;
use taper_bench::{Effort, softmax};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchSoftmaxArgs) -> Result<()> {
    let setup = setup(&cpu(&args.compute)?.info(), args.output.bandwidth_bytes());
    let cases = softmax::Cases {
        lens: args.powers.iter().map(|power| 1 << power).collect(),
        threads: (1..=setup.threads).collect(),
        ring_bytes: args.ring_mib.saturating_mul(1 << 20),
        effort: Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) },
    };
    let isa = setup.isa;
    let mut bench = Bench::start(&args.output, setup)?;
    bench.add(softmax::measure(isa, &cases, &mut output::status)?);
    bench.finish(|finished| softmax::findings(&finished.records))
}
