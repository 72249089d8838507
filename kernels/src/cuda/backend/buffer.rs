//! Activations and weights in a device's memory.

use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::{Arena, Memory, Plain};
use crate::{Error, MatrixData, WeightType};
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

/// Stacked rows of one weight type.
struct Part<D: Device> {
    weight_type: WeightType,
    rows: usize,
    row_bytes: usize,
    bytes: Memory<D, u8>,
}

/// A [`Part`] as launches want it.
pub(super) struct PartView {
    pub(super) weight_type: WeightType,
    /// Its place among the rows of all parts.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) row_bytes: usize,
    pub(super) bytes: Argument,
}

/// A weight matrix: parts in the file's own blocks.
pub struct Matrix<D: Device> {
    parts: Vec<Part<D>>,
    pub(super) cols: usize,
}

impl<D: Device> Matrix<D> {
    pub(super) fn new(device: &Arc<D>, data: &[MatrixData<'_>]) -> Result<Matrix<D>, Error> {
        assert!(!data.is_empty(), "a matrix has at least one part");
        let cols = data[0].cols;
        // Neighbours of one type are one part, so that one launch multiplies with all of them.
        let parts = data.chunk_by(|one, next| one.weight_type == next.weight_type);
        let part = |stacked: &[MatrixData<'_>]| {
            let (weight_type, rows) = (stacked[0].weight_type, stacked.iter().map(|part| part.rows).sum());
            let mut row_bytes = 0;
            for part in stacked {
                assert_eq!(part.cols, cols, "the parts of a matrix share their columns");
                row_bytes = part.checked_row_bytes()?;
            }
            let mut bytes = zeros(device, "a weight matrix", rows * row_bytes).map_err(to_error)?;
            let mut begin = 0;
            for part in stacked {
                bytes.write(begin, part.bytes).map_err(to_error)?;
                begin += part.bytes.len();
            }
            Ok(Part { weight_type, rows, row_bytes, bytes })
        };
        Ok(Matrix { parts: parts.map(part).collect::<Result<_, Error>>()?, cols })
    }

    /// The parts, in the order of their rows.
    pub(super) fn parts(&self) -> impl Iterator<Item = PartView> {
        let mut first = 0;
        self.parts.iter().map(move |part| {
            let &Part { weight_type, rows, row_bytes, ref bytes } = part;
            first += rows;
            let bytes = Argument::Pointer(bytes.address());
            PartView { weight_type, first: first - rows, rows, row_bytes, bytes }
        })
    }

    /// The whole matrix, if it has one part.
    pub(super) fn only_part(&self) -> Option<PartView> {
        self.parts().next().filter(|_| self.parts.len() == 1)
    }

    /// Output rows N, over all parts.
    pub(super) fn num_rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Bytes of all parts.
    pub(super) fn num_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
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
