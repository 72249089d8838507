//! Why there is no GPU that can be used: what happened, what was expected, what to do.

use super::probe::{ComputeCapability, CudaVersion, OLDEST_DEVICE, OLDEST_DRIVER};
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use std::ffi::CStr;
use thiserror::Error;

/// Why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No library of the driver could be loaded.
    #[error(
        "no NVIDIA driver: none of {} could be loaded ({reason}); {OLDEST_DRIVER} is needed: install it, or give the container the GPUs of its host",
        .names.join(", ")
    )]
    NoLibrary {
        /// Names that were tried, in this order.
        names: Vec<String>,
        /// The loader's words about one of them.
        reason: String,
    },
    /// The library has not all functions of a driver's.
    #[error(
        "the library libcuda that was found is no NVIDIA driver of today, it has no function {function}; {OLDEST_DRIVER} is needed: install it, and look for another libcuda in LD_LIBRARY_PATH"
    )]
    FunctionMissing {
        /// The first function that is missing.
        function: &'static str,
    },
    /// The driver is older than the oldest that will do.
    #[error(
        "the NVIDIA driver is too old: {}it goes up to CUDA {found}, and {OLDEST_DRIVER} is needed: install a newer one",
        .release.as_ref().map(|release| format!("release {release} is loaded, ")).unwrap_or_default()
    )]
    DriverTooOld {
        /// The newest CUDA version that it supports.
        found: CudaVersion,
        /// Its release, where the system tells it.
        release: Option<String>,
    },
    /// The driver sees no GPU.
    #[error(
        "the NVIDIA driver (CUDA {driver}) finds no GPU{}; at least one is needed: check that `nvidia-smi -L` lists it, and that it is given to this container",
        .visible.as_ref().map(|value| format!(" with CUDA_VISIBLE_DEVICES={value:?}")).unwrap_or_default()
    )]
    NoDevice {
        /// The newest CUDA version that the driver supports.
        driver: CudaVersion,
        /// CUDA_VISIBLE_DEVICES, which hides devices, if it is set.
        visible: Option<String>,
    },
    /// There are GPUs, but not so many.
    #[error(
        "there is no GPU {index}: this machine has {num_devices}, counted from 0; `nvidia-smi -L` lists them, CUDA_VISIBLE_DEVICES hides some"
    )]
    NoSuchDevice {
        /// The one that was asked for.
        index: usize,
        /// How many there are.
        num_devices: usize,
    },
    /// The GPU is older than the oldest that kernels are written for.
    #[error(
        "GPU {index}, {name}, is too old: it has compute capability {found}, and {OLDEST_DEVICE} (Ampere) is the oldest that will do; use another GPU"
    )]
    DeviceTooOld {
        /// Which one.
        index: usize,
        /// What it is called.
        name: String,
        /// What it can.
        found: ComputeCapability,
    },
    /// The GPU has no memory left, not even for a context.
    #[error(
        "GPU {index}, {name}, is out of memory: not even a context, some hundred MiB, could be made ({call}); `nvidia-smi` says who uses it: end them, or use another GPU"
    )]
    OutOfMemory {
        /// Which one.
        index: usize,
        /// What it is called.
        name: String,
        /// The function of the driver that failed.
        call: &'static str,
    },
    /// The driver fails for another reason.
    #[error("the NVIDIA driver fails: {call} gives error {code}, {name} ({text}); {advice}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// Its name: `CUDA_ERROR_...`.
        name: String,
        /// The driver's words for it.
        text: String,
        /// What may help.
        advice: &'static str,
    },
}

/// What a device cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is not so much memory.
    #[error(
        "the GPU has no {bytes} bytes for {what}{}",
        .free.map(|free| format!(", {free} are free")).unwrap_or_default()
    )]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size of the request.
        bytes: usize,
        /// What there is, where that is known.
        free: Option<usize>,
    },
    /// The image has not the kernels of this program.
    #[error(
        "the CUDA kernels were built from another version of taper: there is no kernel {kernel} in them; build both from one version"
    )]
    KernelMissing {
        /// The first one that is missing.
        kernel: String,
    },
    /// The image cannot run on this GPU.
    #[error(
        "the CUDA kernels have no code for GPU {index}, {name}, of compute capability {compute_capability}; build them for it: TAPER_CUDA_ARCHS names architectures"
    )]
    NoCodeForDevice {
        /// Which GPU.
        index: usize,
        /// What it is called.
        name: String,
        /// What it can.
        compute_capability: ComputeCapability,
    },
    /// There is no library of products.
    #[error("cuBLASLt cannot be used: {reason}")]
    NoLibrary {
        /// Why not.
        reason: String,
    },
    /// The library of products fails.
    #[error("cuBLASLt fails: {call} gives {status}")]
    Library {
        /// The function that failed.
        call: &'static str,
        /// What it returned, by name.
        status: String,
    },
    /// A kernel did what CUDA forbids, as the simulator sees it.
    #[error("{kernel}: {text}")]
    Fault {
        /// Which kernel.
        kernel: String,
        /// What it did, and where.
        text: String,
    },
    /// The driver fails, or there is none that can be used.
    #[error(transparent)]
    Driver(#[from] ProbeError),
}

impl ProbeError {
    /// Makes errors of what `call` returns. The driver is asked for the words, so its library must be there.
    pub(super) fn of(call: &'static str) -> impl Fn(DriverError) -> ProbeError {
        let words = |answer: Result<&CStr, DriverError>| {
            answer.map_or_else(|_| "unknown".to_owned(), |words| words.to_string_lossy().into_owned())
        };
        move |error| {
            let (name, text) = (words(error.error_name()), words(error.error_string()));
            ProbeError::Driver { call, code: error.0 as u32, name, text, advice: advice(error.0) }
        }
    }
}

fn advice(error: CUresult) -> &'static str {
    match error {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "this is the toolkit's stub: take the folder `stubs` out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process has the GPU for itself, or its compute mode forbids contexts: `nvidia-smi` says which"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "a service of the machine is not running yet; where GPUs are joined by NVSwitch it is nvidia-fabricmanager"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "libcuda and the kernel driver are of different releases: restart the machine after an update of the driver"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "libcuda is one for forward compatibility, which this GPU does not take: install the driver itself"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => {
            "a kernel of taper went wrong: `taper selftest --device cuda` says whether they compute what they should on this GPU"
        }
        _ => "`nvidia-smi` and the kernel's log (`dmesg`) may say more",
    }
}
