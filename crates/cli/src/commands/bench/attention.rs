//! `taper bench attention`

use super::{Bench, candle_driver, cpu, setup};
use crate::args::BenchAttentionArgs;
use crate::output;
use anyhow::Result;
use std::time::Duration;
use taper_bench::candle::Candle;
use taper_bench::{Effort, attention};
use taper_kernels::Backend;

pub(crate) fn run(args: &BenchAttentionArgs) -> Result<()> {
    let cpu = cpu(&args.compute)?;
    let cases = attention::Cases {
        heads: args.heads.clone(),
        batches: args.batch.iter().map(|&batch| batch as usize).collect(),
        lens: args.keys.iter().map(|&keys| keys as usize).collect(),
        rows: args.rows as usize,
        dtype: args.kv.dtype(),
        ring_bytes: args.ring_mib.saturating_mul(1 << 20),
        candle_keys: args.candle_keys,
        effort: Effort { samples: args.repeat, time: Duration::from_millis(args.time_ms) },
    };
    let candle = candle(args, cpu.info().threads, &cases)?;
    let mut bench = Bench::start(&args.output, setup(&cpu.info(), args.output.bandwidth_bytes()))?;
    bench.add(attention::measure(&cpu, &cases, candle, &mut output::status)?);
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
