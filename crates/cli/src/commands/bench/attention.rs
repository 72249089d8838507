//! `taper bench attention`

use super::{Bench, candle_driver, cpu, setup, setup_on};
use crate::args::{BenchAttentionArgs, Device};
use crate::device::open_gpu;
use crate::output;
use anyhow::{Context, Result};
use std::time::Duration;
use taper_bench::attention::{CpuMeter, GpuMeter};
use taper_bench::candle::Candle;
use taper_bench::{Effort, attention};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchAttentionArgs) -> Result<()> {
    let cases = attention::Cases {
        heads: args.heads.clone(),
        batches: args.batch.iter().map(|&batch| batch as usize).collect(),
        lens: args.keys.iter().map(|&keys| keys as usize).collect(),
        rows: args.rows as usize,
        dtype: args.kv.dtype(args.device.device).context("--kv")?,
        ring_bytes: args.ring_mib.saturating_mul(1 << 20),
        candle_keys: args.candle_keys,
        effort: Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) },
    };
    let bytes = args.output.bandwidth_bytes();
    let bench = match args.device.device {
        Device::Cuda(index) => {
            let gpu = open_gpu(index)?;
            let mut bench = Bench::start(&args.output, setup_on(&gpu, bytes))?;
            let mut meter = GpuMeter::new(&gpu, cases.ring_bytes)?;
            bench.add(attention::measure((&gpu, &mut meter), &cases, None, &mut output::status)?);
            bench
        }
        Device::Auto | Device::Cpu => {
            let cpu = cpu(&args.compute)?;
            let candle = candle(args, cpu.info().threads, &cases)?;
            let mut bench = Bench::start(&args.output, setup(&cpu.info(), bytes))?;
            let mut meter = CpuMeter::new(&cpu, cases.ring_bytes)?;
            bench.add(attention::measure((&cpu, &mut meter), &cases, candle, &mut output::status)?);
            bench
        }
    };
    bench.finish(|finished| attention::findings(&finished.records, finished.ceiling))
}

/// Candle's tensors, where they are wanted: a program that was named has to be there, one that was not is left out with a word.
fn candle(args: &BenchAttentionArgs, threads: usize, cases: &attention::Cases) -> Result<Option<Candle>> {
    if cases.lens.iter().all(|&len| len > cases.candle_keys) {
        return Ok(None);
    }
    if cases.rows > 1 {
        output::status("candle is left out: its tensors know no causal mask here");
        return Ok(None);
    }
    let driver = match candle_driver(args.candle_driver.as_deref()) {
        Ok(driver) => driver,
        Err(error) => {
            output::status(&format!("candle is left out: {error}"));
            return Ok(None);
        }
    };
    Ok(Some(Candle::start_attention(&driver, threads, cases.ring_bytes)?))
}
