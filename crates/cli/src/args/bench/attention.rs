//! `taper bench attention` on the command line.

use super::{BenchOutputArgs, ComputeArgs, DeviceArgs, positive};
use crate::args::KvKind;
use clap::Args;
use std::path::PathBuf;
use taper_bench::attention::{DEFAULT_CANDLE_KEYS, DEFAULT_HEADS, DEFAULT_LENS, DEFAULT_RING_BYTES, Heads};

/// `taper bench attention`
#[derive(Debug, Args)]
#[command(
    after_help = "The arms take turns: online, calibrated and bounded are ours with running, calibrated and bounded references of the softmax; online-threshold, on a GPU alone, has running ones that are raised late (the processor's are those of online); naive is ours with all scores in memory; candle is candle's matrix product and softmax, all scores in memory as well, in a program of its own (bench/README.md says how to build it; without it the arm is left out); reads is no attention but as many bytes read by plain loads.\n\nA row is microseconds per call of one layer. Calls walk a ring of layers that no cache holds; GB/s count keys and values once. OF READS is the speed as a share of plain loads in the same moments, X CANDLE the speed over candle's, WORKS IN the memory that a call needs beside its operands, RECOMPUTED the rows that a fixed reference did not fit. Candle's keys are float16 numbers, held as float32 where that is faster: `kv` in a row of --json. On a GPU times are its own clock's, calls are replayed as they are in a model, the ring is at least four times its second-level cache, and candle is left out. Without flags it takes about a minute."
)]
pub(crate) struct BenchAttentionArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// Query heads, KV heads and elements of a head, separated by commas.
    #[arg(long, value_name = "HEADS", value_delimiter = ',', value_parser = str::parse::<Heads>, default_values_t = DEFAULT_HEADS)]
    pub(crate) heads: Vec<Heads>,

    /// Sequences, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=512), default_value = "1")]
    pub(crate) batch: Vec<u32>,

    /// Keys of each sequence, separated by commas.
    #[arg(long, value_name = "KEYS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 24), default_values_t = DEFAULT_LENS.map(|len| len as u32))]
    pub(crate) keys: Vec<u32>,

    /// Last rows of each sequence that are computed: 1 is a generated token, more a piece of a prompt.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), default_value_t = 1)]
    pub(crate) rows: u32,

    /// Storage type of keys and values.
    #[arg(long, value_enum, default_value_t = KvKind::F16)]
    pub(crate) kv: KvKind,

    /// Least size of the ring of keys and values, MiB.
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_RING_BYTES >> 20)]
    pub(crate) ring_mib: usize,

    /// Most keys that candle is asked for; 0 leaves it out.
    #[arg(long, value_name = "KEYS", default_value_t = DEFAULT_CANDLE_KEYS)]
    pub(crate) candle_keys: usize,

    /// The program that runs candle's tensors [default: the one built in bench/candle_baseline].
    #[arg(long, value_name = "FILE", env = "TAPER_CANDLE_DRIVER")]
    pub(crate) candle_driver: Option<PathBuf>,

    /// Fewest samples per row.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = positive)]
    pub(crate) repeat: usize,

    /// Least time of the arms of a case together, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 800)]
    pub(crate) time_ms: u64,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}
