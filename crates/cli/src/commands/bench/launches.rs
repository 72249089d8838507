//! `taper bench launches`: what one decode step asks of a GPU, without one.

use crate::args::BenchLaunchesArgs;
use crate::commands::list;
use crate::load;
use crate::output;
use crate::progress::Bars;
use anyhow::{Result, bail};
use comfy_table::CellAlignment;
use indicatif::BinaryBytes;
use serde::Serialize;
use std::sync::Arc;
use taper_kernels::cuda::{Cuda, DeviceProperties, Recorded, Recorder};
use taper_kernels::{BLOCK_SIZE, KvDtype};
use taper_models::{LoadOptions, LogitRows, ModelConfig, Quantization, SequenceSlice};

/// A kernel of the step.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    kernel: String,
    launches: usize,
    /// Launches in each layer; of those outside of layers none.
    per_layer: usize,
    bytes: usize,
}

pub(crate) fn run(args: &BenchLaunchesArgs) -> Result<()> {
    let progress = Bars::new();
    let resolved = load::resolve(&args.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    if args.keys > config.context_len {
        bail!("--keys {} is more than the {} positions that the model was made for", args.keys, config.context_len);
    }
    let blocks_each = args.keys.div_ceil(BLOCK_SIZE);
    let options = LoadOptions {
        context_len: Some(args.keys),
        num_blocks: Some(args.batch * blocks_each),
        max_rows: args.batch,
        max_logit_rows: args.batch,
        // As a GPU has by default.
        kv_dtype: KvDtype::BF16,
        quantization: args.quantization.map(Quantization::from),
        ..LoadOptions::default()
    };
    let device = Arc::new(Recorder::new(h200()));
    let mut model = load::load_network(Cuda::new(Arc::clone(&device))?, &checkpoint, options, &progress)?;
    device.take();
    let tables: Vec<Vec<u32>> =
        (0..args.batch).map(|i| (0..blocks_each).map(|block| (i * blocks_each + block) as u32).collect()).collect();
    let slice =
        |block_table| SequenceSlice { tokens: &[0], start: args.keys - 1, block_table, logits: LogitRows::Last };
    let step: Vec<SequenceSlice<'_>> = tables.iter().map(|table| slice(&table[..])).collect();
    model.forward(&step)?;
    let rows = rows(&device.take(), config.num_layers);
    if args.json {
        return rows.iter().try_for_each(|row| output::line(&serde_json::to_string(row)?));
    }
    print(&rows, config.num_layers, model.weight_bytes_per_token())
}

/// The GPU that launches are planned for.
fn h200() -> DeviceProperties {
    DeviceProperties {
        name: "NVIDIA H200".into(),
        multiprocessors: 132,
        shared_bytes_per_block: 227 << 10,
        l2_bytes: 50 << 20,
    }
}

/// Launches by kernel, in the order in which they first come.
fn rows(launches: &[Recorded], num_layers: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for launch in launches {
        let kernel = launch.kernel.name().to_string_lossy();
        let index = rows.iter().position(|row| row.kernel == kernel).unwrap_or_else(|| {
            rows.push(Row { kernel: kernel.into_owned(), launches: 0, per_layer: 0, bytes: 0 });
            rows.len() - 1
        });
        rows[index].launches += 1;
        rows[index].bytes += launch.bytes;
    }
    rows.iter_mut().for_each(|row| row.per_layer = row.launches / num_layers);
    rows
}

fn print(rows: &[Row], num_layers: usize, weight_bytes: usize) -> Result<()> {
    let mut table = list::table(&["KERNEL", "LAUNCHES", "A LAYER", "BYTES"]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let size = |bytes: usize| BinaryBytes(bytes as u64).to_string();
    for row in rows {
        table.add_row([&row.kernel, &row.launches.to_string(), &row.per_layer.to_string(), &size(row.bytes)]);
    }
    let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
    let bytes = sum(|row| row.bytes);
    table.add_row(["", &sum(|row| row.launches).to_string(), &sum(|row| row.per_layer).to_string(), &size(bytes)]);
    output::line(&table.trim_fmt())?;
    output::line(&format!(
        "{num_layers} layers; the weights that a step of one row reads are {} of these bytes",
        size(weight_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::cuda::Kernel;

    #[test]
    fn launches_are_counted_by_kernel_and_layer() {
        let launch = |kernel, bytes| Recorded { kernel, grid: [1; 3], threads: 32, shared_bytes: 0, bytes };
        let layer = [launch(Kernel::RmsNorm, 10), launch(Kernel::GemvF32, 100), launch(Kernel::GemvF32, 50)];
        let launches = [&[launch(Kernel::RopeAngles, 1)][..], &layer, &layer, &[launch(Kernel::GemvF32, 7)]].concat();
        let row = |kernel: &str, launches, per_layer, bytes| Row { kernel: kernel.into(), launches, per_layer, bytes };
        let expected = [row("rope_angles", 1, 0, 1), row("rms_norm", 2, 1, 20), row("gemv_f32", 5, 2, 307)];
        assert_eq!(rows(&launches, 2), expected);
    }
}
