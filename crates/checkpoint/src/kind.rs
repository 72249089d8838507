//! The kinds of metadata values, by their numbers and sizes in a file.

/// The kinds of metadata values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    /// The kind that this number stands for in a file.
    pub(crate) fn from_id(id: u32) -> Option<Kind> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::String,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        KINDS.get(id as usize).copied()
    }

    /// Bytes of a value; the least for strings and arrays.
    pub(crate) fn len(self) -> u64 {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::String => 8,
            Kind::Array => 12,
        }
    }

    /// Integers of all widths.
    pub(crate) fn is_integer(self) -> bool {
        !matches!(self, Kind::F32 | Kind::F64 | Kind::Bool | Kind::String | Kind::Array)
    }
}
