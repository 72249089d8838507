//! Which implementation computes a product, by its shape and its number of rows. All choices belong to one numerics class
//! and give the same bits; only time depends on them. Built in is a rule; measurements (`taper tune`) give better ones.

use super::Activations;
use crate::WeightType;
use crate::cpu::isa::Isa;
use std::collections::HashMap;

/// What a measurement is about: one matrix, however many rows it is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Type of the weights (of the first part, where parts differ).
    pub weight_type: WeightType,
    /// Outputs N.
    pub outputs: usize,
    /// Inputs K.
    pub inputs: usize,
}

/// An implementation: kernels of an instruction set, and how rows and panels are cut for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Instruction set.
    pub isa: Isa,
    /// Most rows that share one unpacking of a block, 1 to [`Choice::most_tile_rows`]; tiles are of nearly one size.
    pub tile_rows: usize,
    /// Panels of 16 outputs that stay in the first cache while several tiles of rows pass.
    pub tile_panels: usize,
}

/// Rows from which on the built-in rule takes AMX; fewer take AVX-512. Not measured with these kernels: products of one
/// int8 digit met at 8 to 12 rows on Sapphire Rapids, and two digits cost AVX-512 twice as much but a tile of up to eight
/// rows nothing more.
const AMX_ROWS: usize = 8;

impl Choice {
    /// The rule where nothing was measured: as few tiles as the kernels allow.
    pub fn builtin(isa: Isa, rows: usize) -> Choice {
        Choice::largest(if isa == Isa::Amx && rows < AMX_ROWS { Isa::Avx512 } else { isa })
    }

    /// The largest tiles of an instruction set.
    fn largest(isa: Isa) -> Choice {
        let kernels = &isa.table().gemm;
        Choice { isa, tile_rows: kernels.tile_rows, tile_panels: kernels.tile_panels }
    }

    /// Rows of a tile when there are that many in all: as few tiles as may be, and all of nearly the same size.
    pub(super) fn rows_of_a_tile(self, rows: usize) -> usize {
        let tiles = rows.div_ceil(self.tile_rows).max(1);
        rows.div_ceil(tiles).max(1)
    }

    /// Most rows of one tile.
    pub fn most_tile_rows(isa: Isa) -> usize {
        isa.table().gemm.tile_rows
    }

    /// What can be chosen for that many rows with the instruction sets up to `isa`, the rule of [`Choice::builtin`] first.
    pub fn candidates(isa: Isa, rows: usize) -> Vec<Choice> {
        let mut candidates = vec![Choice::builtin(isa, rows)];
        // Plain Rust never wins where there is anything else, nor does AVX-512 where it differs in bfloat16 alone.
        let sets = Isa::available().into_iter().filter(|&set| {
            set == isa || set < isa && set > Isa::Portable && !(set == Isa::Avx512 && isa == Isa::Avx512Bf16)
        });
        for isa in sets {
            let Choice { tile_rows: most, tile_panels, .. } = Choice::largest(isa);
            // Of tiles that cut this number of rows alike, the largest cuts a few rows more into as few tiles.
            for tile_rows in (most / 2..=most).rev() {
                let panels = if rows <= tile_rows { vec![tile_panels] } else { vec![1, 2, 4, 8] };
                candidates.extend(panels.into_iter().map(|tile_panels| Choice { isa, tile_rows, tile_panels }));
            }
        }
        let mut distinct: Vec<Choice> = Vec::new();
        for choice in candidates {
            if distinct.iter().all(|other| !other.is_like(choice, rows)) {
                distinct.push(choice);
            }
        }
        distinct
    }

    /// Whether both compute that many rows in the same way.
    pub fn is_like(self, other: Choice, rows: usize) -> bool {
        let cut = |choice: Choice| (choice.isa, choice.rows_of_a_tile(rows), choice.tile_panels);
        cut(self) == cut(other)
    }

    /// How tables and files write it, `avx512 8x2`: tile rows by tile panels.
    pub fn name(self) -> String {
        format!("{} {}x{}", self.isa.name(), self.tile_rows, self.tile_panels)
    }

    /// The choice of that name; `None` when it is none, or not one of this machine.
    pub fn parse(name: &str) -> Option<Choice> {
        let (isa, tile) = name.split_once(' ')?;
        let (rows, panels) = tile.split_once('x')?;
        let isa = Isa::parse(isa).ok()?;
        let (tile_rows, tile_panels) = (rows.parse().ok()?, panels.parse().ok()?);
        let fits = (1..=Choice::most_tile_rows(isa)).contains(&tile_rows) && (1..=1024).contains(&tile_panels);
        fits.then_some(Choice { isa, tile_rows, tile_panels })
    }
}

/// The choices of some shapes, as measured on this machine, for each rounding of activations: a block of one digit is half
/// the work of a block of two, and other tiles suit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    shapes: HashMap<Shape, Crossings>,
}

/// For one shape and each of [`Activations::ALL`]: from how many rows on which choice is taken, ascending.
pub(super) type Crossings = [Vec<(usize, Choice)>; Activations::ALL.len()];

impl Tuning {
    /// Takes `choice` for products of `shape` with `rows` rows or more, up to the next such number.
    pub fn set(&mut self, activations: Activations, shape: Shape, rows: usize, choice: Choice) {
        let crossings = &mut self.shapes.entry(shape).or_default()[activations as usize];
        let at = crossings.partition_point(|&(from, _)| from < rows);
        if crossings.get(at).is_some_and(|&(from, _)| from == rows) {
            crossings[at].1 = choice;
        } else {
            crossings.insert(at, (rows, choice));
        }
    }

    /// Every (shape, rows, choice) of one rounding, sorted.
    pub fn entries(&self, activations: Activations) -> Vec<(Shape, usize, Choice)> {
        let of_shape = |(&shape, crossings): (&Shape, &Crossings)| {
            crossings[activations as usize].iter().map(|&(rows, choice)| (shape, rows, choice)).collect::<Vec<_>>()
        };
        let mut entries: Vec<_> = self.shapes.iter().flat_map(of_shape).collect();
        entries.sort_by_key(|&(shape, rows, _)| (shape, rows));
        entries
    }

    /// What products of `shape` with that many rows run on, among instruction sets up to `isa`.
    pub fn choice(&self, activations: Activations, shape: Shape, isa: Isa, rows: usize) -> Choice {
        choose(&self.crossings(shape), activations, isa, rows)
    }

    /// Shapes that were measured.
    pub fn num_shapes(&self) -> usize {
        self.shapes.len()
    }

    pub(super) fn crossings(&self, shape: Shape) -> Crossings {
        self.shapes.get(&shape).cloned().unwrap_or_default()
    }
}

/// What `crossings` say for that many rows, among instruction sets up to `isa`; else the built-in rule.
pub(super) fn choose(crossings: &Crossings, activations: Activations, isa: Isa, rows: usize) -> Choice {
    let measured =
        crossings[activations as usize].iter().rev().find(|&&(from, _)| from <= rows).map(|&(_, choice)| choice);
    measured.filter(|choice| choice.isa <= isa).unwrap_or_else(|| Choice::builtin(isa, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { weight_type: WeightType::Q8_0, outputs: 64, inputs: 96 };

    #[test]
    fn the_rule_cuts_rows_into_few_tiles_of_nearly_one_size() {
        let isa = Isa::best();
        let most = Choice::most_tile_rows(isa);
        for rows in 1..200 {
            let tile_rows = Choice::largest(isa).rows_of_a_tile(rows);
            assert!(tile_rows <= most && rows.div_ceil(tile_rows) == rows.div_ceil(most), "{rows}: {tile_rows}");
        }
        assert_eq!(Choice::largest(isa).rows_of_a_tile(most + 1), most / 2 + 1);
    }

    #[test]
    fn candidates_are_distinct_fit_their_kernels_and_come_back_from_their_names() {
        for isa in Isa::available() {
            for rows in [1, 2, 3, 7, 8, 9, 16, 33, 256] {
                let candidates = Choice::candidates(isa, rows);
                assert_eq!(candidates[0], Choice::builtin(isa, rows));
                for (index, choice) in candidates.iter().enumerate() {
                    assert!(!candidates[..index].contains(choice));
                    assert_eq!(Choice::parse(&choice.name()), Some(*choice));
                }
            }
        }
        for name in ["", "avx512", "avx9 8x2", "portable 0x1", "portable 99x1", "portable 1x", "portable 1x0"] {
            assert_eq!(Choice::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn few_rows_are_left_to_avx512() {
        if Isa::Avx512.is_available() {
            assert_eq!(Choice::builtin(Isa::Amx, AMX_ROWS - 1), Choice::largest(Isa::Avx512));
            assert_eq!(Choice::builtin(Isa::AmxEmulated, 1).isa, Isa::AmxEmulated);
        }
        if Isa::Amx.is_available() {
            assert_eq!(Choice::builtin(Isa::Amx, AMX_ROWS).isa, Isa::Amx);
        }
    }

    #[test]
    fn a_choice_holds_from_its_number_of_rows_to_the_next_and_for_its_rounding() {
        let isa = Isa::best();
        let [few, many] = [1, 2].map(|tile_panels| Choice { tile_panels, ..Choice::largest(isa) });
        let (full, mixed) = (Activations::Full, Activations::Mixed);
        let mut tuning = Tuning::default();
        tuning.set(full, SHAPE, 32, few);
        tuning.set(full, SHAPE, 4, few);
        tuning.set(full, SHAPE, 32, many);
        tuning.set(mixed, SHAPE, 8, many);
        let choice = |activations, rows| tuning.choice(activations, SHAPE, isa, rows);
        assert_eq!(choice(full, 3), Choice::builtin(isa, 3));
        assert_eq!([4, 31, 32, 500].map(|rows| choice(full, rows)), [few, few, many, many]);
        assert_eq!([4, 8].map(|rows| choice(mixed, rows)), [Choice::builtin(isa, 4), many]);
        assert_eq!(tuning.entries(full), [(SHAPE, 4, few), (SHAPE, 32, many)]);
        assert_eq!((tuning.entries(mixed), tuning.num_shapes()), (vec![(SHAPE, 8, many)], 1));
    }

    #[test]
    fn of_candidates_that_cut_alike_the_largest_tile_stands() {
        for isa in Isa::available() {
            let most = Choice::most_tile_rows(isa);
            for choice in Choice::candidates(isa, 2 * most).into_iter().filter(|choice| choice.isa == isa) {
                assert!(choice.tile_rows == most || !choice.is_like(Choice { tile_rows: most, ..choice }, 2 * most));
            }
            let few = Choice { tile_rows: most.div_ceil(2), ..Choice::largest(isa) };
            assert!(few.is_like(Choice::largest(isa), 1) && (most == 1 || !few.is_like(Choice::largest(isa), most)));
        }
    }

    #[test]
    fn a_forced_instruction_set_is_not_left_for_a_faster_one() {
        let mut tuning = Tuning::default();
        tuning.set(Activations::Full, SHAPE, 1, Choice::largest(Isa::best()));
        for isa in Isa::available() {
            assert!(tuning.choice(Activations::Full, SHAPE, isa, 8).isa <= isa);
        }
    }
}
