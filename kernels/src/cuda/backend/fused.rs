//! Products joined with the norm before them and the addition or gate after them (`kernels/cuda/gemv_fused.cu`), to the bits of
//! the operations one by one.

use super::buffer::{Buffer, Matrix, PartView, Vector};
use super::{Cuda, FLOAT, int, kernels_of};
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
    /// Weights of a norm before the product.
    norm_weight: Argument,
    eps: f32,
    epilogue: Epilogue,
}

impl Product {
    /// # Safety
    /// x has `rows` rows of `cols` elements, `out` points into as many rows of `out_stride` elements, of which the part has
    /// `num_outputs` from there on; the weights of a norm are null or `cols`; `up` is null or, under the gate, as many rows of the part's type; the bias is null
    /// or one element for each output.
    unsafe fn launch<D: Device>(
        &self,
        cuda: &Cuda<D>,
        part: &PartView,
        (num_outputs, up, bias): (usize, Argument, Argument),
        (out, out_stride): (Argument, usize),
    ) {
        let &Product { rows, cols, x, norm_weight, eps, epilogue } = self;
        let arguments = [
            x,
            norm_weight,
            part.bytes,
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
        let passes = if epilogue == Epilogue::Add { 2 } else { 1 };
        let bytes = part.rows * part.row_bytes + rows * (cols + passes * num_outputs) * FLOAT;
        // SAFETY: the caller's obligation; weights are aligned to 256 bytes, `up` as its maker has asserted.
        unsafe { cuda.launch(kernels_of(part.weight_type).gemv_fused, grid, 256, &arguments, bytes) };
    }
}

fn normed<D: Device>(rows: usize, norm: &Norm<'_, Cuda<D>>, cols: usize, epilogue: Epilogue) -> Product {
    assert_eq!(norm.x.cols(), cols, "the input is as wide as the matrix");
    Product { rows, cols, x: norm.x.rows(rows), norm_weight: norm.weight.elements(cols), eps: norm.eps, epilogue }
}

pub(super) fn norm_linear<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    norm: &Norm<'_, Cuda<D>>,
    matrix: &Matrix<D>,
    bias: Option<&Vector<D>>,
    out: &mut Buffer<D>,
) {
    let num_outputs = matrix.num_rows();
    assert_eq!(out.cols(), num_outputs, "[rows, K] times [N, K] is [rows, N]");
    let product = normed(rows, norm, matrix.cols, Epilogue::Store);
    let bias = bias.map(|bias| bias.elements(num_outputs));
    for part in matrix.parts() {
        let bias = bias.map_or(NULL, |bias| bias.at(part.first * FLOAT));
        let out = out.rows(rows).at(part.first * FLOAT);
        // SAFETY: widths were just asserted; the part has its outputs from `first` on, as the bias has.
        unsafe { product.launch(cuda, &part, (part.rows, NULL, bias), (out, num_outputs)) };
    }
}

pub(super) fn linear_add<D: Device>(
    cuda: &Cuda<D>,
    rows: usize,
    x: &Buffer<D>,
    matrix: &Matrix<D>,
    residual: &mut Buffer<D>,
) {
    let (cols, num_outputs) = (matrix.cols, matrix.num_rows());
    assert_eq!((x.cols(), residual.cols()), (cols, num_outputs), "[rows, K] times [N, K] is [rows, N]");
    let product = Product { rows, cols, x: x.rows(rows), norm_weight: NULL, eps: 0.0, epilogue: Epilogue::Add };
    for part in matrix.parts() {
        let out = residual.rows(rows).at(part.first * FLOAT);
        // SAFETY: widths were just asserted; the part has its outputs from `first` on.
        unsafe { product.launch(cuda, &part, (part.rows, NULL, NULL), (out, num_outputs)) };
    }
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
    let one = matrix.only_part().filter(|part| (half * part.row_bytes).is_multiple_of(ALIGNMENT));
    let Some(part) = one else {
        // Gate and up of two types.
        cuda.rms_norm(rows, norm.x, norm.weight, norm.eps, norm.normed);
        cuda.linear(rows, norm.normed, matrix, None, gate_up);
        return cuda.silu_mul(rows, gate_up, out);
    };
    let product = normed(rows, norm, matrix.cols, Epilogue::SiluMul);
    let up = part.bytes.at(half * part.row_bytes);
    // SAFETY: widths were just asserted; the matrix is `half` rows of gate, then as many of up.
    unsafe { product.launch(cuda, &part, (half, up, NULL), (out.rows(rows), half)) };
}
