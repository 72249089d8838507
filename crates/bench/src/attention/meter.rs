//! The clock of what computes, and plain reads of its memory: what else attention is measured by.

use super::plain_reads::PlainReads;
use crate::statistics::wall_seconds;
use crate::{Error, gpu};
use std::sync::Arc;
use taper_kernels::Cpu;
use taper_kernels::cuda::{Cuda, Device};

/// How calls on a backend are timed.
pub trait Meter {
    /// Calls that are asked for together, at most: where asking takes time, what computes replays them.
    const CALLS: usize;
    /// Whether references that are raised late differ from those of [`super::Arm::Online`].
    const HAS_THRESHOLD: bool;

    /// Mean seconds of a call of `once`.
    ///
    /// # Errors
    /// The device's.
    fn seconds(&mut self, once: &mut dyn FnMut()) -> Result<f64, Error>;

    /// Mean seconds of reading so many bytes of memory by plain loads.
    ///
    /// # Errors
    /// The device's.
    fn read_seconds(&mut self, bytes: f64) -> Result<f64, Error>;

    /// Bytes of keys and values to walk through, where so many were asked for.
    fn ring_bytes(&self, asked: usize) -> usize;
}

/// The processor, by the clock on the wall.
pub struct CpuMeter(PlainReads);

impl CpuMeter {
    /// With so many bytes to read.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(cpu: &Cpu, ring_bytes: usize) -> Result<CpuMeter, Error> {
        Ok(CpuMeter(PlainReads::new(cpu, ring_bytes)?))
    }
}

impl Meter for CpuMeter {
    const CALLS: usize = 1;
    const HAS_THRESHOLD: bool = false;

    fn seconds(&mut self, once: &mut dyn FnMut()) -> Result<f64, Error> {
        Ok(wall_seconds(once))
    }

    fn read_seconds(&mut self, bytes: f64) -> Result<f64, Error> {
        Ok(wall_seconds(|| self.0.read(bytes)))
    }

    fn ring_bytes(&self, asked: usize) -> usize {
        asked
    }
}

/// A GPU, by its own clock.
pub struct GpuMeter<D: Device> {
    device: Arc<D>,
    reads: gpu::PlainReads<D>,
}

impl<D: Device> GpuMeter<D> {
    /// With so many bytes to read, or more where its second-level cache asks for that.
    ///
    /// # Errors
    /// When it has not so much memory.
    pub fn new(cuda: &Cuda<D>, ring_bytes: usize) -> Result<GpuMeter<D>, Error> {
        let device = Arc::clone(cuda.device());
        let reads = gpu::PlainReads::new(&device, gpu::ring_bytes(&*device, ring_bytes))?;
        Ok(GpuMeter { device, reads })
    }
}

impl<D: Device> Meter for GpuMeter<D> {
    const CALLS: usize = 1024;
    const HAS_THRESHOLD: bool = true;

    fn seconds(&mut self, once: &mut dyn FnMut()) -> Result<f64, Error> {
        gpu::seconds(&*self.device, &mut || {
            once();
            Ok(())
        })
    }

    fn read_seconds(&mut self, bytes: f64) -> Result<f64, Error> {
        let GpuMeter { device, reads } = self;
        gpu::seconds(&**device, &mut || reads.read(device, bytes))
    }

    fn ring_bytes(&self, asked: usize) -> usize {
        gpu::ring_bytes(&*self.device, asked)
    }
}
