//! Activations and vectors of weights in a device's memory.

use crate::Error;
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::{Arena, Memory, Plain};
use std::sync::{Arc, Mutex, PoisonError};

/// The seam's error of a device's.
pub(super) fn to_error(error: DeviceError) -> Error {
    match error {
        DeviceError::OutOfMemory { what, bytes, .. } => Error::OutOfMemory { what, bytes },
        error => Error::Unsupported(error.to_string()),
    }
}

/// Where a backend has its memory from: one allocation that was taken at the start, for as long as it has room, and behind that
/// an allocation for each.
pub(super) struct Heap<D: Device> {
    device: Arc<D>,
    arena: Mutex<Option<Arena<D>>>,
}

impl<D: Device> Heap<D> {
    pub(super) fn new(device: &Arc<D>) -> Heap<D> {
        Heap { device: Arc::clone(device), arena: Mutex::default() }
    }

    /// Takes memory for so many bytes of parts to come; what the last such was not used for is not given out any more.
    pub(super) fn reserve(&self, bytes: usize) -> Result<(), DeviceError> {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        // What is left of the last one goes back first, if nothing of it was used.
        *arena = None;
        *arena = Some(Arena::new(
            &self.device,
            "the model with its KV cache (--kv-cache-size) and the work of its steps",
            bytes,
        )?);
        Ok(())
    }
}

/// Memory for `len` zeros.
pub(super) fn zeros<D: Device, T: Plain>(
    heap: &Heap<D>,
    what: &'static str,
    len: usize,
) -> Result<Memory<D, T>, DeviceError> {
    let bytes = Arena::<D>::bytes_of::<T>(len);
    let mut arena = heap.arena.lock().unwrap_or_else(PoisonError::into_inner);
    match arena.as_mut().filter(|arena| arena.free() >= bytes) {
        Some(arena) => arena.part(what, len),
        None => alone(&heap.device, what, len),
    }
}

/// Memory for `len` zeros that are soon given back: an allocation of its own.
pub(super) fn alone<D: Device, T: Plain>(
    device: &Arc<D>,
    what: &'static str,
    len: usize,
) -> Result<Memory<D, T>, DeviceError> {
    Arena::new(device, what, Arena::<D>::bytes_of::<T>(len))?.part(what, len)
}

/// Makes room for `len` elements; what was there is zeros if there was not.
pub(super) fn grow<D: Device, T: Plain>(
    memory: &mut Memory<D, T>,
    heap: &Heap<D>,
    what: &'static str,
    len: usize,
) -> Result<(), DeviceError> {
    if memory.len() < len {
        *memory = zeros(heap, what, len.next_power_of_two())?;
    }
    Ok(())
}

/// `[rows, cols]` activations, row-major.
pub struct Buffer<D: Device> {
    pub(super) data: Memory<D, f32>,
    rows: usize,
    cols: usize,
}

impl<D: Device> Buffer<D> {
    pub(super) fn new(heap: &Heap<D>, rows: usize, cols: usize) -> Result<Buffer<D>, DeviceError> {
        Ok(Buffer { data: zeros(heap, "activations", rows.saturating_mul(cols))?, rows, cols })
    }

    /// Elements of a row.
    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// The address for a kernel that reads or writes the leading `rows` rows.
    pub(super) fn rows(&self, rows: usize) -> Argument {
        assert!(rows <= self.rows, "{rows} rows of a buffer of {}", self.rows);
        Argument::Pointer(self.data.address())
    }
}

/// A vector of weights.
pub struct Vector<D: Device>(pub(super) Memory<D, f32>);

impl<D: Device> Vector<D> {
    pub(super) fn new(heap: &Heap<D>, values: &[f32]) -> Result<Vector<D>, DeviceError> {
        let mut memory = zeros(heap, "a weight vector", values.len())?;
        memory.write(0, values)?;
        Ok(Vector(memory))
    }

    /// The address for a kernel that reads `len` elements.
    pub(super) fn elements(&self, len: usize) -> Argument {
        assert_eq!(self.0.len(), len, "one weight per element");
        Argument::Pointer(self.0.address())
    }
}
