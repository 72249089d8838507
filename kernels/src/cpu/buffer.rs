//! Activations and weight vectors of the CPU backend.

use crate::Error;
use crate::memory::AlignedVec;

/// `[rows, cols]` activations, row-major, on a cache line.
#[derive(Debug)]
pub struct Buffer {
    data: AlignedVec<f32>,
    cols: usize,
}

impl Buffer {
    pub(super) fn new(rows: usize, cols: usize) -> Result<Self, Error> {
        let len = rows.saturating_mul(cols);
        Ok(Self { data: AlignedVec::zeroed(len, "activations")?, cols })
    }

    /// Elements of one row.
    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// The leading `rows` rows, one after the other.
    pub(super) fn rows(&self, rows: usize) -> &[f32] {
        &self.data[..rows * self.cols]
    }

    /// The leading `rows` rows, one after the other.
    pub(super) fn rows_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.data[..rows * self.cols]
    }
}

/// Norm weights or biases, on a cache line.
#[derive(Debug)]
pub struct Vector(AlignedVec<f32>);

impl Vector {
    pub(super) fn new(values: &[f32]) -> Result<Self, Error> {
        let mut data = AlignedVec::zeroed(values.len(), "a weight vector")?;
        data.copy_from_slice(values);
        Ok(Self(data))
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.0
    }
}
