//! How a weight matrix is stored: row by row, each row a whole number of blocks. The layouts are GGUF's, but for one of our own.

/// Storage type of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
#[allow(missing_docs)] // the names are GGUF's own
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    /// Floats of eight bits, e4m3, with a float16 scale for each 32: no file's type, but what a network's matrices become where that is
    /// asked for ([`quantize_rows`](crate::reference::quantize::quantize_rows)).
    F8E4M3,
}

impl WeightType {
    /// Every type, in the order of the documentation's tables.
    pub const ALL: [WeightType; 14] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q2_K,
        WeightType::Q3_K,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
        WeightType::F8E4M3,
    ];

    /// Those that files have, in the same order: every one but the last.
    pub const OF_FILES: [WeightType; 13] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q2_K,
        WeightType::Q3_K,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
    ];

    /// Elements in one block: 1 for float types, 32 or 256 for quantized ones.
    pub fn block_len(self) -> usize {
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => 1,
            WeightType::Q4_0
            | WeightType::Q4_1
            | WeightType::Q5_0
            | WeightType::Q5_1
            | WeightType::Q8_0
            | WeightType::F8E4M3 => 32,
            _ => 256,
        }
    }

    /// Bytes of one block as GGUF stores it (sizes from ggml's block structs), or as it comes out of quantizing.
    pub fn block_bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::BF16 => 2,
            WeightType::Q4_0 => 18,
            WeightType::Q4_1 => 20,
            WeightType::Q5_0 => 22,
            WeightType::Q5_1 => 24,
            WeightType::Q8_0 => 34,
            WeightType::Q2_K => 84,
            WeightType::Q3_K => 110,
            WeightType::Q4_K => 144,
            WeightType::Q5_K => 176,
            WeightType::Q6_K => 210,
            WeightType::F8E4M3 => 34,
        }
    }

    /// Bytes of one row of `k` elements; `None` when `k` is not a whole number of blocks or the product overflows.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        if !k.is_multiple_of(self.block_len()) {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }
}
