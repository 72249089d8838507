//! A weight matrix repacked for the kernels: sixteen rows to a panel, still quantized.

use super::bf16;
use super::choice::{Crossings, Shape, Tuning};
use super::format::{BLOCK, Format, PANEL_ROWS, Scales};
use super::pack::{pack_panel, quant_at};
use super::shared::SharedMut;
use crate::cpu::pool::Pool;
use crate::memory::AlignedVec;
use crate::{Error, MatrixData, WeightType};
use half::f16;
use std::ops::Range;

/// Rows of one type inside a matrix.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) weight_type: WeightType,
    /// Its first output in the matrix.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) panel_bytes: usize,
    pub(super) data: AlignedVec<u8>,
}

impl Part {
    pub(super) fn num_panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Addresses from a panel on, at most so many.
    fn addresses(&self, panel: usize, most: usize) -> Range<usize> {
        let bytes = &self.data[panel * self.panel_bytes..];
        let start = bytes.as_ptr().addr();
        start..start + bytes.len().min(most)
    }
}

/// One or several stacked matrices, packed in panels for the kernels of any instruction set.
#[derive(Debug)]
pub struct PackedMatrix {
    pub(super) parts: Vec<Part>,
    pub(super) crossings: Crossings,
    rows: usize,
    cols: usize,
}

impl PackedMatrix {
    /// Packs stacked parts; refuses sizes that do not fit their types, and types that no file has.
    ///
    /// # Panics
    /// When there is no part or the parts differ in width.
    pub fn pack(parts: &[MatrixData<'_>], pool: &Pool) -> Result<PackedMatrix, Error> {
        let cols = parts.first().expect("a matrix has at least one part").cols;
        assert!(parts.iter().all(|part| part.cols == cols), "stacked parts read the same input");
        let mut packed = Vec::with_capacity(parts.len());
        let mut rows = 0_usize;
        for part in parts {
            packed.push(pack_part(*part, rows, pool)?);
            rows =
                rows.checked_add(part.rows).ok_or(Error::OutOfMemory { what: "a weight matrix", bytes: usize::MAX })?;
        }
        Ok(PackedMatrix { parts: packed, crossings: Crossings::default(), rows, cols })
    }

    /// Takes the implementations that were measured for its shape.
    pub fn tune(&mut self, tuning: &Tuning) {
        self.crossings = tuning.crossings(self.shape());
    }

    /// What measurements know it by.
    pub fn shape(&self) -> Shape {
        Shape { weight_type: self.parts[0].weight_type, outputs: self.rows, inputs: self.cols }
    }

    /// Outputs N.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs K.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels of all parts.
    pub(super) fn num_panels(&self) -> usize {
        self.parts.iter().map(Part::num_panels).sum()
    }

    /// Whether it is two matrices of one height, as gate and up are; a product may then go through both side by side.
    pub(in crate::cpu) fn is_pair(&self) -> bool {
        matches!(&self.parts[..], [gate, up] if gate.rows == up.rows)
    }

    /// Addresses of the first bytes, at most so many together, of part i of n equal parts of the panels; of a pair, half of
    /// them in gate and half in up.
    pub(in crate::cpu) fn first_addresses(&self, (i, n): (usize, usize), most: usize) -> [Range<usize>; 2] {
        if let [gate, up] = &self.parts[..]
            && self.is_pair()
        {
            return [gate, up].map(|part| part.addresses(i * part.num_panels() / n, most / 2));
        }
        let mut panel = i * self.num_panels() / n;
        for part in &self.parts {
            if panel < part.num_panels() {
                return [part.addresses(panel, most), 0..0];
            }
            panel -= part.num_panels();
        }
        [0..0, 0..0]
    }

    /// Bytes that one product reads.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.data.len()).sum()
    }

    /// Decodes one row to float32, the same bits as decoding it from the file.
    ///
    /// # Panics
    /// When the row does not exist or `out` is not `cols` long.
    pub fn embed_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "a row of the table");
        let part = self.parts.iter().find(|part| row < part.first_row + part.rows);
        let part = part.unwrap_or_else(|| panic!("row {row} of a table of {}", self.rows));
        let row = row - part.first_row;
        let panel = &part.data[row / PANEL_ROWS * part.panel_bytes..][..part.panel_bytes];
        decode_row(part.weight_type, panel, row % PANEL_ROWS, out);
    }
}

fn pack_part(part: MatrixData<'_>, first_row: usize, pool: &Pool) -> Result<Part, Error> {
    let row_bytes = part.checked_row_bytes()?;
    let MatrixData { weight_type, rows, cols, bytes } = part;
    if !WeightType::OF_FILES.contains(&weight_type) {
        return Err(Error::Unsupported(format!(
            "processors have no products with {weight_type:?} weights, GPUs have; on a processor Q8_0 takes as many bytes"
        )));
    }
    let what = "a weight matrix";
    let too_large = Error::OutOfMemory { what, bytes: usize::MAX };
    // A panel is at most 9 % and 64 bytes per superblock over what its rows take in the file; with no rows nothing vouches
    // for `cols`, and nothing is computed from it.
    let panel_bytes = match Format::of(weight_type) {
        _ if rows == 0 => 0,
        Some(format) => format.panel_bytes(cols / BLOCK),
        None if weight_type == WeightType::BF16 => bf16::panel_bytes(cols).ok_or(too_large)?,
        None => row_bytes * PANEL_ROWS,
    };
    let num_panels = rows.div_ceil(PANEL_ROWS);
    let size = panel_bytes.checked_mul(num_panels).ok_or(Error::OutOfMemory { what, bytes: usize::MAX })?;
    let mut data = AlignedVec::in_huge_pages(size, what)?;
    if size > 0 {
        let panels = SharedMut::new(&mut data);
        pool.run(num_panels, |panel| {
            let first = panel * PANEL_ROWS;
            let source = &bytes[first * row_bytes..(first + PANEL_ROWS).min(rows) * row_bytes];
            // SAFETY: every panel index is given out once, and panels do not overlap.
            pack_panel(weight_type, source, row_bytes, unsafe { panels.slice(panel * panel_bytes, panel_bytes) });
        });
    }
    Ok(Part { weight_type, first_row, rows, panel_bytes, data })
}

fn decode_row(weight_type: WeightType, panel: &[u8], lane: usize, out: &mut [f32]) {
    let Some(format) = Format::of(weight_type) else {
        if weight_type == WeightType::BF16 {
            out.iter_mut().enumerate().for_each(|(k, value)| *value = bf16::weight_at(panel, lane, k));
            return;
        }
        let size = weight_type.block_bytes();
        for (k, value) in out.iter_mut().enumerate() {
            let b = &panel[(k * PANEL_ROWS + lane) * size..][..size];
            *value = match weight_type {
                WeightType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                _ => f16::from_le_bytes([b[0], b[1]]).to_f32(),
            };
        }
        return;
    };
    let blocks = out.len() / BLOCK;
    for (index, values) in out.chunks_exact_mut(BLOCK).enumerate() {
        let place = format.place(index, blocks);
        let half_at = |at: usize| f16::from_le_bytes([panel[at + 2 * lane], panel[at + 2 * lane + 1]]).to_f32();
        let small = [panel[place.scales + lane], panel[place.scales + 16 + lane]];
        let halves = match format.scales {
            Scales::D => [(half_at(place.scales), 0.0); 2],
            Scales::DM => [(half_at(place.scales), half_at(place.scales + 32)); 2],
            Scales::Block => {
                let scale = half_at(place.head) * f32::from(small[0]);
                [(scale, -(half_at(place.head + 32) * f32::from(small[1]))); 2]
            }
            Scales::Half => small.map(|small| (half_at(place.head) * f32::from(small.cast_signed()), 0.0)),
            Scales::HalfMin => small.map(|small| {
                let scale = half_at(place.head) * f32::from(small & 15);
                (scale, -(half_at(place.head + 32) * f32::from(small >> 4)))
            }),
        };
        for (k, value) in values.iter_mut().enumerate() {
            let (scale, min) = halves[k / 16];
            let quant = quant_at(format, &panel[place.quants..], lane, k) - format.zero;
            let product = scale * quant as f32;
            *value = if format.has_min() { product + min } else { product };
        }
    }
}
