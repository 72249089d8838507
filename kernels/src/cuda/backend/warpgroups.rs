//! Products of many rows with tiles of bf16 on the tensor cores of compute capability 9.0 (`kernels/cuda/gemm_wgmma.cu`). They sum in
//! another order than the kernels for fewer rows, so they are used only where that is allowed ([`Cuda::with_exact_rows`]). The tiles
//! are those of `gemm_mma.cu`.

use super::buffer::{alone, zeros};
use super::fused::Target;
use super::{Cuda, int};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;

/// Fewer rows than this leave most of a product of these tensor cores unused.
pub(super) const LEAST_ROWS: usize = 16;

/// One of the kernels: the table in the head of its file.
struct Form {
    kernel: Kernel,
    rows: usize,
    stages: usize,
}

const FORMS: [Form; 4] = [
    Form { kernel: Kernel::GemmWgmmaBf16Rows16, rows: 16, stages: 6 },
    Form { kernel: Kernel::GemmWgmmaBf16Rows32, rows: 32, stages: 5 },
    Form { kernel: Kernel::GemmWgmmaBf16Rows64, rows: 64, stages: 8 },
    Form { kernel: Kernel::GemmWgmmaBf16Rows128, rows: 128, stages: 6 },
];
/// Warpgroups of a block that multiply, the outputs of each, and the threads of all with those that bring weights and x.
const GROUPS: usize = 2;
const OUTPUTS: usize = 64;
const THREADS: u32 = 384;
/// Runs of k that several blocks may compute, and how many columns there are at least then.
const SEGMENTS: usize = 4;
const STAGE_COLS: usize = 64;
const LEAST_STAGES_OF_SEGMENTS: usize = 16;

impl Form {
    fn shared_bytes(&self) -> usize {
        self.stages * (128 * self.rows + 8192 * GROUPS + 16)
    }
}

/// How a product is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    kernel: Kernel,
    grid: [usize; 3],
    shared_bytes: usize,
}

/// Tiles of outputs and rows whose runs of k have a block each, at most: with more, a block for each tile fills the machine.
fn most_split_tiles(multiprocessors: usize) -> usize {
    (multiprocessors / 2).max(1)
}

/// The kernel is the one with the fewest rows a block that has them all; no bit depends on which, nor on how runs of k are spread.
fn shape(multiprocessors: usize, rows: usize, (num_outputs, cols): (usize, usize)) -> Shape {
    let form = FORMS.iter().find(|form| rows <= form.rows).unwrap_or(&FORMS[FORMS.len() - 1]);
    let [x, y] = [num_outputs.div_ceil(GROUPS * OUTPUTS), rows.div_ceil(form.rows)];
    let may_split = cols.div_ceil(STAGE_COLS) >= LEAST_STAGES_OF_SEGMENTS;
    let z = if may_split && x * y <= most_split_tiles(multiprocessors) { SEGMENTS } else { 1 };
    Shape { kernel: form.kernel, grid: [x, y, z], shared_bytes: form.shared_bytes() }
}

/// Memory of the products; launches of one stream use it one after the other.
pub(super) struct Warpgroups<D: Device> {
    /// Sums of runs of k.
    partial: Memory<D, f32>,
    /// Zeros, of a tile each, before and after every launch.
    tickets: Memory<D, u32>,
}

impl<D: Device> Warpgroups<D> {
    /// None where there are no such tensor cores: elsewhere kernels have nothing in them, as a small product shows. That is asked
    /// rather than a number of the device, for code that a driver has made of PTX is as empty.
    pub(super) fn new(cuda: &Cuda<D>) -> Result<Option<Warpgroups<D>>, DeviceError> {
        let (heap, properties) = (&cuda.heap, cuda.device.properties());
        let asked = FORMS.iter().map(Form::shared_bytes).max().unwrap_or_default();
        if (properties.shared_bytes_per_block as usize) < asked {
            return Ok(None);
        }
        let tiles = most_split_tiles(properties.multiprocessors as usize);
        let outputs_and_rows = GROUPS * OUTPUTS * FORMS[FORMS.len() - 1].rows;
        let warpgroups = Warpgroups {
            partial: zeros(heap, "sums of products", tiles * SEGMENTS * outputs_and_rows)?,
            tickets: zeros(heap, "counters of products", tiles)?,
        };
        Ok(warpgroups.multiply_ones(cuda)?.then_some(warpgroups))
    }

    /// Whether there are kernels at all: a product of ones is none where they are empty. Whether they are right `taper selftest` says.
    fn multiply_ones(&self, cuda: &Cuda<D>) -> Result<bool, DeviceError> {
        const SIDE: usize = 16;
        let mut x = alone(&cuda.device, "ones", SIDE * SIDE)?;
        let mut matrix = alone(&cuda.device, "ones", 2 * SIDE * SIDE)?;
        let out: Memory<D, f32> = alone(&cuda.device, "their product", SIDE * SIDE)?;
        x.write(0, &[1.0_f32; SIDE * SIDE])?;
        matrix.write(0, &0x3f80_u16.to_le_bytes().repeat(SIDE * SIDE))?;
        let [of_x, of_matrix, of_out] = [x.address(), matrix.address(), out.address()].map(Argument::Pointer);
        let to = Target { num_outputs: SIDE, bias: Argument::Pointer(DevicePtr(0)), out: of_out, out_stride: SIDE };
        // SAFETY: x, the tile and the sums are 16 x 16.
        unsafe { self.launch(cuda, (SIDE, SIDE), of_x, of_matrix, &to, 0) };
        let mut sums = vec![0.0; SIDE * SIDE];
        out.read(0, &mut sums)?;
        Ok(sums.iter().all(|&sum| sum == SIDE as f32))
    }

    /// # Safety
    /// x has `rows` rows of `cols` elements, the matrix `num_outputs` rows of as many as tiles of bf16, the target `rows` rows of
    /// its stride, of which the product has `num_outputs` from `out` on; the bias is null or one element for each output.
    pub(super) unsafe fn launch(
        &self,
        cuda: &Cuda<D>,
        (rows, cols): (usize, usize),
        x: Argument,
        matrix: Argument,
        to: &Target,
        bytes: usize,
    ) {
        let shape = shape(cuda.device.properties().multiprocessors as usize, rows, (to.num_outputs, cols));
        let [partial, tickets] = [self.partial.address(), self.tickets.address()].map(Argument::Pointer);
        let of_sizes = [int(rows), int(to.num_outputs), int(cols), int(to.out_stride)];
        let [rows, num_outputs, cols, out_stride] = of_sizes;
        let arguments = [x, matrix, to.bias, to.out, partial, tickets, rows, num_outputs, cols, out_stride];
        // SAFETY: the caller's obligation; `shape` keeps the contract for grid and shared memory, and splits no more tiles than
        // there is memory for; memory is aligned to 256 bytes.
        unsafe { cuda.launch_with_shared(shape.kernel, shape.grid, (THREADS, shape.shared_bytes), &arguments, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_choose_the_kernel_and_few_tiles_are_split() {
        let of = |rows, matrix| {
            let shape = shape(132, rows, matrix);
            (shape.kernel, shape.grid, shape.shared_bytes)
        };
        assert_eq!(of(16, (4096, 4096)), (Kernel::GemmWgmmaBf16Rows16, [32, 1, 4], 110_688));
        assert_eq!(of(17, (4096, 4096)), (Kernel::GemmWgmmaBf16Rows32, [32, 1, 4], 102_480));
        assert_eq!(of(64, (8448, 961)), (Kernel::GemmWgmmaBf16Rows64, [66, 1, 4], 196_736));
        assert_eq!(of(64, (8449, 961)).1, [67, 1, 1], "a block for each tile fills the machine");
        assert_eq!(of(64, (100, 960)).1, [1, 1, 1], "too few columns");
        assert_eq!(of(512, (4096, 4096)), (Kernel::GemmWgmmaBf16Rows128, [32, 4, 1], 196_704));
        assert_eq!(shape(1, 200, (100, 4096)).grid, [1, 2, 1]);
    }
}
