//! `--device`: what computes.

use super::{BenchCommand, Command};
use clap::Args;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What computes, for every command that runs kernels.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeviceArgs {
    /// What computes: auto, cpu, cuda (the first NVIDIA GPU) or cuda:N (GPU N, counted from 0). auto is the CPU. `bench
    /// chat` compares what processors alone have, roundings of activations: where it is told to use a GPU it ends with status 2.
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto, env = "TAPER_DEVICE")]
    pub(crate) device: Device,
}

/// A device that kernels are written for, or will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The processor.
    Auto,
    /// The processor.
    Cpu,
    /// The GPU in this place of the driver's count.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let index = |digits: &str| digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        match text {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(index).map(Device::Cuda),
        }
        .ok_or_else(|| "expected auto, cpu, cuda or cuda:N, such as cuda:1".to_owned())
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl Command {
    /// What a command is to compute on, if it computes.
    pub(crate) fn device(&self) -> Option<Device> {
        let DeviceArgs { device } = match self {
            Command::Serve(args) => args.model.device,
            // With a server nothing is computed here.
            Command::Chat(args) if args.remote.url.is_some() => return None,
            Command::Chat(args) => args.answer.model.device,
            Command::Run(args) => args.answer.model.device,
            Command::Bench(args) => match &args.what {
                BenchCommand::Bandwidth(args) => args.device,
                BenchCommand::Gemm(args) => args.device,
                BenchCommand::Attention(args) => args.device,
                BenchCommand::Softmax(args) => args.device,
                BenchCommand::Model(args) => args.model.device,
                BenchCommand::Chat(args) => args.model.device,
                BenchCommand::Launches(_) | BenchCommand::Serve(_) => return None,
            },
            Command::Selftest(args) => args.device,
            Command::Tune(args) => args.device,
            Command::Calibrate(args) => args.device,
            Command::Perplexity(args) => args.model.device,
            Command::Doctor(_) | Command::Pull(_) | Command::List(_) | Command::Completions(_) | Command::Man(_) => {
                return None;
            }
        };
        Some(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_may_be_named_by_its_place() {
        for (text, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(0)),
            ("cuda:0", Device::Cuda(0)),
            ("cuda:12", Device::Cuda(12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string().parse(), Ok(device));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "cuda1", "CPU", "cuda:99999999999999999999"] {
            assert!(text.parse::<Device>().is_err(), "{text:?}");
        }
    }
}
