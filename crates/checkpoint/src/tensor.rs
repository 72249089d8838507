//! One tensor of a mapped file.

use std::borrow::Cow;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;

use crate::DType;

/// A tensor as it is stored. The bytes live in the mapping and are read from disk when they are touched.
#[derive(Clone)]
pub struct TensorView<'a> {
    /// Name in the file, such as `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// Storage type.
    pub dtype: DType,
    /// Row-major shape: `[rows (outputs), columns (inputs)]`; one-dimensional tensors have `[n]`. Never empty, no zero.
    pub shape: Vec<usize>,
    /// The blocks, row after row: exactly as many bytes as shape and type make.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes() * self.dtype.block_len()
    }

    /// Elements of one row, the last dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Number of rows: all dimensions but the last.
    pub fn num_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The elements as float32, row-major. Expands the whole tensor: for norms, frequencies and tests, not for weights.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.num_elements());
        match self.dtype {
            DType::F32 => out.extend(words::<4>(self.bytes).map(f32::from_le_bytes)),
            DType::F16 => out.extend(words::<2>(self.bytes).map(|w| half::f16::from_le_bytes(w).to_f32())),
            DType::BF16 => out.extend(words::<2>(self.bytes).map(|w| half::bf16::from_le_bytes(w).to_f32())),
            DType::Q4_0 => decode(GgmlDType::Q4_0, self, &mut out),
            DType::Q4_1 => decode(GgmlDType::Q4_1, self, &mut out),
            DType::Q5_0 => decode(GgmlDType::Q5_0, self, &mut out),
            DType::Q5_1 => decode(GgmlDType::Q5_1, self, &mut out),
            DType::Q8_0 => decode(GgmlDType::Q8_0, self, &mut out),
            DType::Q2_K => decode(GgmlDType::Q2K, self, &mut out),
            DType::Q3_K => decode(GgmlDType::Q3K, self, &mut out),
            DType::Q4_K => decode(GgmlDType::Q4K, self, &mut out),
            DType::Q5_K => decode(GgmlDType::Q5K, self, &mut out),
            DType::Q6_K => decode(GgmlDType::Q6K, self, &mut out),
        }
        out
    }
}

impl std::fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{:?} ({} bytes)", self.name, self.dtype, self.shape, self.bytes.len())
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|word| word.try_into().expect("chunks_exact gives N bytes"))
}

/// Appends the decoded blocks. candle copies the blocks it decodes, so it gets them in pieces of bounded size.
fn decode(candle: GgmlDType, tensor: &TensorView<'_>, out: &mut Vec<f32>) {
    const BLOCKS_PER_PIECE: usize = 4096;
    let dtype = tensor.dtype;
    debug_assert_eq!((candle.block_size(), candle.type_size()), (dtype.block_len(), dtype.block_bytes()));
    for piece in tensor.bytes.chunks(BLOCKS_PER_PIECE * dtype.block_bytes()) {
        let num = piece.len() / dtype.block_bytes() * dtype.block_len();
        match candle.from_data(Cow::Borrowed(piece)).dequantize(num) {
            Ok(CpuStorage::F32(values)) => out.extend_from_slice(&values),
            other => unreachable!("candle decodes {candle:?} on the CPU to float32, not to {other:?}"),
        }
    }
}
