//! Writes GGUF files, sound ones and, on request, unsound ones.
//!
//! The layout is described in the `header` module of the checkpoint crate. [`GgufBuilder::build_with_fields`] also tells
//! where every count, length, type and offset stands, so that a test can damage each of them on purpose.

use std::ops::Range;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the names are GGUF's own
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    /// Written as one byte, so that a test can write 2.
    Bool(u8),
    String(Vec<u8>),
    /// The number of the element kind, and the elements.
    Array(u32, Vec<Value>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// A kind that does not exist, and its bytes.
    Raw(u32, Vec<u8>),
}

impl Value {
    /// The number that stands for the kind in a file.
    pub fn kind(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(..) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
            Value::Raw(kind, _) => *kind,
        }
    }

    /// An array of strings.
    pub fn strings<S: AsRef<str>>(values: &[S]) -> Value {
        Value::Array(8, values.iter().map(|value| Value::String(value.as_ref().into())).collect())
    }
}

/// What a number in the header stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum FieldKind {
    Magic,
    Version,
    NumTensors,
    NumKeys,
    StringLen,
    ValueKind,
    ArrayKind,
    ArrayLen,
    Scalar,
    NumDims,
    Dim,
    TensorType,
    TensorOffset,
}

/// A number in the header: what it stands for and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What it stands for.
    pub kind: FieldKind,
    /// Its bytes in the file.
    pub bytes: Range<usize>,
}

/// Builds a file key by key and tensor by tensor.
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    version: u32,
    alignment: u64,
    keys: Vec<(Vec<u8>, Value)>,
    tensors: Vec<Tensor>,
    num_tensors: Option<u64>,
    num_keys: Option<u64>,
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    dims: Vec<u64>,
    type_id: u32,
    bytes: Vec<u8>,
    /// Where the file says the data is, when that is not where it is.
    offset: Option<u64>,
}

impl GgufBuilder {
    /// An empty file of this version (2 and 3 have the same layout).
    pub fn new(version: u32) -> GgufBuilder {
        GgufBuilder { version, alignment: 32, keys: Vec::new(), tensors: Vec::new(), num_tensors: None, num_keys: None }
    }

    /// Adds a key of any kind.
    #[must_use]
    pub fn value(mut self, key: &str, value: Value) -> GgufBuilder {
        self.keys.push((key.into(), value));
        self
    }

    /// Adds a key whose name need not be text.
    #[must_use]
    pub fn raw_key(mut self, key: &[u8], value: Value) -> GgufBuilder {
        self.keys.push((key.into(), value));
        self
    }

    /// Adds a string.
    #[must_use]
    pub fn string(self, key: &str, value: &str) -> GgufBuilder {
        self.value(key, Value::String(value.into()))
    }

    /// Adds a 32-bit unsigned integer.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> GgufBuilder {
        self.value(key, Value::U32(value))
    }

    /// Adds a 32-bit float.
    #[must_use]
    pub fn f32(self, key: &str, value: f32) -> GgufBuilder {
        self.value(key, Value::F32(value))
    }

    /// Adds a boolean.
    #[must_use]
    pub fn bool(self, key: &str, value: bool) -> GgufBuilder {
        self.value(key, Value::Bool(value.into()))
    }

    /// Adds an array of strings.
    #[must_use]
    pub fn strings<S: AsRef<str>>(self, key: &str, values: &[S]) -> GgufBuilder {
        self.value(key, Value::strings(values))
    }

    /// Adds an array of 32-bit signed integers.
    #[must_use]
    pub fn i32s(self, key: &str, values: &[i32]) -> GgufBuilder {
        self.value(key, Value::Array(5, values.iter().copied().map(Value::I32).collect()))
    }

    /// Adds an array of 32-bit floats.
    #[must_use]
    pub fn f32s(self, key: &str, values: &[f32]) -> GgufBuilder {
        self.value(key, Value::Array(6, values.iter().copied().map(Value::F32).collect()))
    }

    /// States this alignment and keeps to it. The default of 32 is not stated.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> GgufBuilder {
        self.alignment = alignment.into();
        self.u32("general.alignment", alignment)
    }

    /// Adds a tensor. `dims` as GGUF has them: the row length first.
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, bytes: Vec<u8>) -> GgufBuilder {
        self.tensors.push(Tensor { name: name.into(), dims: dims.into(), type_id, bytes, offset: None });
        self
    }

    /// Replaces a key's value, or adds the key.
    #[must_use]
    pub fn set(mut self, key: &str, value: Value) -> GgufBuilder {
        match self.keys.iter_mut().find(|(name, _)| name == key.as_bytes()) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.into(), value)),
        }
        self
    }

    /// Replaces the last elements of an array.
    #[must_use]
    pub fn set_last(self, key: &str, last: &[Value]) -> GgufBuilder {
        let found = self.keys().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
        let Some(Value::Array(kind, mut items)) = found else { panic!("{key} is no array") };
        let first = items.len() - last.len();
        items[first..].clone_from_slice(last);
        self.set(key, Value::Array(kind, items))
    }

    /// Leaves a key out.
    #[must_use]
    pub fn without(mut self, key: &str) -> GgufBuilder {
        self.keys.retain(|(name, _)| name != key.as_bytes());
        self
    }

    /// Leaves a tensor out.
    #[must_use]
    pub fn without_tensor(mut self, name: &str) -> GgufBuilder {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The keys so far and their values.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.keys.iter().filter_map(|(key, value)| Some((std::str::from_utf8(key).ok()?, value)))
    }

    /// The names and dimensions of the tensors so far.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[u64])> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dims.as_slice()))
    }

    /// Makes the file claim other dimensions for a tensor, over the same bytes.
    #[must_use]
    pub fn claim_dims(mut self, name: &str, dims: &[u64]) -> GgufBuilder {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tensor was added");
        tensor.dims = dims.into();
        self
    }

    /// Makes the file claim that the tensor added last lies elsewhere.
    #[must_use]
    pub fn at_offset(mut self, offset: u64) -> GgufBuilder {
        self.tensors.last_mut().expect("a tensor was added").offset = Some(offset);
        self
    }

    /// Makes the file claim another number of tensors than it has.
    #[must_use]
    pub fn claim_tensors(mut self, num: u64) -> GgufBuilder {
        self.num_tensors = Some(num);
        self
    }

    /// Makes the file claim another number of keys than it has.
    #[must_use]
    pub fn claim_keys(mut self, num: u64) -> GgufBuilder {
        self.num_keys = Some(num);
        self
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        self.build_with_fields().0
    }

    /// The file, and where the numbers of its header stand, in order.
    pub fn build_with_fields(&self) -> (Vec<u8>, Vec<Field>) {
        let mut out = Writer::default();
        out.field(FieldKind::Magic, b"GGUF");
        out.field(FieldKind::Version, &self.version.to_le_bytes());
        out.field(FieldKind::NumTensors, &self.num_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.field(FieldKind::NumKeys, &self.num_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.string(key);
            out.field(FieldKind::ValueKind, &value.kind().to_le_bytes());
            out.value(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.string(tensor.name.as_bytes());
            out.field(FieldKind::NumDims, &(tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                out.field(FieldKind::Dim, &dim.to_le_bytes());
            }
            out.field(FieldKind::TensorType, &tensor.type_id.to_le_bytes());
            out.field(FieldKind::TensorOffset, &tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += (tensor.bytes.len() as u64).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.pad(self.alignment);
            out.bytes.extend_from_slice(&tensor.bytes);
        }
        if !self.tensors.is_empty() {
            out.pad(self.alignment);
        }
        (out.bytes, out.fields)
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Writer {
    fn field(&mut self, kind: FieldKind, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.fields.push(Field { kind, bytes: start..self.bytes.len() });
    }

    fn string(&mut self, text: &[u8]) {
        self.field(FieldKind::StringLen, &(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text);
    }

    fn pad(&mut self, alignment: u64) {
        let len = self.bytes.len().next_multiple_of(alignment as usize);
        self.bytes.resize(len, 0);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(kind, elements) => {
                self.field(FieldKind::ArrayKind, &kind.to_le_bytes());
                self.field(FieldKind::ArrayLen, &(elements.len() as u64).to_le_bytes());
                for element in elements {
                    self.value(element);
                }
            }
            Value::Raw(_, bytes) => self.bytes.extend_from_slice(bytes),
            Value::U8(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::I8(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::U16(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::I16(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::U32(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::I32(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::F32(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::Bool(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::U64(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::I64(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
            Value::F64(v) => self.field(FieldKind::Scalar, &v.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_files_are_written_byte_for_byte() {
        let file = GgufBuilder::new(3).u32("k", 7).build();
        let expected = [
            &b"GGUF"[..],
            &[3, 0, 0, 0],
            &[0; 8],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            b"k",
            &[4, 0, 0, 0],
            &[7, 0, 0, 0],
        ];
        assert_eq!(file, expected.concat());
    }

    #[test]
    fn tensor_data_is_aligned() {
        let builder =
            GgufBuilder::new(3).alignment(64).tensor("a", &[3], 0, vec![1; 12]).tensor("b", &[1], 0, vec![2; 4]);
        let (file, fields) = builder.build_with_fields();
        assert_eq!(file.len() % 64, 0);
        let data = file.len() - 128;
        assert_eq!((&file[data..data + 12], &file[data + 64..data + 68]), (&[1; 12][..], &[2; 4][..]));
        let offsets: Vec<_> = fields.iter().filter(|field| field.kind == FieldKind::TensorOffset).collect();
        assert_eq!(file[offsets[1].bytes.clone()], 64u64.to_le_bytes());
    }
}
