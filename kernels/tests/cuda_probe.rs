//! What [`taper_kernels::cuda::probe`] says on each kind of machine. The library of a driver is chosen when a process starts, so
//! each case is this program once more, with another driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cudarc::driver::result;
use std::process::Command;
use taper_kernels::cuda::{self, ProbeError};
use taper_testkit::fake_cuda::FakeCuda;
use tempfile::TempDir;

/// What stands before and after the answer in the output of a process.
const MARK: &str = "<<probe>>";

/// Not a test of its own: what the other tests start. It prints what the probe gives, and its message.
#[test]
fn what_the_probe_says_of_this_machine() {
    let Ok(index) = std::env::var("PROBE_INDEX") else { return };
    let index = index.parse().unwrap();
    let answer = cuda::probe(index);
    assert_eq!(answer, cuda::probe(index), "asked again, it says the same");
    let message = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
    println!("{MARK}{answer:?}\n{message}{MARK}");
    if let Err(ProbeError::NoLibrary { .. }) = answer {
        let unguarded = std::panic::catch_unwind(result::device::get_count);
        assert!(unguarded.is_err(), "cudarc does not panic any more: the guard of the library could go");
    }
}

/// What the probe says in a process of its own.
fn probe(driver: &FakeCuda, machine: &str, index: usize) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "what_the_probe_says_of_this_machine", "--nocapture"]);
    driver.serve(&mut program, machine);
    let done = program.env("PROBE_INDEX", index.to_string()).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{machine}: {text}\n{}", String::from_utf8_lossy(&done.stderr));
    text.split(MARK).nth(1).unwrap_or_else(|| panic!("{machine}: {text}")).to_owned()
}

fn check(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} in {said}");
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn without_a_driver_it_says_which_names_were_tried_and_which_driver_is_needed() {
    let folder = folder();
    let said = probe(&FakeCuda::absent(folder.path()), "", 0);
    check(&said, &["Err(NoLibrary", "libcuda.so, libcuda.so.13,", "libcuda.so.1 could be loaded", "file too short"]);
    check(&said, &["driver 580 or newer (CUDA 13.0) is needed"]);
}

#[test]
fn a_library_that_is_no_driver_is_told_by_the_function_that_it_lacks() {
    let folder = folder();
    let said = probe(&FakeCuda::without_functions(folder.path()), "", 0);
    check(&said, &["Err(FunctionMissing", "has no function cuCtxGetCurrent", "driver 580 or newer"]);
}

#[test]
fn a_gpu_that_can_be_used_is_described() {
    let folder = folder();
    let said = probe(&FakeCuda::new(folder.path()), "two", 1);
    check(&said, &["Ok(DeviceInfo", "index: 1, num_devices: 2", "\"NVIDIA H200\"", "major: 9, minor: 0"]);
    check(&said, &["multiprocessors: 132", "memory_total: 151397597184", "memory_free: 150323855360"]);
    check(&said, &["l2_bytes: 52428800", "CudaVersion(13000)"]);
}

#[test]
fn each_thing_that_is_missing_has_its_own_message() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    check(&probe(&driver, "old-driver", 0), &["Err(DriverTooOld", "up to CUDA 12.9, and driver 580 or newer"]);
    check(&probe(&driver, "no-device", 0), &["Err(NoDevice", "finds no GPU; at least one is needed", "nvidia-smi -L"]);
    check(&probe(&driver, "none", 0), &["Err(NoDevice"]);
    check(&probe(&driver, "", 3), &["Err(NoSuchDevice", "no GPU 3: this machine has 1, counted from 0"]);
    check(&probe(&driver, "", usize::MAX), &["Err(NoSuchDevice"]);
    let said = probe(&driver, "old-device", 0);
    check(&said, &["Err(DeviceTooOld", "Quadro RTX 8000", "compute capability 7.5, and 8.0 (Ampere)"]);
    check(&probe(&driver, "out-of-memory", 0), &["Err(OutOfMemory", "NVIDIA H200, is out of memory", "nvidia-smi"]);
    let said = probe(&driver, "broken", 0);
    check(&said, &["Err(Driver ", "cuInit gives error 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"]);
}
