//! A device that computes nothing and writes down what it is asked: how many launches a step takes and which bytes it moves,
//! on a machine without a GPU.

use super::device::{Device, DeviceProperties, DevicePtr, Launch};
use super::error::DeviceError;
use super::kernels::Kernel;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A launch that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Which kernel.
    pub kernel: Kernel,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of the device's memory that it has to move.
    pub bytes: usize,
}

/// The device; its memory has addresses and no contents, and what is read from it is zeros.
#[derive(Debug)]
pub struct Recorder {
    properties: DeviceProperties,
    next_address: AtomicU64,
    launches: Mutex<Vec<Recorded>>,
}

impl Recorder {
    /// A device of these properties.
    pub fn new(properties: DeviceProperties) -> Recorder {
        Recorder { properties, next_address: AtomicU64::new(1 << 32), launches: Mutex::default() }
    }

    /// The launches since it was last asked, in their order; those of a graph as often as it was replayed.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.launches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn extend(&self, launches: impl IntoIterator<Item = Recorded>) {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).extend(launches);
    }
}

impl Device for Recorder {
    type Graph = Vec<Recorded>;
    type Event = ();

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, _what: &'static str, bytes: usize) -> Result<DevicePtr, DeviceError> {
        Ok(DevicePtr(self.next_address.fetch_add(bytes.next_multiple_of(256) as u64, Ordering::Relaxed)))
    }

    unsafe fn free(&self, _memory: DevicePtr) {}

    unsafe fn upload(&self, _to: DevicePtr, _from: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn download(&self, _from: DevicePtr, to: &mut [u8]) -> Result<(), DeviceError> {
        to.fill(0);
        Ok(())
    }

    unsafe fn zero(&self, _at: DevicePtr, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        launch.check();
        let &Launch { kernel, grid, threads, shared_bytes, bytes, .. } = launch;
        self.extend([Recorded { kernel, grid, threads, shared_bytes, bytes }]);
        Ok(())
    }

    fn capture(&self, launches: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<Vec<Recorded>, DeviceError> {
        let before = self.take();
        let outcome = launches();
        let captured = self.take();
        self.extend(before);
        outcome.map(|()| captured)
    }

    unsafe fn replay(&self, graph: &Vec<Recorded>) -> Result<(), DeviceError> {
        self.extend(graph.iter().copied());
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn record(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn elapsed(&self, (): &(), (): &()) -> Result<Duration, DeviceError> {
        Ok(Duration::ZERO)
    }
}
