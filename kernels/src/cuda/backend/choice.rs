//! What multiplies with tiles, by a matrix's shape and the number of rows. Built in are rules; measurements (`taper tune --device cuda`)
//! give better choices.
//!
//! Where a row's bits must not depend on the rows beside it ([`RowOrder::Exact`]) the choice is which kernel of
//! `kernels/cuda/gemm_mma.cu`, and how many blocks of threads: all of these give the same bits. Where they may
//! ([`RowOrder::ByRows`]), warpgroups and the vendor's library can be chosen too, and sum in orders of their own.

use super::tiles::TiledType;
use crate::cpu::gemm::Shape;
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of a block of each kernel.
pub(super) const ROWS_OF_BLOCK: [usize; 4] = [8, 16, 32, 64];
/// Blocks that a multiprocessor is given, by the rule or by measurements.
const BLOCKS_EACH: [usize; 3] = [1, 2, 4];

/// How a product with tiles is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileChoice {
    /// Rows of a block of threads: which kernel.
    pub rows_of_block: usize,
    /// Blocks of threads for each multiprocessor, if there are panels for so many.
    pub blocks_each: usize,
}

impl TileChoice {
    /// The rule where nothing was measured: the kernel with the fewest rows a block that has them all, and more blocks where rows
    /// leave room for them.
    pub fn builtin(rows: usize) -> TileChoice {
        let most = ROWS_OF_BLOCK[ROWS_OF_BLOCK.len() - 1];
        TileChoice {
            rows_of_block: ROWS_OF_BLOCK.into_iter().find(|&of_block| rows <= of_block).unwrap_or(most),
            blocks_each: match rows {
                0..=2 => 4,
                3..=4 => 2,
                _ => 1,
            },
        }
    }

    /// What can be chosen for that many rows, the rule first.
    pub fn candidates(rows: usize) -> Vec<TileChoice> {
        let rule = TileChoice::builtin(rows);
        let choices = ROWS_OF_BLOCK.into_iter().flat_map(|rows_of_block| {
            BLOCKS_EACH.into_iter().map(move |blocks_each| TileChoice { rows_of_block, blocks_each })
        });
        [rule].into_iter().chain(choices.filter(|&choice| choice != rule)).collect()
    }

    /// Whether products with such a matrix are launched by a choice: whether its type has tiles.
    pub fn is_of(shape: Shape) -> bool {
        TiledType::of(shape.weight_type, shape.inputs).is_some()
    }

    /// How tables and files write it, `r16 x2`: rows of a block by blocks of a multiprocessor.
    pub fn name(self) -> String {
        format!("r{} x{}", self.rows_of_block, self.blocks_each)
    }

    /// The choice of that name, if it is one.
    pub fn parse(name: &str) -> Option<TileChoice> {
        let (rows_of_block, blocks_each) = name.strip_prefix('r')?.split_once(" x")?;
        let choice = TileChoice { rows_of_block: rows_of_block.parse().ok()?, blocks_each: blocks_each.parse().ok()? };
        (TileChoice::candidates(1).contains(&choice) && choice.name() == name).then_some(choice)
    }
}

/// Whether a row's bits may depend on how many rows are computed with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOrder {
    /// They do not.
    Exact,
    /// They do, from some number of rows on.
    ByRows,
}

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProductChoice {
    /// `kernels/cuda/gemm_mma.cu`.
    Tiles(TileChoice),
    /// `kernels/cuda/gemm_wgmma.cu`.
    Warpgroups,
    /// The vendor's library, in one of the ways that it proposes, by number.
    Library(u8),
}

impl ProductChoice {
    /// Ways of the library that are tried.
    const LIBRARY_WAYS: u8 = 4;

    /// How tables and files write it: as [`TileChoice::name`], `wgmma`, `cublaslt 0`.
    pub fn name(self) -> String {
        match self {
            ProductChoice::Tiles(choice) => choice.name(),
            ProductChoice::Warpgroups => "wgmma".into(),
            ProductChoice::Library(way) => format!("cublaslt {way}"),
        }
    }

    /// The choice of that name, if it is one.
    pub fn parse(name: &str) -> Option<ProductChoice> {
        let others = ProductChoice::of_other_orders();
        others
            .into_iter()
            .find(|choice| choice.name() == name)
            .or_else(|| TileChoice::parse(name).map(ProductChoice::Tiles))
    }

    /// What sums in another order than tiles do, the built-in rule first.
    pub(super) fn of_other_orders() -> Vec<ProductChoice> {
        let of_library = (0..ProductChoice::LIBRARY_WAYS).map(ProductChoice::Library);
        [ProductChoice::Warpgroups].into_iter().chain(of_library).collect()
    }
}

/// The choices of some shapes, as measured on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProductTuning {
    shapes: HashMap<(RowOrder, Shape), Crossings>,
}

/// From how many rows on which choice is taken, ascending.
type Crossings = Arc<Vec<(usize, ProductChoice)>>;

impl ProductTuning {
    /// Takes `choice` for products of `shape` with `rows` rows or more, up to the next such number.
    ///
    /// # Panics
    /// When rows are to be exact and the choice has another order of sums.
    pub fn set(&mut self, order: RowOrder, shape: Shape, rows: usize, choice: ProductChoice) {
        let is_exact = matches!(choice, ProductChoice::Tiles(_));
        assert!(is_exact || order == RowOrder::ByRows, "{choice:?} has another order of sums than few rows have");
        let crossings = Arc::make_mut(self.shapes.entry((order, shape)).or_default());
        let at = crossings.partition_point(|&(from, _)| from < rows);
        if crossings.get(at).is_some_and(|&(from, _)| from == rows) {
            crossings[at].1 = choice;
        } else {
            crossings.insert(at, (rows, choice));
        }
    }

    /// How products of `shape` with that many rows are launched where tiles multiply.
    pub fn tile_choice(&self, shape: Shape, rows: usize) -> TileChoice {
        self.of(shape).tiles(rows)
    }

    /// What multiplies products of `shape` with that many rows where order may depend on them, if that was measured.
    pub fn choice_by_rows(&self, shape: Shape, rows: usize) -> Option<ProductChoice> {
        self.of(shape).by_rows(rows)
    }

    /// Shapes that were measured.
    pub fn num_shapes(&self) -> usize {
        self.shapes.keys().filter(|(order, _)| *order == RowOrder::Exact).count()
    }

    /// Whether the vendor's library is chosen for some of them.
    pub fn wants_library(&self) -> bool {
        let mut choices = self.shapes.values().flat_map(|crossings| crossings.iter());
        choices.any(|(_, choice)| matches!(choice, ProductChoice::Library(_)))
    }

    pub(super) fn of(&self, shape: Shape) -> Measured {
        let of = |order| self.shapes.get(&(order, shape)).cloned().unwrap_or_default();
        Measured { exact: of(RowOrder::Exact), by_rows: of(RowOrder::ByRows) }
    }
}

/// What was measured of one shape.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    exact: Crossings,
    by_rows: Crossings,
}

impl Measured {
    /// How tiles are launched for that many rows, by the rule where that was not measured.
    pub(super) fn tiles(&self, rows: usize) -> TileChoice {
        match last(&self.exact, rows) {
            Some(ProductChoice::Tiles(choice)) => choice,
            _ => TileChoice::builtin(rows),
        }
    }

    pub(super) fn by_rows(&self, rows: usize) -> Option<ProductChoice> {
        last(&self.by_rows, rows)
    }
}

fn last(crossings: &[(usize, ProductChoice)], rows: usize) -> Option<ProductChoice> {
    crossings.iter().rev().find(|&&(from, _)| from <= rows).map(|&(_, choice)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightType;

    #[test]
    fn candidates_are_distinct_begin_with_the_rule_and_come_back_from_their_names() {
        for rows in [1, 2, 3, 8, 9, 64, 500] {
            let candidates = TileChoice::candidates(rows);
            assert_eq!((candidates[0], candidates.len()), (TileChoice::builtin(rows), 12));
            for (index, choice) in candidates.iter().enumerate() {
                assert!(!candidates[..index].contains(choice));
                assert_eq!(TileChoice::parse(&choice.name()), Some(*choice));
            }
        }
        for name in ["", "r8", "r8 x", "r8 x3", "r7 x1", "8 x1", "r8 x1 ", "r64x1"] {
            assert_eq!(TileChoice::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn every_choice_comes_back_from_its_name() {
        let tiles = TileChoice::candidates(8).into_iter().map(ProductChoice::Tiles);
        for choice in tiles.chain(ProductChoice::of_other_orders()) {
            assert_eq!(ProductChoice::parse(&choice.name()), Some(choice));
        }
        for name in ["", "cublaslt", "cublaslt 4", "cublaslt 00", "wgmma 1", "r8"] {
            assert_eq!(ProductChoice::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_choice_holds_from_its_number_of_rows_to_the_next() {
        let shape = Shape { weight_type: WeightType::Q8_0, outputs: 64, inputs: 96 };
        let [few, many] = ["r8 x1", "r64 x2"].map(|name| TileChoice::parse(name).unwrap());
        let mut tuning = ProductTuning::default();
        for (rows, choice) in [(32, few), (4, few), (32, many)] {
            tuning.set(RowOrder::Exact, shape, rows, ProductChoice::Tiles(choice));
        }
        assert_eq!(tuning.tile_choice(shape, 3), TileChoice::builtin(3));
        assert_eq!([4, 31, 32, 500].map(|rows| tuning.tile_choice(shape, rows)), [few, few, many, many]);
        let other = Shape { outputs: 65, ..shape };
        assert_eq!((tuning.tile_choice(other, 32), tuning.num_shapes()), (TileChoice::builtin(32), 1));
        assert_eq!((tuning.choice_by_rows(shape, 500), tuning.wants_library()), (None, false));

        tuning.set(RowOrder::ByRows, shape, 16, ProductChoice::Warpgroups);
        tuning.set(RowOrder::ByRows, shape, 256, ProductChoice::Library(2));
        assert_eq!(
            [15, 16, 256].map(|rows| tuning.choice_by_rows(shape, rows)),
            [None, Some(ProductChoice::Warpgroups), Some(ProductChoice::Library(2))]
        );
        assert_eq!((tuning.tile_choice(shape, 256), tuning.num_shapes(), tuning.wants_library()), (many, 1, true));
    }

    #[test]
    #[should_panic(expected = "another order of sums")]
    fn what_sums_in_another_order_is_never_exact() {
        let shape = Shape { weight_type: WeightType::BF16, outputs: 64, inputs: 96 };
        ProductTuning::default().set(RowOrder::Exact, shape, 1, ProductChoice::Warpgroups);
    }
}
