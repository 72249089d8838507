//! What the matrices of a model become when it is loaded.

use super::{BackendKind, BenchCommand, Command, Device, ModelArgs};
use anyhow::{Result, bail};
use clap::ValueEnum;
use taper_models::Quantization;

/// What matrices of floats become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizationKind {
    /// Floats of eight bits (e4m3) with a scale per 32 weights; a GPU's.
    Fp8,
}

impl From<QuantizationKind> for Quantization {
    fn from(kind: QuantizationKind) -> Self {
        match kind {
            QuantizationKind::Fp8 => Quantization::Fp8,
        }
    }
}

impl ModelArgs {
    /// What its matrices become.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.quantization.map(Quantization::from)
    }
}

impl Command {
    /// An error where a model should become what the device has no products with: known before anything is read, fetched or bound.
    pub(crate) fn check_quantization(&self) -> Result<()> {
        let of_model = |args: &ModelArgs| (args.quantization, args.device.device, args.backend);
        let (asked, device, backend) = match self {
            Command::Serve(args) => of_model(&args.model),
            Command::Chat(args) => of_model(&args.answer.model),
            Command::Run(args) => of_model(&args.answer.model),
            Command::Perplexity(args) => of_model(&args.model),
            // Who forgets quantizes nothing.
            Command::Tune(args) if args.reset => return Ok(()),
            Command::Tune(args) => (args.quantization, args.device.device, BackendKind::Cpu),
            Command::Bench(args) => match &args.what {
                BenchCommand::Model(args) => of_model(&args.model),
                BenchCommand::Chat(args) => of_model(&args.model),
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        match (asked, device, backend) {
            (Some(QuantizationKind::Fp8), Device::Auto | Device::Cpu, BackendKind::Cpu) => bail!(
                "--quantization: the processor has no products with fp8: take a Q8_0 file of the model, which has as many bytes, or a \
                 GPU (--device cuda)"
            ),
            _ => Ok(()),
        }
    }
}
