//! POST /api/embed, a vector of the length 1 for each input, and the older POST /api/embeddings, one vector as it is.
//!
//! An input that is too long is cut behind its first tokens, as many as `num_ctx` or the context says, unless `truncate` is
//! false; /api/embeddings refuses it. Other options say how to sample or to load, which changes no vector.

use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use taper_engine::Embeddings;

use super::time::nanoseconds;
use super::{keep_alive, names, options};
use crate::api::embeddings::{Encoding, Input, Keeps, SMALL_ANSWER, Shape};
use crate::embedding::{self, Asked};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::limits::MAX_INPUTS;
use crate::reply::Reply;
use crate::state::{Served, ServerState};
use crate::{api, body, unsupported};

/// A request that was understood.
pub(crate) struct Prepared {
    /// The model, as it was asked for.
    model: String,
    inputs: Vec<Vec<u32>>,
    asked: Asked,
    shape: Shape,
    /// Whether the answer is one vector and nothing else.
    is_alone: bool,
    begun: Instant,
    /// Whether the model is to be unloaded after the answer.
    unloads: bool,
    ignored: Vec<String>,
}

pub(crate) async fn embed(State(state): State<ServerState>, headers: HeaderMap, body: Body) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, prepare_embed).await
}

pub(crate) async fn embeddings(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    answer(&state, &headers, body, prepare_embeddings).await
}

async fn answer(
    state: &ServerState,
    headers: &HeaderMap,
    body: Body,
    prepare: fn(&[u8], &ServerState, &Served) -> Result<Prepared, ApiError>,
) -> Result<Reply, ApiError> {
    let mut admitted = api::admit(state, headers, body).await?;
    let mut prepared = admitted.read(state, prepare).await?;
    if prepared.unloads {
        admitted.active.unload_after();
    }
    // The request is under way until its answer is written.
    let api::Admitted { served, active: _active, time_limit, .. } = admitted;
    let ignored = std::mem::take(&mut prepared.ignored);
    let inputs = std::mem::take(&mut prepared.inputs);
    let num_tokens = inputs.iter().map(Vec::len).sum();
    let vectors = embedding::embed(&served, inputs, prepared.asked.clone(), time_limit).await?;
    let num_elements = vectors.len() * prepared.shape.dimensions;
    let write = move || prepared.write(vectors, num_tokens);
    let text = if num_elements > SMALL_ANSWER { state.work().write(write).await? } else { write() };
    Ok(Reply { text, ignored })
}

/// Reads a request of /api/embed.
pub(crate) fn prepare_embed(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut common = Common::take(&mut fields, state, served)?;
    let truncates = fields.boolean("truncate")?.unwrap_or(true);
    let hidden_size = common.embeddings.hidden_size;
    let dimensions = fields.integer("dimensions", 0..=hidden_size as i64)?.filter(|num| *num > 0);
    let texts = read_input(fields.take("input"))?;
    common.ignored.extend(unsupported::check_rest(fields, state)?);
    let shape =
        Shape { dimensions: dimensions.map_or(hidden_size, |num| num as usize), is_normalized: true, is_base64: false };
    shape.check_size(texts.len(), "input")?;
    let keeps = if truncates { Keeps::First(common.num_ctx) } else { Keeps::All };
    common.prepare(served, texts, keeps, shape, false)
}

/// Reads a request of /api/embeddings.
pub(crate) fn prepare_embeddings(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut common = Common::take(&mut fields, state, served)?;
    let text = fields.string("prompt")?.filter(|text| !text.is_empty());
    common.ignored.extend(unsupported::check_rest(fields, state)?);
    let texts = text.map(|text| ("prompt".to_owned(), text)).into_iter().collect();
    let shape = Shape { dimensions: common.embeddings.hidden_size, is_normalized: false, is_base64: false };
    common.prepare(served, texts, Keeps::All, shape, true)
}

/// What both requests have.
struct Common {
    model: String,
    embeddings: Embeddings,
    asked: Asked,
    /// Tokens that an input may have.
    num_ctx: usize,
    begun: Instant,
    unloads: bool,
    ignored: Vec<String>,
}

impl Common {
    fn take(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<Common, ApiError> {
        let begun = Instant::now();
        let model = names::take(fields, state, served)?;
        let refused = |why: &str| ApiError::unsupported("model", format!("\"{}\" {why}", served.model.id));
        let embeddings = served.model.engine.embeddings().ok_or_else(|| refused("does not support embeddings"))?;
        let pooling = embeddings.pooling.ok_or_else(|| {
            refused("asks for a way of pooling that this server does not have; /v1/embeddings takes one as `pooling`")
        })?;
        let unloads = keep_alive::take_zero(fields)?;
        let mut ignored = Vec::new();
        let mut options = options::fields_of(fields)?;
        let num_ctx = options::take_num_ctx(&mut options, state, served, &mut ignored)?;
        let asked = Asked { pooling, priority: 0, cache_salt: None };
        Ok(Common { model, embeddings, asked, num_ctx, begun, unloads, ignored })
    }

    fn prepare(
        self,
        served: &Served,
        texts: Vec<(String, String)>,
        keeps: Keeps,
        shape: Shape,
        is_alone: bool,
    ) -> Result<Prepared, ApiError> {
        let Common { model, asked, num_ctx, begun, unloads, ignored, .. } = self;
        let encoding = Encoding { context_len: num_ctx, keeps, adds_special: true };
        let tokens = |(name, text): (String, String)| {
            let tokens = encoding.tokens(served, &name, Input::Text(text));
            tokens.map_err(|error| match error.overflow() {
                None => error,
                Some(overflow) => {
                    let (tokens, most) = (overflow.shown(), overflow.context_len);
                    let message = format!("{name} has {tokens} tokens, and at most {most} are taken; shorten it");
                    ApiError::invalid(name, message)
                }
            })
        };
        let inputs = texts.into_iter().map(tokens).collect::<Result<_, ApiError>>()?;
        Ok(Prepared { model, inputs, asked, shape, is_alone, begun, unloads, ignored })
    }
}

/// A text or several, each with the name of its place; an empty one alone is none.
fn read_input(value: Option<Value>) -> Result<Vec<(String, String)>, ApiError> {
    const FIELD: &str = "input";
    let refused = |name: &str, expected: &str, got: &Value| {
        ApiError::invalid(name, format!("{name} must be {expected}, got {}", show(got)))
    };
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(FIELD.to_owned(), text)]),
        Some(Value::Array(items)) if items.len() > MAX_INPUTS => {
            let message = format!("{FIELD} has {} inputs; at most {MAX_INPUTS} are taken in one request", items.len());
            Err(ApiError::invalid(FIELD, message))
        }
        Some(Value::Array(items)) => {
            let text = |(index, item)| match item {
                Value::String(text) => Ok((format!("{FIELD}[{index}]"), text)),
                other => Err(refused(&format!("{FIELD}[{index}]"), "a string", &other)),
            };
            items.into_iter().enumerate().map(text).collect()
        }
        Some(other) => Err(refused(FIELD, "a string or an array of strings", &other)),
    }
}

impl Prepared {
    /// The text of the answer. One vector after another, because as a value it takes many times the memory.
    fn write(self, vectors: Vec<Vec<f32>>, num_tokens: usize) -> String {
        if self.is_alone {
            let mut text = String::from("{\"embedding\":");
            match vectors.into_iter().next() {
                Some(vector) => self.shape.write(vector, &mut text),
                None => text.push_str("[]"),
            }
            text.push('}');
            return text;
        }
        let mut text = format!("{{\"model\":{},\"embeddings\":[", Value::from(self.model));
        for (index, vector) in vectors.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            self.shape.write(vector, &mut text);
        }
        let rest = json!({
            "total_duration": nanoseconds(self.begun.elapsed()),
            "load_duration": 0,
            "prompt_eval_count": num_tokens,
        });
        text.push(']');
        text.push_str(&rest.to_string().replacen('{', ",", 1));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_texts_with_the_names_of_their_places() {
        let named = |places: &[(&str, &str)]| -> Vec<(String, String)> {
            places.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        assert_eq!(read_input(None).unwrap(), []);
        assert_eq!(read_input(Some(json!(""))).unwrap(), []);
        assert_eq!(read_input(Some(json!([]))).unwrap(), []);
        assert_eq!(read_input(Some(json!("a"))).unwrap(), named(&[("input", "a")]));
        assert_eq!(read_input(Some(json!(["a", "b"]))).unwrap(), named(&[("input[0]", "a"), ("input[1]", "b")]));
        for (input, part) in [
            (json!(5), "input must be"),
            (json!(["a", 5]), "input[1] must be a string, got 5"),
            (json!(vec!["a"; MAX_INPUTS + 1]), "at most"),
        ] {
            assert!(read_input(Some(input)).unwrap_err().message().contains(part), "{part}");
        }
    }
}
