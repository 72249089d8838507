//! What `taper tune` found on this machine, as a file: written by it, read whenever a model is loaded. One file has the cells of
//! both numerics classes; a run with mixed activations uses both, since logits are always computed with full ones.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use taper_bench::Machine;
use taper_bench::tune::{Cell, parse_shape, shape_name, tuning};
use taper_hub::Hub;
use taper_kernels::BackendInfo;
use taper_kernels::cpu::gemm::{Activations, Choice, Tuning};

/// Raised when candidates, their names or the numerics change meaning.
const VERSION: u32 = 2;

/// The costs that were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TuneFile {
    version: u32,
    machine: String,
    threads: usize,
    isa: String,
    cells: Vec<CellJson>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CellJson {
    shape: String,
    /// Numerics class.
    class: String,
    rows: usize,
    /// (choice, microseconds), the built-in rule first.
    costs: Vec<(String, f64)>,
}

impl TuneFile {
    /// An empty one for this machine and backend.
    pub(crate) fn new(info: &BackendInfo) -> TuneFile {
        TuneFile {
            version: VERSION,
            machine: Machine::read().cpu,
            threads: info.threads,
            isa: info.isa.into(),
            cells: Vec::new(),
        }
    }

    /// Where the file of this machine and backend is.
    pub(crate) fn path(info: &BackendInfo) -> Result<PathBuf> {
        let cpu: String =
            Machine::read().cpu.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = format!("{cpu}-{}-{}-threads.json", info.isa, info.threads).to_lowercase();
        Ok(Hub::from_env()?.config().taper_cache.join("tune").join(name))
    }

    /// The file, if there is one and it is of this machine, backend and version; one of another version is told in the log.
    pub(crate) fn read(path: &Path, info: &BackendInfo) -> Result<Option<TuneFile>> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let broken = || format!("{} is not what `taper tune` writes; `taper tune --reset` removes it", path.display());
        let Version { version } = serde_json::from_str(&text).with_context(broken)?;
        if version != VERSION {
            tracing::warn!(
                "{} is of format {version}, not {VERSION}, and not used; run `taper tune` to measure again",
                path.display()
            );
            return Ok(None);
        }
        let file: TuneFile = serde_json::from_str(&text).with_context(broken)?;
        let same = TuneFile { cells: Vec::new(), ..file.clone() } == TuneFile::new(info);
        Ok(same.then_some(file))
    }

    /// Replaces the file, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let write = || {
            fs::create_dir_all(folder)?;
            let part = path.with_extension(format!("part-{}", std::process::id()));
            fs::write(&part, serde_json::to_string_pretty(self)? + "\n")?;
            fs::rename(&part, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes in newly measured cells in place of older ones of the same shape and class.
    pub(crate) fn put(&mut self, cells: &[Cell]) {
        let new: Vec<CellJson> = cells.iter().map(CellJson::of).collect();
        self.cells.retain(|old| new.iter().all(|new| (&new.shape, &new.class) != (&old.shape, &old.class)));
        self.cells.extend(new);
    }

    /// Its cells; those that this build does not know are left out.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        self.cells.iter().filter_map(CellJson::cell).collect()
    }

    /// The choices that follow from it.
    pub(crate) fn tuning(&self) -> Tuning {
        tuning(&self.cells())
    }
}

impl CellJson {
    fn of(cell: &Cell) -> CellJson {
        let cost = |&(choice, seconds): &(Choice, f64)| (choice.name(), (seconds * 1e9).round() / 1e3);
        CellJson {
            shape: shape_name(cell.shape),
            class: cell.activations.class().into(),
            rows: cell.rows,
            costs: cell.costs.iter().map(cost).collect(),
        }
    }

    fn cell(&self) -> Option<Cell> {
        let cost = |(name, micros): &(String, f64)| Some((Choice::parse(name)?, micros / 1e6));
        let costs: Vec<_> = self.costs.iter().filter_map(cost).collect();
        let is_whole = costs.len() == self.costs.len() && !costs.is_empty();
        let activations = Activations::ALL.into_iter().find(|activations| activations.class() == self.class)?;
        is_whole.then_some(Cell { shape: parse_shape(&self.shape)?, activations, rows: self.rows, costs })
    }
}

/// The choices measured for this backend, if any; a file that cannot be read is told in the log and costs only speed.
pub(crate) fn load(info: &BackendInfo) -> Tuning {
    let read = || TuneFile::read(&TuneFile::path(info)?, info);
    match read() {
        Ok(file) => file.map(|file| file.tuning()).unwrap_or_default(),
        Err(error) => {
            tracing::warn!("measured choices are not used: {error:#}");
            Tuning::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::cpu::isa::Isa;
    use taper_kernels::{Backend, Cpu, CpuConfig};

    fn info() -> BackendInfo {
        Cpu::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap().info()
    }

    /// One of each class, with another fastest choice.
    fn cells() -> Vec<Cell> {
        let shape = parse_shape("Q4_0 64x96").unwrap();
        let cell = |activations, costs: [f64; 3]| {
            let costs: Vec<_> = Choice::candidates(Isa::best(), 9).into_iter().zip(costs).collect();
            Cell { shape, activations, rows: 9, costs }
        };
        vec![cell(Activations::Full, [3e-6, 1e-6, 2e-6]), cell(Activations::Mixed, [3e-6, 2e-6, 1e-6])]
    }

    #[test]
    fn what_was_written_is_read_again_for_both_classes_and_newer_cells_replace_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("tune.json");
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None);
        let mut file = TuneFile::new(&info());
        file.put(&cells());
        file.put(&cells()[1..]);
        file.write(&path).unwrap();
        let read = TuneFile::read(&path, &info()).unwrap().unwrap();
        assert_eq!(read, file);
        assert_eq!(read.cells(), cells());
        for cell in cells() {
            let choice = read.tuning().choice(cell.activations, cell.shape, Isa::best(), 9);
            assert_eq!(choice, cell.best().0, "{:?}", cell.activations);
        }
    }

    #[test]
    fn a_backend_of_either_class_reads_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tune.json");
        TuneFile::new(&info()).write(&path).unwrap();
        for activations in Activations::ALL {
            let cpu = Cpu::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap();
            let info = cpu.with_activations(activations).info();
            assert!(TuneFile::read(&path, &info).unwrap().is_some(), "{activations:?}");
        }
    }

    #[test]
    fn a_file_of_another_machine_or_format_is_left_alone_and_a_broken_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tune.json");
        TuneFile { machine: "abacus".into(), ..TuneFile::new(&info()) }.write(&path).unwrap();
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None);
        let old =
            r#"{"version": 1, "machine": "m", "numerics_class": "c", "cells": [{"shape": "Q4_0 64x96", "rows": 1}]}"#;
        fs::write(&path, old).unwrap();
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None);
        for broken in ["{", "{}", r#"{"version": 2}"#] {
            fs::write(&path, broken).unwrap();
            let error = TuneFile::read(&path, &info()).unwrap_err();
            assert!(format!("{error:#}").contains("taper tune --reset"), "{broken}");
        }
    }

    #[test]
    fn cells_that_this_build_does_not_know_are_left_out() {
        let mut file = TuneFile::new(&info());
        file.put(&cells());
        file.cells[0].class = "int4x32".into();
        assert_eq!(file.cells(), cells()[1..]);
        file.cells[1].costs[2].0 = "abacus 1x1".into();
        assert_eq!(file.cells(), []);
    }
}
