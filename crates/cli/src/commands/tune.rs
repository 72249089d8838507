//! `taper tune`: which implementation of each product is fastest here.

use crate::args::TuneArgs;
use crate::commands::{bench, list};
use crate::load;
use crate::output;
use crate::progress::Bars;
use crate::tune_file::TuneFile;
use anyhow::{Result, bail};
use comfy_table::CellAlignment;
use std::collections::BTreeSet;
use std::fs;
use taper_bench::tune::{self, Cell, Effort, against_the_best, shape_name};
use taper_kernels::cpu::gemm::Shape;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{Backend, BackendInfo};

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let info = bench::cpu(&args.compute)?.info();
    let path = TuneFile::path(&info)?;
    if args.reset {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                bail!("cannot remove {}: {error}", path.display())
            }
            _ => output::status(&format!("nothing is measured for this processor any more ({})", path.display())),
        }
        return Ok(());
    }
    if args.explain {
        let Some(file) = TuneFile::read(&path, &info)? else {
            bail!("nothing was measured for {} threads of this processor yet; run `taper tune`", info.threads);
        };
        output::status(&format!("from {}", path.display()));
        return explain(&file.cells(), &info);
    }
    let shapes = if args.shapes.is_empty() { shapes_of(args)? } else { args.shapes.clone() };
    let mut file = match TuneFile::read(&path, &info) {
        Ok(file) => file.unwrap_or_else(|| TuneFile::new(&info)),
        // The user asked for new measurements; an unreadable file is no reason to refuse them.
        Err(error) => {
            output::status(&format!("{error:#}; it is replaced"));
            TuneFile::new(&info)
        }
    };
    let (isa, pool) = (Isa::parse(info.isa)?, Pool::new(info.threads));
    let effort = Effort { turns: args.repeat, ..Effort::default() };
    for (index, &shape) in shapes.iter().enumerate() {
        output::status(&format!("{} of {}: {}", index + 1, shapes.len(), shape_name(shape)));
        let cells = tune::measure(isa, &pool, shape, &effort, &mut |cell| output::status(&line(cell)))?;
        // Kept shape by shape: who interrupts loses the one in progress.
        file.put(&cells);
        file.write(&path)?;
    }
    let cells = file.cells();
    let (rule, rule_worst) = against_the_best(&cells, |cell| cell.costs[0].0);
    let (chosen, chosen_worst) = against_the_best(&cells, Cell::choice);
    output::line(&format!(
        "{} shapes; time of all products over the time of the fastest of each: {chosen:.3} as chosen (worst {chosen_worst:.2}), \
         {rule:.3} by the built-in rule (worst {rule_worst:.2})",
        file.tuning().num_shapes()
    ))?;
    output::status(&format!("written to {}; `taper tune --explain` shows every cost", path.display()));
    Ok(())
}

fn line(cell: &Cell) -> String {
    let (choice, rule) = (cell.choice(), cell.costs[0]);
    let cost = cell.cost(choice).unwrap_or(rule.1);
    format!("  {:>3} rows: {:<14} {:>9.1} us, the rule {:>9.1} us", cell.rows, choice.name(), cost * 1e6, rule.1 * 1e6)
}

/// The distinct shapes of a model's matrices.
fn shapes_of(args: &TuneArgs) -> Result<Vec<Shape>> {
    let path = load::resolve(&args.model, &Bars::new())?.path;
    let checkpoint = load::open(&path)?;
    let shapes: BTreeSet<Shape> = taper_models::matrix_shapes(&checkpoint)?
        .into_iter()
        .map(|(weight_type, outputs, inputs)| Shape { weight_type, outputs, inputs })
        .collect();
    Ok(shapes.into_iter().collect())
}

/// Every cell with the cost of each alternative.
fn explain(cells: &[Cell], info: &BackendInfo) -> Result<()> {
    let mut table = list::table(&["shape", "rows", "choice", "us", "alternatives, us"]);
    for column in [1, 3] {
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
            choice.name(),
            format!("{:.1}", cell.cost(choice).unwrap_or(f64::NAN) * 1e6),
            others.join(", "),
        ]);
    }
    output::line(&table.trim_fmt())?;
    output::line(&format!(
        "choices: instruction set, largest tile of rows x panels of 16 outputs; all of class {}, so all give the same bits",
        info.numerics_class
    ))
}
