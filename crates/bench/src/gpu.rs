//! Timing on a GPU, by its own clock: calls are launched one behind the other between two events, so that what a launch takes on
//! the host shows only where it takes longer than the kernel.

use crate::bandwidth::NAME as BANDWIDTH;
use crate::{Effort, Error, Measurement, Summary, params};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taper_kernels::cuda::Device;
use taper_kernels::cuda::read::Stream;

/// The least time of a sample, by the GPU's clock.
const LEAST: Duration = Duration::from_millis(1);
/// Most calls of a sample.
const MAX_CALLS: u32 = 1 << 14;

/// Mean seconds of a call of `once`, over as many as fill a millisecond.
///
/// # Errors
/// The device's, and what `once` says.
pub fn seconds<D: Device>(device: &D, once: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut calls = 1;
    loop {
        let begin = device.record()?;
        for _ in 0..calls {
            once()?;
        }
        let end = device.record()?;
        let spent = device.elapsed(&begin, &end)?;
        if spent >= LEAST || calls >= MAX_CALLS {
            return Ok(spent.as_secs_f64() / f64::from(calls));
        }
        // Enough for the least time, by this sample; at most ten times as many, for the first calls are slow.
        let wanted = f64::from(calls) * 1.2 * LEAST.as_secs_f64() / spent.as_secs_f64().max(1e-9);
        calls = (wanted.ceil() as u32).clamp(2 * calls, 10 * calls).min(MAX_CALLS);
    }
}

/// Memory of at least so many bytes, with numbers in it.
fn filled<D: Device>(device: &Arc<D>, bytes: usize) -> Result<Stream<D>, Error> {
    /// Written again and again: memory is filled from the host in pieces.
    const PIECE: usize = 1 << 20;
    let words = (bytes / size_of::<u32>()).max(1).next_multiple_of(PIECE);
    let mut stream = Stream::new(device, words)?;
    // Not zeros: what is all alike may travel faster.
    let mut word = 1_u32;
    let piece: Vec<u32> = std::iter::repeat_with(|| {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word
    })
    .take(PIECE)
    .collect();
    for begin in (0..words).step_by(PIECE) {
        stream.words().write(begin, &piece)?;
    }
    Ok(stream)
}

/// Bytes that calls have to walk through so that each finds its operands in memory, whatever was asked for: four times what the
/// second-level cache holds.
pub fn ring_bytes<D: Device>(device: &D, asked: usize) -> usize {
    asked.max(4 * device.properties().l2_bytes)
}

/// The first of so many forms of steps that nobody had before: what is measured asks for operations of its own.
pub(crate) fn forms(count: usize) -> u64 {
    static FORMS: AtomicU64 = AtomicU64::new(0);
    FORMS.fetch_add(count as u64, Ordering::Relaxed)
}

/// A ring of memory that is read by plain loads, so many bytes at a time.
pub(crate) struct PlainReads<D: Device> {
    stream: Stream<D>,
    next: usize,
}

impl<D: Device> PlainReads<D> {
    pub(crate) fn new(device: &Arc<D>, ring_bytes: usize) -> Result<PlainReads<D>, Error> {
        Ok(PlainReads { stream: filled(device, ring_bytes)?, next: 0 })
    }

    /// Reads the next so many bytes, the ring again and again where it is smaller.
    pub(crate) fn read(&mut self, device: &D, bytes: f64) -> Result<(), Error> {
        /// Words of one load.
        const WORDS: usize = 4;
        let all = self.stream.words().len();
        let mut left = ((bytes / size_of::<u32>() as f64) as usize).next_multiple_of(WORDS).max(WORDS);
        while left > 0 {
            if self.next == all {
                self.next = 0;
            }
            let part = self.next..all.min(self.next + left);
            left -= part.len();
            self.next = part.end;
            self.stream.run_part(device, part)?;
        }
        Ok(())
    }
}

/// What the GPU can read from its memory per second: all of `bytes` in one pass, once with every pass.
///
/// # Errors
/// When the GPU has not so much memory, and its others.
pub fn bandwidth<D: Device>(device: &Arc<D>, bytes: usize, effort: Effort) -> Result<Measurement, Error> {
    let mut stream = filled(device, bytes)?;
    let words = stream.words().len();
    let bytes = (words * size_of::<u32>()) as f64;
    let rates = effort.rates_by(|| seconds(&**device, &mut || Ok(stream.run(device)?)))?;
    let summary = Summary::of(&rates).times(bytes / 1e9);
    Ok(Measurement {
        bench: BANDWIDTH,
        case: "read_stream".into(),
        params: params([("threads", 1.into())]),
        summary,
        unit: "GB/s",
        bytes: Some(bytes),
        gbps: Some(summary.median),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use taper_kernels::cuda::{DeviceProperties, Recorder};

    /// A device whose clock stands still.
    pub(crate) fn recorder() -> Recorder {
        Recorder::new(DeviceProperties {
            name: "none".into(),
            multiprocessors: 2,
            shared_bytes_per_block: 100 << 10,
            l2_bytes: 0,
        })
    }

    #[test]
    fn as_many_bytes_are_read_as_were_asked_for_whatever_the_ring_holds() {
        let device = Arc::new(recorder());
        let mut reads = PlainReads::new(&device, 4 << 20).unwrap();
        let ring = reads.stream.words().len() * size_of::<u32>();
        for bytes in [1, ring / 3, ring, 5 * ring / 2] {
            device.take();
            reads.read(&*device, bytes as f64).unwrap();
            let read: usize = device.take().iter().map(|launch| launch.bytes).sum();
            assert_eq!(read, bytes.next_multiple_of(16), "of a ring of {ring}");
        }
    }

    #[test]
    fn a_sample_ends_on_a_device_whose_time_means_nothing() {
        let device = recorder();
        let mut calls = 0;
        let mean = seconds(&device, &mut || {
            calls += 1;
            Ok(())
        });
        assert_eq!(mean.ok(), Some(0.0));
        assert!((MAX_CALLS..2 * MAX_CALLS + 10).contains(&calls), "{calls}");
        let failing = seconds(&device, &mut || Err(Error::Memory { bytes: 7 }));
        assert!(failing.is_err_and(|error| error.to_string().contains("7 bytes")));
    }

    #[test]
    fn all_memory_is_read_in_every_pass() {
        let device = Arc::new(recorder());
        let row = bandwidth(&device, 5 << 20, Effort { samples: 1, time: Duration::ZERO }).unwrap();
        assert_eq!(row.bytes, Some((8 << 20) as f64), "whole pieces");
    }
}
