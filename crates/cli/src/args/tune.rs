//! `taper tune` on the command line.

use super::bench::ComputeArgs;
use super::positive;
use clap::Args;
use taper_kernels::cpu::gemm::Shape;

/// `taper tune`
#[derive(Debug, Args)]
#[command(
    after_help = "For every matrix shape of the model (and every --shape) and 1 to 256 rows, each implementation of the product is timed; the fastest is remembered, for this processor and number of threads, beside the models, and used from the next start on. No choice changes an answer: all of them belong to one numerics class. Run it while the machine is idle."
)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// The model whose shapes are measured: an alias, a file, `hf:...` or `pip:...`.
    #[arg(long, short = 'm', value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) model: String,

    /// Shapes to measure instead, such as "Q4_0 2048x8192" (outputs, inputs); may be given several times.
    #[arg(long = "shape", value_name = "SHAPE", value_parser = shape)]
    pub(crate) shapes: Vec<Shape>,

    /// Turns of each candidate.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(crate) repeat: usize,

    /// Print the table that was measured before, with the cost of every alternative, and measure nothing.
    #[arg(long)]
    pub(crate) explain: bool,

    /// Forget what was measured for this processor.
    #[arg(long, conflicts_with = "explain")]
    pub(crate) reset: bool,
}

fn shape(text: &str) -> Result<Shape, String> {
    let example =
        "expected a weight type and NxK (outputs, inputs), such as \"Q4_0 2048x8192\", K a whole number of blocks";
    taper_bench::tune::parse_shape(text).ok_or_else(|| format!("`{text}` is no shape: {example}"))
}
