//! Timing the candidates of one shape on the processor.

use super::race::race;
use super::{Cell, Effort};
use crate::machine::afford;
use crate::{Error, quantile};
use std::convert::Infallible;
use std::time::Instant;
use taper_kernels::MatrixData;
use taper_kernels::cpu::gemm::{Activations, Choice, Context, GemmScratch, PackedMatrix, Shape, gemm};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;

/// Bytes of distinct matrices that products walk through, more than a core's own caches.
const RING_BYTES: usize = 64 << 20;

/// Matrices of one shape, and rows to multiply with them.
#[derive(Debug)]
pub struct Products<'a> {
    pool: &'a Pool,
    isa: Isa,
    ring: Vec<PackedMatrix>,
    next: usize,
    /// Rows whose blocks of 32 are of nearly one magnitude: [`Activations::Mixed`] rounds all of them to eight bits.
    x: Vec<f32>,
    out: Vec<f32>,
    scratch: GemmScratch,
}

/// One implementation under one rounding.
pub(super) type Arm = (Activations, Choice);

impl<'a> Products<'a> {
    /// For products with up to `most_rows` rows, by instruction sets up to `isa`.
    ///
    /// # Errors
    /// When there is not enough memory for the matrices.
    pub fn new(isa: Isa, pool: &'a Pool, shape: Shape, most_rows: usize) -> Result<Products<'a>, Error> {
        let Shape { weight_type, outputs, inputs } = shape;
        let row_bytes = weight_type.row_bytes(inputs).unwrap_or(0);
        let matrix_bytes = outputs.saturating_mul(row_bytes);
        let count = RING_BYTES.div_ceil(matrix_bytes.max(1)).clamp(1, 512);
        let activations_bytes = outputs.saturating_add(inputs).saturating_mul(most_rows).saturating_mul(8);
        afford(matrix_bytes.saturating_mul(count + 1).saturating_add(activations_bytes))?;
        let bytes = vec![0x3c; matrix_bytes];
        let data = MatrixData { weight_type, rows: outputs, cols: inputs, bytes: &bytes };
        let ring = (0..count).map(|_| PackedMatrix::pack(&[data], pool)).collect::<Result<Vec<_>, _>>()?;
        Ok(Products {
            pool,
            isa,
            x: (0..most_rows * inputs).map(|i| (i % 61) as f32 / 30.0 - 1.0).collect(),
            out: vec![0.0; most_rows * outputs],
            scratch: GemmScratch::default(),
            next: 0,
            ring,
        })
    }

    /// The best instruction set that may be used.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What the matrices are known by.
    pub fn shape(&self) -> Shape {
        self.ring[0].shape()
    }

    /// Measures all numbers of rows with each of `classes`, in the same turns, so that these can be compared too;
    /// `progress` is called after each cell. Weights that are not quantized have one class, and their costs stand for all.
    pub fn measure(&mut self, classes: &[Activations], effort: &Effort, progress: &mut dyn FnMut(&Cell)) -> Vec<Cell> {
        let shape = self.shape();
        let measured = if has_classes(shape) { classes } else { &classes[..classes.len().min(1)] };
        let mut cells = Vec::new();
        for &rows in &effort.rows {
            let candidates = Choice::candidates(self.isa, rows);
            let arms: Vec<Arm> = measured.iter().flat_map(|&a| candidates.iter().map(move |&c| (a, c))).collect();
            let costs: Vec<f64> =
                self.race(&arms, rows, effort, None).iter().map(|turns| quantile(turns, 0.5)).collect();
            for (index, &activations) in classes.iter().enumerate() {
                let costs = &costs[index.min(measured.len() - 1) * candidates.len()..];
                let costs = candidates.iter().copied().zip(costs.iter().copied()).collect();
                let cell = Cell { shape, activations, rows, costs };
                progress(&cell);
                cells.push(cell);
            }
        }
        cells.sort_by_key(|cell| (cell.activations as usize, cell.rows));
        cells
    }

    /// Seconds of a product by each arm, turn by turn; arms compete with those of their own rounding. The arm `kept` is
    /// never out.
    pub(super) fn race(&mut self, arms: &[Arm], rows: usize, effort: &Effort, kept: Option<usize>) -> Vec<Vec<f64>> {
        // Memory that is touched for the first time is not the first candidate's fault.
        if let Some(&arm) = arms.first() {
            self.turn(arm, rows, 0.0);
        }
        let classes: Vec<Activations> = arms.iter().map(|&(activations, _)| activations).collect();
        let turn = |index: usize| Ok::<f64, Infallible>(self.turn(arms[index], rows, effort.turn_seconds));
        let Ok(turns) = race(&classes, effort.turns, kept, turn);
        turns
    }

    /// Mean seconds of a product, over as many as fill the time.
    fn turn(&mut self, (activations, choice): Arm, rows: usize, seconds: f64) -> f64 {
        let context = Context { choice: Some(choice), activations, ..Context::new(self.isa, self.pool) };
        let (start, mut products) = (Instant::now(), 0);
        loop {
            let matrix = &self.ring[self.next % self.ring.len()];
            self.next += 1;
            let (x, out) = (&self.x[..rows * matrix.cols()], &mut self.out[..rows * matrix.rows()]);
            gemm(context, rows, x, matrix, None, out, &mut self.scratch);
            products += 1;
            let elapsed = start.elapsed().as_secs_f64();
            if elapsed >= seconds {
                return elapsed / f64::from(products);
            }
        }
    }
}

/// Whether the rounding of activations makes a difference to products with these weights.
pub(super) fn has_classes(shape: Shape) -> bool {
    shape.weight_type.block_len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::WeightType;

    const SHAPE: Shape = Shape { weight_type: WeightType::Q4_0, outputs: 48, inputs: 64 };

    #[test]
    fn a_shape_is_measured_at_every_number_of_rows_with_every_candidate_and_rounding() {
        let pool = Pool::new(2);
        let effort = Effort { rows: vec![1, 9], turns: 2, turn_seconds: 0.0 };
        for weight_type in [WeightType::Q4_0, WeightType::BF16] {
            let mut products = Products::new(Isa::best(), &pool, Shape { weight_type, ..SHAPE }, 9).unwrap();
            let mut seen = 0;
            let cells = products.measure(&Activations::ALL, &effort, &mut |_| seen += 1);
            let what: Vec<_> = cells.iter().map(|cell| (cell.activations, cell.rows)).collect();
            let (full, mixed) = (Activations::Full, Activations::Mixed);
            assert_eq!((what, seen), (vec![(full, 1), (full, 9), (mixed, 1), (mixed, 9)], 4));
            for cell in &cells {
                let choices: Vec<Choice> = cell.costs.iter().map(|&(choice, _)| choice).collect();
                assert_eq!(choices, Choice::candidates(Isa::best(), cell.rows));
                assert!(cell.costs.iter().all(|&(_, cost)| cost > 0.0 && cost.is_finite()));
            }
            assert_eq!(cells[0].costs == cells[2].costs, weight_type == WeightType::BF16, "{weight_type:?}");
        }
    }
}
