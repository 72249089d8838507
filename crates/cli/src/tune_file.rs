//! What `taper tune` found on this machine, as a file: written by it, read whenever a model is loaded. One file has the cells of
//! both numerics classes; a run with mixed activations uses both, since logits are always computed with full ones. Each GPU has a file
//! by its name, of the driver that was there when it was measured.

use crate::output;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use taper_bench::Machine;
use taper_bench::tune::{Candidate, Cell, parse_shape, product_tuning, shape_name, tuning};
use taper_hub::Hub;
use taper_kernels::BackendInfo;
use taper_kernels::cpu::cores::Cores;
use taper_kernels::cpu::gemm::Tuning;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cuda::{self, Cuda, Device, Driver, ProductTuning};

/// Raised when candidates, their names or the numerics change meaning.
const VERSION: u32 = 2;

/// What measurements are of.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// The processor or the GPU.
    machine: String,
    threads: usize,
    isa: String,
    /// Of a GPU.
    driver: Option<String>,
    /// In words.
    pub(crate) name: String,
    /// The command that measures.
    pub(crate) command: String,
}

impl Subject {
    /// The processor, as this backend uses it.
    pub(crate) fn of_cpu(info: &BackendInfo) -> Subject {
        let threads = taper_bench::counted(info.threads, "thread");
        Subject {
            machine: Machine::read().cpu,
            threads: info.threads,
            isa: info.isa.into(),
            driver: None,
            name: format!("{threads} of this processor with {}", info.isa),
            command: command(info),
        }
    }

    /// A GPU, by its place in the driver's count.
    pub(crate) fn of_gpu(gpu: &Cuda<Driver>, index: usize) -> Result<Subject> {
        let machine = gpu.device().properties().name.clone();
        let cuda = format!("CUDA {}", cuda::driver()?.version);
        let driver = cuda::driver_release().map_or_else(|| cuda.clone(), |release| format!("{release}, {cuda}"));
        Ok(Subject {
            name: format!("GPU {index}, {machine}, with driver {driver}"),
            machine,
            threads: 1,
            isa: "cuda".into(),
            driver: Some(driver),
            command: format!("taper tune --device cuda:{index}"),
        })
    }

    /// Where its file is.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let machine: String = self.machine.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let threads = if self.driver.is_some() { String::new() } else { format!("-{}-threads", self.threads) };
        let name = format!("{machine}-{}{threads}.json", self.isa).to_lowercase();
        Ok(Hub::from_env()?.config().taper_cache.join("tune").join(name))
    }
}

/// The costs that were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TuneFile {
    version: u32,
    machine: String,
    threads: usize,
    isa: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
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
    /// An empty one.
    fn new(of: &Subject) -> TuneFile {
        let Subject { machine, threads, isa, driver, .. } = of.clone();
        TuneFile { version: VERSION, machine, threads, isa, driver, cells: Vec::new() }
    }

    /// The file, if there is one and it is of this machine, backend and version; one of another version, or of another driver, is
    /// told in the log.
    pub(crate) fn read(path: &Path, of: &Subject) -> Result<Option<TuneFile>> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let (shown, command) = (path.display(), &of.command);
        let broken = || format!("{shown} is not what `taper tune` writes; `{command} --reset` removes it");
        // Reading a pipe would wait for a writer.
        let read = || if fs::metadata(path)?.is_file() { fs::read(path).map(Some) } else { Ok(None) };
        let text = match read() {
            Ok(text) => text.with_context(broken)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let Version { version } = serde_json::from_slice(&text).with_context(broken)?;
        if version != VERSION {
            tracing::warn!(
                "{shown} is of format {version}, not {VERSION}, and not used; run `{command}` to measure again"
            );
            return Ok(None);
        }
        let file: TuneFile = serde_json::from_slice(&text).with_context(broken)?;
        let mut costs = file.cells.iter().flat_map(|cell| &cell.costs);
        ensure!(costs.all(|&(_, micros)| micros > 0.0 && micros.is_finite()), broken());
        let (its, ours) = (TuneFile { cells: Vec::new(), ..file.clone() }, TuneFile::new(of));
        if let (Some(then), Some(now)) = (&its.driver, &ours.driver)
            && then != now
        {
            tracing::warn!(
                "{shown} was measured with driver {then}, not {now}, and is not used; run `{command}` to measure again"
            );
        }
        Ok((its == ours).then_some(file))
    }

    /// Takes newly measured cells into the file, beside those that others wrote meanwhile; what it then has. A file that
    /// cannot be read is replaced: who measures wants the measurements kept.
    pub(crate) fn update<C: Candidate>(path: &Path, of: &Subject, cells: &[Cell<C>]) -> Result<TuneFile> {
        let _lock = lock(path)?;
        let mut file = match TuneFile::read(path, of) {
            Ok(file) => file.unwrap_or_else(|| TuneFile::new(of)),
            Err(error) => {
                output::status(&format!("{error:#}; it is replaced"));
                TuneFile::new(of)
            }
        };
        file.put(cells);
        file.write(path)?;
        Ok(file)
    }

    /// Replaces the file, whole or not at all.
    fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            create_folder(path)?;
            let part = path.with_extension(format!("part-{}", std::process::id()));
            fs::write(&part, serde_json::to_string_pretty(self)? + "\n")?;
            fs::rename(&part, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes in newly measured cells in place of older ones of the same shape and class.
    fn put<C: Candidate>(&mut self, cells: &[Cell<C>]) {
        let new: Vec<CellJson> = cells.iter().map(CellJson::of).collect();
        self.cells.retain(|old| new.iter().all(|new| (&new.shape, &new.class) != (&old.shape, &old.class)));
        self.cells.extend(new);
    }

    /// Its cells; those that this build does not know are left out.
    pub(crate) fn cells<C: Candidate>(&self) -> Vec<Cell<C>> {
        self.cells.iter().filter_map(CellJson::cell).collect()
    }

    /// The choices that follow from it.
    pub(crate) fn tuning(&self) -> Tuning {
        tuning(&self.cells())
    }

    /// The same on a GPU.
    pub(crate) fn product_tuning(&self) -> ProductTuning {
        product_tuning(&self.cells())
    }
}

impl CellJson {
    fn of<C: Candidate>(cell: &Cell<C>) -> CellJson {
        let cost = |&(choice, seconds): &(C, f64)| (choice.name(), (seconds * 1e9).round() / 1e3);
        CellJson {
            shape: shape_name(cell.shape),
            class: C::class_name(cell.activations).into(),
            rows: cell.rows,
            costs: cell.costs.iter().map(cost).collect(),
        }
    }

    fn cell<C: Candidate>(&self) -> Option<Cell<C>> {
        let cost = |(name, micros): &(String, f64)| Some((C::parse(name)?, micros / 1e6));
        let costs: Vec<_> = self.costs.iter().filter_map(cost).collect();
        let is_whole = costs.len() == self.costs.len() && !costs.is_empty();
        let activations = C::CLASSES.iter().copied().find(|&class| C::class_name(class) == self.class)?;
        is_whole.then_some(Cell { shape: parse_shape(&self.shape)?, activations, rows: self.rows, costs })
    }
}

/// The command that measures for this backend: with threads and instruction set, where they are not those of a plain one.
fn command(info: &BackendInfo) -> String {
    let mut command = "taper tune".to_string();
    if info.threads != Cores::of_this_machine().threads {
        command += &format!(" --threads {}", info.threads);
    }
    if info.isa != Isa::best().name() {
        command += &format!(" --isa {}", info.isa);
    }
    command
}

fn create_folder(path: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
}

/// Keeps other processes from updating the file until dropped. The lock is a file beside it, which stays: to remove it would
/// let a third process lock another one.
fn lock(path: &Path) -> Result<File> {
    let path = path.with_extension("lock");
    let lock = || -> std::io::Result<File> {
        create_folder(&path)?;
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    lock().with_context(|| format!("cannot write {}", path.display()))
}

/// The choices measured for this backend, if any; a file that cannot be read is told in the log and costs only speed.
pub(crate) fn load(info: &BackendInfo) -> Tuning {
    measured(Ok(Subject::of_cpu(info))).map(|file| file.tuning()).unwrap_or_default()
}

/// The same of a GPU.
pub(crate) fn load_on(gpu: &Cuda<Driver>, index: usize) -> ProductTuning {
    measured(Subject::of_gpu(gpu, index)).map(|file| file.product_tuning()).unwrap_or_default()
}

fn measured(of: Result<Subject>) -> Option<TuneFile> {
    let read = || {
        let of = of?;
        TuneFile::read(&of.path()?, &of)
    };
    read().unwrap_or_else(|error| {
        tracing::warn!("measured choices are not used: {error:#}");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::cpu::gemm::{Activations, Choice};
    use taper_kernels::cuda::{ProductChoice, RowOrder, TileChoice};
    use taper_kernels::{Backend, Cpu, CpuConfig};

    fn info() -> Subject {
        Subject::of_cpu(&Cpu::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap().info())
    }

    fn gpu(driver: &str) -> Subject {
        let driver = Some(driver.to_owned());
        Subject { machine: "NVIDIA H200".into(), isa: "cuda".into(), driver, command: "c".into(), ..info() }
    }

    /// One of each class, with another fastest choice.
    fn cells() -> [Cell; 2] {
        let shape = parse_shape("Q4_0 64x96").unwrap();
        let cell = |activations, costs: [f64; 3]| {
            let costs: Vec<_> = Choice::candidates(Isa::best(), 9).into_iter().zip(costs).collect();
            Cell { shape, activations, rows: 9, costs }
        };
        [cell(Activations::Full, [3e-6, 1e-6, 2e-6]), cell(Activations::Mixed, [3e-6, 2e-6, 1e-6])]
    }

    #[test]
    fn what_was_written_is_read_again_for_both_classes_and_newer_cells_replace_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("tune.json");
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None);
        let file = TuneFile::update(&path, &info(), &cells()).unwrap();
        assert_eq!(TuneFile::update(&path, &info(), &cells()[1..]).unwrap(), file);
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
            let of = Subject::of_cpu(&cpu.with_activations(activations).info());
            assert!(TuneFile::read(&path, &of).unwrap().is_some(), "{activations:?}");
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
        let whole = r#"{"version": 2, "machine": "m", "threads": 1, "isa": "i", "cells": [
            {"shape": "Q4_0 64x96", "class": "c", "rows": 1, "costs": [["portable 1x1", COST]]}]}"#;
        fs::write(&path, whole.replace("COST", "0.5")).unwrap();
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None, "of another machine");
        let costs = ["0.0", "-1.5", "null"].map(|cost| whole.replace("COST", cost));
        let broken = [&b"{"[..], b"{}", br#"{"version": 2}"#, b"\xff\xfe"];
        for broken in broken.into_iter().chain(costs.iter().map(String::as_bytes)) {
            fs::write(&path, broken).unwrap();
            let error = format!("{:#}", TuneFile::read(&path, &info()).unwrap_err());
            assert!(error.contains("taper tune") && error.contains("--reset` removes it"), "{error}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_in_place_of_the_file_is_an_error_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tune.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(format!("{:#}", TuneFile::read(&path, &info()).unwrap_err()).contains("--reset` removes it"));
    }

    #[test]
    fn who_measures_at_the_same_time_keeps_the_shapes_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tune.json");
        let shapes: Vec<_> = (1..=32).map(|n| parse_shape(&format!("Q4_0 {n}x96")).unwrap()).collect();
        std::thread::scope(|scope| {
            for shapes in shapes.chunks(8) {
                let path = &path;
                scope.spawn(move || {
                    for &shape in shapes {
                        let cells = cells().map(|cell| Cell { shape, ..cell });
                        TuneFile::update(path, &info(), &cells).unwrap();
                    }
                });
            }
        });
        let kept: std::collections::BTreeSet<_> =
            TuneFile::read(&path, &info()).unwrap().unwrap().cells::<Choice>().iter().map(|cell| cell.shape).collect();
        assert_eq!(kept.len(), shapes.len());
    }

    #[test]
    fn the_command_that_measures_names_threads_and_instruction_set_where_they_are_not_the_usual_ones() {
        let usual = Cpu::new(CpuConfig::default()).unwrap().info();
        assert_eq!(command(&usual), "taper tune");
        let other = BackendInfo { threads: usual.threads + 1, isa: "abacus", ..usual };
        assert_eq!(command(&other), format!("taper tune --threads {} --isa abacus", usual.threads + 1));
    }

    #[test]
    fn cells_that_this_build_does_not_know_are_left_out() {
        let mut file = TuneFile::new(&info());
        file.put(&cells());
        file.cells[0].class = "int4x32".into();
        assert_eq!(file.cells(), cells()[1..]);
        file.cells[1].costs[2].0 = "abacus 1x1".into();
        assert_eq!(file.cells::<Choice>(), []);
    }

    #[test]
    fn a_gpu_has_a_file_of_its_own_that_ends_with_its_driver() {
        let of = gpu("580.65.06, CUDA 13.0");
        let name = of.path().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(name, "nvidia-h200-cuda.json");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tune.json");
        let shape = parse_shape("Q4_0 64x96").unwrap();
        let tiles = TileChoice::candidates(9).into_iter().map(ProductChoice::Tiles);
        let costs: Vec<_> = tiles.zip([3e-6, 1e-6, 2e-6]).collect();
        let others = vec![(ProductChoice::Warpgroups, 5e-6), costs[1], (ProductChoice::Library(0), 5e-7)];
        let cells = [
            Cell { shape, activations: RowOrder::Exact, rows: 9, costs },
            Cell { shape, activations: RowOrder::ByRows, rows: 9, costs: others },
        ];
        TuneFile::update(&path, &of, &cells).unwrap();
        let read = TuneFile::read(&path, &of).unwrap().unwrap();
        assert_eq!(read.cells(), cells);
        assert_eq!(read.cells::<Choice>(), [], "of another class");
        let tuning = read.product_tuning();
        assert_eq!(ProductChoice::Tiles(tuning.tile_choice(shape, 9)), cells[0].best().0);
        assert_eq!(tuning.choice_by_rows(shape, 9), Some(ProductChoice::Library(0)));
        assert_eq!(TuneFile::read(&path, &gpu("581.1, CUDA 13.1")).unwrap(), None);
        assert_eq!(TuneFile::read(&path, &info()).unwrap(), None, "a processor");
        let mut other_class = read.clone();
        other_class.cells[0].class = "cuda-fp8".into();
        assert_eq!(other_class.cells::<ProductChoice>(), cells[1..]);
    }
}
