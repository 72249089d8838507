//! Weight matrices in a device's memory. A part whose type has tiles is stored as those alone: products read them, and so do
//! look-ups in a table, which may be the output head as well. Other parts stay in the file's blocks.

use super::Cuda;
use super::buffer::{to_error, zeros};
use super::choice::Measured;
use super::tiles::{PANEL, TiledType, make_tiles, panel_bytes};
use crate::cpu::gemm::Shape;
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::{Arena, Memory};
use crate::{Error, MatrixData, WeightType};

/// How a part lies in memory, with the kernels for it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stored {
    /// The file's rows.
    Rows(RowKernels),
    /// Panels of 16 rows of so many bytes; the last is filled up with zeros.
    Tiles(TiledType, usize),
}

/// The kernels for rows in the file's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowKernels {
    pub(super) gemv: Kernel,
    embed: Kernel,
}

impl RowKernels {
    /// Of what [`TiledType::of`] has no tiles for: types that never have them, float types with an odd number of columns, and any
    /// type without columns. Blocks of the other types have an even number of elements, and their rows are whole blocks.
    fn of(weight_type: WeightType, cols: usize) -> RowKernels {
        let (gemv, embed) = match weight_type {
            WeightType::F32 => (Kernel::GemvF32, Kernel::EmbedF32),
            WeightType::F16 => (Kernel::GemvF16, Kernel::EmbedF16),
            WeightType::BF16 => (Kernel::GemvBf16, Kernel::EmbedBf16),
            WeightType::Q2_K => (Kernel::GemvQ2K, Kernel::EmbedQ2K),
            WeightType::Q3_K => (Kernel::GemvQ3K, Kernel::EmbedQ3K),
            WeightType::Q4_0
            | WeightType::Q4_1
            | WeightType::Q5_0
            | WeightType::Q5_1
            | WeightType::Q8_0
            | WeightType::Q4_K
            | WeightType::Q5_K
            | WeightType::Q6_K
            | WeightType::F8E4M3 => {
                assert_eq!(cols, 0, "whole blocks of {weight_type:?} have tiles");
                // Of no columns nothing is decoded.
                return RowKernels::of(WeightType::F32, cols);
            }
        };
        RowKernels { gemv, embed }
    }
}

/// Stacked rows of one weight type.
struct Part<D: Device> {
    stored: Stored,
    rows: usize,
    row_bytes: usize,
    bytes: Memory<D, u8>,
    /// What was measured of its products.
    measured: Measured,
}

/// A [`Part`] as launches want it.
pub(super) struct PartView<'a> {
    pub(super) stored: Stored,
    /// Its place among the rows of all parts.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Bytes of a row in the file.
    pub(super) row_bytes: usize,
    pub(super) bytes: Argument,
    /// Bytes that it has in memory.
    pub(super) len: usize,
    pub(super) measured: &'a Measured,
}

impl PartView<'_> {
    /// The kernel that looks rows up, and how many columns a block of it has.
    pub(super) fn embed_kernel(&self) -> (Kernel, usize) {
        match self.stored {
            Stored::Rows(kernels) => (kernels.embed, 8 * 256),
            Stored::Tiles(tiled, _) => (tiled.embed, 8 * 32),
        }
    }
}

/// A weight matrix.
pub struct Matrix<D: Device> {
    parts: Vec<Part<D>>,
    pub(super) cols: usize,
}

impl<D: Device> Matrix<D> {
    pub(super) fn new(cuda: &Cuda<D>, data: &[MatrixData<'_>]) -> Result<Matrix<D>, Error> {
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
            let file: Vec<&[u8]> = stacked.iter().map(|part| part.bytes).collect();
            let (stored, bytes) = match TiledType::of(weight_type, cols) {
                Some(tiled) => {
                    let panel_bytes = panel_bytes(weight_type, cols, row_bytes);
                    let bytes = make_tiles(cuda, (tiled, panel_bytes), &file, (rows, cols, row_bytes));
                    (Stored::Tiles(tiled, panel_bytes), bytes.map_err(to_error)?)
                }
                None => (Stored::Rows(RowKernels::of(weight_type, cols)), as_they_are(cuda, &file).map_err(to_error)?),
            };
            let measured = cuda.tuning.of(Shape { weight_type, outputs: rows, inputs: cols });
            Ok(Part { stored, rows, row_bytes, bytes, measured })
        };
        Ok(Matrix { parts: parts.map(part).collect::<Result<_, Error>>()?, cols })
    }

    /// Bytes that parts of these types, rows and columns take, each rounded up to what memory begins at a multiple of.
    pub(super) fn bytes_of(parts: &[(WeightType, usize, usize)]) -> usize {
        let of_run = |run: &[(WeightType, usize, usize)]| {
            let (weight_type, _, cols) = run[0];
            let rows: usize = run.iter().map(|part| part.1).sum();
            let row_bytes = weight_type.row_bytes(cols).unwrap_or(0);
            Arena::<D>::bytes_of::<u8>(match TiledType::of(weight_type, cols) {
                Some(_) => rows.div_ceil(PANEL) * panel_bytes(weight_type, cols, row_bytes),
                None => rows * row_bytes,
            })
        };
        parts.chunk_by(|one, next| one.0 == next.0).map(of_run).sum()
    }

    /// The parts, in the order of their rows.
    pub(super) fn parts(&self) -> impl Iterator<Item = PartView<'_>> {
        let mut first = 0;
        self.parts.iter().map(move |part| {
            let &Part { stored, rows, row_bytes, ref bytes, ref measured } = part;
            first += rows;
            let (len, bytes) = (bytes.len(), Argument::Pointer(bytes.address()));
            PartView { stored, first: first - rows, rows, row_bytes, bytes, len, measured }
        })
    }

    /// The whole matrix, if it has one part.
    pub(super) fn only_part(&self) -> Option<PartView<'_>> {
        self.parts().next().filter(|_| self.parts.len() == 1)
    }

    /// Output rows N, over all parts.
    pub(super) fn num_rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Bytes of all parts, with the rows that panels are filled up with.
    pub(super) fn num_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }
}

fn as_they_are<D: Device>(cuda: &Cuda<D>, file: &[&[u8]]) -> Result<Memory<D, u8>, DeviceError> {
    let mut bytes = zeros(&cuda.heap, "a weight matrix", file.iter().map(|part| part.len()).sum())?;
    let mut begin = 0;
    for part in file {
        bytes.write(begin, part)?;
        begin += part.len();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_whole_blocks_has_kernels() {
        for weight_type in WeightType::ALL {
            for blocks in 0..4 {
                let cols = blocks * weight_type.block_len();
                if TiledType::of(weight_type, cols).is_none() {
                    RowKernels::of(weight_type, cols);
                }
            }
        }
    }
}
