//! Tokens and their log-probabilities as the endpoints write them.
//!
//! A token whose bytes are no whole characters is written `bytes:\xf0\x9f`, as OpenAI's completions do: the objects of
//! `top_logprobs` there are keyed by tokens, which must not coincide. With `return_tokens_as_token_ids` (vLLM) every token
//! is written `token_id:17`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use taper_engine::TokenLogprobs;
use taper_text::{Detokenizer, Tokenizer};

use crate::errors::ApiError;
use crate::fields::Fields;

/// What stands for negative infinity, which JSON cannot say; as in OpenAI's and vLLM's answers.
const LOWEST_LOGPROB: f32 = -9999.0;

/// What an answer tells about tokens besides their text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Details {
    /// Log-probabilities of generated tokens, with this many of the most probable.
    pub(crate) logprobs: Option<u32>,
    /// The same for the prompt's tokens, in vLLM's field.
    pub(crate) prompt_logprobs: Option<u32>,
    /// `return_token_ids`.
    pub(crate) token_ids: bool,
    /// `return_tokens_as_token_ids`.
    pub(crate) names_are_ids: bool,
}

impl Details {
    /// Takes the fields that both endpoints have under one name; `logprobs` differs.
    pub(crate) fn take(fields: &mut Fields) -> Result<Details, ApiError> {
        let most = i64::from(taper_engine::MAX_LOGPROBS);
        Ok(Details {
            logprobs: None,
            prompt_logprobs: fields.integer("prompt_logprobs", 0..=most)?.map(|num_top| num_top as u32),
            token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            names_are_ids: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
        })
    }
}

/// Writes tokens.
#[derive(Debug, Clone)]
pub(crate) struct TokenWriter {
    tokenizer: Arc<Tokenizer>,
    details: Details,
}

impl TokenWriter {
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, details: Details) -> TokenWriter {
        TokenWriter { tokenizer: Arc::clone(tokenizer), details }
    }

    pub(crate) fn details(&self) -> Details {
        self.details
    }

    fn name(&self, token: u32) -> String {
        match self.tokenizer.token_bytes(token) {
            Some(bytes) if !self.details.names_are_ids => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
            },
            _ => format!("token_id:{token}"),
        }
    }

    /// `choices[].logprobs` of the chat endpoint; null when nobody asked.
    pub(crate) fn chat_logprobs(&self, logprobs: &[TokenLogprobs]) -> Value {
        let Some(num_top) = self.details.logprobs else { return Value::Null };
        let entry = |token: u32, logprob: f32| {
            let bytes = self.tokenizer.token_bytes(token);
            json!({ "token": self.name(token), "logprob": number(logprob), "bytes": bytes })
        };
        let content = logprobs.iter().map(|found| {
            let mut object = entry(found.token, found.logprob);
            let top = found.top.iter().take(num_top as usize);
            object["top_logprobs"] = top.map(|&(token, logprob)| entry(token, logprob)).collect();
            object
        });
        json!({ "content": content.collect::<Value>(), "refusal": null })
    }

    /// A token and its log-probability as llama-server writes them.
    pub(crate) fn entry_with_id(&self, token: u32, logprob: f32) -> Value {
        let mut entry = self.with_id(token);
        entry["logprob"] = number(logprob);
        entry
    }

    /// The same with its probability itself.
    pub(crate) fn entry_with_probability(&self, token: u32, logprob: f32) -> Value {
        let mut entry = self.with_id(token);
        entry["prob"] = json!(logprob.exp());
        entry
    }

    fn with_id(&self, token: u32) -> Value {
        let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
        // Bytes that are no whole character have no text of their own; `bytes` has them.
        let text = String::from_utf8_lossy(bytes);
        json!({ "id": token, "token": text, "bytes": bytes })
    }

    /// vLLM's `prompt_logprobs`: for each token but the first an object from ids to log-probabilities and ranks.
    pub(crate) fn prompt_logprobs(&self, logprobs: &[Option<TokenLogprobs>]) -> Value {
        let Some(num_top) = self.details.prompt_logprobs else { return Value::Null };
        let entry = |found: &Option<TokenLogprobs>| {
            let found = found.as_ref()?;
            let own = (found.rank, &(found.token, found.logprob));
            let top = (1..).zip(found.top.iter().take(num_top as usize));
            let write = |(rank, &(token, logprob)): (usize, &(u32, f32))| {
                let fields = json!({ "logprob": number(logprob), "rank": rank, "decoded_token": self.name(token) });
                (token.to_string(), fields)
            };
            Some(std::iter::once(own).chain(top).map(write).collect::<Map<String, Value>>())
        };
        logprobs.iter().map(|found| entry(found).map_or(Value::Null, Value::Object)).collect()
    }
}

/// `choices[].logprobs` of the completions endpoint, being filled.
#[derive(Debug, Default)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token that begins at character `offset`; the first of a prompt has no log-probability.
    pub(crate) fn push(&mut self, writer: &TokenWriter, token: u32, found: Option<&TokenLogprobs>, offset: usize) {
        self.tokens.push(writer.name(token).into());
        self.token_logprobs.push(found.map_or(Value::Null, |found| number(found.logprob)));
        let top = found.map(|found| {
            let num_top = writer.details.logprobs.unwrap_or(0) as usize;
            // The token itself is always there, as in OpenAI's answers: the object may have one more than asked for.
            let all = found.top.iter().take(num_top).copied().chain([(found.token, found.logprob)]);
            all.map(|(token, logprob)| (writer.name(token), number(logprob))).collect::<Map<String, Value>>()
        });
        self.top_logprobs.push(top.map_or(Value::Null, Value::Object));
        self.text_offset.push(offset);
    }

    pub(crate) fn append(&mut self, other: CompletionLogprobs) {
        self.tokens.extend(other.tokens);
        self.token_logprobs.extend(other.token_logprobs);
        self.top_logprobs.extend(other.top_logprobs);
        self.text_offset.extend(other.text_offset);
    }

    pub(crate) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// Where tokens begin in a text, in characters. A token in the middle of a character begins where that character does, and
/// the tokens of a stop string begin where they would if it were part of the text.
#[derive(Debug, Clone)]
pub(crate) struct TextOffsets {
    detokenizer: Detokenizer,
    num_chars: usize,
}

impl TextOffsets {
    /// For tokens that `detokenizer` reads, after a text of `num_chars`.
    pub(crate) fn new(detokenizer: Detokenizer, num_chars: usize) -> TextOffsets {
        TextOffsets { detokenizer, num_chars }
    }

    /// Where the next token begins.
    pub(crate) fn next(&mut self, token: u32) -> usize {
        let offset = self.num_chars;
        self.num_chars += self.detokenizer.push(token).chars().count();
        offset
    }
}

fn number(logprob: f32) -> Value {
    logprob.max(LOWEST_LOGPROB).into()
}
