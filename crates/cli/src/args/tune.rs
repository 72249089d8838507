//! `taper tune` on the command line.

use super::bench::ComputeArgs;
use super::{ActivationsKind, DeviceArgs, QuantizationKind, positive};
use clap::Args;
use std::path::PathBuf;
use taper_bench::tune::ROWS;
use taper_kernels::cpu::gemm::Shape;

/// `taper tune`
#[derive(Debug, Args)]
#[command(
    after_help = "For every matrix shape of the models (or every --shape) and 1 to 256 rows, each implementation of the product is timed, with activations rounded in either way; the fastest is remembered, for this processor and number of threads, beside the models, and used from the next start on. No choice changes an answer: all that can be taken belong to the numerics class that runs. Run it while the machine is idle; minutes for a model of 1B. --check then measures whether the choices are good: a figure never fails the command. On a GPU (--device cuda) what is timed is which kernel multiplies and in how many blocks, and in what else the sums of `--deterministic off` may come (warpgroups, and cuBLASLt where it is found), by the GPU's clock; what was found is for this GPU with its driver, no choice for `--deterministic on` changes a bit, what that costs is printed at the end, and --check is for the processor alone."
)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Models whose shapes are measured: an alias, a file, `hf:...` or `pip:...`; may be given several times.
    #[arg(long = "model", short = 'm', value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) models: Vec<String>,

    /// What the models' matrices become when they are loaded, as `taper serve` is told.
    #[arg(long, value_enum, value_name = "TYPE", env = "TAPER_QUANTIZATION")]
    pub(crate) quantization: Option<QuantizationKind>,

    /// Shapes to measure instead (with --explain, to print), such as "Q4_0 2048x8192" (outputs, inputs); may be given several
    /// times.
    #[arg(long = "shape", value_name = "SHAPE", value_parser = shape)]
    pub(crate) shapes: Vec<Shape>,

    /// Turns of each candidate that keeps up [default: 7]; with --check, repeats of all of it [default: 3].
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with_all = ["explain", "reset"])]
    pub(crate) repeat: Option<usize>,

    /// Print the table that was measured before, with the cost of every alternative and, for the processor, the price of the
    /// numerics class, and measure nothing.
    #[arg(long)]
    pub(crate) explain: bool,

    /// Measure what was chosen and every candidate in turns, and print the time of the choices over that of the fastest.
    #[arg(long, conflicts_with = "explain")]
    pub(crate) check: bool,

    /// With --explain and --check: how activations are rounded in the class that is judged.
    #[arg(long, value_enum, default_value_t = ActivationsKind::Full, env = "TAPER_ACTIVATIONS")]
    pub(crate) activations: ActivationsKind,

    /// With --check: numbers of rows.
    #[arg(long, value_name = "M,...", value_delimiter = ',', default_values_t = ROWS, value_parser = positive, requires = "check", conflicts_with_all = ["explain", "reset"])]
    pub(crate) rows: Vec<usize>,

    /// With --check: print one JSON object per row instead of the table, or write them to FILE beside it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", requires = "check", conflicts_with_all = ["explain", "reset"])]
    pub(crate) json: Option<PathBuf>,

    /// Forget what was measured for this processor, its instruction set and number of threads, or for this GPU.
    #[arg(long, conflicts_with_all = ["explain", "check", "shapes"])]
    pub(crate) reset: bool,
}

fn shape(text: &str) -> Result<Shape, String> {
    let example =
        "expected a weight type and NxK (outputs, inputs), such as \"Q4_0 2048x8192\", K a whole number of blocks";
    taper_bench::tune::parse_shape(text).ok_or_else(|| format!("`{text}` is no shape: {example}"))
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn a_flag_that_would_do_nothing_is_refused() {
        let parse = |line: &str| Cli::try_parse_from(["taper", "tune"].into_iter().chain(line.split_whitespace()));
        for line in [
            "--rows 1",
            "--json",
            "--explain --json",
            "--explain --rows 1",
            "--explain --repeat 2",
            "--reset --repeat 2",
            "--reset --rows 1",
            "--reset --json",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(Cli::try_parse_from(["taper", "tune", "--reset", "--shape", "Q4_0 64x96"]).is_err());
        for line in ["", "--repeat 2", "--check --rows 1,2 --json --repeat 2", "--explain", "--reset --threads 2"] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }
}
