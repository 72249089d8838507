//! What an instruction set provides for matrix products, and the task that its kernels are given.

use super::activations::{Digits, RowTarget, Words};
use super::format::Format;
use crate::WeightType;

/// The product of a few panels with one tile of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// The first panel, 64-byte aligned.
    pub(super) panels: *const u8,
    /// Distance between panels.
    pub(super) panel_bytes: usize,
    /// How many; their outputs lie side by side.
    pub(super) num_panels: usize,
    /// Inputs K.
    pub(super) cols: usize,
    /// Rows of the tile, 1 to `tile_rows`.
    pub(super) rows: usize,
    /// F32 and F16: the first row, rows `cols` apart.
    pub(super) x: *const f32,
    /// BF16: pairs of the tile, `[k / 4][rows][even, odd]`.
    pub(super) pairs: *const [u32; 2],
    /// Rows of the tile that `pairs` are of: more than `rows` where a kernel takes a part of it.
    pub(super) pair_rows: usize,
    /// Quantized types: digits of the tile, `[block][rows][high 32 | low 32]`.
    pub(super) digits: *const i8,
    /// Their words, `[block][rows]`; null where the table wants none.
    pub(super) words: *const Words,
    /// Their scales, `[block][rows]`.
    pub(super) scales: *const f32,
    /// Whether any row of a block has low digits that are not zero, `[block]`.
    pub(super) fine: *const u8,
    /// Their terms, `[block][rows][words]`.
    pub(super) terms: *const i32,
    /// The first output of the first row.
    pub(super) out: *mut f32,
    /// Distance between rows of the output.
    pub(super) out_stride: usize,
    /// Outputs that exist; fewer than 16 a panel at the end of a part.
    pub(super) outputs: usize,
    /// The bias of the first output; null where there is none.
    pub(super) bias: *const f32,
}

/// # Safety
/// The processor has the table's instruction set, and the pointers of the task are valid for what their fields say.
pub(crate) type Product = unsafe fn(&Task);

/// # Safety
/// The processor has the table's instruction set. (Memory is checked: the row is a slice, and so are the targets.)
pub(crate) type QuantizeRow = unsafe fn(&[f32], RowTarget<'_>);

/// How the matrix kernels of an instruction set come by words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfWords {
    /// Whether a tile of so many rows meets weights of a format as words.
    pub(super) wanted: fn(Format, usize) -> bool,
    /// Puts the digits of blocks together, those of a tile's rows at one place; the high ones alone unless they are fine.
    ///
    /// # Safety
    /// The processor has the table's instruction set.
    pub(super) put_together: unsafe fn(&[Digits], bool, &mut [Words]),
}

/// The matrix kernels of one instruction set.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// Quantizes one row of activations.
    pub(super) quantize: QuantizeRow,
    /// What makes words of digits, where there are kernels that multiply them.
    pub(super) of_words: Option<OfWords>,
    /// One product per weight type of files, in the order of [`WeightType::OF_FILES`].
    pub(super) products: [Product; WeightType::OF_FILES.len()],
    /// Rows that share one unpacking of a block.
    pub(super) tile_rows: usize,
    /// Panels handed to a kernel at once when there are several tiles, so that they stay in the first cache.
    pub(super) tile_panels: usize,
}

impl Kernels {
    /// Whether a tile of so many rows meets weights of a format as words.
    pub(super) fn want_words(&self, format: Format, rows: usize) -> bool {
        self.of_words.is_some_and(|of_words| (of_words.wanted)(format, rows))
    }

    pub(super) fn product(&self, weight_type: WeightType) -> Product {
        self.products[weight_type as usize]
    }
}

/// Instantiates a kernel for each weight type: `products!(module)` takes `module::quantized::<format>`,
/// `module::floats::<element>` and `module::bf16`.
macro_rules! products {
    ($module:ident) => {{
        use super::format;
        [
            $module::floats::<$module::F32> as super::kernels::Product,
            $module::floats::<$module::F16>,
            $module::bf16,
            $module::quantized::<format::Q4_0>,
            $module::quantized::<format::Q4_1>,
            $module::quantized::<format::Q5_0>,
            $module::quantized::<format::Q5_1>,
            $module::quantized::<format::Q8_0>,
            $module::quantized::<format::Q2_K>,
            $module::quantized::<format::Q3_K>,
            $module::quantized::<format::Q4_K>,
            $module::quantized::<format::Q5_K>,
            $module::quantized::<format::Q6_K>,
        ]
    }};
}
pub(super) use products;
