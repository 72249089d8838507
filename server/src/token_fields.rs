//! Fields that hold tokens: biases, lists of ids, and words.

use std::collections::BTreeMap;

use serde_json::Value;
use taper_text::{EncodeOptions, Tokenizer};

use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::limits::{MAX_BAD_WORDS, MAX_STOP_BYTES};
use crate::mixed_prompt;
use crate::state::Served;

/// What is added to the logits of tokens, and tokens that are never chosen.
#[derive(Debug, Default)]
pub(crate) struct Biases {
    pub(crate) added: Vec<(u32, f32)>,
    pub(crate) banned: Vec<u32>,
}

/// `logit_bias`: an object from token ids, or as llama.cpp has it from texts, or an array of `[id or text, bias]`. A text stands for
/// each of its tokens, a bias of `false` for never. Of two biases of a token the last counts.
pub(crate) fn logit_bias(fields: &mut Fields, served: &Served) -> Result<Biases, ApiError> {
    const FIELD: &str = "logit_bias";
    let invalid = |message: String| Err(ApiError::invalid(FIELD, message));
    let pairs: Vec<(Value, Value)> = match fields.take(FIELD) {
        None => return Ok(Biases::default()),
        Some(Value::Object(object)) => {
            let id = |name: String| number_of(&name).unwrap_or(Value::String(name));
            object.into_iter().map(|(name, bias)| (id(name), bias)).collect()
        }
        Some(Value::Array(items)) => {
            let mut pairs = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Value::Array(mut pair) if pair.len() == 2 => {
                        let bias = pair.pop().unwrap_or_default();
                        pairs.push((pair.pop().unwrap_or_default(), bias));
                    }
                    other => {
                        return invalid(format!("each item of {FIELD} must be [token, bias], got {}", show(&other)));
                    }
                }
            }
            pairs
        }
        Some(other) => {
            return invalid(format!("{FIELD} must be an object or an array of [token, bias], got {}", show(&other)));
        }
    };
    // A bias of `None` is for never.
    let mut biases: BTreeMap<u32, Option<f32>> = BTreeMap::new();
    let mut num_banned = 0;
    for (token, bias) in pairs {
        let tokens = match &token {
            Value::String(text) => {
                let options = EncodeOptions { parse_special: true, add_bos: false };
                crate::prompt::encode_with(served, text, FIELD, options)?
            }
            id => mixed_prompt::tokens(std::slice::from_ref(id), served, FIELD)?,
        };
        match bias.as_f64() {
            Some(number) if (-100.0..=100.0).contains(&number) => {
                biases.extend(tokens.into_iter().map(|token| (token, Some(number as f32))));
            }
            None if bias == Value::Bool(false) && num_banned + tokens.len() <= MAX_BAD_WORDS => {
                num_banned += tokens.len();
                biases.extend(tokens.into_iter().map(|token| (token, None)));
            }
            None if bias == Value::Bool(false) => {
                return invalid(format!("{FIELD} rules out more than {MAX_BAD_WORDS} tokens"));
            }
            _ => {
                let got = show(&bias);
                return invalid(format!(
                    "a bias in {FIELD} must be a number between -100 and 100, or false, got {got}"
                ));
            }
        }
    }
    let banned = biases.iter().filter(|(_, bias)| bias.is_none()).map(|(&token, _)| token).collect();
    let added = biases.into_iter().filter_map(|(token, bias)| Some((token, bias?))).collect();
    Ok(Biases { added, banned })
}

/// A name of an object that is written like a number; which of those are ids of tokens is asked of all.
fn number_of(name: &str) -> Option<Value> {
    if !name.trim_start_matches('-').starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    name.parse::<i64>().map(Value::from).or_else(|_| name.parse::<f64>().map(Value::from)).ok()
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
