//! `taper tune --device cuda`: which launch of each product is fastest on a GPU.

use super::{line_of, measured, of_class, reset, shapes_by, summed};
use crate::args::TuneArgs;
use crate::commands::list;
use crate::device::open_gpu;
use crate::output;
use crate::tune_file::{Subject, TuneFile};
use anyhow::{Result, bail, ensure};
use comfy_table::CellAlignment;
use std::path::Path;
use taper_bench::tune::{Candidate, Cell, Effort, GpuProducts, price_of_exact_rows, shape_name};
use taper_kernels::cuda::{Cuda, Driver, NUMERICS_CLASS, NUMERICS_CLASS_BY_ROWS, ProductChoice, RowOrder, TileChoice};
use taper_models::Quantization;

pub(super) fn run(args: &TuneArgs, index: usize) -> Result<()> {
    if args.check {
        bail!(
            "--check judges choices of the processor: a GPU's are shown by `taper tune --device cuda:{index} --explain`"
        );
    }
    if args.compute.threads.is_some() || args.compute.isa.is_some() {
        output::status("--threads and --isa are about the processor: a GPU is tuned without them");
    }
    let gpu = open_gpu(index)?.with_exact_rows(false)?;
    let of = Subject::of_gpu(&gpu, index)?;
    let path = of.path()?;
    if args.reset {
        reset(args, &of, &path)
    } else if args.explain {
        let (_, cells) = measured(args, &of, &path)?;
        explain(&cells)
    } else {
        measure(args, (&with_library(gpu), &of), &path)
    }
}

/// With the vendor's library where there is one, for `--deterministic off`.
fn with_library(gpu: Cuda<Driver>) -> Cuda<Driver> {
    gpu.clone().with_library().unwrap_or_else(|error| {
        output::status(&format!("without the vendor's library of products: {error}"));
        gpu
    })
}

fn measure(args: &TuneArgs, (gpu, of): (&Cuda<Driver>, &Subject), path: &Path) -> Result<()> {
    let quantization = args.quantization.map(Quantization::from);
    if quantization.is_some() && !args.shapes.is_empty() {
        output::status("--quantization is about models: a --shape says its type itself");
    }
    let mut shapes = shapes_by(args, &|checkpoint| taper_models::part_shapes(checkpoint, quantization))?;
    shapes.retain(|&shape| {
        let has_choice = TileChoice::is_of(shape);
        if !has_choice {
            output::status(&format!("{} is left out: there is one way to multiply with it", shape_name(shape)));
        }
        has_choice
    });
    ensure!(!shapes.is_empty(), "nothing to tune: none of these matrices is multiplied with tiles");
    // As it is, so that a file that cannot be written is told before minutes of measuring.
    let mut file = TuneFile::update::<ProductChoice>(path, of, &[])?;
    let effort = Effort::default();
    let effort = Effort { turns: args.repeat.unwrap_or(effort.turns), ..effort };
    let most_rows = effort.rows.iter().copied().max().unwrap_or(1);
    for (index, &shape) in shapes.iter().enumerate() {
        output::status(&format!("{} of {}: {}", index + 1, shapes.len(), shape_name(shape)));
        let mut products = GpuProducts::new(gpu, shape, most_rows)?;
        let cells = products.measure(&effort, &mut |cell| output::status(&line(cell)))?;
        // Kept shape by shape: who interrupts loses the one in progress.
        file = TuneFile::update(path, of, &cells)?;
    }
    let is_new = |cell: &Cell<ProductChoice>| shapes.contains(&cell.shape);
    let cells: Vec<Cell<ProductChoice>> = file.cells().into_iter().filter(is_new).collect();
    output::line(&summed(&shapes))?;
    for &order in ProductChoice::CLASSES {
        let of_order: Vec<_> = cells.iter().filter(|cell| cell.activations == order).cloned().collect();
        if !of_order.is_empty() {
            output::line(&of_class(&of_order, order))?;
        }
    }
    output::line(&price(&cells))?;
    output::status(&format!("written to {}; `{} --explain` shows every cost", path.display(), of.command));
    Ok(())
}

fn line(cell: &Cell<ProductChoice>) -> String {
    line_of(cell, if cell.activations == RowOrder::ByRows { ", any order" } else { "" })
}

/// What `--deterministic on`, which is the default, costs in products of many rows; those of few are the same.
fn price(cells: &[Cell<ProductChoice>]) -> String {
    match price_of_exact_rows(cells) {
        Some(price) => format!(
            "products of 16 rows and more take {price:.3} times as long with --deterministic on as with off; those of fewer rows are the same"
        ),
        None => "--deterministic on costs nothing in these products: this GPU has nothing faster for rows that need not be exact".into(),
    }
}

fn explain(cells: &[Cell<ProductChoice>]) -> Result<()> {
    let mut table = list::table(&["shape", "rows", "--deterministic", "choice", "us", "alternatives, us"]);
    for column in [1, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for cell in cells {
        let choice = cell.choice();
        let mut others: Vec<_> = cell.costs.iter().filter(|(other, _)| *other != choice).collect();
        others.sort_by(|a, b| a.1.total_cmp(&b.1));
        let others: Vec<String> =
            others.iter().map(|(other, cost)| format!("{} {:.1}", other.name(), cost * 1e6)).collect();
        table.add_row([
            shape_name(cell.shape),
            cell.rows.to_string(),
            if cell.activations == RowOrder::Exact { "on" } else { "off" }.to_owned(),
            choice.name(),
            format!("{:.1}", cell.cost(choice).unwrap_or(f64::NAN) * 1e6),
            others.join(", "),
        ]);
    }
    output::line(&table.trim_fmt())?;
    output::line(&format!(
        "choices: rows of a block of threads, and blocks for each multiprocessor, all of class {NUMERICS_CLASS}, so all give the same bits; \
         wgmma, and a way of cuBLASLt by its number, of class {NUMERICS_CLASS_BY_ROWS}, for --deterministic off"
    ))?;
    output::line(&price(cells))
}
