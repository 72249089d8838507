//! Products, alone and joined with the norm before them and the addition or gate after them, to the bits of the operations one by
//! one: with tiles by `kernels/cuda/gemm_mma.cu`, with a file's rows by `gemv.cu`. What goes to warpgroups or to the
//! vendor's library is never joined: of many rows, the operations around a product are a small part.

use super::buffer::{Buffer, Vector};
use super::choice::{ProductChoice, TileChoice};
use super::library;
use super::tiles::{PANEL, TiledType, shape};
use super::warpgroups::{LEAST_ROWS, Warpgroups};
use super::weights::{Matrix, PartView, RowKernels, Stored};
use super::{Cuda, FLOAT, int};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::{Backend, Norm};

const NULL: Argument = Argument::Pointer(DevicePtr(0));
/// What addresses of weights are multiples of.
const ALIGNMENT: usize = 16;

/// What becomes of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Epilogue {
    Store,
    Add,
    SiluMul,
}

/// One launch.
struct Product {
    rows: usize,
    cols: usize,
    x: Argument,
    /// Weights of a norm before the product, and its eps.
    norm: Option<(Argument, f32)>,
    epilogue: Epilogue,
}

/// Where the sums of a part go: its outputs, the bias of them, and the first of them in rows of a stride.
pub(super) struct Target {
    pub(super) num_outputs: usize,
    pub(super) bias: Argument,
    pub(super) out: Argument,
    pub(super) out_stride: usize,
}

/// What computes a product by itself, never joined with what is around it.
enum Alone<'a, D: Device> {
    Warpgroups(&'a Warpgroups<D>),
    /// By the number of its way.
    Library(u8),
}

/// What multiplies so many rows with a part by itself, if something does: as was measured, else warpgroups where they are.
fn alone<'a, D: Device>(cuda: &'a Cuda<D>, (rows, cols): (usize, usize), part: &PartView<'_>) -> Option<Alone<'a, D>> {
    let Stored::Tiles(tiled, _) = part.stored else { return None };
    let warpgroups = || cuda.warpgroups.as_deref().filter(|_| tiled.has_warpgroups && rows >= LEAST_ROWS);
    match cuda.forced.or_else(|| part.measured.by_rows(rows)) {
        Some(ProductChoice::Tiles(_)) => None,
        Some(ProductChoice::Library(way)) if cuda.has_library && library::has(tiled, cols) => Some(Alone::Library(way)),
        Some(ProductChoice::Warpgroups | ProductChoice::Library(_)) | None => warpgroups().map(Alone::Warpgroups),
    }
}

/// Whether some part of a matrix is multiplied so.
fn has_part_alone<D: Device>(cuda: &Cuda<D>, rows: usize, matrix: &Matrix<D>) -> bool {
    matrix.parts().any(|part| alone(cuda, (rows, matrix.cols), &part).is_some())
}

impl Product {
    fn new<D: Device>(rows: usize, x: &Buffer<D>, cols: usize, epilogue: Epilogue) -> Product {
        assert_eq!(x.cols(), cols, "[rows, K] times [N, K] is [rows, N]");
        Product { rows, cols, x: x.rows(rows), norm: None, epilogue }
    }

    fn after<D: Device>(rows: usize, norm: &Norm<'_, Cuda<D>>, cols: usize, epilogue: Epilogue) -> Product {
        let weights = (norm.weight.elements(cols), norm.eps);
        Product { norm: Some(weights), ..Product::new(rows, norm.x, cols, epilogue) }
    }

    /// # Safety
    /// x has `rows` rows of `cols` elements, the target as many of its stride, of which the part has `num_outputs` from `out` on; the
    /// weights of a norm are `cols`; `up` is null or, under the gate, as many rows in the part's layout; the bias is null or one
    /// element for each output.
    unsafe fn launch<D: Device>(&self, cuda: &Cuda<D>, part: &PartView<'_>, up: Argument, to: &Target) {
        let passes = if self.epilogue == Epilogue::Add { 2 } else { 1 };
        let bytes = part.len + self.rows * (self.cols + passes * to.num_outputs) * FLOAT;
        let (size, is_alone) = ((self.rows, self.cols), self.norm.is_none() && self.epilogue == Epilogue::Store);
        match alone(cuda, size, part).filter(|_| is_alone) {
            Some(Alone::Warpgroups(warpgroups)) => {
                // SAFETY: the caller's obligation; the part is tiles of bf16.
                return unsafe { warpgroups.launch(cuda, size, self.x, part.bytes, to, bytes) };
            }
            // SAFETY: the caller's obligation; `alone` has seen that there is a library. Outputs and bias of a part begin at the same
            // element, so that one is aligned as the other.
            Some(Alone::Library(way)) if unsafe { library::multiply(cuda, size, self.x, part, to, way) } => return,
            // Where the library has no such product, tiles multiply.
            Some(Alone::Library(_)) | None => {}
        }
        // SAFETY: the caller's obligation; the part is in the layout of its kernels.
        unsafe {
            match part.stored {
                Stored::Tiles(tiled, _) => {
                    let choice = match cuda.forced {
                        Some(ProductChoice::Tiles(choice)) => choice,
                        _ => part.measured.tiles(self.rows),
                    };
                    self.with_tiles(cuda, (tiled, choice), (part.bytes, up), to, bytes);
                }
                Stored::Rows(kernels) => self.with_rows(cuda, kernels, (part.bytes, up), to, bytes),
            }
        }
    }

    /// # Safety
    /// As [`Product::launch`], with tiles.
    unsafe fn with_tiles<D: Device>(
        &self,
        cuda: &Cuda<D>,
        (tiled, choice): (TiledType, TileChoice),
        (matrix, up): (Argument, Argument),
        to: &Target,
        bytes: usize,
    ) {
        let &Product { rows, cols, x, norm, epilogue } = self;
        let (norm_weight, eps) = norm.unwrap_or((NULL, 0.0));
        let is_gated = epilogue == Epilogue::SiluMul;
        let shape = shape(cuda.device.properties(), tiled, rows, (to.num_outputs, cols), is_gated, choice);
        let arguments = [
            x,
            matrix,
            up,
            to.bias,
            norm_weight,
            to.out,
            int(rows),
            int(to.num_outputs),
            int(cols),
            int(to.out_stride),
            Argument::I32((epilogue == Epilogue::Add).into()),
            int(shape.piece),
            Argument::F32(eps),
        ];
        // SAFETY: the caller's obligation; columns are even and whole blocks where there are tiles; `shape` keeps the contract for
        // grid, pieces and shared memory.
        unsafe { cuda.launch_with_shared(shape.kernel, shape.grid, (256, shape.shared_bytes), &arguments, bytes) };
    }

    /// # Safety
    /// As [`Product::launch`], with a file's rows.
    unsafe fn with_rows<D: Device>(
        &self,
        cuda: &Cuda<D>,
        kernels: RowKernels,
        (matrix, up): (Argument, Argument),
        to: &Target,
        bytes: usize,
    ) {
        let &Product { rows, cols, x, norm, epilogue } = self;
        let &Target { num_outputs, bias, out, out_stride } = to;
        let (norm_weight, eps) = norm.unwrap_or((NULL, 0.0));
        let arguments = [
            x,
            norm_weight,
            matrix,
            up,
            bias,
            out,
            int(rows),
            int(num_outputs),
            int(cols),
            int(out_stride),
            Argument::F32(eps),
            Argument::I32(epilogue as i32),
        ];
        let is_gated = epilogue == Epilogue::SiluMul;
        let grid = [num_outputs.div_ceil(if is_gated { 8 } else { 16 }), rows.div_ceil(4), 1];
        // SAFETY: the caller's obligation; weights are aligned to 256 bytes, `up` as its maker has made sure.
        unsafe { cuda.launch(kernels.gemv, grid, 256, &arguments, bytes) };
    }

    /// All parts of a matrix, side by side.
    fn launch_parts<D: Device>(
        &self,
        cuda: &Cuda<D>,
        matrix: &Matrix<D>,
        bias: Option<&Vector<D>>,
        out: &mut Buffer<D>,
    ) {
        let num_outputs = matrix.num_rows();
        assert_eq!(out.cols(), num_outputs, "[rows, K] times [N, K] is [rows, N]");
        let bias = bias.map(|bias| bias.elements(num_outputs));
        for part in matrix.parts() {
            let to = Target {
                num_outputs: part.rows,
                bias: bias.map_or(NULL, |bias| bias.at(part.first * FLOAT)),
                out: out.rows(self.rows).at(part.first * FLOAT),
                out_stride: num_outputs,
            };
            // SAFETY: widths were asserted, here and where the product was made; the part has its outputs from `first` on, as the bias
            // has.
            unsafe { self.launch(cuda, &part, NULL, &to) };
        }
    }
}

pub(super) fn linear<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    x: &Buffer<D>,
    matrix: &Matrix<D>,
    bias: Option<&Vector<D>>,
    out: &mut Buffer<D>,
) {
    Product::new(rows, x, matrix.cols, Epilogue::Store).launch_parts(cuda, matrix, bias, out);
}

pub(super) fn norm_linear<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    norm: &mut Norm<'_, Cuda<D>>,
    matrix: &Matrix<D>,
    bias: Option<&Vector<D>>,
    out: &mut Buffer<D>,
) {
    if has_part_alone(cuda, rows, matrix) {
        cuda.rms_norm(rows, norm.x, norm.weight, norm.eps, norm.normed);
        return linear(cuda, rows, norm.normed, matrix, bias, out);
    }
    Product::after(rows, norm, matrix.cols, Epilogue::Store).launch_parts(cuda, matrix, bias, out);
}

pub(super) fn linear_add<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    x: &Buffer<D>,
    matrix: &Matrix<D>,
    delta: &mut Buffer<D>,
    residual: &mut Buffer<D>,
) {
    if has_part_alone(cuda, rows, matrix) {
        linear(cuda, rows, x, matrix, None, delta);
        return cuda.add(rows, residual, delta);
    }
    Product::new(rows, x, matrix.cols, Epilogue::Add).launch_parts(cuda, matrix, None, residual);
}

pub(super) fn norm_linear_silu_mul<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    norm: &mut Norm<'_, Cuda<D>>,
    matrix: &Matrix<D>,
    gate_up: &mut Buffer<D>,
    out: &mut Buffer<D>,
) {
    let half = out.cols();
    assert_eq!(matrix.num_rows(), 2 * half, "a gate and an up for each output");
    let joined = matrix.only_part().filter(|part| alone(cuda, (rows, matrix.cols), part).is_none());
    let Some((part, up)) = joined.and_then(|part| up_of(&part, half).map(|up| (part, up))) else {
        // Gate and up of two types, up does not begin where a kernel could, or something multiplies by itself.
        cuda.rms_norm(rows, norm.x, norm.weight, norm.eps, norm.normed);
        cuda.linear(rows, norm.normed, matrix, None, gate_up);
        return cuda.silu_mul(rows, gate_up, out);
    };
    let product = Product::after(rows, norm, matrix.cols, Epilogue::SiluMul);
    let to = Target { num_outputs: half, bias: NULL, out: out.rows(rows), out_stride: half };
    // SAFETY: widths were just asserted; the matrix is `half` rows of gate, then as many of up.
    unsafe { product.launch(cuda, &part, up, &to) };
}

/// Where up begins behind `half` rows of gate: at a panel of its own, or an address that kernels can read from.
fn up_of(part: &PartView<'_>, half: usize) -> Option<Argument> {
    let (is_there, bytes) = match part.stored {
        Stored::Tiles(_, panel_bytes) => (half.is_multiple_of(PANEL), half / PANEL * panel_bytes),
        Stored::Rows(_) => ((half * part.row_bytes).is_multiple_of(ALIGNMENT), half * part.row_bytes),
    };
    is_there.then(|| part.bytes.at(bytes))
}
