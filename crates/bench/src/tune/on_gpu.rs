//! Timing the launches of products with one matrix on a GPU, by its own clock.
//!
//! Products walk a ring of matrices that the second-level cache does not hold, a lap at a time. The launches of a lap are recorded
//! and replayed, as those of a model's steps are: what a launch takes on the host decides nothing. Timed are products alone;
//! those that are joined with a norm, an addition or a gate are launched alike, and so are gate and up as one matrix of both.

use super::race::race;
use super::{Cell, Effort, crossings};
use crate::gpu::{forms, ring_bytes, seconds};
use crate::machine::afford;
use crate::{Error, quantile};
use taper_kernels::cpu::gemm::Shape;
use taper_kernels::cuda::{Cuda, Device, ProductChoice, ProductTuning, RowOrder};
use taper_kernels::{Backend, MatrixData, StepInputs, StepTables};

/// Most matrices of a ring.
const MAX_MATRICES: usize = 256;

/// Matrices of one shape, and rows to multiply with them.
pub struct GpuProducts<D: Device> {
    cuda: Cuda<D>,
    shape: Shape,
    ring: Vec<<Cuda<D> as Backend>::Matrix>,
    x: <Cuda<D> as Backend>::Buffer,
    out: <Cuda<D> as Backend>::Buffer,
}

impl<D: Device> GpuProducts<D> {
    /// For products with up to `most_rows` rows.
    ///
    /// # Errors
    /// When there is not enough memory for the matrices.
    pub fn new(cuda: &Cuda<D>, shape: Shape, most_rows: usize) -> Result<GpuProducts<D>, Error> {
        let Shape { weight_type, outputs, inputs } = shape;
        let matrix_bytes = outputs.saturating_mul(weight_type.row_bytes(inputs).unwrap_or(0));
        let count = ring_bytes(&**cuda.device(), 0).div_ceil(matrix_bytes.max(1)).clamp(1, MAX_MATRICES);
        let activations_bytes = outputs.saturating_add(inputs).saturating_mul(most_rows).saturating_mul(8);
        let bytes = matrix_bytes.saturating_mul(count).saturating_add(activations_bytes);
        if cuda.free_bytes().is_some_and(|free| bytes > free) {
            return Err(Error::Memory { bytes });
        }
        afford(matrix_bytes)?;
        // As a float of any size these bytes are an ordinary number.
        let bytes = vec![0x3c; matrix_bytes];
        let data = MatrixData { weight_type, rows: outputs, cols: inputs, bytes: &bytes };
        let ring = (0..count).map(|_| cuda.matrix(&[data])).collect::<Result<Vec<_>, _>>()?;
        let values: Vec<f32> = (0..most_rows * inputs).map(|i| (i % inputs % 61) as f32 / 30.0 - 1.0).collect();
        let x = cuda.buffer_of(inputs, &values)?;
        Ok(GpuProducts { cuda: cuda.clone(), shape, ring, x, out: cuda.buffer(most_rows, outputs)? })
    }

    /// Measures all numbers of rows: a cell for exact rows, and where the device has more for rows that need not be, another one with
    /// that; `progress` is called after each cell.
    ///
    /// # Errors
    /// The device's.
    pub fn measure(
        &mut self,
        effort: &Effort,
        progress: &mut dyn FnMut(&Cell<ProductChoice>),
    ) -> Result<Vec<Cell<ProductChoice>>, Error> {
        let mut cells = Vec::new();
        for &rows in &effort.rows {
            let candidates = self.cuda.choices(self.shape, rows);
            let first_form = forms(candidates.len());
            // There is room for the laps of one number of rows, and none will come again.
            self.cuda.forget_steps();
            // A lap runs as it comes, is recorded, and is replayed from then on: only that is what is timed.
            for (form, &choice) in (first_form..).zip(&candidates) {
                (0..2).for_each(|_| self.lap(form, choice, rows));
            }
            let turns = race(&vec![(); candidates.len()], effort.turns, None, |index| {
                let device = self.cuda.device().clone();
                let lap = seconds(&*device, &mut || {
                    self.lap(first_form + index as u64, candidates[index], rows);
                    Ok(())
                })?;
                Ok::<f64, Error>(lap / self.ring.len() as f64)
            })?;
            let costs = candidates.into_iter().zip(turns.iter().map(|turns| quantile(turns, 0.5))).collect();
            for cell in cells_of(self.shape, rows, costs) {
                progress(&cell);
                cells.push(cell);
            }
        }
        Ok(cells)
    }

    /// A product with each matrix.
    fn lap(&mut self, form: u64, choice: ProductChoice, rows: usize) {
        let GpuProducts { cuda, ring, x, out, .. } = self;
        cuda.force_choice(Some(choice));
        // A step of no sequences: products are told of none.
        let tables = StepTables::default();
        let inputs = StepInputs { tokens: &[], tables: &tables, logit_rows: &[] };
        cuda.step(inputs, Some(form), &mut |cuda| {
            for matrix in ring.iter() {
                cuda.linear(rows, x, matrix, None, out);
            }
        });
    }
}

/// Of all that was measured with so many rows: the cell of exact rows, and if there is more than those may have, the cell of others. Of
/// what exact rows may have that one has the fastest, and its rule is warpgroups where there are such.
fn cells_of(shape: Shape, rows: usize, costs: Vec<(ProductChoice, f64)>) -> Vec<Cell<ProductChoice>> {
    let (exact, mut others): (Vec<_>, Vec<_>) =
        costs.into_iter().partition(|(choice, _)| matches!(choice, ProductChoice::Tiles(_)));
    let exact = Cell { shape, activations: RowOrder::Exact, rows, costs: exact };
    if others.is_empty() {
        return vec![exact];
    }
    let place = usize::from(others[0].0 == ProductChoice::Warpgroups);
    others.insert(place, exact.best());
    vec![exact, Cell { shape, activations: RowOrder::ByRows, rows, costs: others }]
}

/// The choices of all cells.
pub fn product_tuning(cells: &[Cell<ProductChoice>]) -> ProductTuning {
    let mut tuning = ProductTuning::default();
    // A cell of exact rows has nothing else, unless a file was written by hand.
    let is_sound = |cell: &&Cell<ProductChoice>| {
        cell.activations == RowOrder::ByRows || matches!(cell.choice(), ProductChoice::Tiles(_))
    };
    let sound: Vec<Cell<ProductChoice>> = cells.iter().filter(is_sound).cloned().collect();
    crossings(&sound).for_each(|cell| tuning.set(cell.activations, cell.shape, cell.rows, cell.choice()));
    tuning
}

/// What exact rows cost: seconds of the cells that have both, by the choices for exact rows over those by the choices for others. None
/// where the device has nothing more for others.
pub fn price_of_exact_rows(cells: &[Cell<ProductChoice>]) -> Option<f64> {
    let chosen = |cell: &Cell<ProductChoice>| cell.cost(cell.choice()).unwrap_or(cell.costs[0].1);
    let both = cells.iter().filter(|cell| cell.activations == RowOrder::ByRows).filter_map(|by_rows| {
        let is_same = |cell: &&Cell<ProductChoice>| {
            (cell.activations, cell.shape, cell.rows) == (RowOrder::Exact, by_rows.shape, by_rows.rows)
        };
        cells.iter().find(is_same).map(|exact| (chosen(exact), chosen(by_rows)))
    });
    let (exact, by_rows) = both.fold((0.0, 0.0), |sums, cell| (sums.0 + cell.0, sums.1 + cell.1));
    (by_rows > 0.0).then(|| exact / by_rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::recorder;
    use std::sync::Arc;
    use taper_kernels::WeightType;
    use taper_kernels::cuda::{Kernel, TileChoice};

    const SHAPE: Shape = Shape { weight_type: WeightType::Q4_0, outputs: 48, inputs: 64 };

    #[test]
    fn every_candidate_is_launched_and_has_a_cost() {
        let cuda = Cuda::new(Arc::new(recorder())).unwrap();
        let effort = Effort { rows: vec![1, 9], turns: 2, turn_seconds: 0.0 };
        let mut products = GpuProducts::new(&cuda, SHAPE, 9).unwrap();
        cuda.device().take();
        let mut seen = 0;
        let cells = products.measure(&effort, &mut |_| seen += 1).unwrap();
        assert_eq!((cells.iter().map(|cell| cell.rows).collect::<Vec<_>>(), seen), (vec![1, 9], 2));
        for cell in &cells {
            let choices: Vec<ProductChoice> = cell.costs.iter().map(|&(choice, _)| choice).collect();
            let expected: Vec<ProductChoice> =
                TileChoice::candidates(cell.rows).into_iter().map(ProductChoice::Tiles).collect();
            assert_eq!((cell.activations, choices), (RowOrder::Exact, expected));
        }
        let launches = cuda.device().take();
        for kernel in [Kernel::GemmMmaQ4_0R8, Kernel::GemmMmaQ4_0R16, Kernel::GemmMmaQ4_0R32, Kernel::GemmMmaQ4_0R64] {
            assert!(launches.iter().any(|launch| launch.kernel == kernel), "{kernel:?}");
        }
    }

    #[test]
    fn only_crossings_are_kept_and_products_take_them() {
        let [few, many] = ["r8 x4", "r16 x2"].map(|name| ProductChoice::parse(name).unwrap());
        let cell = |rows, costs: [f64; 2]| Cell {
            shape: SHAPE,
            activations: RowOrder::Exact,
            rows,
            costs: [few, many].into_iter().zip(costs).collect(),
        };
        let tuning =
            product_tuning(&[cell(1, [1.0, 2.0]), cell(2, [1.0, 2.0]), cell(3, [2.0, 1.0]), cell(4, [2.0, 1.0])]);
        assert_eq!(
            [1, 2, 3, 100].map(|rows| ProductChoice::Tiles(tuning.tile_choice(SHAPE, rows))),
            [few, few, many, many]
        );

        let cuda = Cuda::new(Arc::new(recorder())).unwrap().with_tuning(tuning);
        let bytes = vec![0; 48 * 36];
        let data = MatrixData { weight_type: SHAPE.weight_type, rows: 48, cols: 64, bytes: &bytes };
        let (matrix, x) = (cuda.matrix(&[data]).unwrap(), cuda.buffer(4, 64).unwrap());
        let mut out = cuda.buffer(4, 48).unwrap();
        cuda.device().take();
        for rows in [2, 4] {
            cuda.linear(rows, &x, &matrix, None, &mut out);
        }
        let kernels: Vec<Kernel> = cuda.device().take().iter().map(|launch| launch.kernel).collect();
        assert_eq!(kernels, [Kernel::GemmMmaQ4_0R8, Kernel::GemmMmaQ4_0R16]);
    }

    #[test]
    fn rows_that_need_not_be_exact_have_cells_of_their_own_and_a_price() {
        let [fast, slow] = ["r64 x1", "r64 x2"].map(|name| ProductChoice::parse(name).unwrap());
        let (warpgroups, library) = (ProductChoice::Warpgroups, ProductChoice::Library(1));
        let only_tiles = cells_of(SHAPE, 8, vec![(slow, 4.0), (fast, 3.0)]);
        assert_eq!((only_tiles.len(), price_of_exact_rows(&only_tiles)), (1, None));

        let cells = cells_of(SHAPE, 64, vec![(slow, 4.0), (fast, 3.0), (warpgroups, 2.0), (library, 1.5)]);
        assert_eq!(cells[0].costs, [(slow, 4.0), (fast, 3.0)]);
        assert_eq!(
            (cells[1].activations, &cells[1].costs[..]),
            (RowOrder::ByRows, &[(warpgroups, 2.0), (fast, 3.0), (library, 1.5)][..])
        );
        assert_eq!(price_of_exact_rows(&cells), Some(2.0));
        let tuning = product_tuning(&cells);
        assert_eq!(tuning.choice_by_rows(SHAPE, 64), Some(library));
        assert_eq!(ProductChoice::Tiles(tuning.tile_choice(SHAPE, 64)), fast);

        let without_warpgroups = cells_of(SHAPE, 64, vec![(fast, 3.0), (library, 3.5)]);
        assert_eq!(without_warpgroups[1].costs, [(fast, 3.0), (library, 3.5)]);
        assert_eq!(price_of_exact_rows(&without_warpgroups), Some(1.0));
        let wrong = Cell { activations: RowOrder::Exact, ..cells[1].clone() };
        assert_eq!(product_tuning(&[wrong]), ProductTuning::default(), "a file that was written by hand");
    }
}
