//! `taper calibrate` on the command line.

use super::bench::ComputeArgs;
use super::{ActivationsKind, AttentionKind, BackendKind, Deterministic, DeviceArgs, ModelArgs, SoftmaxKind};
use clap::Args;
use std::path::PathBuf;

/// `taper calibrate`
#[derive(Debug, Args)]
#[command(
    after_help = "For every layer and KV head the reference of the softmax is chosen from the scores of attention over the text. What was found is kept beside the models, named by the hash of the model's file, and used by --softmax auto from the next start on. A layer in which more than 1 % of the rows would have to be computed again keeps the online softmax. Answers do not depend on it."
)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// The model: an alias, a file, `hf:...` or `pip:...`.
    #[arg(long, short = 'm', value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) model: String,

    /// A text like those that the model will see.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,

    /// Tokens of a chunk; chunks know nothing of each other.
    #[arg(long, short = 'c', value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) ctx: u32,
}

impl CalibrateArgs {
    /// How the model is run.
    pub(crate) fn model_args(&self) -> ModelArgs {
        ModelArgs {
            model: self.model.clone(),
            device: self.device,
            deterministic: Deterministic::On,
            threads: self.compute.threads,
            isa: self.compute.isa.clone(),
            activations: ActivationsKind::Full,
            quantization: None,
            backend: BackendKind::Cpu,
            attention: AttentionKind::Splitkv,
            softmax: SoftmaxKind::Online,
            kv_cache_dtype: None,
        }
    }
}
