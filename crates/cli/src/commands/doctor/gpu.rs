//! What `taper doctor` says of GPUs: the driver, each GPU that it sees, or why none can be used.

use indicatif::BinaryBytes;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use taper_kernels::cuda::{self, DeviceInfo, ProbeError, fatbin};

#[derive(Debug, Default, Serialize)]
pub(super) struct Gpu {
    /// Release of NVIDIA's kernel driver, if one is loaded.
    driver: Option<String>,
    /// The newest version of CUDA that the driver's library supports.
    cuda: Option<String>,
    /// Why none can be used, where that is not for one of them to say.
    problem: Option<String>,
    devices: Vec<Device>,
    /// Whether there are kernels for them, in this build or where TAPER_FATBIN says.
    in_this_build: bool,
    /// Which, or why none.
    kernels: String,
}

/// A GPU that the driver sees: what it is, or why it cannot be used.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Device {
    Usable {
        index: usize,
        name: String,
        compute_capability: String,
        multiprocessors: u32,
        memory_bytes: usize,
        memory_free_bytes: usize,
        l2_bytes: usize,
    },
    Unusable {
        problem: String,
    },
}

impl Gpu {
    pub(super) fn read() -> Gpu {
        let gpu = Gpu {
            driver: cuda::driver_release(),
            in_this_build: fatbin::image().is_ok(),
            kernels: fatbin::describe(),
            ..Gpu::default()
        };
        match cuda::driver() {
            Err(error) => Gpu { problem: Some(error.to_string()), ..gpu },
            Ok(driver) => {
                let devices = (0..driver.num_devices).map(|index| cuda::probe(index).into()).collect();
                Gpu { cuda: Some(driver.version.to_string()), devices, ..gpu }
            }
        }
    }

    /// The name of one that can compute with the kernels that are there.
    pub(super) fn usable(&self) -> Option<&str> {
        let names = self.devices.iter().filter_map(|device| match device {
            Device::Usable { name, .. } => Some(name.as_str()),
            Device::Unusable { .. } => None,
        });
        names.take(1).find(|_| self.in_this_build)
    }

    /// Whether one could compute if there were kernels.
    pub(super) fn lacks_kernels(&self) -> bool {
        !self.in_this_build && self.devices.iter().any(|device| matches!(device, Device::Usable { .. }))
    }

    /// Lines of a table.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let found = self.devices.iter().map(ToString::to_string).chain(self.problem.clone());
        let release = self.driver.as_ref().map(|release| format!("kernel driver {release}"));
        let cuda = self.cuda.as_ref().map(|cuda| format!("a driver for CUDA up to {cuda}"));
        let lines = found.chain(release).chain(cuda);
        let lines = lines.enumerate().map(|(index, line)| (if index == 0 { "GPU" } else { "" }, line));
        lines.chain([("CUDA kernels", self.kernels.clone())]).collect()
    }
}

impl From<Result<DeviceInfo, ProbeError>> for Device {
    fn from(answer: Result<DeviceInfo, ProbeError>) -> Self {
        match answer {
            Ok(info) => Device::Usable {
                index: info.index,
                name: info.name,
                compute_capability: info.compute_capability.to_string(),
                multiprocessors: info.multiprocessors,
                memory_bytes: info.memory_total,
                memory_free_bytes: info.memory_free,
                l2_bytes: info.l2_bytes,
            },
            Err(error) => Device::Unusable { problem: error.to_string() },
        }
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Device::Unusable { problem } => f.write_str(problem),
            Device::Usable {
                index,
                name,
                compute_capability,
                multiprocessors,
                memory_bytes,
                memory_free_bytes,
                l2_bytes,
            } => {
                let bytes = |bytes: usize| BinaryBytes(bytes as u64);
                let (memory, free, l2) = (bytes(*memory_bytes), bytes(*memory_free_bytes), bytes(*l2_bytes));
                write!(
                    f,
                    "GPU {index}, {name}, compute capability {compute_capability}, {multiprocessors} multiprocessors, {memory}, {free} free, L2 {l2}"
                )
            }
        }
    }
}
