//! `taper tune`: which implementation of each product is fastest here, what that costs, and how good the choices are.

mod check;
mod explain;

use crate::args::TuneArgs;
use crate::commands::bench;
use crate::load;
use crate::output;
use crate::progress::Bars;
use crate::tune_file::{self, TuneFile};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use taper_bench::counted;
use taper_bench::tune::{Cell, Effort, Products, against_the_best, shape_name};
use taper_kernels::cpu::gemm::{Activations, Shape};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{Backend, BackendInfo};

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let info = bench::cpu(&args.compute)?.info();
    let path = TuneFile::path(&info)?;
    let measured = || {
        let file = TuneFile::read(&path, &info)?.filter(|file| !file.cells().is_empty());
        file.with_context(|| {
            format!("nothing was measured for {} yet; run `{}`", subject(&info), tune_file::command(&info))
        })
    };
    if args.reset {
        reset(args, &info, &path)
    } else if args.explain {
        let mut cells = measured()?.cells();
        cells.retain(|cell| args.shapes.is_empty() || args.shapes.contains(&cell.shape));
        ensure!(!cells.is_empty(), "no such --shape was measured; `taper tune --explain` alone prints those that were");
        output::status(&format!("from {}", path.display()));
        explain::run(&cells, args.activations.into())
    } else if args.check {
        check::run(args, &info, &measured()?, &shapes(args)?)
    } else {
        measure(args, &info, &path)
    }
}

/// What measurements are of.
fn subject(info: &BackendInfo) -> String {
    format!("{} of this processor with {}", counted(info.threads, "thread"), info.isa)
}

fn reset(args: &TuneArgs, info: &BackendInfo, path: &Path) -> Result<()> {
    // Not for the parser, to which a model named by the environment is as good as a flag.
    let unnamed = std::env::var("TAPER_MODEL").unwrap_or_else(|_| taper_hub::DEFAULT_MODEL.into());
    ensure!(args.models == [unnamed], "--reset forgets the shapes of all models; it goes without --model");
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("cannot remove {}: {error}", path.display())
        }
        _ => output::status(&format!("nothing is measured any more for {} ({})", subject(info), path.display())),
    }
    Ok(())
}

fn measure(args: &TuneArgs, info: &BackendInfo, path: &Path) -> Result<()> {
    let shapes = shapes(args)?;
    // As it is, so that a file that cannot be written is told before minutes of measuring.
    let mut file = TuneFile::update(path, info, &[])?;
    let (isa, pool) = (Isa::parse(info.isa)?, Pool::new(info.threads));
    let effort = Effort::default();
    let effort = Effort { turns: args.repeat.unwrap_or(effort.turns), ..effort };
    let most_rows = effort.rows.iter().copied().max().unwrap_or(1);
    for (index, &shape) in shapes.iter().enumerate() {
        output::status(&format!("{} of {}: {}", index + 1, shapes.len(), shape_name(shape)));
        let mut products = Products::new(isa, &pool, shape, most_rows)?;
        let cells = products.measure(&Activations::ALL, &effort, &mut |cell| output::status(&line(cell)));
        // Kept shape by shape: who interrupts loses the one in progress.
        file = TuneFile::update(path, info, &cells)?;
    }
    let cells = file.cells();
    let num_shapes = counted(shapes.len(), "shape");
    output::line(&format!("{num_shapes}; time of all products over the time of the fastest of each:"))?;
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
