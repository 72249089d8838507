//! Activations and vectors of weights in a device's memory.

use crate::Error;
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::{Arena, Memory, Plain};
use std::sync::Arc;

/// The seam's error of a device's.
pub(super) fn to_error(error: DeviceError) -> Error {
    match error {
        DeviceError::OutOfMemory { what, bytes, .. } => Error::OutOfMemory { what, bytes },
        error => Error::Unsupported(error.to_string()),
    }
}

/// Memory for `len` zeros, an allocation of its own.
pub(super) fn zeros<D: Device, T: Plain>(
    device: &Arc<D>,
    what: &'static str,
    len: usize,
) -> Result<Memory<D, T>, DeviceError> {
    Arena::new(device, what, Arena::<D>::bytes_of::<T>(len))?.part(what, len)
}

/// Makes room for `len` elements; what was there is zeros if there was not.
pub(super) fn grow<D: Device, T: Plain>(
    memory: &mut Memory<D, T>,
    device: &Arc<D>,
    what: &'static str,
    len: usize,
) -> Result<(), DeviceError> {
    if memory.len() < len {
        *memory = zeros(device, what, len.next_power_of_two())?;
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
    pub(super) fn new(device: &Arc<D>, rows: usize, cols: usize) -> Result<Buffer<D>, DeviceError> {
        Ok(Buffer { data: zeros(device, "activations", rows.saturating_mul(cols))?, rows, cols })
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
    pub(super) fn new(device: &Arc<D>, values: &[f32]) -> Result<Vector<D>, DeviceError> {
        let mut memory = zeros(device, "a weight vector", values.len())?;
        memory.write(0, values)?;
        Ok(Vector(memory))
    }

    /// The address for a kernel that reads `len` elements.
    pub(super) fn elements(&self, len: usize) -> Argument {
        assert_eq!(self.0.len(), len, "one weight per element");
        Argument::Pointer(self.0.address())
    }
}
