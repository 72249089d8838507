//! The thirteen tensor types that run here, and the names of the ones that do not.

/// Storage type of a tensor, by GGUF's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
#[allow(missing_docs)] // the names are GGUF's own
pub enum DType {
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
}

impl DType {
    /// Every supported type, in the order of the documentation's tables.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
    ];

    /// The number that stands for this type in a file.
    pub fn type_id(self) -> u32 {
        match self {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Q4_0 => 2,
            DType::Q4_1 => 3,
            DType::Q5_0 => 6,
            DType::Q5_1 => 7,
            DType::Q8_0 => 8,
            DType::Q2_K => 10,
            DType::Q3_K => 11,
            DType::Q4_K => 12,
            DType::Q5_K => 13,
            DType::Q6_K => 14,
            DType::BF16 => 30,
        }
    }

    /// The supported type with this number, if there is one.
    pub fn from_type_id(id: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.type_id() == id)
    }

    /// The name as files and tools write it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q2_K => "Q2_K",
            DType::Q3_K => "Q3_K",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
        }
    }

    /// Elements in one block: 1 for float types, 32 or 256 for quantized ones.
    pub fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q2_K => 84,
            DType::Q3_K => 110,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
        }
    }

    /// Bytes of a row of `len` elements; `None` when that is not a whole number of blocks or overflows.
    pub fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// All names, for messages: `F32, F16, ...`.
    pub(crate) fn all_names() -> String {
        DType::ALL.map(DType::name).join(", ")
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What to call a type that does not run here. Ids and names are ggml's; the gaps are types it has removed.
pub(crate) fn unsupported_name(id: u32) -> String {
    let name = match id {
        4 => "Q4_2 (removed from the format)",
        5 => "Q4_3 (removed from the format)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed from the format)",
        32 => "Q4_0_4_8 (removed from the format)",
        33 => "Q4_0_8_8 (removed from the format)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed from the format)",
        37 => "IQ4_NL_4_8 (removed from the format)",
        38 => "IQ4_NL_8_8 (removed from the format)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return format!("number {id} (not known here: newer than this program, or the file is damaged)"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_again_by_its_number() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_type_id(dtype.type_id()), Some(dtype));
        }
        for id in [4, 5, 9, 15, 16, 29, 39, u32::MAX] {
            assert_eq!(DType::from_type_id(id), None, "{id}");
        }
    }

    #[test]
    fn no_supported_type_has_a_name_among_the_unsupported() {
        for dtype in DType::ALL {
            assert!(unsupported_name(dtype.type_id()).starts_with("number"), "{dtype}");
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(DType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(DType::Q4_0.row_bytes(63), None);
        assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    }
}
