//! Timing the candidates of one shape. They take turns, so that a busy moment of the machine meets all of them; a cost is the
//! median of turns. Those that fall behind are out early, and the time goes to the few that are close.

use super::{Cell, Effort};
use crate::machine::afford;
use crate::{Error, quantile};
use std::time::Instant;
use taper_kernels::MatrixData;
use taper_kernels::cpu::gemm::{Activations, Choice, Context, GemmScratch, PackedMatrix, Shape, gemm};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;

/// After so many turns, candidates slower than the best by this factor are out; the last one holds from there on.
const OUT: [f64; 3] = [1.5, 1.25, 1.12];
/// Seconds of a turn that one busy moment does not double; nobody is out after a single turn that was shorter.
const SURE: f64 = 0.01;
/// A race that took so many seconds is over, once every candidate that keeps up has had [`FEWEST`] turns.
const ENOUGH: f64 = 2.0;
/// See [`ENOUGH`].
const FEWEST: usize = 3;
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
        let mut turns: Vec<Vec<f64>> = vec![Vec::new(); arms.len()];
        let start = Instant::now();
        for turn in 0..effort.turns.max(1) {
            if turn >= FEWEST && start.elapsed().as_secs_f64() > ENOUGH {
                break;
            }
            let is_in = survivors(arms, &turns, kept);
            for index in (0..arms.len()).map(|index| (index + turn) % arms.len()).filter(|&index| is_in[index]) {
                let seconds = self.turn(arms[index], rows, effort.turn_seconds);
                turns[index].push(seconds);
            }
        }
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

/// Which arms have another turn: those whose fastest turn so far is near the fastest of their rounding.
fn survivors(arms: &[Arm], turns: &[Vec<f64>], kept: Option<usize>) -> Vec<bool> {
    let fastest: Vec<f64> = turns.iter().map(|turns| turns.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    let best_of = |activations: Activations| {
        let of_class = arms.iter().zip(&fastest).filter(|((other, _), _)| *other == activations);
        of_class.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min)
    };
    let most_turns = turns.iter().map(Vec::len).max().unwrap_or(0);
    let is_in = |index: usize| {
        let done = turns[index].len();
        // One that missed a turn is out for good.
        let limit = |done: usize| OUT[(done - 1).min(OUT.len() - 1)];
        let is_unsure = done == 0 || done == 1 && fastest[index] < SURE;
        done == most_turns && (is_unsure || fastest[index] <= best_of(arms[index].0) * limit(done))
    };
    (0..arms.len()).map(|index| kept == Some(index) || is_in(index)).collect()
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

    #[test]
    fn who_falls_behind_its_own_rounding_is_out_unless_it_is_kept() {
        let choice = Choice::builtin(Isa::best(), 1);
        let arms: Vec<Arm> = [0, 0, 0, 1].map(|class| (Activations::ALL[class], choice)).into();
        let after = |turns: [&[f64]; 4], kept| survivors(&arms, &turns.map(<[f64]>::to_vec), kept);
        assert_eq!(after([&[]; 4], None), [true; 4]);
        assert_eq!(after([&[10.0], &[14.0], &[16.0], &[1.0]], None), [true, true, false, true]);
        assert_eq!(after([&[10.0], &[14.0], &[16.0], &[1.0]], Some(2)), [true; 4]);
        assert_eq!(
            after([&[1e-4], &[3e-4], &[2e-2], &[1e-4]], None),
            [true, true, false, true],
            "short turns are unsure"
        );
        // Later the limit is tighter, a lucky turn counts, and nobody comes back.
        assert_eq!(after([&[10.0, 11.0], &[14.0, 14.0], &[10.1], &[1.0, 9.0]], None), [true, false, false, true]);
    }
}
