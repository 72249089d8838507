//! One launch on the simulator.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

/// What a launch says beside its kernel and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u64,
    /// Whether blocks wait for each other, so that all of them must be on the machine at once.
    pub cooperative: bool,
}

/// Who runs when, and when copies and stores land: 0 to 7, as `machine.h` lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule(pub u32);

impl Schedule {
    /// How many there are.
    pub const COUNT: u32 = 8;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }
}

/// What a kernel did that CUDA forbids, where in its source, and where everybody else stood; or why there was no launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// The types of a kernel's arguments, a letter each: `p` pointer, `u` and `i` 32 bits, `U` and `I` 64 bits, `f` float, `s` a
/// structure. `None`: there is no such kernel.
pub fn signature(kernel: &CStr) -> Option<&'static str> {
    // SAFETY: `kernel` ends with a zero; what comes back is null or a text that lives as long as the program.
    let letters = unsafe {
        let letters = sim_signature(kernel.as_ptr());
        (!letters.is_null()).then(|| CStr::from_ptr(letters))
    };
    letters.and_then(|letters| letters.to_str().ok())
}

/// Runs a kernel to its end. `seed` is of the schedule's random choices.
///
/// # Safety
///
/// Each of `arguments` is the address of a value of the type that its letter of the signature says. Memory that the values point
/// at is as large as the kernel's contract asks, aligned as its types are, and nobody else uses it until the call returns.
pub unsafe fn run(
    kernel: &CStr,
    launch: &Launch,
    schedule: Schedule,
    seed: u32,
    arguments: &mut [*mut c_void],
) -> Result<(), Fault> {
    if let Some(letters) = signature(kernel)
        && letters.len() != arguments.len()
    {
        let given = arguments.len();
        return Err(Fault(format!("{} takes the arguments {letters:?}, not {given}", kernel.to_string_lossy())));
    }
    let launch = RawLaunch {
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        cooperative: launch.cooperative.into(),
    };
    let mut text = [0_u8; 8192];
    // SAFETY: the kernel's name ends with a zero; there are as many arguments as it takes, and the caller promises their types and
    // memory; `text` has room for as many bytes as are named.
    let failed = unsafe {
        sim_run(
            kernel.as_ptr(),
            &raw const launch,
            schedule.0,
            seed,
            arguments.as_mut_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    if failed == 0 {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Err(Fault(text.to_string_lossy().into_owned()))
}

/// `sim_launch` of `c_api.cpp`.
#[repr(C)]
struct RawLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u64,
    cooperative: u32,
}

unsafe extern "C" {
    fn sim_signature(kernel: *const c_char) -> *const c_char;
    fn sim_run(
        kernel: *const c_char,
        launch: *const RawLaunch,
        schedule: u32,
        seed: u32,
        arguments: *mut *mut c_void,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
}
