//! `taper tune`: which implementation of each product is fastest here, what that costs, and how good the choices are.

mod check;
mod explain;

use crate::args::TuneArgs;
use crate::commands::bench;
use crate::load;
use crate::output;
use crate::progress::Bars;
use crate::tune_file::TuneFile;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use taper_bench::tune::{Cell, Effort, Products, against_the_best, shape_name};
use taper_kernels::cpu::gemm::{Activations, Shape};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{Backend, BackendInfo};

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let info = bench::cpu(&args.compute)?.info();
    let path = TuneFile::path(&info)?;
    let measured = || {
        let file = TuneFile::read(&path, &info)?;
        file.with_context(|| {
            format!("nothing was measured for {} threads of this processor yet; run `taper tune`", info.threads)
        })
    };
    if args.reset {
        reset(&path)
    } else if args.explain {
        let cells = measured()?.cells();
        output::status(&format!("from {}", path.display()));
        explain::run(&cells, args.activations.into())
    } else if args.check {
        check::run(args, &info, &measured()?, &shapes(args)?)
    } else {
        measure(args, &info, &path)
    }
}

fn reset(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("cannot remove {}: {error}", path.display())
        }
        _ => output::status(&format!("nothing is measured for this processor any more ({})", path.display())),
    }
    Ok(())
}

fn measure(args: &TuneArgs, info: &BackendInfo, path: &Path) -> Result<()> {
    let shapes = shapes(args)?;
    let mut file = match TuneFile::read(path, info) {
        Ok(file) => file.unwrap_or_else(|| TuneFile::new(info)),
        // The user asked for new measurements; an unreadable file is no reason to refuse them.
        Err(error) => {
            output::status(&format!("{error:#}; it is replaced"));
            TuneFile::new(info)
        }
    };
    let (isa, pool) = (Isa::parse(info.isa)?, Pool::new(info.threads));
    let effort = Effort::default();
    let effort = Effort { turns: args.repeat.unwrap_or(effort.turns), ..effort };
    let most_rows = effort.rows.iter().copied().max().unwrap_or(1);
    for (index, &shape) in shapes.iter().enumerate() {
        output::status(&format!("{} of {}: {}", index + 1, shapes.len(), shape_name(shape)));
        let mut products = Products::new(isa, &pool, shape, most_rows)?;
        let cells = products.measure(&Activations::ALL, &effort, &mut |cell| output::status(&line(cell)));
        // Kept shape by shape: who interrupts loses the one in progress.
        file.put(&cells);
        file.write(path)?;
    }
    let cells = file.cells();
    output::line(&format!("{} shapes; time of all products over the time of the fastest of each:", shapes.len()))?;
    for activations in Activations::ALL {
        let is_new = |cell: &&Cell| cell.activations == activations && shapes.contains(&cell.shape);
        let cells: Vec<Cell> = cells.iter().filter(is_new).cloned().collect();
        let (rule, rule_worst) = against_the_best(&cells, |cell| cell.costs[0].0);
        let (chosen, chosen_worst) = against_the_best(&cells, Cell::choice);
        output::line(&format!(
            "  {}: {chosen:.3} as chosen (worst {chosen_worst:.2}), {rule:.3} by the built-in rule (worst {rule_worst:.2})",
            activations.class()
        ))?;
    }
    output::status(&format!(
        "written to {}; `taper tune --explain` shows every cost, `taper tune --check` measures the choices anew",
        path.display()
    ));
    Ok(())
}

fn line(cell: &Cell) -> String {
    let (choice, rule) = (cell.choice(), cell.costs[0]);
    let cost = cell.cost(choice).unwrap_or(rule.1);
    let activations = format!("{:?}", cell.activations).to_lowercase();
    format!(
        "  {:>3} rows, {activations:<5}: {:<14} {:>9.1} us, the rule {:>9.1} us",
        cell.rows,
        choice.name(),
        cost * 1e6,
        rule.1 * 1e6
    )
}

/// The distinct shapes that were named, else those of the models' matrices.
fn shapes(args: &TuneArgs) -> Result<Vec<Shape>> {
    let mut shapes: BTreeSet<Shape> = args.shapes.iter().copied().collect();
    if shapes.is_empty() {
        for model in &args.models {
            let checkpoint = load::open(&load::resolve(model, &Bars::new())?.path)?;
            let of_model = taper_models::matrix_shapes(&checkpoint)?.into_iter();
            shapes.extend(of_model.map(|(weight_type, outputs, inputs)| Shape { weight_type, outputs, inputs }));
        }
    }
    Ok(shapes.into_iter().collect())
}
