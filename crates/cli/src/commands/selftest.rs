//! `taper selftest`: do the kernels of this machine compute what they should?

use crate::args::SelftestArgs;
use crate::commands::list;
use crate::output;
use anyhow::{Result, bail};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::selftest::{self, Check};
use taper_kernels::{Activations, Backend, BackendInfo, Cpu, CpuConfig};

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let sets = match &args.compute.isa {
        Some(name) => vec![Isa::parse(name)?],
        None => Isa::available(),
    };
    let both = [Activations::Full, Activations::Mixed];
    let mut failed = 0;
    for (isa, activations) in sets.into_iter().flat_map(|isa| both.map(|activations| (isa, activations))) {
        let config = CpuConfig { threads: args.compute.threads, isa: Some(isa.name().into()) };
        let cpu = Cpu::new(config)?.with_activations(activations);
        let mut checks = Vec::new();
        selftest::run(&cpu, &mut |check| checks.push(check))?;
        let bad = checks.iter().filter(|check| !check.passed()).count();
        print(checks.iter().filter(|check| args.all || !check.passed()))?;
        let verdict = if bad == 0 { "all passed".into() } else { format!("{bad} FAILED") };
        let BackendInfo { isa, threads, numerics_class, .. } = cpu.info();
        output::line(&format!("{isa}, {threads} threads, {numerics_class}: {} checks, {verdict}", checks.len()))?;
        failed += bad;
    }
    if failed > 0 {
        bail!("{failed} checks failed: this machine's answers cannot be trusted; --isa chooses other kernels");
    }
    Ok(())
}

fn print<'a>(checks: impl Iterator<Item = &'a Check>) -> Result<()> {
    let mut table = list::table(&["CHECK", "ERROR", "ALLOWED", ""]);
    for check in checks {
        let verdict = if check.passed() { "" } else { "FAILED" };
        table.add_row([&check.name, &format!("{:.1e}", check.error), &format!("{:.1e}", check.tolerance), verdict]);
    }
    if table.is_empty() { Ok(()) } else { output::line(&table.trim_fmt()) }
}
