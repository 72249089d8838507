//! `taper tune`: which implementation of each product is fastest here, what that costs, and how good the choices are.

mod check;
mod explain;
mod on_gpu;

use crate::args::{Device, TuneArgs};
use crate::commands::bench;
use crate::load;
use crate::output;
use crate::progress::Bars;
use crate::tune_file::{Subject, TuneFile};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use taper_bench::counted;
use taper_bench::tune::{Candidate, Cell, Effort, Products, against_the_best, shape_name};
use taper_checkpoint::Checkpoint;
use taper_kernels::cpu::gemm::{Activations, Choice, Shape};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{Backend, BackendInfo};

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    if let Device::Cuda(index) = args.device.device {
        return on_gpu::run(args, index);
    }
    let info = bench::cpu(&args.compute)?.info();
    let of = Subject::of_cpu(&info);
    let path = of.path()?;
    if args.reset {
        reset(args, &of, &path)
    } else if args.explain {
        let (_, cells) = measured(args, &of, &path)?;
        explain::run(&cells, args.activations.into())
    } else if args.check {
        check::run(args, &info, &file::<Choice>(&of, &path)?, &shapes(args)?)
    } else {
        measure(args, (&info, &of), &path)
    }
}

/// What was measured before, as far as this build knows it.
fn file<C: Candidate>(of: &Subject, path: &Path) -> Result<TuneFile> {
    let nothing = || format!("nothing was measured for {} yet; run `{}`", of.name, of.command);
    TuneFile::read(path, of)?.filter(|file| !file.cells::<C>().is_empty()).with_context(nothing)
}

/// The same, and its cells of the shapes that were named.
fn measured<C: Candidate>(args: &TuneArgs, of: &Subject, path: &Path) -> Result<(TuneFile, Vec<Cell<C>>)> {
    let file = file::<C>(of, path)?;
    let mut cells = file.cells();
    cells.retain(|cell| args.shapes.is_empty() || args.shapes.contains(&cell.shape));
    ensure!(!cells.is_empty(), "no such --shape was measured; `{} --explain` alone prints those that were", of.command);
    output::status(&format!("from {}", path.display()));
    Ok((file, cells))
}

fn reset(args: &TuneArgs, of: &Subject, path: &Path) -> Result<()> {
    // Not for the parser, to which a model named by the environment is as good as a flag.
    let unnamed = std::env::var("TAPER_MODEL").unwrap_or_else(|_| taper_hub::DEFAULT_MODEL.into());
    ensure!(args.models == [unnamed], "--reset forgets the shapes of all models; it goes without --model");
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("cannot remove {}: {error}", path.display())
        }
        _ => output::status(&format!("nothing is measured any more for {} ({})", of.name, path.display())),
    }
    Ok(())
}

fn measure(args: &TuneArgs, (info, of): (&BackendInfo, &Subject), path: &Path) -> Result<()> {
    let shapes = shapes(args)?;
    // As it is, so that a file that cannot be written is told before minutes of measuring.
    let mut file = TuneFile::update::<Choice>(path, of, &[])?;
    let (isa, pool) = (Isa::parse(info.isa)?, Pool::new(info.threads));
    let effort = Effort::default();
    let effort = Effort { turns: args.repeat.unwrap_or(effort.turns), ..effort };
    let most_rows = effort.rows.iter().copied().max().unwrap_or(1);
    for (index, &shape) in shapes.iter().enumerate() {
        output::status(&format!("{} of {}: {}", index + 1, shapes.len(), shape_name(shape)));
        let mut products = Products::new(isa, &pool, shape, most_rows)?;
        let cells = products.measure(&Activations::ALL, &effort, &mut |cell| output::status(&line(cell)));
        // Kept shape by shape: who interrupts loses the one in progress.
        file = TuneFile::update(path, of, &cells)?;
    }
    let cells = file.cells();
    output::line(&summed(&shapes))?;
    for activations in Activations::ALL {
        let is_new = |cell: &&Cell| cell.activations == activations && shapes.contains(&cell.shape);
        let cells: Vec<Cell> = cells.iter().filter(is_new).cloned().collect();
        output::line(&of_class(&cells, activations))?;
    }
    output::status(&format!(
        "written to {}; `taper tune --explain` shows every cost, `taper tune --check` measures the choices anew",
        path.display()
    ));
    Ok(())
}

/// What the lines below it say.
fn summed(shapes: &[Shape]) -> String {
    format!("{}; time of all products over the time of the fastest of each:", counted(shapes.len(), "shape"))
}

/// How good the choices of a class are by what they were made from.
fn of_class<C: Candidate>(cells: &[Cell<C>], class: C::Class) -> String {
    let (rule, rule_worst) = against_the_best(cells, |cell| cell.costs[0].0);
    let (chosen, chosen_worst) = against_the_best(cells, Cell::choice);
    format!(
        "  {}: {chosen:.3} as chosen (worst {chosen_worst:.2}), {rule:.3} by the built-in rule (worst {rule_worst:.2})",
        C::class_name(class)
    )
}

fn line(cell: &Cell) -> String {
    line_of(cell, &format!(", {:<5}", format!("{:?}", cell.activations).to_lowercase()))
}

fn line_of<C: Candidate>(cell: &Cell<C>, class: &str) -> String {
    let (choice, rule) = (cell.choice(), cell.costs[0]);
    let cost = cell.cost(choice).unwrap_or(rule.1);
    format!(
        "  {:>3} rows{class}: {:<14} {:>9.1} us, the rule {:>9.1} us",
        cell.rows,
        choice.name(),
        cost * 1e6,
        rule.1 * 1e6
    )
}

/// The distinct shapes that were named, else those of the models' matrices.
fn shapes(args: &TuneArgs) -> Result<Vec<Shape>> {
    shapes_by(args, &taper_models::matrix_shapes)
}

type ShapesOf<'a> = &'a dyn Fn(&Checkpoint) -> Result<Vec<taper_models::MatrixShape>, taper_models::Error>;

/// The same, where a model's matrices have these.
fn shapes_by(args: &TuneArgs, shapes_of: ShapesOf<'_>) -> Result<Vec<Shape>> {
    let mut shapes: BTreeSet<Shape> = args.shapes.iter().copied().collect();
    if shapes.is_empty() {
        for model in &args.models {
            let checkpoint = load::open(&load::resolve(model, &Bars::new())?.path)?;
            let of_model = shapes_of(&checkpoint)?.into_iter();
            shapes.extend(of_model.map(|(weight_type, outputs, inputs)| Shape { weight_type, outputs, inputs }));
        }
    }
    Ok(shapes.into_iter().collect())
}
