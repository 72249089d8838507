//! `taper bench` on the command line.

mod attention;
mod chat;
mod launches;
mod serve;
mod softmax;

pub(crate) use attention::BenchAttentionArgs;
pub(crate) use chat::BenchChatArgs;
pub(crate) use launches::BenchLaunchesArgs;
pub(crate) use serve::{ArrivalsKind, BenchServeArgs};
pub(crate) use softmax::BenchSoftmaxArgs;

use super::{DeviceArgs, ModelArgs, positive};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use taper_bench::gemm::Shape;
use taper_bench::model::Fill;
use taper_bench::{Case, Peer};
use taper_kernels::WeightType;

/// `taper bench`
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Read bandwidth of memory, by threads and streams.
    Bandwidth(BenchBandwidthArgs),
    /// Matrix products, by weight type, shape and rows.
    Gemm(BenchGemmArgs),
    /// Attention over cached keys, by keys, batch and heads, against candle's tensors.
    Attention(BenchAttentionArgs),
    /// Softmax schemes, by length.
    Softmax(BenchSoftmaxArgs),
    /// Prompt and decode speed of a model.
    Model(BenchModelArgs),
    /// Time to first token of a chat, turn by turn, with one path of arithmetic and with two.
    Chat(BenchChatArgs),
    /// What a decode step of a model asks of a GPU: kernels, launches and bytes, on a machine without one.
    Launches(BenchLaunchesArgs),
    /// What the users of a server under load get: any server with OpenAI's interface.
    Serve(Box<BenchServeArgs>),
}

/// Where rows go, for every benchmark.
#[derive(Debug, Args)]
pub(crate) struct BenchOutputArgs {
    /// Print one JSON object per row instead of the table, or write them to FILE beside it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,

    /// Write a web page with plots.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Memory to read when measuring the bandwidth, MiB; 0 leaves it out, and with it every share.
    #[arg(long, value_name = "MIB", default_value_t = taper_bench::bandwidth::DEFAULT_BYTES >> 20)]
    pub(crate) bandwidth_mib: usize,
}

impl BenchOutputArgs {
    pub(crate) fn bandwidth_bytes(&self) -> usize {
        self.bandwidth_mib.saturating_mul(1 << 20)
    }
}

/// What computes, where no model is loaded.
#[derive(Debug, Clone, Args)]
pub(crate) struct ComputeArgs {
    /// Threads that compute [default: one per performance core; `taper doctor` lists them].
    #[arg(long, short = 't', value_name = "N", env = "TAPER_THREADS", value_parser = positive)]
    pub(crate) threads: Option<usize>,

    /// Instruction set of the kernels [default: the best this machine has].
    #[arg(long, value_name = "ISA", env = "TAPER_ISA", value_parser = ["portable", "neon", "neon-dot", "avx2", "avx512", "avx512bf16", "amx"])]
    pub(crate) isa: Option<String>,
}

/// `taper bench bandwidth`
#[derive(Debug, Args)]
#[command(
    after_help = "Every number of threads from 1 to --threads reads with 1, 4, 8 and 16 streams each; the best is the ceiling of whatever reads weights or keys from memory. A row is the median of passes over all of the memory."
)]
pub(crate) struct BenchBandwidthArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Passes over the memory per row.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = positive)]
    pub(crate) repeat: usize,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}

/// `taper bench gemm`
#[derive(Debug, Args)]
#[command(
    after_help = "Products of M rows with N x K weights, over a ring of distinct matrices that no cache holds. GFLOP/s count two operations per weight and row; GB/s count the weights once per product, in the bytes of a file. Without flags it takes about five minutes: 13 types, the shapes of SmolLM2-135M and of a Llama of 1B, 1 to 256 rows."
)]
pub(crate) struct BenchGemmArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Weight types, separated by commas [default: all].
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = weight_type)]
    pub(crate) types: Vec<WeightType>,

    /// Shapes NxK (outputs, inputs), separated by commas.
    #[arg(long = "shape", value_name = "NxK", value_delimiter = ',', value_parser = str::parse::<Shape>, default_values_t = taper_bench::gemm::DEFAULT_SHAPES)]
    pub(crate) shapes: Vec<Shape>,

    /// Numbers of rows M, separated by commas.
    #[arg(long, value_name = "M", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536), default_values_t = taper_bench::gemm::DEFAULT_ROWS.map(|rows| rows as u32))]
    pub(crate) rows: Vec<u32>,

    /// Least size of the ring of matrices, MiB.
    #[arg(long, value_name = "MIB", default_value_t = taper_bench::gemm::DEFAULT_RING_BYTES >> 20)]
    pub(crate) ring_mib: usize,

    /// Fewest samples per row.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = positive)]
    pub(crate) repeat: usize,

    /// Least time per row, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub(crate) time_ms: u64,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}

/// `taper bench model`
#[derive(Debug, Args)]
#[command(
    after_help = "Cases, as llama-bench names them: ppN a prompt of N tokens; tgN N tokens generated one by one; bN N sequences that generate 48 each after 32 keys, aggregate rate. @DEPTH behind a name is the number of keys before: tg64@4096, b8@1024.\n\nA sample takes at least two seconds; the model is warmed up before. GB/s count weights, keys and values, once per step.\n\nWith --against the samples of both sides alternate, and a row gives the ratio. Candle's network runs in a program of its own, because candle chooses its instruction set when it is compiled; bench/README.md says how to build it."
)]
pub(crate) struct BenchModelArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// A case, such as pp512, tg64@4096 or b8; may be given several times [default: pp512 and tg64].
    #[arg(long = "case", value_name = "CASE", value_parser = case)]
    pub(crate) cases: Vec<NamedCase>,

    /// Measure a prompt of 512 and 64 generated tokens behind so many keys as well; separated by commas.
    #[arg(long = "depth", value_name = "KEYS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    pub(crate) depths: Vec<u32>,

    /// Measure batches of so many sequences as well, behind every --depth; separated by commas.
    #[arg(long = "batch", value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) batches: Vec<u32>,

    /// Where the keys of a depth come from.
    #[arg(long, value_enum, default_value_t = FillKind::Computed)]
    pub(crate) fill: FillKind,

    /// Measure a peer in turns with ours; may be given several times.
    #[arg(long, value_enum, value_name = "PEER")]
    pub(crate) against: Vec<PeerKind>,

    /// The program that runs candle's network [default: the one built in bench/candle_baseline].
    #[arg(long, value_name = "FILE", env = "TAPER_CANDLE_DRIVER")]
    pub(crate) candle_driver: Option<PathBuf>,

    /// Samples per case.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(crate) repeat: usize,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}

/// Where the keys of a depth come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FillKind {
    /// Computed from a prompt; the time grows with the square of the depth.
    Computed,
    /// Seeded random keys and values, in seconds at any depth; the row says so.
    Random,
}

impl FillKind {
    pub(crate) fn fill(self) -> Fill {
        match self {
            FillKind::Computed => Fill::Computed,
            FillKind::Random => Fill::Random,
        }
    }
}

/// What a model is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerKind {
    /// Our network with all attention scores in memory.
    NaiveAttention,
    /// Our network with running references in its softmax.
    OnlineSoftmax,
    /// Candle's network on the same file.
    Candle,
}

/// A case and the words that named it, which its row repeats.
#[derive(Debug, Clone)]
pub(crate) struct NamedCase {
    pub(crate) name: String,
    pub(crate) case: Case,
}

impl PeerKind {
    pub(crate) fn peer(self) -> Peer {
        match self {
            PeerKind::NaiveAttention => Peer::NaiveAttention,
            PeerKind::OnlineSoftmax => Peer::OnlineSoftmax,
            PeerKind::Candle => Peer::Candle,
        }
    }
}

impl From<Case> for NamedCase {
    fn from(case: Case) -> NamedCase {
        NamedCase { name: case.to_string(), case }
    }
}

impl BenchModelArgs {
    /// Everything that is asked for, in order.
    pub(crate) fn all_cases(&self) -> Vec<NamedCase> {
        let mut cases = self.cases.clone();
        let depths = || self.depths.iter().map(|&depth| depth as usize);
        for depth in depths() {
            cases.extend(
                [Case::Prompt { tokens: 512, depth }, Case::Generate { tokens: 64, depth }].map(NamedCase::from),
            );
        }
        for sequences in self.batches.iter().map(|&batch| batch as usize) {
            let depths = if self.depths.is_empty() { vec![taper_bench::BATCH_DEPTH] } else { depths().collect() };
            cases.extend(depths.into_iter().map(|depth| NamedCase::from(Case::Batch { sequences, depth })));
        }
        if cases.is_empty() {
            let default = [Case::Prompt { tokens: 512, depth: 0 }, Case::Generate { tokens: 64, depth: 0 }];
            cases.extend(default.map(NamedCase::from));
        }
        cases
    }
}

fn case(text: &str) -> Result<NamedCase, String> {
    let case = text.parse().map_err(|error: taper_bench::CaseError| error.to_string())?;
    Ok(NamedCase { name: text.to_string(), case })
}

fn weight_type(text: &str) -> Result<WeightType, String> {
    let name = |weight_type: &WeightType| format!("{weight_type:?}");
    WeightType::ALL.into_iter().find(|known| name(known).eq_ignore_ascii_case(text)).ok_or_else(|| {
        format!("`{text}` is no weight type: expected one of {}", WeightType::ALL.map(|known| name(&known)).join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn bench(arguments: &[&str]) -> Result<BenchCommand, clap::Error> {
        let cli = Cli::try_parse_from(["taper", "bench"].iter().chain(arguments))?;
        let Command::Bench(BenchArgs { what }) = cli.command else { panic!() };
        Ok(what)
    }

    fn case_names(arguments: &[&str]) -> Vec<String> {
        let Ok(BenchCommand::Model(args)) = bench(&[&["model"], arguments].concat()) else { panic!() };
        args.all_cases().into_iter().map(|case| case.name).collect()
    }

    #[test]
    fn a_row_keeps_the_name_its_case_was_given_by() {
        assert_eq!(case_names(&["--case", "tg64@0"]), ["tg64@0"]);
        assert!(bench(&["model", "--case", "pp0"]).is_err());
    }

    #[test]
    fn depths_and_batches_become_cases() {
        assert_eq!(case_names(&[]), ["pp512", "tg64"]);
        assert_eq!(case_names(&["--depth", "0,4096"]), ["pp512", "tg64", "pp512@4096", "tg64@4096"]);
        assert_eq!(case_names(&["--batch", "1,8"]), ["b1", "b8"]);
        assert_eq!(
            case_names(&["--case", "tg8", "--depth", "64", "--batch", "2"]),
            ["tg8", "pp512@64", "tg64@64", "b2@64"]
        );
    }

    #[test]
    fn types_and_shapes_are_lists() {
        let Ok(BenchCommand::Gemm(args)) = bench(&["gemm", "--type", "q4_0,BF16", "--shape", "32x64,8x8"]) else {
            panic!()
        };
        assert_eq!(args.types, [WeightType::Q4_0, WeightType::BF16]);
        assert_eq!(args.shapes, [Shape { n: 32, k: 64 }, Shape { n: 8, k: 8 }]);
        assert_eq!(args.rows, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert!(bench(&["gemm", "--type", "q9"]).unwrap_err().to_string().contains("Q4_K"));
        assert!(bench(&["gemm", "--shape", "8"]).unwrap_err().to_string().contains("NxK"));
        assert!(bench(&["gemm", "--rows", "0"]).is_err());
    }

    #[test]
    fn json_may_name_a_file() {
        let json = |arguments: &[&str]| match bench(&[&["bandwidth"], arguments].concat()) {
            Ok(BenchCommand::Bandwidth(args)) => args.output.json,
            other => panic!("{other:?}"),
        };
        assert_eq!(json(&[]), None);
        assert_eq!(json(&["--json", "--repeat", "1"]), Some("-".into()));
        assert_eq!(json(&["--json", "rows.json"]), Some("rows.json".into()));
    }
}
