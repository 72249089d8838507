//! Which implementation of a matrix product is the fastest on this machine, for each shape, number of rows and rounding of
//! activations. [`Products`] measures a [`Cell`] per combination; what comes of cells is a [`Tuning`]: the numbers of rows from
//! which on another choice is taken. [`price`] says what the numerics class costs, [`check`] how good the choices are. On a GPU
//! [`GpuProducts`] measures, and what comes of it is a [`taper_kernels::cuda::ProductTuning`].

pub mod check;
mod on_gpu;
pub mod price;
mod products;
mod race;

pub use on_gpu::{GpuProducts, price_of_exact_rows, product_tuning};
pub use products::Products;

use std::fmt::Debug;
use taper_kernels::WeightType;
use taper_kernels::cpu::gemm::{Activations, Choice, Shape, Tuning};
use taper_kernels::cuda::{NUMERICS_CLASS, NUMERICS_CLASS_BY_ROWS, ProductChoice, RowOrder};

/// Numbers of rows that are measured: each of the small ones, where kernels differ most, then ever fewer.
pub const ROWS: [usize; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256];
/// Another choice than the rule must be faster by this factor: less is noise.
const WORTH_IT: f64 = 0.98;

/// An implementation that can be chosen.
pub trait Candidate: Copy + PartialEq + Debug {
    /// What decides bits, where products are made in several ways: choices of one class never do, but where a GPU's rows are not
    /// to be exact.
    type Class: Copy + PartialEq + Debug + 'static;
    /// All of them.
    const CLASSES: &'static [Self::Class];
    /// Name of the numerics class.
    fn class_name(class: Self::Class) -> &'static str;
    /// How tables and files write the choice.
    fn name(self) -> String;
    /// The choice of that name; `None` when it is none, or not one of this machine.
    fn parse(name: &str) -> Option<Self>;
}

/// On the processor, with activations rounded in one way.
impl Candidate for Choice {
    type Class = Activations;
    const CLASSES: &'static [Activations] = &Activations::ALL;
    fn class_name(class: Activations) -> &'static str {
        class.class()
    }
    fn name(self) -> String {
        Choice::name(self)
    }
    fn parse(name: &str) -> Option<Choice> {
        Choice::parse(name)
    }
}

/// On a GPU.
impl Candidate for ProductChoice {
    type Class = RowOrder;
    const CLASSES: &'static [RowOrder] = &[RowOrder::Exact, RowOrder::ByRows];
    fn class_name(class: RowOrder) -> &'static str {
        match class {
            RowOrder::Exact => NUMERICS_CLASS,
            RowOrder::ByRows => NUMERICS_CLASS_BY_ROWS,
        }
    }
    fn name(self) -> String {
        ProductChoice::name(self)
    }
    fn parse(name: &str) -> Option<ProductChoice> {
        ProductChoice::parse(name)
    }
}

/// Costs of one shape at one number of rows, in one class.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell<C: Candidate = Choice> {
    /// The matrix.
    pub shape: Shape,
    /// The class: how activations were rounded. [`Activations::Mixed`] met rows without outliers: all of eight bits.
    pub activations: C::Class,
    /// Rows.
    pub rows: usize,
    /// Seconds of one product by each candidate, the built-in rule first.
    pub costs: Vec<(C, f64)>,
}

impl<C: Candidate> Cell<C> {
    /// The choice to take: the fastest, or the rule where it is as fast.
    pub fn choice(&self) -> C {
        let (rule, rule_cost) = self.costs[0];
        let (best, cost) = self.best();
        if cost < rule_cost * WORTH_IT { best } else { rule }
    }

    /// The fastest candidate and its seconds.
    pub fn best(&self) -> (C, f64) {
        self.costs.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(self.costs[0])
    }

    /// Seconds of a choice, where it was measured.
    pub fn cost(&self, choice: C) -> Option<f64> {
        self.costs.iter().find(|(candidate, _)| *candidate == choice).map(|&(_, cost)| cost)
    }
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Numbers of rows, ascending.
    pub rows: Vec<usize>,
    /// Turns of every candidate that is not out.
    pub turns: usize,
    /// Seconds of one turn, at least.
    pub turn_seconds: f64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { rows: ROWS.to_vec(), turns: 7, turn_seconds: 0.0015 }
    }
}

/// The choices of all cells.
pub fn tuning(cells: &[Cell]) -> Tuning {
    let mut tuning = Tuning::default();
    crossings(cells).for_each(|cell| tuning.set(cell.activations, cell.shape, cell.rows, cell.choice()));
    tuning
}

/// The cells whose choice is not that of the one before, of the same shape and class.
fn crossings<C: Candidate>(cells: &[Cell<C>]) -> impl Iterator<Item = &Cell<C>> {
    let mut last = None;
    cells.iter().filter(move |cell| {
        let now = (cell.activations, cell.shape, cell.choice());
        last.replace(now) != Some(now)
    })
}

/// How good choices are: seconds of all cells as chosen over seconds of the fastest candidate of each, and the worst cell's.
pub fn against_the_best<C: Candidate>(cells: &[Cell<C>], choice: impl Fn(&Cell<C>) -> C) -> (f64, f64) {
    let cost = |cell: &Cell<C>| cell.cost(choice(cell)).unwrap_or(cell.costs[0].1);
    let sum = |cost: &dyn Fn(&Cell<C>) -> f64| cells.iter().map(cost).sum::<f64>();
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
    use taper_kernels::cpu::isa::Isa;

    const SHAPE: Shape = Shape { weight_type: WeightType::Q4_0, outputs: 48, inputs: 64 };

    fn cell(rows: usize, costs: &[f64]) -> Cell {
        let candidates = Choice::candidates(Isa::best(), 64);
        let costs = candidates.into_iter().zip(costs.iter().copied()).collect();
        Cell { shape: SHAPE, activations: Activations::Full, rows, costs }
    }

    #[test]
    fn the_rule_stays_unless_another_choice_is_clearly_faster() {
        let candidates = Choice::candidates(Isa::best(), 64);
        assert_eq!(cell(1, &[1.0, 0.99, 1.2]).choice(), candidates[0]);
        assert_eq!(cell(1, &[1.0, 0.9, 0.8]).choice(), candidates[2]);
    }

    #[test]
    fn only_crossings_are_kept_and_each_rounding_has_its_own() {
        let full = [cell(1, &[1.0, 2.0]), cell(2, &[1.0, 2.0]), cell(3, &[2.0, 1.0]), cell(4, &[2.0, 1.0])];
        let mixed = Cell { activations: Activations::Mixed, ..cell(1, &[2.0, 1.0]) };
        let other = full[2].costs[1].0;
        let tuning = tuning(&[&full[..], &[mixed]].concat());
        let entries = tuning.entries(Activations::Full);
        assert_eq!(entries.iter().map(|&(_, rows, _)| rows).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(entries[1].2, other);
        assert_eq!(tuning.entries(Activations::Mixed), [(SHAPE, 1, other)]);
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
}
