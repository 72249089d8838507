//! Read bandwidth: what a number of threads can read from memory per second, each walking several streams together.
//!
//! It is the ceiling of everything that reads weights or keys once. One pass reads all of the memory, so it has to be larger
//! than the caches; the best number of streams is the machine's secret, so all are tried.

use crate::machine::afford;
use crate::plot::{Plot, Series};
use crate::{Effort, Error, Measurement, Record, Summary, params};
use std::hint::black_box;
use std::time::Duration;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::cpu::read;

/// Name of the benchmark.
pub const NAME: &str = "bandwidth";
/// Streams per thread that are tried.
pub const STREAMS: [usize; 4] = [1, 4, 8, 16];
/// Memory of a measurement, unless told otherwise: over 1 GB, beyond any cache.
pub const DEFAULT_BYTES: usize = 1 << 30;

/// Elements of one piece of work: sixteen streams of 1025 cache lines, an odd number, so that streams do not meet in the
/// same cache sets.
const PIECE: usize = 16 * 1025 * 16;

impl Effort {
    /// Passes over the memory for a ceiling: a pass is long, and the median of a few is steady.
    pub const SHORT: Effort = Effort { samples: 5, time: Duration::ZERO };
}

/// Measures every number of streams with each number of threads; `progress` is told of every row.
///
/// # Errors
/// When there is not so much memory.
pub fn measure(
    isa: Isa,
    bytes: usize,
    threads: &[usize],
    effort: Effort,
    progress: &mut dyn FnMut(&Measurement),
) -> Result<Vec<Measurement>, Error> {
    let len = (bytes / size_of::<f32>()).max(1).next_multiple_of(PIECE);
    afford(bytes)?;
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| Error::Memory { bytes })?;
    // Written, because reading pages that nobody wrote reads one page of zeros.
    data.resize(len, 1.0_f32);
    let mut rows = Vec::new();
    for &threads in threads {
        let pool = Pool::new(threads);
        for streams in STREAMS {
            let rates = effort.rates(|| {
                pool.run(len / PIECE, |piece| {
                    black_box(read(isa, &data[piece * PIECE..][..PIECE], streams));
                });
            });
            let bytes = (len * size_of::<f32>()) as f64;
            let summary = Summary::of(&rates).times(bytes / 1e9);
            let row = Measurement {
                bench: NAME,
                case: format!("{} x {streams}", plural(pool.threads(), "thread")),
                params: params([("threads", pool.threads().into()), ("streams", streams.into())]),
                summary,
                unit: "GB/s",
                bytes: Some(bytes),
                gbps: Some(summary.median),
            };
            progress(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Bandwidth against threads, a line per number of streams.
pub fn plots(records: &[Record]) -> Vec<Plot> {
    let number = |record: &Record, name: &str| record.params.get(name).and_then(serde_json::Value::as_u64);
    let series = STREAMS.map(|streams| {
        // The ceilings before and after are no cases.
        let of_streams = records.iter().filter(|record| {
            record.bench == NAME && !record.case.contains(':') && number(record, "streams") == Some(streams as u64)
        });
        let points = of_streams.map(|record| (record.threads as f64, record.median)).collect();
        Series { name: plural(streams, "stream"), points }
    });
    let plot = Plot {
        title: "Read bandwidth".into(),
        x: "threads".into(),
        y: "GB/s".into(),
        series: series.into(),
        line: None,
    };
    vec![plot].into_iter().filter(Plot::has_points).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_streams_is_measured_with_every_number_of_threads() {
        let mut told = 0;
        let rows = measure(Isa::best(), 1 << 20, &[1, 2], Effort::SHORT, &mut |_| told += 1).unwrap();
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!((cases[0], cases[7], told), ("1 thread x 1", "2 threads x 16", 8));
        assert!(rows.iter().all(|row| row.summary.median > 0.0 && row.bytes >= Some(1e6)));
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        let error = measure(Isa::best(), 1 << 60, &[1], Effort::SHORT, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
    }
}
