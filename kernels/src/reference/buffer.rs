//! Activations and weights of the reference backend: plain vectors of float32, and quantized bytes as they came.

use crate::memory::AlignedVec;
use crate::{Error, MatrixData, WeightType};

/// `[rows, cols]` activations, row-major.
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

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }
}

/// Some rows of a matrix in the file's own blocks.
#[derive(Debug)]
struct Part {
    weight_type: WeightType,
    rows: usize,
    row_bytes: usize,
    bytes: Vec<u8>,
}

/// Stacked parts of a weight matrix, as the file stores them.
#[derive(Debug)]
pub struct Matrix {
    parts: Vec<Part>,
    cols: usize,
}

impl Matrix {
    pub(super) fn new(parts: &[MatrixData<'_>]) -> Result<Self, Error> {
        assert!(!parts.is_empty(), "a matrix has at least one part");
        let cols = parts[0].cols;
        let parts = parts
            .iter()
            .map(|part| {
                assert_eq!(part.cols, cols, "the parts of a matrix share their columns");
                let row_bytes = part.checked_row_bytes()?;
                let mut bytes = Vec::new();
                bytes
                    .try_reserve_exact(part.bytes.len())
                    .map_err(|_| Error::OutOfMemory { what: "a weight matrix", bytes: part.bytes.len() })?;
                bytes.extend_from_slice(part.bytes);
                Ok(Part { weight_type: part.weight_type, rows: part.rows, row_bytes, bytes })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self { parts, cols })
    }

    /// Input columns K.
    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Output rows N, over all parts.
    pub(super) fn num_rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Bytes of all parts.
    pub(super) fn num_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Decodes one row to float32.
    pub(super) fn decode_row(&self, mut row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols);
        for part in &self.parts {
            if row < part.rows {
                let bytes = &part.bytes[row * part.row_bytes..][..part.row_bytes];
                super::dequantize::dequantize_row(part.weight_type, bytes, out);
                return;
            }
            row -= part.rows;
        }
        panic!("row {row} lies beyond the matrix");
    }
}
