//! From `kernels/cuda/*.cu` to one image: find nvcc, compile each file for each target, put the results into a compressed
//! fatbin per file, and those one behind the other. Beside it lies a report of registers, spills and seconds.
//!
//! Without nvcc the image is empty and the report says why: the program builds anywhere, and `taper doctor` tells.
//!
//! A fatbin per file, because a GPU takes one cubin of each fatbin that it loads: the files of a common one would have to be
//! linked, and code that waits for a linker has not the registers of code that is whole.

mod compile;
mod report;
mod settings;
mod sources;
mod toolchain;

pub(crate) use settings::Settings;

use compile::Compiler;
use report::Report;
use sources::Sources;
use std::fs;
use std::path::{Path, PathBuf};
use toolchain::Missing;

/// How to get a compiler, for who has none.
pub(crate) const HOW_TO_GET_NVCC: &str = "`pip install --no-deps --target DIR -r kernels/cuda/requirements.txt`, then \
                                          build with TAPER_CUDA_PACKAGES=DIR (an absolute path)";

/// What cargo is told.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Files whose change asks for another run.
    pub(crate) inputs: Vec<PathBuf>,
    /// Variables whose change does. Those that would change neither the image nor whether the build succeeds are not among
    /// them: cargo compiles everything above this crate again after a run, whatever it left.
    pub(crate) variables: Vec<&'static str>,
    /// For the user; a line each.
    pub(crate) warnings: Vec<String>,
}

/// Writes `kernels.fatbin` and `kernels.txt`.
///
/// # Errors
/// A message for the user: a compiler that was asked for by name and is not there, nvcc's own words about a source, or what
/// `TAPER_REQUIRE_CUDA_KERNELS` and `TAPER_DENY_SPILLS` forbid.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, String> {
    let sources = Sources::read(&settings.sources)?;
    let mut outcome = Outcome {
        inputs: ["build.rs", "build"].iter().map(PathBuf::from).chain(sources.paths()).collect(),
        variables: settings::VARIABLES.to_vec(),
        warnings: Vec::new(),
    };
    let toolchain = if settings.targets.is_empty() {
        Err(Missing::None("TAPER_CUDA_ARCHS=none was asked for".to_owned()))
    } else {
        toolchain::find(&settings.search)
    };
    let toolchain = match toolchain {
        Ok(toolchain) => toolchain,
        Err(Missing::Wrong(message)) => return Err(message),
        Err(Missing::None(reason)) if settings.require => {
            return Err(format!("TAPER_REQUIRE_CUDA_KERNELS is set, but {reason}. {HOW_TO_GET_NVCC}"));
        }
        Err(Missing::None(reason)) => {
            // With a newline: a report is lines.
            write(&settings.out, b"", &format!("none: {reason}\n"))?;
            outcome.variables.push(settings::REQUIRE);
            if !settings.targets.is_empty() {
                outcome.warnings.push(format!("building without CUDA kernels: {reason}. {HOW_TO_GET_NVCC}"));
            }
            return Ok(outcome);
        }
    };
    outcome.inputs.push(toolchain.nvcc.clone());

    let compiled = Compiler { settings, toolchain: &toolchain, sources: &sources }.run()?;
    let image: Vec<u8> = compiled.iter().flat_map(|file| &file.fatbin).copied().collect();
    let report = Report::new(&compiled);
    let spills = report.spills(&sources);
    if !spills.is_empty() {
        outcome.variables.push(settings::DENY_SPILLS);
    }
    if settings.deny_spills && !spills.is_empty() {
        return Err(format!(
            "kernels spill registers, which TAPER_DENY_SPILLS forbids:\n  {}\nOne that has to says so in its file: `// spill: KERNEL sm_90a: why`",
            spills.join("\n  ")
        ));
    }
    outcome.warnings.extend(report.warnings());
    outcome.warnings.extend(spills);
    write(&settings.out, &image, &report.text(image.len(), settings, &toolchain))?;
    Ok(outcome)
}

fn write(out: &Path, image: &[u8], report: &str) -> Result<(), String> {
    fs::write(out.join("kernels.fatbin"), image)
        .and_then(|()| fs::write(out.join("kernels.txt"), report))
        .map_err(|error| format!("{}: {error}", out.display()))
}
