//! `taper bench`: speed, with the bytes it moved. One file per benchmark; each hands its measurements to a [`Bench`], which
//! measures the bandwidth around them and says everything.

mod attention;
mod bandwidth;
mod chat;
mod gemm;
mod launches;
mod model;
mod serve;
mod softmax;

use crate::args::{BenchArgs, BenchCommand, BenchOutputArgs, ComputeArgs, KvKind, ModelArgs};
use crate::commands::list;
use crate::output;
use anyhow::{Context, Result};
use comfy_table::CellAlignment;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taper_bench::{Computes, Findings, Finished, Measurement, Record, Run, Setup, params, report};
use taper_kernels::cuda::{Cuda, Driver};
use taper_kernels::{BackendInfo, Cpu, CpuConfig, KvDtype, cpu::isa::Isa};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        BenchCommand::Bandwidth(args) => bandwidth::run(args),
        BenchCommand::Gemm(args) => gemm::run(args),
        BenchCommand::Attention(args) => attention::run(args),
        BenchCommand::Softmax(args) => softmax::run(args),
        BenchCommand::Model(args) => model::run(args),
        BenchCommand::Chat(args) => chat::run(args),
        BenchCommand::Launches(args) => launches::run(args),
        BenchCommand::Serve(args) => serve::run(args),
    }
}

/// A backend without a model.
pub(crate) fn cpu(args: &ComputeArgs) -> Result<Cpu> {
    Ok(Cpu::new(CpuConfig { threads: args.threads, isa: args.isa.clone() })?)
}

/// What the rows of a run on this backend have in common.
pub(crate) fn setup(info: &BackendInfo, bandwidth_bytes: usize) -> Setup {
    Setup { commit: COMMIT, computes: Computes::Cpu { isa: isa_of(info), threads: info.threads }, bandwidth_bytes }
}

/// The reference has no instruction set of its own; memory is read with the machine's best.
pub(crate) fn isa_of(info: &BackendInfo) -> Isa {
    Isa::parse(info.isa).unwrap_or_else(|_| Isa::best())
}

/// The same on a GPU.
pub(crate) fn setup_on(gpu: &Cuda<Driver>, bandwidth_bytes: usize) -> Setup {
    Setup { commit: COMMIT, computes: Computes::Gpu(Arc::clone(gpu.device())), bandwidth_bytes }
}

/// What rows say of a model's file and of what became of it in memory.
fn about_model(path: &Path, args: &ModelArgs, kv_dtype: KvDtype) -> Map<String, Value> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let mut about = params([("model", file.into()), ("kv", KvKind::name_of(kv_dtype).into())]);
    if let Some(quantization) = args.quantization() {
        about.insert("quantization".into(), quantization.name().into());
    }
    about
}

const COMMIT: &str = env!("TAPER_COMMIT");

/// The program that runs candle: the one that was named, else the one that was built beside this one.
fn candle_driver(named: Option<&Path>) -> Result<PathBuf> {
    const BUILT: &str = "bench/candle_baseline/target/release/candle_baseline";
    if let Some(path) = named {
        return Ok(path.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let found = program.ancestors().map(|folder| folder.join(BUILT)).find(|path| path.is_file());
    found.context(
        "candle runs in a program of its own, which is not built; in the source folder:\n  \
         RUSTFLAGS=\"-C target-cpu=native\" cargo build --release --manifest-path bench/candle_baseline/Cargo.toml\n\
         --candle-driver names it elsewhere",
    )
}

/// A benchmark in progress.
pub(crate) struct Bench<'a> {
    args: &'a BenchOutputArgs,
    run: Run,
}

impl<'a> Bench<'a> {
    /// Opens what will be written, and measures the bandwidth.
    pub(crate) fn start(args: &'a BenchOutputArgs, setup: Setup) -> Result<Bench<'a>> {
        try_to_write(args)?;
        let run = Run::start(setup)?;
        if let Some(ceiling) = run.ceiling_before() {
            output::status(&format!("read bandwidth: {ceiling:.1} GB/s"));
        }
        Ok(Bench { args, run })
    }

    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = Measurement>) {
        self.run.add(rows);
    }

    /// Measures the bandwidth again, and prints and writes the rows: each as far as it can, whatever became of the other.
    pub(crate) fn finish(self, findings: impl FnOnce(&Finished) -> Findings) -> Result<()> {
        let Bench { args, run } = self;
        let finished = run.finish();
        let findings = findings(&finished);
        let json: Vec<String> = finished.records.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let (printed, written) = if args.json.as_deref() == Some(Path::new("-")) {
            findings.notes.iter().chain(&finished.warnings()).for_each(|line| output::status(line));
            (json.iter().try_for_each(|row| output::line(row)), Ok(()))
        } else {
            let rows = json.join("\n") + "\n";
            (print(&finished, &findings), args.json.as_deref().map_or(Ok(()), |path| write(path, rows)))
        };
        let reported = args.report.as_deref().map_or(Ok(()), |path| {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            let command = format!("taper {}", arguments.join(" "));
            write(path, report::html(&command, &finished, &findings)?)?;
            output::status(&format!("report: {}", path.display()));
            Ok(())
        });
        printed.and(written).and(reported)
    }
}

/// Opens what will be written, so that a wrong path is told before minutes of loading and measuring.
fn try_to_write(args: &BenchOutputArgs) -> Result<()> {
    for path in [&args.json, &args.report].into_iter().flatten().filter(|path| *path != Path::new("-")) {
        File::options().create(true).append(true).open(path).with_context(|| cannot_write(path))?;
    }
    Ok(())
}

fn write(path: &Path, content: String) -> Result<()> {
    fs::write(path, content).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn print(finished: &Finished, findings: &Findings) -> Result<()> {
    let mut table = list::table(&findings.titles());
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for record in &finished.records {
        table.add_row(findings.cells(record));
    }
    output::line(&table.trim_fmt())?;
    if let Some(Record { machine, isa, commit, .. }) = finished.records.first() {
        let cpu = format!("{machine}, {isa}, commit {commit}");
        let ceiling = finished.ceiling.map(|ceiling| format!("shares are of {ceiling:.1} GB/s; "));
        output::line(&format!("{}{cpu}", ceiling.unwrap_or_default()))?;
    }
    findings.notes.iter().chain(&finished.warnings()).try_for_each(|line| output::line(line))?;
    Ok(())
}
