//! POST /v1/completions: text continues one or several prompts, given as text or as token ids.
//!
//! `max_tokens` defaults to 16, unless the server was told otherwise. `echo` puts the prompt before each answer, its tokens' log-probabilities before those of the
//! answer; with `echo`, `max_tokens` may be 0. `best_of` generates more choices than it answers with and takes those of the
//! highest mean log-probability.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use taper_engine::MAX_LOGPROBS;

use crate::answer::{self, Answering};
use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::generation::Generation;
use crate::limits::{MAX_CHOICES, MAX_PROMPTS};
use crate::parameters::Parameters;
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::{api, body, prompt, unsupported};

mod shape;

use shape::Completion;

/// OpenAI's defaults of this endpoint.
const DEFAULTS: SamplingDefaults = SamplingDefaults { max_tokens: Some(16), ..SamplingDefaults::NONE };

pub(crate) struct Prepared {
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
    let mut admitted = api::admit(&state, &headers, body).await?;
    let mut request = admitted.read(&state, prepare).await?;
    admitted.compile(&state, &mut request.parameters, &request.prompts).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let generation =
        Generation::start(&served, request.prompts, &request.parameters, "prompt", (active, time_limit)).await?;
    let context = Answering { model: &served.model, ignored: &request.ignored, state: &state };
    answer::send(request.shape, generation, &request.parameters, &context).await
}

pub(crate) fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let wants_nothing_new = echo && fields.take_zero("max_tokens");
    let mut parameters = Parameters::take(&mut fields, state, served, DEFAULTS)?;
    parameters.prompt_only = wants_nothing_new && parameters.sampling.max_tokens.is_none();
    read_own_parameters(&mut fields, &mut parameters, echo)?;
    parameters.settle(served)?;
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
    parameters.check_told_of_prompts(tokens.iter().map(Vec::len).sum(), echo)?;
    let shape = Completion::new(&served.model.tokenizer, &parameters, &tokens, echoes);
    Ok(Prepared { parameters, prompts: tokens, shape, ignored })
}

/// Takes what only this endpoint has.
fn read_own_parameters(fields: &mut Fields, parameters: &mut Parameters, echo: bool) -> Result<(), ApiError> {
    let most = i64::from(MAX_LOGPROBS);
    let logprobs = match fields.take("logprobs") {
        // What the chat endpoint calls it when nothing is asked for.
        None | Some(Value::Bool(false)) => None,
        Some(value) => match integer_of(&value) {
            Some(num_top) if (0..=most).contains(&num_top) => Some(num_top as u32),
            _ => {
                let message = format!("logprobs must be an integer between 0 and {most}, got {}", show(&value));
                return Err(ApiError::invalid("logprobs", message));
            }
        },
    };
    parameters.details.logprobs = logprobs;
    let sampling = &mut parameters.sampling;
    sampling.logprobs = logprobs;
    if echo {
        // `None` is less than any number.
        sampling.prompt_logprobs = sampling.prompt_logprobs.max(logprobs);
    }
    if let Some(best_of) = fields.integer("best_of", 1..=MAX_CHOICES as i64)? {
        let refuse = |reason: &str| Err(ApiError::invalid("best_of", format!("best_of {reason}, got {best_of}")));
        let best_of = best_of as usize;
        if best_of < parameters.num_choices {
            return refuse("must be at least n");
        }
        if best_of > parameters.num_choices && parameters.stream {
            return refuse("cannot be more than n in a stream");
        }
        if best_of > parameters.num_choices {
            sampling.n = best_of;
            sampling.logprobs.get_or_insert(0);
        }
    }
    if parameters.prompt_only {
        // The prompt's last row comes with the rest; the token that is chosen from it is thrown away.
        sampling.max_tokens = Some(1);
        sampling.min_tokens = 0;
    }
    Ok(())
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
    let vocab_size = served.vocab_size();
    match ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token id {id} is not in the vocabulary, whose ids are below {vocab_size}");
            Err(ApiError::invalid("prompt", message))
        }
    }
}
