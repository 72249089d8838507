//! Which implementation of a matrix product is the fastest on this machine, for each shape and number of rows.
//!
//! Candidates of a cell take turns, so that a busy moment of the machine meets all of them; a cell's costs are the medians of
//! its turns. What comes of it is a [`Tuning`]: the numbers of rows from which on another choice is taken.

use crate::machine::afford;
use crate::{Error, quantile};
use std::time::Instant;
use taper_kernels::cpu::gemm::{Choice, Context, GemmScratch, PackedMatrix, Shape, Tuning, gemm};
use taper_kernels::cpu::isa::Isa;
use taper_kernels::cpu::pool::Pool;
use taper_kernels::{MatrixData, WeightType};

/// Numbers of rows that are measured: each of the small ones, where kernels differ most, then ever fewer.
pub const ROWS: [usize; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256];
/// Another choice than the rule must be faster by this factor: less is noise.
const WORTH_IT: f64 = 0.98;
/// After the first turn, candidates slower than the best by this factor are out.
const HOPELESS: f64 = 1.5;
/// Bytes of distinct matrices that products walk through, more than a core's own caches.
const RING_BYTES: usize = 64 << 20;

/// Costs of one shape at one number of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The matrix.
    pub shape: Shape,
    /// Rows.
    pub rows: usize,
    /// Seconds of one product by each candidate, the built-in rule first.
    pub costs: Vec<(Choice, f64)>,
}

impl Cell {
    /// The choice to take: the fastest, or the rule where it is as fast.
    pub fn choice(&self) -> Choice {
        let (rule, rule_cost) = self.costs[0];
        let (best, cost) = self.best();
        if cost < rule_cost * WORTH_IT { best } else { rule }
    }

    /// The fastest candidate and its seconds.
    pub fn best(&self) -> (Choice, f64) {
        self.costs.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(self.costs[0])
    }

    /// Seconds of a choice, where it was measured.
    pub fn cost(&self, choice: Choice) -> Option<f64> {
        self.costs.iter().find(|(candidate, _)| *candidate == choice).map(|&(_, cost)| cost)
    }
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Numbers of rows, ascending.
    pub rows: Vec<usize>,
    /// Turns of every candidate.
    pub turns: usize,
    /// Seconds of one turn, at least.
    pub turn_seconds: f64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { rows: ROWS.to_vec(), turns: 5, turn_seconds: 0.0015 }
    }
}

/// Measures one shape at all its numbers of rows; `progress` is called after each.
///
/// # Errors
/// When there is not enough memory for the matrices.
pub fn measure(
    isa: Isa,
    pool: &Pool,
    shape: Shape,
    effort: &Effort,
    progress: &mut dyn FnMut(&Cell),
) -> Result<Vec<Cell>, Error> {
    let Shape { weight_type, outputs, inputs } = shape;
    let row_bytes = weight_type.row_bytes(inputs).unwrap_or(0);
    let bytes = vec![0x3c; outputs.saturating_mul(row_bytes)];
    let data = MatrixData { weight_type, rows: outputs, cols: inputs, bytes: &bytes };
    let count = RING_BYTES.div_ceil(bytes.len().max(1)).clamp(1, 512);
    let most = effort.rows.iter().copied().max().unwrap_or(1);
    afford(bytes.len().saturating_mul(count + 1).saturating_add((outputs + inputs) * most * 8))?;
    let ring = (0..count).map(|_| PackedMatrix::pack(&[data], pool)).collect::<Result<Vec<_>, _>>()?;
    let mut bench = Bench {
        pool,
        isa,
        x: (0..most * inputs).map(|i| (i % 61) as f32 / 30.0 - 1.0).collect(),
        out: vec![0.0; most * outputs],
        scratch: GemmScratch::default(),
        next: 0,
        ring,
    };
    let mut cells = Vec::new();
    for &rows in &effort.rows {
        let cell = Cell { shape, rows, costs: bench.costs(rows, effort) };
        progress(&cell);
        cells.push(cell);
    }
    Ok(cells)
}

struct Bench<'a> {
    pool: &'a Pool,
    isa: Isa,
    ring: Vec<PackedMatrix>,
    x: Vec<f32>,
    out: Vec<f32>,
    scratch: GemmScratch,
    next: usize,
}

impl Bench<'_> {
    fn costs(&mut self, rows: usize, effort: &Effort) -> Vec<(Choice, f64)> {
        let candidates = Choice::candidates(self.isa, rows);
        let mut turns: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
        let mut best = f64::INFINITY;
        for _ in 0..effort.turns.max(1) {
            for (&choice, turns) in candidates.iter().zip(&mut turns) {
                let fastest = turns.iter().copied().fold(f64::INFINITY, f64::min);
                if !turns.is_empty() && fastest > best * HOPELESS {
                    continue;
                }
                let cost = self.turn(choice, rows, effort.turn_seconds);
                best = best.min(cost);
                turns.push(cost);
            }
        }
        let median = |turns: &mut Vec<f64>| {
            turns.sort_by(f64::total_cmp);
            quantile(turns, 0.5)
        };
        candidates.into_iter().zip(&mut turns).map(|(choice, turns)| (choice, median(turns))).collect()
    }

    /// Mean seconds of a product, over as many as fill the time.
    fn turn(&mut self, choice: Choice, rows: usize, seconds: f64) -> f64 {
        let context = Context { choice: Some(choice), ..Context::new(self.isa, self.pool) };
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

/// The choices of all cells.
pub fn tuning(cells: &[Cell]) -> Tuning {
    let mut tuning = Tuning::default();
    let mut last = None;
    for cell in cells {
        let now = (cell.shape, cell.choice());
        if last != Some(now) {
            tuning.set(cell.shape, cell.rows, cell.choice());
        }
        last = Some(now);
    }
    tuning
}

/// How good choices are: seconds of all cells as chosen over seconds of the fastest candidate of each, and the worst cell's.
pub fn against_the_best(cells: &[Cell], choice: impl Fn(&Cell) -> Choice) -> (f64, f64) {
    let cost = |cell: &Cell| cell.cost(choice(cell)).unwrap_or(cell.costs[0].1);
    let sum = |cost: &dyn Fn(&Cell) -> f64| cells.iter().map(cost).sum::<f64>();
    let worst = cells.iter().map(|cell| cost(cell) / cell.best().1).fold(1.0, f64::max);
    (sum(&cost) / sum(&|cell| cell.best().1), worst)
}

/// Name and parts of a shape as tables and files write it, `Q4_1 960x576`.
pub fn shape_name(shape: Shape) -> String {
    format!("{:?} {}x{}", shape.weight_type, shape.outputs, shape.inputs)
}

/// The shape of that name.
pub fn parse_shape(name: &str) -> Option<Shape> {
    let (weight_type, sizes) = name.split_once(' ')?;
    let weight_type = WeightType::ALL.into_iter().find(|t| format!("{t:?}").eq_ignore_ascii_case(weight_type))?;
    let (outputs, inputs) = sizes.split_once('x')?;
    let shape = Shape { weight_type, outputs: outputs.parse().ok()?, inputs: inputs.parse().ok()? };
    (shape.outputs > 0 && weight_type.row_bytes(shape.inputs).is_some_and(|bytes| bytes > 0)).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { weight_type: WeightType::Q4_0, outputs: 48, inputs: 64 };

    fn cell(rows: usize, costs: &[f64]) -> Cell {
        let candidates = Choice::candidates(Isa::best(), 64);
        Cell { shape: SHAPE, rows, costs: candidates.into_iter().zip(costs.iter().copied()).collect() }
    }

    #[test]
    fn the_rule_stays_unless_another_choice_is_clearly_faster() {
        let candidates = Choice::candidates(Isa::best(), 64);
        assert_eq!(cell(1, &[1.0, 0.99, 1.2]).choice(), candidates[0]);
        assert_eq!(cell(1, &[1.0, 0.9, 0.8]).choice(), candidates[2]);
    }

    #[test]
    fn only_crossings_are_kept() {
        let cells = [cell(1, &[1.0, 2.0]), cell(2, &[1.0, 2.0]), cell(3, &[2.0, 1.0]), cell(4, &[2.0, 1.0])];
        let entries = tuning(&cells).entries();
        assert_eq!(entries.iter().map(|&(_, rows, _)| rows).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(entries[1].2, cells[2].costs[1].0);
    }

    #[test]
    fn a_choice_is_held_against_the_best_of_each_cell() {
        let cells = [cell(1, &[1.0, 2.0]), cell(2, &[3.0, 2.0])];
        let (sum, worst) = against_the_best(&cells, |cell| cell.costs[0].0);
        assert!((sum - 4.0 / 3.0).abs() < 1e-12 && (worst - 1.5).abs() < 1e-12);
        let (sum, worst) = against_the_best(&cells, Cell::choice);
        assert_eq!((sum, worst), (1.0, 1.0));
    }

    #[test]
    fn names_of_shapes_come_back() {
        assert_eq!(parse_shape(&shape_name(SHAPE)), Some(SHAPE));
        for name in ["", "Q4_0", "Q4_0 3", "Q4_0 3x", "Q4_0 3x31", "Q9_9 3x32", "Q4_0 0x32", "Q4_0 3x0"] {
            assert_eq!(parse_shape(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_shape_is_measured_at_every_number_of_rows_with_every_candidate() {
        let pool = Pool::new(2);
        let effort = Effort { rows: vec![1, 9], turns: 2, turn_seconds: 0.0 };
        let mut seen = 0;
        let cells = measure(Isa::best(), &pool, SHAPE, &effort, &mut |_| seen += 1).unwrap();
        assert_eq!((cells.len(), seen), (2, 2));
        for cell in &cells {
            assert_eq!(cell.costs.len(), Choice::candidates(Isa::best(), cell.rows).len());
            assert!(cell.costs.iter().all(|&(_, cost)| cost > 0.0 && cost.is_finite()));
        }
    }
}
