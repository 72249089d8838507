//! `taper tune --check`: the choices and all candidates measured anew, in turns.

use crate::args::{BenchOutputArgs, TuneArgs};
use crate::commands::bench::{Bench, setup};
use crate::output;
use crate::tune_file::TuneFile;
use anyhow::Result;
use std::collections::BTreeSet;
use taper_bench::tune::check::{check, findings, rows};
use taper_bench::tune::{Effort, Products, shape_name};
use taper_kernels::BackendInfo;
use taper_kernels::cpu::gemm::Shape;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;

/// Repeats of all of it.
const REPEATS: usize = 3;
/// Turns of a candidate in a repeat.
const TURNS: usize = 5;

pub(super) fn run(args: &TuneArgs, info: &BackendInfo, file: &TuneFile, shapes: &[Shape]) -> Result<()> {
    let (tuning, activations) = (file.tuning(), args.activations.into());
    let tuned: Vec<Shape> = tuning.entries(activations).into_iter().map(|(shape, ..)| shape).collect();
    let (isa, pool, repeats) = (Isa::parse(info.isa)?, Pool::new(info.threads), args.repeat.unwrap_or(REPEATS));
    let rows_of_products: BTreeSet<usize> = args.rows.iter().copied().collect();
    let effort = Effort { rows: rows_of_products.into_iter().collect(), turns: TURNS, ..Effort::default() };
    let most_rows = effort.rows.iter().copied().max().unwrap_or(1);
    // Times are held against each other, not against memory.
    let to = BenchOutputArgs { json: args.json.clone(), report: None, bandwidth_mib: 0 };
    let mut bench = Bench::start(&to, setup(info, 0))?;
    let mut cells = Vec::new();
    for (index, &shape) in shapes.iter().enumerate() {
        let note = if tuned.contains(&shape) { "" } else { ", never tuned: the built-in rule" };
        output::status(&format!("{} of {}: {}{note}", index + 1, shapes.len(), shape_name(shape)));
        let mut products = Products::new(isa, &pool, shape, most_rows)?;
        let mut told = |repeat: usize, rows: usize| {
            if rows == most_rows {
                output::status(&format!("  repeat {} of {repeats}", repeat + 1));
            }
        };
        cells.extend(check(&mut products, activations, &tuning, (&effort, repeats), &mut told));
    }
    bench.add(rows(&cells));
    bench.finish(|_| findings(&cells))
}
