//! POST /v1/embeddings: one vector for each input, of what the model makes of its tokens.
//!
//! `input` is a string, token ids, or an array of either. `encoding_format` is `float` or `base64` (float32, little-endian), and
//! `dimensions` keeps the first so many elements. Our own: `pooling`, `mean` or `last`, where the model's file says nothing `mean`;
//! `normalize`, true unless given. vLLM's: `truncate_prompt_tokens` keeps the last so many tokens of an input, and of a
//! text the BOS that was put before it as one of them; `add_special_tokens` leaves away what the model's file wants around a text,
//! `priority` and `cache_salt` are those of the other endpoints.
//!
//! POST /embedding and /embeddings: the same in llama-server's words. What is embedded is `content` or `input`, `embd_normalize` is -1
//! or 2, and the answer is an array with an object for each input, whose `embedding` is an array of vectors: one, since they are pooled.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use taper_engine::{Embeddings, Pooling, normalize};
use taper_text::EncodeOptions;

use crate::embedding::{self, Asked};
use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::limits::{MAX_INPUTS, MAX_TOLD_BYTES};
use crate::parameters::{cache_salt, check_model, priority};
use crate::reply::Reply;
use crate::state::{Served, ServerState};
use crate::{api, body, prompt, unsupported};

/// Elements of an answer that is written at once; a larger one waits for its turn.
pub(crate) const SMALL_ANSWER: usize = 1 << 16;

/// Bytes of an answer, about: beyond it fewer inputs are taken.
const MAX_ANSWER_BYTES: usize = 2 * MAX_TOLD_BYTES;
/// Bytes of an element as a decimal.
const ELEMENT_BYTES: usize = 13;

/// Parameters of this endpoint elsewhere that are not here, and what they may say because it asks for nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("messages", &[]),
    ("embed_dtype", &["float32"]),
    ("endianness", &["native", "little"]),
    ("truncation_side", &["left"]),
    ("use_activation", &[]),
    ("embd_normalize", &[]),
];

pub(crate) struct Prepared {
    inputs: Vec<Vec<u32>>,
    asked: Asked,
    shape: Shape,
    words: Words,
    ignored: Vec<String>,
}

/// Whose requests and answers these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    OpenAi,
    LlamaServer,
}

/// What vectors become in the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) dimensions: usize,
    pub(crate) is_normalized: bool,
    pub(crate) is_base64: bool,
}

pub(crate) async fn embeddings(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, prepare).await
}

/// llama-server's endpoint.
pub(crate) async fn native(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, prepare_native).await
}

async fn answer(
    state: &ServerState,
    headers: &HeaderMap,
    body: Body,
    prepare: fn(&[u8], &ServerState, &Served) -> Result<Prepared, ApiError>,
) -> Result<Reply, ApiError> {
    let mut admitted = api::admit(state, headers, body).await?;
    let Prepared { inputs, asked, shape, words, ignored } = admitted.read(state, prepare).await?;
    // The request is under way until its answer is written.
    let api::Admitted { served, active: _active, time_limit, .. } = admitted;
    let num_tokens = inputs.iter().map(Vec::len).sum();
    let vectors = embedding::embed(&served, inputs, asked, time_limit).await?;
    let id = served.model.id.clone();
    let num_elements = vectors.len() * shape.dimensions;
    let write = move || match words {
        Words::OpenAi => shape.answer(&id, vectors, num_tokens),
        Words::LlamaServer => shape.native_answer(vectors),
    };
    let text = if num_elements > SMALL_ANSWER { state.work().write(write).await? } else { write() };
    Ok(Reply { text, ignored })
}

/// Reads a request of /v1/embeddings.
pub(crate) fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    read(body, state, served, Words::OpenAi)
}

/// Reads a request of /embeddings.
pub(crate) fn prepare_native(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    read(body, state, served, Words::LlamaServer)
}

fn read(body: &[u8], state: &ServerState, served: &Served, words: Words) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    check_model(&mut fields, state, served)?;
    let Some(embeddings) = served.model.engine.embeddings() else {
        return Err(ApiError::unsupported("model", format!("the model {} gives no embeddings", served.model.id)));
    };
    let mut shape = Shape::take(&mut fields, embeddings)?;
    if words == Words::LlamaServer {
        shape.take_native(&mut fields)?;
    }
    let asked = Asked {
        pooling: pooling(&mut fields, embeddings)?,
        priority: priority(&mut fields)?,
        cache_salt: cache_salt(&mut fields)?,
    };
    let encoding = Encoding::take(&mut fields, served)?;
    let (field, value) = take_input(&mut fields, words)?;
    let inputs = read_inputs(field, value)?;
    shape.check_size(inputs.len(), field)?;
    refuse_unsupported(&mut fields)?;
    let ignored = unsupported::check_rest(fields, state)?;
    let tokens = inputs.into_iter().map(|(name, input)| encoding.tokens(served, &name, input));
    Ok(Prepared { inputs: tokens.collect::<Result<_, ApiError>>()?, asked, shape, words, ignored })
}

/// What is to be embedded, and the field that it came in.
fn take_input(fields: &mut Fields, words: Words) -> Result<(&'static str, Option<Value>), ApiError> {
    let input = fields.take("input");
    if words == Words::OpenAi {
        return Ok(("input", input));
    }
    match (input, fields.take("content")) {
        (Some(_), Some(_)) => Err(ApiError::invalid("content", "content cannot be given beside input")),
        (None, Some(content)) => Ok(("content", Some(content))),
        (input, None) => Ok(("input", input)),
    }
}

fn pooling(fields: &mut Fields, embeddings: Embeddings) -> Result<Pooling, ApiError> {
    match fields.string("pooling")?.as_deref() {
        Some("mean") => Ok(Pooling::Mean),
        Some("last") => Ok(Pooling::Last),
        Some(other) => {
            let got = show(&Value::String(other.to_owned()));
            Err(ApiError::invalid("pooling", format!("pooling must be \"mean\" or \"last\", got {got}")))
        }
        None => embeddings.pooling.ok_or_else(|| {
            let message = "the model's file asks for a way of pooling that this server does not have; pooling must be given, \
                           \"mean\" or \"last\"";
            ApiError::missing("pooling", message)
        }),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for &(name, harmless) in UNSUPPORTED {
        if let Some(value) = fields.take(name)
            && value.as_str().is_none_or(|value| !harmless.contains(&value))
        {
            let message = format!("{name} is not supported by this server; leave it out (got {})", show(&value));
            return Err(ApiError::unsupported(name, message));
        }
    }
    Ok(())
}

/// What is kept of an input that has too many tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keeps {
    /// Nothing: it is refused.
    All,
    /// At most so many, from its beginning.
    First(usize),
    /// At most so many, from its end.
    Last(usize),
}

/// How texts become tokens.
pub(crate) struct Encoding {
    /// Tokens that an input may have.
    pub(crate) context_len: usize,
    pub(crate) keeps: Keeps,
    /// Whether it gets what the model's file wants around a text.
    pub(crate) adds_special: bool,
}

/// One input, as it came.
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

impl Encoding {
    fn take(fields: &mut Fields, served: &Served) -> Result<Self, ApiError> {
        let context_len = served.model.context_len.min(served.model.engine.limits().context_len);
        let keeps = match fields.take("truncate_prompt_tokens") {
            None => Keeps::All,
            Some(value) => match integer_of(&value) {
                Some(-1) => Keeps::Last(context_len),
                Some(num @ 1..) if num <= context_len as i64 => Keeps::Last(num as usize),
                _ => {
                    let message = format!(
                        "truncate_prompt_tokens must be an integer between 1 and {context_len}, the context of this model, \
                         or -1 for that, got {}",
                        show(&value)
                    );
                    return Err(ApiError::invalid("truncate_prompt_tokens", message));
                }
            },
        };
        let adds_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
        Ok(Self { context_len, keeps, adds_special })
    }

    /// The tokens of an input, which came in the field `name`.
    pub(crate) fn tokens(&self, served: &Served, name: &str, input: Input) -> Result<Vec<u32>, ApiError> {
        let tokens = match input {
            Input::Text(text) => {
                let has_bos = self.adds_special && served.model.tokenizer.adds_bos();
                self.kept(served, self.encode(served, name, &text)?, has_bos)
            }
            Input::Tokens(ids) => {
                let vocab_size = served.vocab_size();
                if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
                    let message = format!("token id {id} is not in the vocabulary, whose ids are below {vocab_size}");
                    return Err(ApiError::invalid(name, message));
                }
                self.kept(served, ids, false)
            }
        };
        match tokens.len() {
            0 => Err(ApiError::invalid(name, format!("{name} is empty; an input has at least one token"))),
            len if len > self.context_len => Err(ApiError::input_too_long(name, len, self.context_len, true)),
            _ => Ok(tokens),
        }
    }

    /// The tokens that are kept. A BOS that was put before a text is not of it, and stays where there is room for another token, as in
    /// vLLM: its tokenizer cuts the text before it adds that. Token ids are the client's own, and cut as they are.
    fn kept(&self, served: &Served, mut tokens: Vec<u32>, has_bos: bool) -> Vec<u32> {
        match self.keeps {
            Keeps::Last(num) if tokens.len() > num => {
                let first = usize::from(has_bos && num > 1);
                tokens.drain(first..first + tokens.len() - num);
            }
            Keeps::First(num) if tokens.len() > num => {
                // What ends a text ends a part of one too.
                let end = served.model.tokenizer.end_of_embedded();
                let end = end.filter(|end| num > 0 && tokens.last() == Some(end));
                tokens.truncate(num - usize::from(end.is_some()));
                tokens.extend(end);
            }
            Keeps::First(_) | Keeps::Last(_) | Keeps::All => {}
        }
        tokens
    }

    fn encode(&self, served: &Served, name: &str, text: &str) -> Result<Vec<u32>, ApiError> {
        if text.is_empty() {
            return Err(ApiError::invalid(name, format!("{name} is empty; an input has at least one token")));
        }
        let least = prompt::least_tokens(served, text);
        let text = match self.keeps {
            // Megabytes besides the tokens that are kept are not worth tokenizing.
            Keeps::Last(_) => prompt::end_that_may_fit(served, text),
            Keeps::First(_) => prompt::beginning_that_may_fit(served, text),
            Keeps::All if least > self.context_len => {
                return Err(ApiError::input_too_long(name, least, self.context_len, false));
            }
            Keeps::All => text,
        };
        let tokenizer = &served.model.tokenizer;
        let options = EncodeOptions { parse_special: true, add_bos: self.adds_special };
        let mut tokens = tokenizer.encode(text, options).map_err(|error| prompt::cannot_be_tokenized(name, &error))?;
        let end = tokenizer.end_of_embedded().filter(|end| self.adds_special && tokens.last() != Some(end));
        tokens.extend(end);
        Ok(tokens)
    }
}

/// A string, token ids, or an array of either; each with the name of its place.
fn read_inputs(field: &'static str, value: Option<Value>) -> Result<Vec<(String, Input)>, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid(field, message));
    match value {
        None => {
            let message = format!("{field} is missing; it is a string, token ids, or an array of either");
            Err(ApiError::missing(field, message))
        }
        Some(Value::String(text)) => Ok(vec![(field.to_owned(), Input::Text(text))]),
        Some(Value::Array(items)) if items.is_empty() => invalid(format!("{field} is an empty array")),
        Some(Value::Array(items)) if items[0].is_number() => {
            Ok(vec![(field.to_owned(), Input::Tokens(read_ids(field, &items)?))])
        }
        Some(Value::Array(items)) if items.len() > MAX_INPUTS => {
            invalid(format!("{field} has {} inputs; at most {MAX_INPUTS} are taken in one request", items.len()))
        }
        Some(Value::Array(items)) => {
            items.into_iter().enumerate().map(|(index, item)| read_input(format!("{field}[{index}]"), item)).collect()
        }
        Some(other) => {
            invalid(format!("{field} must be a string, token ids, or an array of either, got {}", show(&other)))
        }
    }
}

fn read_input(name: String, item: Value) -> Result<(String, Input), ApiError> {
    let input = match item {
        Value::String(text) => Input::Text(text),
        Value::Array(ids) => Input::Tokens(read_ids(&name, &ids)?),
        other => {
            let message = format!("{name} must be a string or token ids, got {}", show(&other));
            return Err(ApiError::invalid(name, message));
        }
    };
    Ok((name, input))
}

fn read_ids(name: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |item: &Value| {
        let id = integer_of(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::invalid(name, format!("a token id in {name} must be an integer from 0, got {}", show(item)))
        })
    };
    items.iter().map(id).collect()
}

impl Shape {
    fn take(fields: &mut Fields, embeddings: Embeddings) -> Result<Self, ApiError> {
        let hidden_size = embeddings.hidden_size;
        let dimensions = fields.integer("dimensions", 1..=hidden_size as i64)?;
        let is_base64 = match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let got = show(&Value::String(other.to_owned()));
                let message = format!("encoding_format must be \"float\" or \"base64\", got {got}");
                return Err(ApiError::invalid("encoding_format", message));
            }
        };
        let is_normalized = fields.boolean("normalize")?.unwrap_or(true);
        Ok(Self { dimensions: dimensions.map_or(hidden_size, |n| n as usize), is_normalized, is_base64 })
    }

    /// Takes `embd_normalize`, and refuses what llama-server's answer has no place for.
    fn take_native(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        const NORMALIZE: &str = "embd_normalize";
        if self.is_base64 {
            let message = "encoding_format must be \"float\" here, got \"base64\"; /v1/embeddings writes that";
            return Err(ApiError::unsupported("encoding_format", message));
        }
        match fields.integer(NORMALIZE, -1..=i64::MAX)? {
            None => Ok(()),
            Some(-1) => {
                self.is_normalized = false;
                Ok(())
            }
            Some(2) => Ok(()),
            Some(other) => {
                let message = format!(
                    "{NORMALIZE} must be -1 (vectors as they are) or 2 (vectors of the length 1) on this server, got {other}"
                );
                Err(ApiError::unsupported(NORMALIZE, message))
            }
        }
    }

    /// Refuses more inputs, which came in the field `field`, than an answer has room for.
    pub(crate) fn check_size(self, num_inputs: usize, field: &str) -> Result<(), ApiError> {
        let bytes_each = self.dimensions * ELEMENT_BYTES;
        if num_inputs * bytes_each <= MAX_ANSWER_BYTES {
            return Ok(());
        }
        let most = MAX_ANSWER_BYTES / bytes_each;
        let message =
            format!("{field} has {num_inputs} inputs; of {} elements each at most {most} are taken", self.dimensions);
        Err(ApiError::invalid(field, message))
    }

    /// The text of the answer. One vector after another, because as a value it takes many times the memory.
    fn answer(self, id: &str, vectors: Vec<Vec<f32>>, num_tokens: usize) -> String {
        let mut text = String::from("{\"object\":\"list\",\"data\":[");
        for (index, vector) in vectors.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&format!("{{\"object\":\"embedding\",\"index\":{index},\"embedding\":"));
            self.write(vector, &mut text);
            text.push('}');
        }
        text.push(']');
        let rest = json!({ "model": id, "usage": { "prompt_tokens": num_tokens, "total_tokens": num_tokens } });
        text.push_str(&rest.to_string().replacen('{', ",", 1));
        text
    }

    /// The same in llama-server's words.
    fn native_answer(self, vectors: Vec<Vec<f32>>) -> String {
        let mut text = String::from("[");
        for (index, vector) in vectors.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&format!("{{\"index\":{index},\"embedding\":["));
            self.write(vector, &mut text);
            text.push_str("]}");
        }
        text.push(']');
        text
    }

    /// Writes a vector.
    pub(crate) fn write(self, mut vector: Vec<f32>, text: &mut String) {
        vector.truncate(self.dimensions);
        if self.is_normalized {
            normalize(&mut vector);
        }
        if self.is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            text.push('"');
            STANDARD.encode_string(bytes, text);
            text.push('"');
            return;
        }
        text.push('[');
        for (place, x) in vector.iter().enumerate() {
            if place > 0 {
                text.push(',');
            }
            // The shortest decimal that is this float32 and no other; all elements are finite.
            text.push_str(&x.to_string());
        }
        text.push(']');
    }
}
