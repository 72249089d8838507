//! One metadata value, converted from candle's.

use candle_core::quantized::gguf_file::Value as CandleValue;

/// One value. Arrays are kept flat: candle's own array takes 24 bytes and more for an element of any width.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    String(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    /// Candle does not keep the element type of an empty array, so it is an array of whatever is asked for.
    Empty,
}

impl Value {
    /// For messages: what it is.
    pub(crate) fn kind(&self) -> String {
        match self {
            Value::Int(_) => "an integer".to_owned(),
            Value::Float(_) => "a float".to_owned(),
            Value::Bool(_) => "a boolean".to_owned(),
            Value::String(_) => "a string".to_owned(),
            Value::Ints(v) => format!("an array of {} integers", v.len()),
            Value::Floats(v) => format!("an array of {} floats", v.len()),
            Value::Bools(v) => format!("an array of {} booleans", v.len()),
            Value::Strings(v) => format!("an array of {} strings", v.len()),
            Value::Empty => "an empty array".to_owned(),
        }
    }
}

/// Takes over a value that candle read; the error is the reason why it cannot be represented.
pub(crate) fn convert(value: CandleValue) -> Result<Value, String> {
    Ok(match value {
        CandleValue::F32(v) => Value::Float(f64::from(v)),
        CandleValue::F64(v) => Value::Float(v),
        CandleValue::Bool(v) => Value::Bool(v),
        CandleValue::String(v) => Value::String(v),
        CandleValue::Array(values) => convert_array(values)?,
        int => Value::Int(integer(&int).ok_or("a value of an unknown type")?),
    })
}

fn convert_array(values: Vec<CandleValue>) -> Result<Value, String> {
    const MIXED: &str = "an array of unlike elements";
    let num = values.len();
    let mut values = values.into_iter().peekable();
    Ok(match values.peek() {
        None => Value::Empty,
        Some(CandleValue::String(_)) => {
            let mut texts = Vec::with_capacity(num);
            for value in values {
                let CandleValue::String(text) = value else { return Err(MIXED.to_owned()) };
                texts.push(text);
            }
            Value::Strings(texts)
        }
        Some(CandleValue::F32(_) | CandleValue::F64(_)) => {
            let number = |value| match value {
                CandleValue::F32(v) => Ok(v),
                CandleValue::F64(v) => Ok(v as f32),
                _ => Err(MIXED.to_owned()),
            };
            Value::Floats(values.map(number).collect::<Result<_, _>>()?)
        }
        Some(CandleValue::Bool(_)) => {
            let flag = |value: CandleValue| value.to_bool().map_err(|_| MIXED.to_owned());
            Value::Bools(values.map(flag).collect::<Result<_, _>>()?)
        }
        Some(_) => {
            let number = |value: CandleValue| {
                let value = integer(&value).ok_or("an array of arrays")?;
                i64::try_from(value).map_err(|_| format!("the element {value} is beyond the range of i64"))
            };
            Value::Ints(values.map(number).collect::<Result<_, _>>()?)
        }
    })
}

fn integer(value: &CandleValue) -> Option<i128> {
    Some(match *value {
        CandleValue::U8(v) => v.into(),
        CandleValue::I8(v) => v.into(),
        CandleValue::U16(v) => v.into(),
        CandleValue::I16(v) => v.into(),
        CandleValue::U32(v) => v.into(),
        CandleValue::I32(v) => v.into(),
        CandleValue::U64(v) => v.into(),
        CandleValue::I64(v) => v.into(),
        _ => return None,
    })
}
