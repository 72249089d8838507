//! Fields that hold tokens: biases, lists of ids, and words.

use serde_json::Value;
use taper_text::{EncodeOptions, Tokenizer};

use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::limits::{MAX_BAD_WORDS, MAX_STOP_BYTES};

/// `logit_bias`: an object from token ids, written as strings, to biases.
pub(crate) fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        // What a client in a language without typed empty maps sends.
        Some(Value::Array(items)) if items.is_empty() => return Ok(Vec::new()),
        Some(Value::Object(biases)) => biases,
        Some(other) => {
            let message = format!("logit_bias must be an object from token ids to biases, got {}", show(&other));
            return Err(ApiError::invalid("logit_bias", message));
        }
    };
    let read = |(token, bias): (String, Value)| {
        let id = token.parse().map_err(|_| {
            let got = show(&Value::String(token.clone()));
            ApiError::invalid("logit_bias", format!("a name in logit_bias must be a token id, got {got}"))
        })?;
        match bias.as_f64() {
            Some(number) if (-100.0..=100.0).contains(&number) => Ok((id, number as f32)),
            _ => {
                let message =
                    format!("a bias in logit_bias must be a number between -100 and 100, got {}", show(&bias));
                Err(ApiError::invalid("logit_bias", message))
            }
        }
    };
    biases.into_iter().map(read).collect()
}

/// A list of token ids.
pub(crate) fn token_ids(fields: &mut Fields, field: &'static str) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(items) = fields.array(field)? else { return Ok(None) };
    let read = |item: &Value| {
        let id = integer_of(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::invalid(
                field,
                format!("{field} must hold token ids, which are integers from 0, got {}", show(item)),
            )
        })
    };
    items.iter().map(read).collect::<Result<_, _>>().map(Some)
}

/// `bad_words`: strings, each ruled out as it is written in the middle of a word and (as vLLM has it) as a word of its own,
/// with a blank before it.
pub(crate) fn bad_words(fields: &mut Fields, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, ApiError> {
    let refuse = |message: String| Err(ApiError::invalid("bad_words", message));
    let items = fields.array("bad_words")?.unwrap_or_default();
    if items.len() > MAX_BAD_WORDS {
        return refuse(format!("bad_words has {} strings; at most {MAX_BAD_WORDS} are taken", items.len()));
    }
    let mut words: Vec<Vec<u32>> = Vec::new();
    for item in items {
        let word = match &item {
            Value::String(word) if !word.trim().is_empty() && word.len() <= MAX_STOP_BYTES => word.trim_start(),
            _ => {
                return refuse(format!("each of bad_words must have 1 to {MAX_STOP_BYTES} bytes, got {}", show(&item)));
            }
        };
        for text in [word.to_owned(), format!(" {word}")] {
            let options = EncodeOptions { parse_special: true, add_bos: false };
            match tokenizer.encode(&text, options) {
                Ok(tokens) if tokens.is_empty() => {}
                Ok(tokens) => words.push(tokens),
                Err(error) => return refuse(format!("bad_words cannot be tokenized: {error}")),
            }
        }
    }
    Ok(words)
}
