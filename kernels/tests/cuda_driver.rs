//! What [`Driver`] asks of NVIDIA's driver: opening, memory, launches, graphs, events, and that whatever it makes it destroys. A
//! library that plays the driver checks the calls and runs no kernel; kernels are run by the simulator's tests. The library is
//! chosen when a process starts, so each case is this program once more.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use taper_kernels::cuda::softmax::{SoftmaxForm, SoftmaxRows};
use taper_kernels::cuda::{Arena, Argument, Device, DeviceError, DevicePtr, Driver, Kernel, Launch, Memory};
use taper_testkit::fake_cuda::FakeCuda;
use tempfile::TempDir;

/// What stands before and after the answer in the output of a process.
const MARK: &str = "<<driver>>";

/// Not a test of its own: what the other tests start.
#[test]
fn what_a_driver_does_on_this_machine() {
    if std::env::var_os("FAKE_CUDA").is_none() {
        return;
    }
    let message = use_all().err().map(|error| error.to_string()).unwrap_or_default();
    println!("{MARK}{message}{MARK}");
}

/// Two modules of no kernels; the library that plays the driver has all that it is asked for.
fn image() -> Vec<u8> {
    let header =
        [&0xBA55_ED50_u32.to_le_bytes()[..], &1_u16.to_le_bytes(), &16_u16.to_le_bytes(), &0_u64.to_le_bytes()];
    header.concat().repeat(2)
}

/// Calls each function of a device.
fn use_all() -> Result<(), DeviceError> {
    let device = Arc::new(Driver::open(0, &image())?);
    assert_eq!((device.properties().multiprocessors, device.properties().shared_bytes_per_block), (132, 227 << 10));

    let mut arena = Arena::new(&device, "weights", 4096)?;
    let mut values: Memory<Driver, f32> = arena.part("values", 100)?;
    values.write(98, &[1.5, 2.5])?;
    let mut read = [7.0; 3];
    values.read(97, &mut read)?;
    assert_eq!(read, [0.0, 1.5, 2.5], "memory is zeros before it is written");
    let too_much = arena.part::<f32>("too much", 1000).err();
    assert_eq!(too_much, Some(DeviceError::OutOfMemory { what: "too much", bytes: 4096, free: Some(4096 - 512) }));

    let begin = device.record()?;
    let mut rows = SoftmaxRows::new(&device, 3, 100_000)?;
    rows.run(&device, SoftmaxForm::Warp)?;
    rows.run(&device, SoftmaxForm::Cooperative)?;
    let graph = device.capture(&mut || rows.run(&device, SoftmaxForm::Chunks))?;
    for _ in 0..2 {
        // SAFETY: the rows are still there.
        unsafe { device.replay(&graph)? };
    }
    let kernel = Kernel::AttentionDecodeF32;
    let null = Argument::Pointer(DevicePtr(0));
    let of_letter = |letter| match letter {
        'p' => null,
        'i' => Argument::I32(0),
        _ => Argument::F32(0.0),
    };
    let arguments: Vec<Argument> = kernel.signature().chars().map(of_letter).collect();
    let (grid, threads) = ([1, 1, 1], 128);
    let launch = Launch { kernel, grid, threads, shared_bytes: 0, cooperative: false, arguments: &arguments, bytes: 0 };
    // SAFETY: this driver runs no kernels.
    unsafe { device.launch(&launch)? };
    let end = device.record()?;
    device.synchronize()?;
    assert_eq!(device.elapsed(&begin, &end)?, Duration::from_micros(1500));
    let failed = device.capture(&mut || Err(DeviceError::OutOfMemory { what: "a launch", bytes: 1, free: None }));
    assert!(failed.is_err_and(|error| error.to_string() == "the GPU has no 1 bytes for a launch"));
    // Handles may outlive the device.
    drop((device, graph));
    Ok(())
}

/// What a process says that uses the driver, and what it launched.
fn launch_with(driver: &FakeCuda, machine: &str, log: &Path) -> (String, String) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "what_a_driver_does_on_this_machine", "--nocapture"]).env("FAKE_CUDA_LOG", log);
    driver.serve(&mut program, machine);
    let done = program.output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{machine}: {text}\n{}", String::from_utf8_lossy(&done.stderr));
    let said = text.split(MARK).nth(1).unwrap_or_else(|| panic!("{machine}: {text}")).to_owned();
    (said, std::fs::read_to_string(log).unwrap_or_default())
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn launches_reach_the_driver_as_they_were_asked_and_nothing_is_left_behind() {
    let folder = folder();
    let (said, log) = launch_with(&FakeCuda::new(folder.path()), "", &folder.path().join("log"));
    assert_eq!(said, "");
    let expected = "\
softmax_online grid 1 1 1 block 128 1 1 shared 0, first argument 0
softmax_cooperative grid 49 3 1 block 256 1 1 shared 0 cooperative, first argument 0
captured softmax_reduce grid 49 3 1 block 256 1 1 shared 0, first argument 0
captured softmax_normalise grid 49 3 1 block 256 1 1 shared 0, first argument 0
replayed 2
replayed 2
attention_decode_f32 grid 1 1 1 block 128 1 1 shared 0 early, first argument 0
";
    assert_eq!(log, expected);
}

#[test]
fn code_that_does_not_wait_by_itself_does_not_begin_early() {
    let folder = folder();
    let (said, log) = launch_with(&FakeCuda::new(folder.path()), "old-ptx", &folder.path().join("log"));
    assert_eq!(said, "");
    assert!(log.contains("attention_decode_f32 grid") && !log.contains("early"), "{log}");
}

#[test]
fn what_a_driver_cannot_do_is_said() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let cases = [
        ("no-code", "no code for GPU 0, NVIDIA H200, of compute capability 9.0; build them for it"),
        ("other-kernels", "from another version of taper: there is no kernel read_stream"),
        ("little-memory", "the GPU has no 2402048 bytes for rows of a softmax"),
        ("bad-launch", "gives error 700, CUDA_ERROR_ILLEGAL_ADDRESS (other); a kernel of taper went wrong"),
        ("no-device", "finds no GPU"),
    ];
    for (machine, part) in cases {
        let (said, _) = launch_with(&driver, machine, &folder.path().join("log"));
        assert!(said.contains(part), "{machine}: {said}");
    }
    let (said, _) = launch_with(&FakeCuda::without_launches(folder.path()), "", &folder.path().join("log"));
    assert!(said.contains("it has no function cuEventCreate"), "{said}");
}
