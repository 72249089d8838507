//! POST /v1/completions: text continues one or several prompts, given as text or as token ids.
//!
//! `max_tokens` defaults to 16. `echo` puts the prompt before each answer (without log-probabilities, which are not there).

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use taper_engine::FinishReason;

use crate::answer::{self, Answering, Shape};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::generation::Generation;
use crate::limits::MAX_PROMPTS;
use crate::parameters::Parameters;
use crate::state::{Served, ServerState};
use crate::{api, body, prompt, unsupported};

/// Tokens of an answer when the request does not say.
const DEFAULT_MAX_TOKENS: usize = 16;

struct Prepared {
    parameters: Parameters,
    prompts: Vec<Vec<u32>>,
    shape: Completion,
    ignored: Vec<String>,
}

pub(crate) async fn completions(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let api::Admitted { body, served, active } = api::admit(&state, &headers, body).await?;
    let keep_alive = state.timeouts().keep_alive;
    let for_thread = served.clone();
    let request = api::blocking(move || prepare(&body, &state, &for_thread)).await?;
    let sampling = request.parameters.sampling.clone();
    let generation = Generation::start(&served, request.prompts, sampling, "prompt", active)?;
    let context = Answering { model: &served.model, ignored: &request.ignored, keep_alive };
    answer::send(request.shape, generation, &request.parameters, &context).await
}

fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut parameters = Parameters::take(&mut fields, state, served)?;
    parameters.sampling.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let prompts = read_prompts(fields.take("prompt"))?;
    let ignored = unsupported::check_rest(fields, state)?;

    let mut tokens = Vec::with_capacity(prompts.len());
    let mut echoes = Vec::new();
    for prompt in prompts {
        let (ids, text) = match prompt {
            Prompt::Text(text) => (prompt::encode(served, &text, "prompt")?, text),
            Prompt::Tokens(ids) => {
                check_ids(&ids, served)?;
                let text = if echo { served.model.tokenizer.decode(&ids, false) } else { String::new() };
                (ids, text)
            }
        };
        tokens.push(ids);
        if echo {
            echoes.push(text);
        }
    }
    let shape = Completion { echoes, n: parameters.sampling.n };
    Ok(Prepared { parameters, prompts: tokens, shape, ignored })
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// A string, token ids, or an array of either.
fn read_prompts(value: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let invalid = |message: String| ApiError::invalid("prompt", message);
    match value {
        None => Err(ApiError::missing("prompt", "prompt is missing; it is a string, token ids, or an array of either")),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) if items.is_empty() => Err(invalid("prompt is an empty array".to_owned())),
        Some(Value::Array(items)) if items[0].is_number() => Ok(vec![Prompt::Tokens(read_ids(&items)?)]),
        Some(Value::Array(items)) if items.len() > MAX_PROMPTS => {
            Err(invalid(format!("prompt has {} prompts; at most {MAX_PROMPTS} are taken in one request", items.len())))
        }
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(ids) => read_ids(&ids).map(Prompt::Tokens),
                other => Err(invalid(format!("each prompt must be a string or token ids, got {}", show(&other)))),
            })
            .collect(),
        Some(other) => {
            Err(invalid(format!("prompt must be a string, token ids, or an array of either, got {}", show(&other))))
        }
    }
}

fn read_ids(items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |item: &Value| {
        let id = crate::fields::integer_of(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::invalid("prompt", format!("a token id must be an integer from 0, got {}", show(item)))
        })
    };
    items.iter().map(id).collect()
}

/// Ids beyond the vocabulary are refused before anything is submitted.
fn check_ids(ids: &[u32], served: &Served) -> Result<(), ApiError> {
    let vocab_size = served.model.tokenizer.vocab_size().min(served.model.engine.limits().vocab_size);
    match ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token id {id} is not in the vocabulary, whose ids are below {vocab_size}");
            Err(ApiError::invalid("prompt", message))
        }
    }
}

/// `text_completion` objects; chunks and whole answers have the same form.
struct Completion {
    /// What to put before the answers, by prompt; empty without `echo`.
    echoes: Vec<String>,
    n: usize,
}

impl Completion {
    fn echo(&self, choice: usize) -> Option<&str> {
        self.echoes.get(choice / self.n).map(String::as_str)
    }

    fn choice(choice: usize, text: &str, reason: Option<FinishReason>) -> Value {
        json!({ "text": text, "index": choice, "logprobs": null, "finish_reason": reason.map(FinishReason::as_str) })
    }
}

impl Shape for Completion {
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";
    const ID_PREFIX: &'static str = "cmpl-";

    fn opening(&self, choice: usize) -> Option<Value> {
        self.echo(choice).map(|text| Self::choice(choice, text, None))
    }

    fn delta(&self, choice: usize, text: &str) -> Value {
        Self::choice(choice, text, None)
    }

    fn ending(&self, choice: usize, reason: FinishReason) -> Value {
        Self::choice(choice, "", Some(reason))
    }

    fn whole(&self, choice: usize, text: &str, reason: FinishReason) -> Value {
        let text = format!("{}{text}", self.echo(choice).unwrap_or_default());
        Self::choice(choice, &text, Some(reason))
    }
}
