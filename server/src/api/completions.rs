//! POST /v1/completions: text continues one or several prompts, given as text or as token ids.
//!
//! `max_tokens` defaults to 16. `echo` puts the prompt before each answer, its tokens' log-probabilities before those of the
//! answer; with `echo`, `max_tokens` may be 0. `best_of` generates more choices than it answers with and takes those of the
//! highest mean log-probability.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use taper_engine::{FinishReason, MAX_LOGPROBS, TokenLogprobs};
use taper_text::{Detokenizer, Tokenizer};

use crate::answer::{self, Answering, Shape};
use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::generation::{Generation, Piece};
use crate::limits::{MAX_CHOICES, MAX_PROMPTS};
use crate::parameters::Parameters;
use crate::state::{Served, ServerState};
use crate::token_json::{CompletionLogprobs, TextOffsets, TokenWriter};
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
    let generation = Generation::start(&served, request.prompts, &request.parameters, "prompt", active)?;
    let context = Answering { model: &served.model, ignored: &request.ignored, keep_alive };
    answer::send(request.shape, generation, &request.parameters, &context).await
}

fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut parameters = Parameters::take(&mut fields, state, served)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    read_own_parameters(&mut fields, &mut parameters, echo)?;
    parameters.check(served)?;
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
    if sampling.max_tokens == Some(0) && echo {
        // The model's last row says what it would choose; the token is chosen and thrown away.
        sampling.max_tokens = Some(1);
        sampling.min_tokens = 0;
        parameters.prompt_only = true;
    }
    sampling.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
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

/// `text_completion` objects; chunks and whole answers have the same form.
struct Completion {
    writer: TokenWriter,
    tokenizer: Arc<Tokenizer>,
    n: usize,
    /// Empty when the answer tells nothing about tokens.
    prompts: Vec<Vec<u32>>,
    /// What to put before the answers, by prompt; empty without `echo`.
    echoes: Vec<String>,
    prompt_logprobs: Vec<Vec<Option<TokenLogprobs>>>,
    /// Where each choice's next token begins.
    offsets: HashMap<usize, TextOffsets>,
}

impl Completion {
    fn new(tokenizer: &Arc<Tokenizer>, parameters: &Parameters, prompts: &[Vec<u32>], echoes: Vec<String>) -> Self {
        let details = parameters.details;
        let tells_tokens = details.token_ids || details.logprobs.is_some();
        Completion {
            writer: TokenWriter::new(tokenizer, details),
            tokenizer: Arc::clone(tokenizer),
            n: parameters.num_choices,
            prompts: if tells_tokens { prompts.to_vec() } else { Vec::new() },
            echoes,
            prompt_logprobs: vec![Vec::new(); prompts.len()],
            offsets: HashMap::new(),
        }
    }

    fn echo(&self, choice: usize) -> Option<&str> {
        self.echoes.get(choice / self.n).map(String::as_str)
    }

    /// A choice with `text`; `logprobs` are those of the text's tokens.
    fn choice(
        &self,
        choice: usize,
        text: &str,
        logprobs: Option<CompletionLogprobs>,
        reason: Option<FinishReason>,
    ) -> Value {
        json!({
            "text": text,
            "index": choice,
            "logprobs": logprobs.map(CompletionLogprobs::into_json),
            "finish_reason": reason.map(FinishReason::as_str),
        })
    }

    /// Log-probabilities of the echoed prompt.
    fn echo_logprobs(&self, choice: usize) -> Option<CompletionLogprobs> {
        self.writer.details().logprobs?;
        let text = self.echo(choice)?;
        let prompt = &self.prompts[choice / self.n];
        let found = &self.prompt_logprobs[choice / self.n];
        let mut offsets = TextOffsets::new(Detokenizer::keeping_special(Arc::clone(&self.tokenizer)), 0);
        let mut logprobs = CompletionLogprobs::default();
        for (place, &token) in prompt.iter().enumerate() {
            let found = found.get(place).and_then(Option::as_ref);
            // A token that was put before the client's text is no part of it.
            let is_added =
                place == 0 && Some(token) == self.tokenizer.bos() && !text.starts_with(self.tokenizer.bos_text());
            let offset = if is_added { 0 } else { offsets.next(token) };
            logprobs.push(&self.writer, token, found, offset);
        }
        Some(logprobs)
    }

    /// Log-probabilities of generated tokens.
    fn logprobs(&mut self, choice: usize, piece: &Piece) -> Option<CompletionLogprobs> {
        self.writer.details().logprobs?;
        let num_chars = self.echo(choice).map_or(0, |text| text.chars().count());
        let prompt = &self.prompts[choice / self.n];
        let offsets = self.offsets.entry(choice).or_insert_with(|| {
            TextOffsets::new(Detokenizer::continuing(Arc::clone(&self.tokenizer), prompt), num_chars)
        });
        let mut logprobs = CompletionLogprobs::default();
        for (&token, found) in piece.tokens.iter().zip(&piece.logprobs) {
            logprobs.push(&self.writer, token, Some(found), offsets.next(token));
        }
        Some(logprobs)
    }

    fn add_token_ids(&self, choice: &mut Value, tokens: &[u32]) {
        if self.writer.details().token_ids {
            choice["token_ids"] = json!(tokens);
        }
    }

    fn add_prompt_token_ids(&self, choice: &mut Value, index: usize) {
        if self.writer.details().token_ids {
            choice["prompt_token_ids"] = json!(self.prompts[index / self.n]);
        }
    }
}

impl Shape for Completion {
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";
    const ID_PREFIX: &'static str = "cmpl-";

    fn awaits_prompt(&self) -> bool {
        self.writer.details().logprobs.is_some() && !self.echoes.is_empty()
    }

    fn prompt_logprobs(&mut self, prompt: usize, logprobs: Vec<Option<TokenLogprobs>>) {
        self.prompt_logprobs[prompt] = logprobs;
    }

    fn opening(&mut self, choice: usize) -> Option<Value> {
        if self.echoes.is_empty() && !self.writer.details().token_ids {
            return None;
        }
        let text = self.echo(choice).unwrap_or_default();
        let mut opening = self.choice(choice, text, self.echo_logprobs(choice), None);
        self.add_prompt_token_ids(&mut opening, choice);
        self.add_token_ids(&mut opening, &[]);
        Some(opening)
    }

    fn delta(&mut self, choice: usize, piece: &Piece) -> Value {
        let logprobs = self.logprobs(choice, piece);
        let mut delta = self.choice(choice, &piece.text, logprobs, None);
        self.add_token_ids(&mut delta, &piece.tokens);
        delta
    }

    fn ending(&mut self, choice: usize, reason: FinishReason, rest: &Piece) -> Value {
        let logprobs = if rest.tokens.is_empty() { None } else { self.logprobs(choice, rest) };
        let mut ending = self.choice(choice, "", logprobs, Some(reason));
        self.add_token_ids(&mut ending, &rest.tokens);
        ending
    }

    fn whole(&mut self, choice: usize, reason: FinishReason, piece: &Piece) -> Value {
        let logprobs = self.logprobs(choice, piece).map(|generated| match self.echo_logprobs(choice) {
            Some(mut all) => {
                all.append(generated);
                all
            }
            None => generated,
        });
        let text = format!("{}{}", self.echo(choice).unwrap_or_default(), piece.text);
        let mut whole = self.choice(choice, &text, logprobs, Some(reason));
        if self.writer.details().prompt_logprobs.is_some() {
            whole["prompt_logprobs"] = self.writer.prompt_logprobs(&self.prompt_logprobs[choice / self.n]);
        }
        self.add_prompt_token_ids(&mut whole, choice);
        self.add_token_ids(&mut whole, &piece.tokens);
        whole
    }
}
