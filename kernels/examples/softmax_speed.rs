//! Speed of the softmax schemes by length, and where online crosses three passes.
//!
//! `cargo run --release -p taper-kernels --example softmax_speed -- [threads] [isa] [MiB]` takes rows of 2^7 to 2^20 scores
//! twice: one row again and again, which stays in the caches while it fits, and a ring of rows that together hold so many
//! MiB of scores (64 unless told otherwise; as many again of outputs), which does not. The schemes take turns in one run. The
//! scores are of a usual size, so the unified schemes recompute nothing. GB/s counts every score read and every probability
//! written once, 8 bytes an element, whatever a scheme reads again; `scan` writes two numbers per score, 12 bytes.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::softmax::{Context, Scheme, Settings, scan};

const ROUNDS: usize = 101;
/// Elements of one sample: long enough for the clock.
const SAMPLE: usize = 1 << 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.first().map_or(1, |threads| threads.parse().unwrap());
    let isa = arguments.get(1).map_or(Isa::best(), |name| Isa::parse(name).unwrap());
    let ring_bytes = arguments.get(2).map_or(64, |mebibytes| mebibytes.parse::<usize>().unwrap()) << 20;
    let pool = Pool::new(threads);
    let context = Context::new(isa, &pool);
    println!("{} threads, {}; median of {ROUNDS} alternated rounds", pool.threads(), isa.name());
    println!("rows    length    scheme                ns: p10   median      p90   Gelement/s     GB/s   of three-pass");
    for (kind, total) in [("one", 0), ("ring", ring_bytes / 4)] {
        let mut faster = Vec::new();
        for power in 7..=20 {
            let len = 1_usize << power;
            let ratio = measure(context, kind, len, (total / len).max(1));
            faster.push((len, ratio));
        }
        let lengths: Vec<String> =
            faster.iter().filter(|(_, ratio)| *ratio > 1.0).map(|(len, _)| len.to_string()).collect();
        let lengths = if lengths.is_empty() { "no length".into() } else { lengths.join(", ") };
        println!("{kind}: online is faster than three passes at {lengths}\n");
    }
}

/// Times every scheme on a ring of rows and prints a line for each; the speed of online over that of three passes.
fn measure(context: Context<'_>, kind: &str, len: usize, num_rows: usize) -> f64 {
    let x: Vec<f32> = (0..len * num_rows).map(|i| ((i * 7919 + 13) % 1009) as f32 / 50.0 - 10.0).collect();
    // Not zeros: pages of zeros would be made by the first writes, within the time that is taken.
    let mut out = vec![1.0; x.len()];
    let mut sums = vec![1.0; len];
    let settings = Settings::measured(&x[..len], len);
    let repeats = (SAMPLE / len).max(1);
    let mut times = vec![Vec::new(); Scheme::ALL.len() + 1];
    let mut next = 0;
    for round in 0..ROUNDS {
        for turn in 0..times.len() {
            // Who begins changes from round to round.
            let turn = (turn + round) % times.len();
            let start = Instant::now();
            for _ in 0..repeats {
                let row = next * len..(next + 1) * len;
                match Scheme::ALL.get(turn) {
                    Some(scheme) => {
                        let recomputed = scheme.run(context, &settings, &x[row.clone()], len, &mut out[row]);
                        assert_eq!(recomputed, 0, "{} recomputes nothing here", scheme.name());
                    }
                    None => scan(context, &x[row.clone()], &mut out[row], &mut sums),
                }
                next = (next + 1) % num_rows;
            }
            times[turn].push(start.elapsed().as_secs_f64() / repeats as f64);
        }
    }
    black_box((&out, &sums));
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    let median = |turn: usize| times[turn][ROUNDS / 2];
    for (turn, times) in times.iter().enumerate() {
        let (name, bytes) = Scheme::ALL.get(turn).map_or(("scan", 12), |scheme| (scheme.name(), 8));
        let rate = len as f64 / median(turn) / 1e9;
        println!(
            "{kind:<5} {len:>8}    {name:<20} {:>9.0} {:>8.0} {:>8.0}   {rate:>10.3} {:>8.1}   {:>13.2}",
            times[ROUNDS / 10] * 1e9,
            median(turn) * 1e9,
            times[ROUNDS * 9 / 10] * 1e9,
            rate * f64::from(bytes),
            median(0) / median(turn)
        );
    }
    median(0) / median(1)
}
