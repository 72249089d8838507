//! Prompts as llama.cpp takes them: a text, ids of tokens, or one prompt of both (`[1, "Once upon", 29892]`); an array of
//! texts, or of such arrays, is several prompts. `{"prompt_string": "..."}` is a text.

use serde_json::Value;
use taper_text::EncodeOptions;

use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::prompt;
use crate::state::Served;

/// How the texts of a prompt are tokenized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mixing {
    /// BOS before a prompt that begins with text, where the model wants one.
    pub(crate) add_special: bool,
    /// Control tokens that are spelled out are those tokens.
    pub(crate) parse_special: bool,
}

/// Splits the value of the field `param` into prompts.
pub(crate) fn split(value: Value, param: &str) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::invalid(param, format!("{param} is an empty array; it must hold a prompt")))
        }
        // All texts, or some element that is a prompt by itself.
        Value::Array(items) if !items.iter().any(Value::is_number) => Ok(items),
        one => Ok(vec![one]),
    }
}

/// The tokens of one prompt of the field `param`.
pub(crate) fn encode(served: &Served, value: Value, param: &str, mixing: Mixing) -> Result<Vec<u32>, ApiError> {
    let text = |text: &str, is_first: bool| {
        let options = EncodeOptions { parse_special: mixing.parse_special, add_bos: mixing.add_special && is_first };
        prompt::encode_with(served, text, param, options)
    };
    match value {
        Value::String(whole) => text(&whole, true),
        Value::Array(parts) => {
            let mut tokens = Vec::with_capacity(parts.len());
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Value::String(part) => tokens.extend(text(part, index == 0)?),
                    other => tokens.push(token(other, served, param)?),
                }
            }
            Ok(tokens)
        }
        object @ Value::Object(_) => {
            let mut fields = Fields::nested(param, object)?;
            let (text_name, media_name) = (fields.name_of("prompt_string"), fields.name_of("multimodal_data"));
            if fields.array("multimodal_data")?.is_some_and(|items| !items.is_empty()) {
                let message = format!("{media_name} is not supported by this server: the model reads text only");
                return Err(ApiError::unsupported(media_name, message));
            }
            match fields.string("prompt_string")? {
                Some(whole) => text(&whole, true),
                None => Err(ApiError::missing(&text_name, format!("{text_name} is missing"))),
            }
        }
        other => {
            let message = format!("{param} must be a string, token ids, or an array of both, got {}", show(&other));
            Err(ApiError::invalid(param, message))
        }
    }
}

/// The ids of an array of the field `param`.
pub(crate) fn tokens(items: &[Value], served: &Served, param: &str) -> Result<Vec<u32>, ApiError> {
    items.iter().map(|item| token(item, served, param)).collect()
}

fn token(value: &Value, served: &Served, param: &str) -> Result<u32, ApiError> {
    let vocab_size = served.vocab_size();
    let id = integer_of(value).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab_size);
    id.ok_or_else(|| {
        let got = show(value);
        let message = format!("a token id in {param} must be an integer from 0 and below {vocab_size}, got {got}");
        ApiError::invalid(param, message)
    })
}
