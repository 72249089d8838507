//! `taper doctor`: what this machine has, what is made of it, where things are, and what could be better.

mod advice;
mod gpu;
mod system;

use advice::{Advice, Findings};

use crate::args::DoctorArgs;
use crate::commands::{bench, list};
use crate::output;
use crate::tune_file::{Subject, TuneFile};
use anyhow::Result;
use gpu::Gpu;
use indicatif::{BinaryBytes, DecimalBytes};
use serde::Serialize;
use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use system::System;
use taper_bench::tune::Cell;
use taper_bench::{Machine, Record, Run, Setup};
use taper_hub::{Hub, LocalModel};
use taper_kernels::cpu::cores::Cores;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::operations;
use taper_kernels::cuda::fatbin;
use taper_kernels::{Backend, BackendInfo};

/// Features that kernels use or could use on an architecture, in the system's words, with what they are for.
fn features(arch: &str) -> &'static [(&'static str, &'static str)] {
    match arch {
        "x86_64" => &[
            ("avx2", "256-bit integers"),
            ("fma", "fused multiply-add"),
            ("f16c", "float16 conversion"),
            ("avx512f", "512-bit vectors"),
            ("avx512_vnni", "int8 dot products, 512 bits"),
            ("avx_vnni", "int8 dot products, 256 bits"),
            ("avx512_bf16", "bfloat16 dot products"),
            ("amx_int8", "int8 tiles"),
            ("amx_bf16", "bfloat16 tiles"),
        ],
        "aarch64" => &[
            ("asimd", "128-bit vectors, fused multiply-add, float16 conversion"),
            ("asimdhp", "float16 arithmetic"),
            ("asimddp", "int8 dot products"),
            ("i8mm", "int8 matrix products"),
            ("bf16", "bfloat16 dot and matrix products"),
            ("sve", "vectors of any length"),
            ("sve2", "the same, more integers"),
            ("sme", "matrix tiles"),
        ],
        _ => &[],
    }
}

/// Everything that is said.
#[derive(Debug, Serialize)]
struct Diagnosis {
    version: &'static str,
    commit: &'static str,
    machine: Machine,
    system: System,
    /// Of [`features`], those that the processor has.
    features: Vec<&'static str>,
    isa: &'static str,
    isas_available: Vec<&'static str>,
    /// Sets that the processor has and the system does not let this process use.
    isas_refused: Vec<Refusal>,
    /// Whether AMX can be used: `none` (the processor has no tiles), `permitted` or `refused`.
    amx: &'static str,
    threads: usize,
    /// What `threads` is unless it is chosen, and why.
    default_threads: DefaultThreads,
    numerics_class: &'static str,
    /// GB/s; absent when it was not measured.
    read_bandwidth: Option<f64>,
    /// Streams per thread that reached it.
    read_bandwidth_streams: Option<u64>,
    operations: Vec<OperationJson>,
    tuning: TuningJson,
    gpu: Gpu,
    paths: Paths,
    /// What could be better.
    advice: Vec<Advice>,
}

/// What chooses among kernels for a product.
#[derive(Debug, Serialize)]
struct TuningJson {
    /// Where measurements are, or would be.
    file: PathBuf,
    /// Shapes, types and numbers of rows that were measured; without any, built-in rules choose.
    measured: usize,
    /// Of those, the ones where measurements chose another kernel than the rule would.
    differing: usize,
    /// The command that measures.
    command: String,
    /// Why the file cannot be used, if it is so.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Refusal {
    isa: &'static str,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct DefaultThreads {
    threads: usize,
    /// That this process may use.
    processors: usize,
    /// That they belong to.
    cores: usize,
    /// The first processor of each.
    performance_cores: Vec<usize>,
    /// The same in words, to be read behind the threads.
    why: String,
}

impl From<Cores> for DefaultThreads {
    fn from(cores: Cores) -> Self {
        let why = cores.to_string();
        let Cores { threads, processors, cores, performance, .. } = cores;
        DefaultThreads { threads, processors, cores, performance_cores: performance, why }
    }
}

#[derive(Debug, Serialize)]
struct OperationJson {
    operation: &'static str,
    kernel: &'static str,
}

#[derive(Debug, Serialize)]
struct Paths {
    taper_cache: PathBuf,
    hub_cache: PathBuf,
    ollama_models: Option<PathBuf>,
    /// Models that are here.
    models: Vec<LocalModel>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    if args.kernels {
        return output::line(fatbin::report().trim_end());
    }
    let info = bench::cpu(&args.compute)?.info();
    let diagnosis = diagnose(&info, args.bandwidth_mib.saturating_mul(1 << 20))?;
    if args.json {
        output::line(&serde_json::to_string(&diagnosis)?)?;
    } else {
        print(&diagnosis)?;
    }
    Ok(())
}

fn diagnose(info: &BackendInfo, bandwidth_bytes: usize) -> Result<Diagnosis> {
    // Before anything is measured: a measurement is a load.
    let system = System::read(Path::new("/"));
    let setup = bench::setup(info, bandwidth_bytes);
    let machine = Machine::read();
    let hub = Hub::from_env()?;
    let config = hub.config();
    let bandwidth = bandwidth(setup.clone())?;
    let operations = operations(bench::isa_of(info));
    let features: Vec<_> = features(ARCH).iter().map(|(flag, _)| *flag).filter(|flag| machine.has(flag)).collect();
    let (isas_refused, tuning, gpu, models) = (refusals(), tuning(info)?, Gpu::read(), hub.list());
    let advice = advice::advise(&Findings {
        system: system.clone(),
        threads: info.threads,
        untuned: (tuning.measured == 0).then_some(tuning.command.as_str()),
        memory_available_bytes: machine.memory_available_bytes,
        models: models.iter().map(|model| (model.title.as_str(), model.bytes)).collect(),
        refused: isas_refused.iter().map(|refusal| (refusal.isa, refusal.reason)).collect(),
        gpu: gpu.usable(),
        gpu_without_kernels: gpu.lacks_kernels(),
    });
    Ok(Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        commit: setup.commit,
        amx: match (machine.has("amx_int8"), Isa::available().contains(&Isa::Amx)) {
            (_, true) => "permitted",
            (true, false) => "refused",
            (false, false) => "none",
        },
        features,
        machine,
        system,
        isa: info.isa,
        isas_available: Isa::available().into_iter().map(Isa::name).collect(),
        isas_refused,
        threads: info.threads,
        default_threads: Cores::of_this_machine().into(),
        numerics_class: info.numerics_class,
        read_bandwidth: bandwidth.as_ref().map(|row| row.median),
        read_bandwidth_streams: bandwidth.and_then(|row| row.params.get("streams")?.as_u64()),
        operations: operations
            .into_iter()
            .map(|operation| OperationJson { operation: operation.name, kernel: operation.kernel })
            .collect(),
        tuning,
        gpu,
        paths: Paths {
            taper_cache: config.taper_cache.clone(),
            hub_cache: config.hf_cache.clone(),
            ollama_models: config.ollama_models.clone(),
            models,
        },
        advice,
    })
}

/// What `taper tune` found for this processor.
fn tuning(info: &BackendInfo) -> Result<TuningJson> {
    let of = Subject::of_cpu(info);
    let file = of.path()?;
    let (read, problem) = match TuneFile::read(&file, &of) {
        Ok(read) => (read, None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let cells: Vec<Cell> = read.map(|read| read.cells()).unwrap_or_default();
    let differing = cells.iter().filter(|cell| cell.choice() != cell.costs[0].0).count();
    Ok(TuningJson { file, measured: cells.len(), differing, command: of.command, problem })
}

fn refusals() -> Vec<Refusal> {
    let refused = |isa: Isa| Some(Refusal { isa: isa.name(), reason: isa.refusal()? });
    Isa::ALL.into_iter().filter_map(refused).collect()
}

/// The best of a run without cases: two measurements.
fn bandwidth(setup: Setup) -> Result<Option<Record>> {
    if setup.bandwidth_bytes > 0 {
        output::status("measuring the read bandwidth ...");
    }
    let rows = Run::start(setup)?.finish().records;
    Ok(rows.into_iter().max_by(|a, b| a.median.total_cmp(&b.median)))
}

fn print(diagnosis: &Diagnosis) -> Result<()> {
    let Diagnosis { machine, gpu, paths, .. } = diagnosis;
    let mut facts: Vec<(&str, String)> = vec![
        ("taper", format!("{}, commit {}", diagnosis.version, diagnosis.commit)),
        ("processor", format!("{}, {} processors for this process", machine.cpu, machine.cores)),
    ];
    for (flag, what) in features(ARCH) {
        let has = if diagnosis.features.contains(flag) { "yes" } else { "no" };
        facts.push(("", format!("{flag:<12} {has:<4} {what}")));
    }
    for cache in &machine.caches {
        let size = BinaryBytes(cache.bytes);
        facts.push((
            "cache",
            format!("L{} {}, {size}, processors {}", cache.level, cache.kind.to_lowercase(), cache.shared_by),
        ));
    }
    if let (Some(total), Some(available)) = (machine.memory_bytes, machine.memory_available_bytes) {
        facts.push(("memory", format!("{}, {} available", BinaryBytes(total), BinaryBytes(available))));
    }
    facts.extend(diagnosis.system.facts());
    let bandwidth = diagnosis.read_bandwidth.zip(diagnosis.read_bandwidth_streams);
    facts.push((
        "read bandwidth",
        bandwidth
            .map_or("not measured".into(), |(gbps, streams)| format!("{gbps:.1} GB/s, {streams} streams a thread")),
    ));
    facts.push((
        "kernels",
        format!("{}; this machine has {}; --isa chooses", diagnosis.isa, diagnosis.isas_available.join(", ")),
    ));
    for Refusal { isa, reason } in &diagnosis.isas_refused {
        facts.push(("", format!("not {isa}: {reason}")));
    }
    if diagnosis.amx == "permitted" {
        facts.push(("", "AMX tiles are permitted".into()));
    }
    let DefaultThreads { threads, why, .. } = &diagnosis.default_threads;
    let by_default = format!("{threads} {why}");
    facts.push((
        "threads",
        match diagnosis.threads {
            chosen if chosen == *threads => format!("{by_default}; --threads chooses others"),
            chosen => format!("{chosen}, as --threads says; otherwise {by_default}"),
        },
    ));
    facts.push(("numerics class", diagnosis.numerics_class.into()));
    for OperationJson { operation, kernel } in &diagnosis.operations {
        facts.push(("", format!("{operation:<32} {kernel}")));
    }
    let TuningJson { file, measured, differing, command, problem } = &diagnosis.tuning;
    let rules = format!("by built-in rules: nothing was measured; `{command}` does");
    facts.push((
        "choice of kernels",
        match (problem, measured) {
            (Some(problem), _) => format!("by built-in rules: {problem}"),
            (None, 0) => rules,
            (None, _) => {
                format!("by {measured} measurements in {}, {differing} of them against the rule", file.display())
            }
        },
    ));
    facts.extend(gpu.facts());
    facts.push(("cache of models", paths.taper_cache.display().to_string()));
    facts.push(("cache of the hub", paths.hub_cache.display().to_string()));
    if let Some(ollama) = &paths.ollama_models {
        facts.push(("Ollama's models", ollama.display().to_string()));
    }
    for (index, model) in paths.models.iter().enumerate() {
        let line = format!("{}, {}, {}", model.title, DecimalBytes(model.bytes), model.path.display());
        facts.push((if index == 0 { "models here" } else { "" }, line));
    }
    if paths.models.is_empty() {
        facts.push(("models here", "none; `taper pull` fetches the default one".into()));
    }
    let mut table = list::table(&[]);
    for (name, value) in facts {
        table.add_row([name, &value]);
    }
    output::line(&table.trim_fmt())?;
    output::line("\nwhat could be better:")?;
    for Advice { what, then } in &diagnosis.advice {
        output::line(&format!("- {what}: {then}"))?;
    }
    if diagnosis.advice.is_empty() {
        output::line("- nothing that this command knows of")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_of_the_architecture() {
        let names = |arch| features(arch).iter().map(|(flag, _)| *flag).collect::<Vec<_>>();
        assert!(names("aarch64").contains(&"i8mm") && !names("aarch64").contains(&"avx2"));
        assert!(names("x86_64").contains(&"avx2") && !names("x86_64").contains(&"asimd"));
        assert!(!names(ARCH).is_empty() || !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));
    }
}
