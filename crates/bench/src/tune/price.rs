//! The price of a numerics class: how much longer products take in it than in the fastest class that there is.

use super::Cell;
use super::products::has_classes;
use taper_kernels::cpu::gemm::{Activations, Shape};

/// What the class costs at one shape and number of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// The matrix.
    pub shape: Shape,
    /// Rows.
    pub rows: usize,
    /// Seconds of the fastest implementation of the class.
    pub of_class: f64,
    /// Seconds of the fastest implementation of any class, this one included.
    pub of_any: f64,
}

impl Price {
    /// Times as long.
    pub fn factor(self) -> f64 {
        self.of_class / self.of_any
    }
}

/// The price of `class` wherever `cells` have it and another class; weights that are not quantized have only one.
pub fn prices(cells: &[Cell], class: Activations) -> Vec<Price> {
    let own = cells.iter().filter(|cell| cell.activations == class && has_classes(cell.shape));
    let price = |cell: &Cell| {
        let is_other =
            |other: &&Cell| other.activations != class && (other.shape, other.rows) == (cell.shape, cell.rows);
        let of_class = cell.best().1;
        let of_others = cells.iter().filter(is_other).map(|other| other.best().1).reduce(f64::min)?;
        Some(Price { shape: cell.shape, rows: cell.rows, of_class, of_any: of_class.min(of_others) })
    };
    own.filter_map(price).collect()
}

/// Seconds of all in the class over seconds of all in the fastest; `None` for nothing.
pub fn summed(prices: &[Price]) -> Option<f64> {
    let sum = |seconds: fn(&Price) -> f64| prices.iter().map(seconds).sum::<f64>();
    (!prices.is_empty()).then(|| sum(|price| price.of_class) / sum(|price| price.of_any))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::WeightType;
    use taper_kernels::cpu::gemm::Choice;
    use taper_kernels::cpu::isa::Isa;

    #[test]
    fn the_best_of_a_class_is_held_against_the_best_of_any() {
        let cell = |activations, weight_type, rows, costs: [f64; 2]| {
            let costs = Choice::candidates(Isa::best(), 64).into_iter().zip(costs).collect();
            Cell { shape: Shape { weight_type, outputs: 48, inputs: 64 }, activations, rows, costs }
        };
        let (full, mixed) = (Activations::Full, Activations::Mixed);
        let cells = [
            cell(full, WeightType::Q4_0, 1, [4.0, 3.0]),
            cell(full, WeightType::Q4_0, 8, [5.0, 6.0]),
            cell(full, WeightType::Q4_0, 9, [7.0, 7.0]),
            cell(full, WeightType::BF16, 1, [9.0, 9.0]),
            cell(mixed, WeightType::Q4_0, 1, [2.0, 2.5]),
            cell(mixed, WeightType::Q4_0, 8, [8.0, 6.0]),
            cell(mixed, WeightType::BF16, 1, [1.0, 1.0]),
        ];
        let of_full = prices(&cells, full);
        let figures: Vec<_> = of_full.iter().map(|price| (price.rows, price.of_class, price.of_any)).collect();
        assert_eq!(figures, [(1, 3.0, 2.0), (8, 5.0, 5.0)], "the row that one class has alone and BF16 have no price");
        assert_eq!((of_full[0].factor(), summed(&of_full)), (1.5, Some(8.0 / 7.0)));
        assert_eq!(summed(&prices(&cells, mixed)), Some(8.0 / 7.0));
        assert_eq!(summed(&prices(&cells[..4], full)), None);
    }
}
