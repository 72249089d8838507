//! Is there a GPU that can be used? Asked step by step, so that each answer says what is missing: the library, its functions,
//! its version, a device, the device's age, a context on it.

use super::error::ProbeError;
use super::{library, release};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};
use std::fmt::{self, Display, Formatter};

/// The functions of the driver that are called here, those within cudarc's wrappers among them.
const FUNCTIONS: [&str; 13] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuMemGetInfo_v2",
];

/// The oldest driver that will do. Compressed fatbins of CUDA 13 ask for it.
pub const OLDEST_DRIVER: OldestDriver = OldestDriver { release: 580, cuda: CudaVersion(13_000) };

/// The oldest GPU that will do: Ampere, which has `cp.async` and matrix products of bfloat16.
pub const OLDEST_DEVICE: ComputeCapability = ComputeCapability { major: 8, minor: 0 };

/// A driver's first release of a CUDA version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldestDriver {
    /// The branch of releases.
    pub release: u32,
    /// The CUDA version that it supports.
    pub cuda: CudaVersion,
}

impl Display for OldestDriver {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "driver {} or newer (CUDA {})", self.release, self.cuda)
    }
}

/// A version of CUDA as drivers write it: 1000 major + 10 minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl Display for CudaVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What a GPU can execute: 9.0 is sm_90.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeCapability {
    /// The generation.
    pub major: u32,
    /// The variant.
    pub minor: u32,
}

impl Display for ComputeCapability {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place in the driver's count, from 0.
    pub index: usize,
    /// How many GPUs the driver sees.
    pub num_devices: usize,
    /// What it is called.
    pub name: String,
    /// What it can execute.
    pub compute_capability: ComputeCapability,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_total: usize,
    /// Bytes that nobody uses, beside the context that was made to ask.
    pub memory_free: usize,
    /// Bytes of its second cache.
    pub l2_bytes: usize,
    /// The newest CUDA version that the driver supports.
    pub driver: CudaVersion,
    /// The driver's release, where the system tells it.
    pub driver_release: Option<String>,
}

/// A driver that sees a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInfo {
    /// The newest CUDA version that it supports.
    pub version: CudaVersion,
    /// How many GPUs it sees; at least one.
    pub num_devices: usize,
}

/// Asks for a driver that is new enough and sees a GPU.
///
/// # Errors
/// When there is none. It never panics.
pub fn driver() -> Result<DriverInfo, ProbeError> {
    library::require(&FUNCTIONS)?;
    let version = driver_version()?;
    if version < OLDEST_DRIVER.cuda {
        return Err(ProbeError::DriverTooOld { found: version, release: release::driver_release() });
    }
    let num_devices = match result::init() {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
        answer => answer.map_err(ProbeError::of("cuInit")).and_then(|()| num_devices())?,
    };
    if num_devices == 0 {
        let visible = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
        return Err(ProbeError::NoDevice { driver: version, visible });
    }
    Ok(DriverInfo { version, num_devices })
}

/// Asks the driver for a GPU, by its place in the driver's count. The thread's current context stays what it was.
///
/// # Errors
/// When there is none, or none that can be used. It never panics.
pub fn probe(index: usize) -> Result<DeviceInfo, ProbeError> {
    let DriverInfo { version, num_devices } = driver()?;
    let ordinal = i32::try_from(index).ok().filter(|_| index < num_devices);
    let ordinal = ordinal.ok_or(ProbeError::NoSuchDevice { index, num_devices })?;
    let device = Device::get(ordinal)?;

    let name = device.name.clone();
    let found = ComputeCapability {
        major: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    if found < OLDEST_DEVICE {
        return Err(ProbeError::DeviceTooOld { index, name, found });
    }
    let (memory_free, memory_total) = device.memory().map_err(|(call, error)| match error {
        DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => ProbeError::OutOfMemory { index, name: name.clone(), call },
        error => ProbeError::of(call)(error),
    })?;
    Ok(DeviceInfo {
        index,
        num_devices,
        compute_capability: found,
        multiprocessors: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_total,
        memory_free,
        l2_bytes: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        driver: version,
        driver_release: release::driver_release(),
        name,
    })
}

/// The newest CUDA version that the driver supports; it may be asked before anything else.
fn driver_version() -> Result<CudaVersion, ProbeError> {
    let mut version = 0;
    // SAFETY: `version` is the int that the function writes; `driver` has made sure of the function.
    let answer = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    answer.map_err(ProbeError::of("cuDriverGetVersion"))?;
    Ok(CudaVersion(version))
}

fn num_devices() -> Result<usize, ProbeError> {
    let count = result::device::get_count().map_err(ProbeError::of("cuDeviceGetCount"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A device that the driver has given out.
struct Device {
    handle: CUdevice,
    name: String,
}

impl Device {
    fn get(ordinal: i32) -> Result<Device, ProbeError> {
        let handle = result::device::get(ordinal).map_err(ProbeError::of("cuDeviceGet"))?;
        let name = result::device::get_name(handle);
        Ok(Device { handle, name: name.map_err(ProbeError::of("cuDeviceGetName"))? })
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, ProbeError> {
        // SAFETY: `handle` comes from `device::get`.
        let answer = unsafe { result::device::get_attribute(self.handle, attribute) };
        let answer = answer.map_err(ProbeError::of("cuDeviceGetAttribute"))?;
        Ok(u32::try_from(answer).unwrap_or(0))
    }

    /// Bytes that are free, and all bytes. Needs a context, which is the device's primary one for the moment.
    fn memory(&self) -> Result<(usize, usize), (&'static str, DriverError)> {
        let before = result::ctx::get_current().map_err(|error| ("cuCtxGetCurrent", error))?;
        // SAFETY: `handle` comes from `device::get`; released below.
        let context = unsafe { result::primary_ctx::retain(self.handle) };
        let context = context.map_err(|error| ("cuDevicePrimaryCtxRetain", error))?;
        // SAFETY: the context is retained until below.
        let current = unsafe { result::ctx::set_current(context) }.map_err(|error| ("cuCtxSetCurrent", error));
        let memory = current.and_then(|()| result::mem_get_info().map_err(|error| ("cuMemGetInfo", error)));
        // What they answer is of no use to anyone: the figures are here, or another error is.
        // SAFETY: `before` was current, or null, which is none; the context was retained above and is not used any more.
        unsafe {
            let _ = result::ctx::set_current(before.unwrap_or(std::ptr::null_mut()));
            let _ = result::primary_ctx::release(self.handle);
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(CudaVersion(12_090).to_string(), "12.9");
        assert_eq!(OLDEST_DRIVER.to_string(), "driver 580 or newer (CUDA 13.0)");
        assert_eq!(OLDEST_DEVICE.to_string(), "8.0");
        let turing = ComputeCapability { major: 7, minor: 5 };
        let blackwell = ComputeCapability { major: 12, minor: 0 };
        assert!(turing < OLDEST_DEVICE && OLDEST_DEVICE < blackwell);
    }

    /// Whatever this machine has; `tests/cuda_probe.rs` plays each kind of machine.
    #[test]
    fn asking_this_machine_twice_gives_one_answer() {
        let without_free =
            |answer: Result<DeviceInfo, ProbeError>| answer.map(|info| DeviceInfo { memory_free: 0, ..info });
        assert_eq!(without_free(probe(0)), without_free(probe(0)));
    }
}
