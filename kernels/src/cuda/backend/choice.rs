//! Which kernel multiplies with tiles, and in how many blocks of threads, by a matrix's shape and the number of rows. All choices
//! give the same bits; only time depends on them. Built in is a rule; measurements (`taper tune --device cuda`) give better ones.

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

/// The choices of some shapes, as measured on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TileTuning {
    shapes: HashMap<Shape, Crossings>,
}

/// From how many rows on which choice is taken, ascending.
pub(super) type Crossings = Arc<Vec<(usize, TileChoice)>>;

impl TileTuning {
    /// Takes `choice` for products of `shape` with `rows` rows or more, up to the next such number.
    pub fn set(&mut self, shape: Shape, rows: usize, choice: TileChoice) {
        let crossings = Arc::make_mut(self.shapes.entry(shape).or_default());
        let at = crossings.partition_point(|&(from, _)| from < rows);
        if crossings.get(at).is_some_and(|&(from, _)| from == rows) {
            crossings[at].1 = choice;
        } else {
            crossings.insert(at, (rows, choice));
        }
    }

    /// What products of `shape` with that many rows run on.
    pub fn choice(&self, shape: Shape, rows: usize) -> TileChoice {
        choose(&self.crossings(shape), rows)
    }

    /// Shapes that were measured.
    pub fn num_shapes(&self) -> usize {
        self.shapes.len()
    }

    pub(super) fn crossings(&self, shape: Shape) -> Crossings {
        self.shapes.get(&shape).cloned().unwrap_or_default()
    }
}

/// What `crossings` say for that many rows, else the built-in rule.
pub(super) fn choose(crossings: &[(usize, TileChoice)], rows: usize) -> TileChoice {
    let measured = crossings.iter().rev().find(|&&(from, _)| from <= rows);
    measured.map_or_else(|| TileChoice::builtin(rows), |&(_, choice)| choice)
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
    fn a_choice_holds_from_its_number_of_rows_to_the_next() {
        let shape = Shape { weight_type: WeightType::Q8_0, outputs: 64, inputs: 96 };
        let [few, many] = ["r8 x1", "r64 x2"].map(|name| TileChoice::parse(name).unwrap());
        let mut tuning = TileTuning::default();
        tuning.set(shape, 32, few);
        tuning.set(shape, 4, few);
        tuning.set(shape, 32, many);
        assert_eq!(tuning.choice(shape, 3), TileChoice::builtin(3));
        assert_eq!([4, 31, 32, 500].map(|rows| tuning.choice(shape, rows)), [few, few, many, many]);
        let other = Shape { outputs: 65, ..shape };
        assert_eq!((tuning.choice(other, 32), tuning.num_shapes()), (TileChoice::builtin(32), 1));
    }
}
