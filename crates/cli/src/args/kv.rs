//! How keys and values are stored.

use super::Device;
use anyhow::{Result, bail};
use clap::ValueEnum;
use taper_kernels::KvDtype;

/// Storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvKind {
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
    /// float32.
    F32,
    /// Signed bytes with a scale per 32 elements; a processor's.
    #[value(name = "q8_0")]
    Q8,
    /// Floats of eight bits (e4m3) with a scale per head; a GPU's, with heads of 64, 96, 128 and 256.
    F8,
}

impl KvKind {
    /// What a device stores where nothing is asked for. On a GPU it is bfloat16: with that the softmax has fixed references on tensor
    /// cores.
    pub(crate) fn default_of(device: Device) -> KvDtype {
        match device {
            Device::Cuda(_) => KvDtype::BF16,
            Device::Auto | Device::Cpu => KvDtype::F16,
        }
    }

    /// What the flag calls a type.
    pub(crate) fn name_of(dtype: KvDtype) -> &'static str {
        match dtype {
            KvDtype::F16 => "f16",
            KvDtype::BF16 => "bf16",
            KvDtype::F32 => "f32",
            KvDtype::Q8_0 => "q8_0",
            KvDtype::F8E4M3 => "f8",
        }
    }

    /// What this device is asked for.
    ///
    /// # Errors
    /// When it would store something else.
    pub(crate) fn dtype(self, device: Device) -> Result<KvDtype> {
        Ok(match (self, device) {
            (KvKind::Q8, Device::Cuda(_)) => {
                bail!("a GPU stores bfloat16 where q8_0 is asked for: say bf16, or f8 for a byte each")
            }
            (KvKind::F8, Device::Auto | Device::Cpu) => {
                bail!("the processor stores float16 where f8 is asked for: say f16, or q8_0 for a byte each")
            }
            (KvKind::F16, _) => KvDtype::F16,
            (KvKind::Bf16, _) => KvDtype::BF16,
            (KvKind::F32, _) => KvDtype::F32,
            (KvKind::Q8, _) => KvDtype::Q8_0,
            (KvKind::F8, _) => KvDtype::F8E4M3,
        })
    }
}
