//! `taper selftest`: do the kernels of this machine compute what they should?

use crate::args::{Device, SelftestArgs};
use crate::commands::list;
use crate::device::open_gpu;
use crate::output;
use anyhow::{Result, bail};
use std::time::Instant;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cuda::Device as _;
use taper_kernels::selftest::{self, Check};
use taper_kernels::{Activations, Backend, BackendInfo, Cpu, CpuConfig};

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let begun = Instant::now();
    let failed = match args.device.device {
        Device::Cuda(index) => on_gpu(args, index)?,
        Device::Auto | Device::Cpu => on_processor(args)?,
    };
    output::status(&format!("[{:.1} s]", begun.elapsed().as_secs_f64()));
    if failed > 0 {
        bail!(
            "{failed} checks failed: this machine's answers cannot be trusted; --isa and --device choose other kernels"
        );
    }
    Ok(())
}

/// Checks that failed, on each instruction set.
fn on_processor(args: &SelftestArgs) -> Result<usize> {
    let sets = match &args.compute.isa {
        Some(name) => vec![Isa::parse(name)?],
        None => Isa::available(),
    };
    let both = [Activations::Full, Activations::Mixed];
    let mut failed = 0;
    for (isa, activations) in sets.into_iter().flat_map(|isa| both.map(|activations| (isa, activations))) {
        let config = CpuConfig { threads: args.compute.threads, isa: Some(isa.name().into()) };
        let cpu = Cpu::new(config)?.with_activations(activations);
        let BackendInfo { isa, threads, numerics_class, .. } = cpu.info();
        failed += on(&cpu, &format!("{isa}, {threads} threads, {numerics_class}"), args.all)?;
    }
    Ok(failed)
}

/// Checks that failed, with the kernels of this program: those of `--deterministic on`, then what else `off` has on this GPU.
fn on_gpu(args: &SelftestArgs, index: usize) -> Result<usize> {
    let mut failed = 0;
    for exact_rows in [true, false] {
        let cuda = open_gpu(index)?.with_exact_rows(exact_rows)?;
        if exact_rows == cuda.has_exact_rows() {
            let (name, class) = (&cuda.device().properties().name, cuda.info().numerics_class);
            failed += on(&cuda, &format!("GPU {index}, {name}, {class}"), args.all)?;
        }
    }
    Ok(failed)
}

/// Checks that failed; the table has them, or all.
fn on<B: Backend>(backend: &B, what: &str, all: bool) -> Result<usize> {
    let mut checks = Vec::new();
    selftest::run(backend, &mut |check| checks.push(check))?;
    let failed = checks.iter().filter(|check| !check.passed()).count();
    print(checks.iter().filter(|check| all || !check.passed()))?;
    let verdict = if failed == 0 { "all passed".into() } else { format!("{failed} FAILED") };
    output::line(&format!("{what}: {} checks, {verdict}", checks.len()))?;
    Ok(failed)
}

fn print<'a>(checks: impl Iterator<Item = &'a Check>) -> Result<()> {
    let mut table = list::table(&["CHECK", "ERROR", "ALLOWED", ""]);
    for check in checks {
        let verdict = if check.passed() { "" } else { "FAILED" };
        table.add_row([&check.name, &format!("{:.1e}", check.error), &format!("{:.1e}", check.tolerance), verdict]);
    }
    if table.is_empty() { Ok(()) } else { output::line(&table.trim_fmt()) }
}
