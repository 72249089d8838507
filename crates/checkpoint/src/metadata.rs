//! The key-value part of the file, asked for by type.
//!
//! Absent keys are `None`; a key of another type is an error that names it. Integers of every width answer to
//! [`Metadata::u32`] and friends when the value fits, because writers disagree about widths.

use std::collections::BTreeMap;

use candle_core::quantized::gguf_file::Value as CandleValue;

use crate::Error;
use crate::error::quoted;
use crate::value::{Value, convert};

/// Typed access to a file's metadata.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Takes over what candle read; each of its arrays is freed as soon as it is copied.
    pub(crate) fn from_candle(values: impl IntoIterator<Item = (String, CandleValue)>) -> Result<Metadata, Error> {
        let values = values.into_iter().map(|(key, value)| {
            let value = convert(value).map_err(|reason| Error::BadKey { key: quoted(key.as_bytes()), reason })?;
            Ok((key, value))
        });
        Ok(Metadata { values: values.collect::<Result<_, Error>>()? })
    }

    /// The model's architecture, `general.architecture`.
    pub fn architecture(&self) -> Result<&str, Error> {
        self.require_string("general.architecture")
    }

    /// Whether the key is in the file, of whatever type.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        self.get(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any width that fits into `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.int(key).and_then(|value| value.map(|value| fit(key, value)).transpose())
    }

    /// An integer of any width that fits into `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.int(key).and_then(|value| value.map(|value| fit(key, value)).transpose())
    }

    /// A float of any width.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.get(key, "a float", |value| match value {
            Value::Float(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// A float or an integer of any width.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        self.get(key, "a number", |value| match value {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An array of strings. Bytes that are not UTF-8 have become U+FFFD.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.get(key, "an array of strings", |value| match value {
            Value::Strings(texts) => Some(texts.as_slice()),
            Value::Empty => Some(&[]),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        self.get(key, "an array of floats", |value| match value {
            Value::Floats(numbers) => Some(numbers.as_slice()),
            Value::Empty => Some(&[]),
            _ => None,
        })
    }

    /// An array of booleans.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.get(key, "an array of booleans", |value| match value {
            Value::Bools(flags) => Some(flags.as_slice()),
            Value::Empty => Some(&[]),
            _ => None,
        })
    }

    /// An array of integers, each of which fits into `i32`.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        let ints = self.get(key, "an array of integers", |value| match value {
            Value::Ints(numbers) => Some(numbers.as_slice()),
            Value::Empty => Some(&[]),
            _ => None,
        })?;
        ints.map(|ints| ints.iter().map(|&value| fit(key, value)).collect()).transpose()
    }

    /// Integers that fit into `u32`: an array, or a single number as an array of one.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        let ints = self.get(key, "an integer or an array of integers", |value| match value {
            Value::Int(number) => Some(vec![*number]),
            Value::Ints(numbers) => Some(numbers.iter().map(|&number| i128::from(number)).collect()),
            Value::Empty => Some(Vec::new()),
            _ => None,
        })?;
        ints.map(|ints| ints.into_iter().map(|value| fit(key, value)).collect()).transpose()
    }

    /// [`Metadata::string`], an error when absent.
    pub fn require_string(&self, key: &str) -> Result<&str, Error> {
        required(key, self.string(key))
    }

    /// [`Metadata::u32`], an error when absent.
    pub fn require_u32(&self, key: &str) -> Result<u32, Error> {
        required(key, self.u32(key))
    }

    /// [`Metadata::u64`], an error when absent.
    pub fn require_u64(&self, key: &str) -> Result<u64, Error> {
        required(key, self.u64(key))
    }

    /// [`Metadata::f32`], an error when absent.
    pub fn require_f32(&self, key: &str) -> Result<f32, Error> {
        required(key, self.f32(key))
    }

    /// [`Metadata::bool`], an error when absent.
    pub fn require_bool(&self, key: &str) -> Result<bool, Error> {
        required(key, self.bool(key))
    }

    /// [`Metadata::strings`], an error when absent.
    pub fn require_strings(&self, key: &str) -> Result<&[String], Error> {
        required(key, self.strings(key))
    }

    /// [`Metadata::f32s`], an error when absent.
    pub fn require_f32s(&self, key: &str) -> Result<&[f32], Error> {
        required(key, self.f32s(key))
    }

    /// [`Metadata::i32s`], an error when absent.
    pub fn require_i32s(&self, key: &str) -> Result<Vec<i32>, Error> {
        required(key, self.i32s(key))
    }

    /// [`Metadata::u32s`], an error when absent.
    pub fn require_u32s(&self, key: &str) -> Result<Vec<u32>, Error> {
        required(key, self.u32s(key))
    }

    fn int(&self, key: &str) -> Result<Option<i128>, Error> {
        self.get(key, "an integer", |value| match value {
            Value::Int(number) => Some(*number),
            _ => None,
        })
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(Error::WrongKeyType { key: quoted(key.as_bytes()), expected, found: value.kind() }),
        }
    }
}

fn required<T>(key: &str, value: Result<Option<T>, Error>) -> Result<T, Error> {
    value?.ok_or_else(|| Error::MissingKey { key: quoted(key.as_bytes()) })
}

fn fit<F: Copy + std::fmt::Display, T: TryFrom<F>>(key: &str, value: F) -> Result<T, Error> {
    T::try_from(value).map_err(|_| Error::BadKey {
        key: quoted(key.as_bytes()),
        reason: format!("{value} is outside the range of {}", std::any::type_name::<T>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(value: CandleValue) -> Metadata {
        Metadata::from_candle([("k".to_owned(), value)]).unwrap()
    }

    #[test]
    fn absent_keys_are_none_and_required_ones_are_named() {
        let empty = Metadata::default();
        assert_eq!(empty.u32("k").unwrap(), None);
        assert_eq!(empty.string("k").unwrap(), None);
        assert!(!empty.contains("k"));
        let error = empty.require_f32s("llama.thing").unwrap_err().to_string();
        assert!(error.contains("llama.thing") && error.contains("missing"), "{error}");
    }

    #[test]
    fn integers_of_every_width_fit_or_say_that_they_do_not() {
        for value in [
            CandleValue::U8(7),
            CandleValue::I8(7),
            CandleValue::U16(7),
            CandleValue::I16(7),
            CandleValue::U32(7),
            CandleValue::I32(7),
            CandleValue::U64(7),
            CandleValue::I64(7),
        ] {
            let metadata = metadata(value);
            assert_eq!(metadata.require_u32("k").unwrap(), 7);
            assert_eq!(metadata.require_u32s("k").unwrap(), [7]);
        }
        for value in [CandleValue::I32(-1), CandleValue::U64(1 << 32)] {
            let error = metadata(value).u32("k").unwrap_err();
            assert!(matches!(error, Error::BadKey { .. }), "{error}");
        }
        assert_eq!(metadata(CandleValue::U64(u64::MAX)).require_u64("k").unwrap(), u64::MAX);
    }

    #[test]
    fn a_number_may_be_of_any_kind() {
        for (value, expected) in [
            (CandleValue::F32(0.5), 0.5),
            (CandleValue::F64(-0.1), -0.1),
            (CandleValue::I32(-1), -1.0),
            (CandleValue::U64(40), 40.0),
        ] {
            assert_eq!(metadata(value).f64("k").unwrap(), Some(expected));
        }
        let error = metadata(CandleValue::Bool(true)).f64("k").unwrap_err().to_string();
        assert_eq!(error, "metadata key `k` is a boolean; expected a number");
    }

    #[test]
    fn another_type_is_an_error_that_names_key_and_both_types() {
        let error = metadata(CandleValue::String("x".into())).u32("k").unwrap_err().to_string();
        assert_eq!(error, "metadata key `k` is a string; expected an integer");
        let array = metadata(CandleValue::Array(vec![CandleValue::I32(1); 3]));
        let error = array.strings("k").unwrap_err().to_string();
        assert_eq!(error, "metadata key `k` is an array of 3 integers; expected an array of strings");
        assert_eq!(array.require_i32s("k").unwrap(), [1, 1, 1]);
    }

    #[test]
    fn an_empty_array_is_an_array_of_anything() {
        let metadata = metadata(CandleValue::Array(Vec::new()));
        assert_eq!(metadata.require_strings("k").unwrap().len(), 0);
        assert_eq!(metadata.require_f32s("k").unwrap().len(), 0);
        assert_eq!(metadata.require_u32s("k").unwrap().len(), 0);
        assert!(metadata.u32("k").is_err());
    }
}
