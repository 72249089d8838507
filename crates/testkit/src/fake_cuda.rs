//! A CUDA driver for machines without one: a `libcuda.so` made by the C compiler, which plays the machine that FAKE_CUDA says
//! (`fake_cuda.c` lists them). Programs find it by LD_LIBRARY_PATH, which counts when they start.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("fake_cuda.c");

/// A folder to put in LD_LIBRARY_PATH.
#[derive(Debug)]
pub struct FakeCuda {
    folder: PathBuf,
}

impl FakeCuda {
    /// A driver with all that a probe and launches call. It runs no kernel.
    pub fn new(folder: &Path) -> FakeCuda {
        FakeCuda::compile(folder, &[])
    }

    /// A library of the driver's name that has none of its functions.
    pub fn without_functions(folder: &Path) -> FakeCuda {
        FakeCuda::compile(folder, &["-DEMPTY"])
    }

    /// A driver that can be asked what there is, and has no function that launches.
    pub fn without_launches(folder: &Path) -> FakeCuda {
        FakeCuda::compile(folder, &["-DOLD"])
    }

    /// Files of the driver's names that are empty, as containers have that were given no GPU. Whatever driver the machine
    /// has is hidden behind them.
    pub fn absent(folder: &Path) -> FakeCuda {
        for name in ["", ".13", ".12", ".11", ".10", ".9", ".1"].map(|end| format!("libcuda.so{end}")) {
            std::fs::write(folder.join(name), "").expect("the folder can be written");
        }
        FakeCuda { folder: folder.into() }
    }

    fn compile(folder: &Path, flags: &[&str]) -> FakeCuda {
        let (source, library) = (folder.join("fake_cuda.c"), folder.join("libcuda.so"));
        std::fs::write(&source, SOURCE).expect("the folder can be written");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command
            .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
            .args(flags)
            .arg("-o")
            .arg(library)
            .arg(source);
        let done = command.output().expect("a C compiler is there");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        FakeCuda { folder: folder.into() }
    }

    /// Makes a program that is not started yet find this driver, which then plays `machine`.
    pub fn serve(&self, program: &mut Command, machine: &str) {
        program.env("LD_LIBRARY_PATH", &self.folder).env("FAKE_CUDA", machine).env_remove("CUDA_VISIBLE_DEVICES");
    }
}
