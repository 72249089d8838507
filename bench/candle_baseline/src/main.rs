//! Candle, timed as `taper bench` times ours, which runs this and takes turns with it.
//!
//!     candle_baseline MODEL.gguf THREADS             # then a case per line of stdin: ppN or tgN or tgN@DEPTH
//!     candle_baseline attention THREADS RING_BYTES   # then a case per line of stdin: 32/8x64 b1@4096
//!
//! Answers each line with one sample, {"case", "median"}: of a model tokens per second, of attention seconds per call, with
//! the bytes that a call needs beside its operands and the type that keys are held in.

mod attention;
mod model;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (threads, ring_bytes) = match arguments[..] {
        ["attention", threads, ring_bytes] => (threads, Some(ring_bytes.parse().context("RING_BYTES is a number")?)),
        [_, threads] => (threads, None),
        _ => bail!("usage: candle_baseline MODEL.gguf THREADS, or candle_baseline attention THREADS RING_BYTES"),
    };
    let num_threads = threads.parse().context("THREADS is a number")?;
    rayon::ThreadPoolBuilder::new().num_threads(num_threads).build_global()?;
    match ring_bytes {
        Some(ring_bytes) => attention::serve(ring_bytes),
        None => model::serve(arguments[0]),
    }
}
