//! Memory that is read by plain loads in turns with attention.

use crate::Error;
use crate::machine::afford;
use std::hint::black_box;
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::cpu::read;
use taper_kernels::{Backend, Cpu};

/// Streams of a thread: among the best numbers wherever it was measured.
const STREAMS: usize = 8;
/// Elements of one piece of work, about 256 KiB: streams of 513 cache lines, an odd number, so that they do not meet in the same
/// cache sets.
const PIECE: usize = STREAMS * 513 * 16;

/// A ring of memory, and threads of its own.
pub(super) struct PlainReads {
    isa: Isa,
    pool: Pool,
    data: Vec<f32>,
    next: usize,
}

impl PlainReads {
    pub(super) fn new(cpu: &Cpu, ring_bytes: usize) -> Result<PlainReads, Error> {
        let info = cpu.info();
        afford(ring_bytes)?;
        // Written, because reading pages that nobody wrote reads one page of zeros.
        let data = vec![1.0; (ring_bytes / size_of::<f32>()).max(PIECE)];
        Ok(PlainReads { isa: Isa::parse(info.isa)?, pool: Pool::new(info.threads), data, next: 0 })
    }

    /// Reads the next so many bytes, the ring again and again where it is smaller.
    pub(super) fn read(&mut self, bytes: f64) {
        let mut left = ((bytes / size_of::<f32>() as f64) as usize).max(1);
        while left > 0 {
            if self.next == self.data.len() {
                self.next = 0;
            }
            let end = self.data.len().min(self.next + left);
            let data = &self.data[self.next..end];
            left -= data.len();
            self.next = end;
            self.pool.run(data.len().div_ceil(PIECE), |piece| {
                black_box(read(self.isa, &data[piece * PIECE..data.len().min((piece + 1) * PIECE)], STREAMS));
            });
        }
    }
}
