//! The parts of an answer that both generating endpoints share: its envelope, its usage, and the whole answer in one body.

use std::ops::Range;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use taper_engine::{FinishReason, TokenLogprobs};

use crate::errors::ApiError;
use crate::generation::{Generation, Output, Piece, Totals};
use crate::parameters::Parameters;
use crate::sse;
use crate::state::{ServedModel, ServerState};

/// How one endpoint writes choices.
pub(crate) trait Shape: Send + Unpin + 'static {
    /// The `object` of a whole answer.
    const OBJECT: &'static str;
    /// The `object` of a chunk of a stream.
    const CHUNK_OBJECT: &'static str;
    /// What ids begin with.
    const ID_PREFIX: &'static str;

    /// Whether the first chunks need what [`Shape::prompt_logprobs`] brings.
    fn awaits_prompt(&self) -> bool {
        false
    }
    /// Takes what the model thought of a prompt.
    fn prompt_logprobs(&mut self, prompt: usize, logprobs: Vec<Option<TokenLogprobs>>);
    /// The first chunk of a choice, if it has one before the text.
    fn opening(&mut self, choice: usize) -> Option<Value>;
    /// A chunk of text.
    fn delta(&mut self, choice: usize, piece: &Piece) -> Value;
    /// The last chunk of a choice, with the tokens that came after its text.
    fn ending(&mut self, choice: usize, reason: FinishReason, rest: &Piece) -> Value;
    /// A choice of a whole answer.
    fn whole(&mut self, choice: usize, reason: FinishReason, piece: &Piece) -> Value;
    /// Adds what stands beside the choices, in a whole answer or the first chunk of a stream.
    fn complete(&self, _body: &mut Value) {}
}

/// The fields that all chunks of one answer have in common.
pub(crate) struct Envelope {
    id: String,
    model: String,
    fingerprint: String,
    created: u64,
}

impl Envelope {
    fn new<S: Shape>(model: &ServedModel) -> Self {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            id: format!("{}{}", S::ID_PREFIX, uuid::Uuid::new_v4().simple()),
            model: model.id.clone(),
            fingerprint: model.fingerprint.clone(),
            created: since_1970.map_or(0, |d| d.as_secs()),
        }
    }

    /// A body or chunk with these choices.
    pub(crate) fn wrap(&self, object: &str, choices: Vec<Value>) -> Value {
        let mut body = self.fields(object);
        body["choices"] = Value::Array(choices);
        body
    }

    fn fields(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        })
    }
}

/// OpenAI's `usage`.
pub(crate) fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": totals.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": 0 },
    })
}

/// Where the time went, with the names that llama.cpp's clients read. The first token belongs to the prompt's time, and
/// `prompt_n` counts the tokens of `cache_n` as well, which the prefix cache spared.
pub(crate) fn timings(totals: &Totals) -> Option<Value> {
    let timings = totals.timings?;
    let per_second = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let per_token_ms = |count: usize, seconds: f64| if count > 0 { seconds * 1e3 / count as f64 } else { 0.0 };
    let decoded = totals.completion_tokens.saturating_sub(1);
    Some(json!({
        "queue_ms": timings.queue_s * 1e3,
        "cache_n": totals.cached_tokens,
        "prompt_n": totals.prompt_tokens,
        "prompt_ms": timings.prefill_s * 1e3,
        "prompt_per_token_ms": per_token_ms(totals.prompt_tokens, timings.prefill_s),
        "prompt_per_second": per_second(totals.prompt_tokens, timings.prefill_s),
        "predicted_n": totals.completion_tokens,
        "predicted_ms": timings.decode_s * 1e3,
        "predicted_per_token_ms": per_token_ms(decoded, timings.decode_s),
        "predicted_per_second": per_second(decoded, timings.decode_s),
        "draft_n": totals.guessed_tokens,
        "draft_n_accepted": totals.right_guesses,
    }))
}

/// What an answer needs besides its text.
pub(crate) struct Answering<'a> {
    /// The model that answers.
    pub(crate) model: &'a ServedModel,
    /// The request's fields that nobody knows.
    pub(crate) ignored: &'a [String],
    /// The server's.
    pub(crate) state: &'a ServerState,
}

/// Sends the answer of `generation`, streamed or whole.
pub(crate) async fn send<S: Shape>(
    shape: S,
    generation: Generation,
    parameters: &Parameters,
    context: &Answering<'_>,
) -> Result<Response, ApiError> {
    let envelope = Envelope::new::<S>(context.model);
    let mut response = if parameters.stream {
        let keep_alive = context.state.timeouts().keep_alive;
        sse::respond(shape, envelope, generation, parameters.include_usage, keep_alive).await?
    } else {
        let whole = collect(shape, envelope, generation, parameters.num_choices).await?;
        let details = parameters.details;
        let is_large = details.logprobs.is_some() || details.prompt_logprobs.is_some();
        let text = if is_large { context.state.work().write(|| whole.write()).await? } else { whole.write() };
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
    };
    if !context.ignored.is_empty()
        && let Ok(names) = HeaderValue::from_str(&context.ignored.join(", "))
    {
        response.headers_mut().insert("x-taper-ignored-fields", names);
    }
    Ok(response)
}

/// An answer that is complete.
struct Whole<S> {
    shape: S,
    envelope: Envelope,
    choices: Vec<(FinishReason, Piece)>,
    totals: Totals,
}

impl<S: Shape> Whole<S> {
    /// Its text. One choice after another, because as a value it takes up to twenty times the memory.
    fn write(mut self) -> String {
        let mut text = self.envelope.fields(S::OBJECT).to_string();
        // Its closing brace; the rest follows.
        text.pop();
        text.push_str(",\"choices\":[");
        for (place, (reason, piece)) in self.choices.iter().enumerate() {
            if place > 0 {
                text.push(',');
            }
            text.push_str(&self.shape.whole(place, *reason, piece).to_string());
        }
        text.push(']');
        let mut rest = json!({});
        self.shape.complete(&mut rest);
        rest["usage"] = usage(&self.totals);
        if let Some(timings) = timings(&self.totals) {
            rest["timings"] = timings;
        }
        text.push_str(&rest.to_string().replacen('{', ",", 1));
        text
    }
}

/// Waits for the whole answer. Where more choices are generated than answered with, the most probable by token win.
async fn collect<S: Shape>(
    mut shape: S,
    envelope: Envelope,
    mut generation: Generation,
    num_choices: usize,
) -> Result<Whole<S>, ApiError> {
    let mut pieces = vec![Piece::default(); generation.num_choices()];
    let mut reasons = vec![None; pieces.len()];
    let mut totals = Totals::default();
    while let Some(output) = generation.next().await {
        match output? {
            Output::PromptLogprobs { prompt, logprobs } => shape.prompt_logprobs(prompt, logprobs),
            Output::Text { choice, piece } => pieces[choice].append(piece),
            Output::Finished { choice, reason, piece } => {
                pieces[choice].append(piece);
                reasons[choice] = Some(reason);
            }
            Output::Totals(all) => totals = all,
        }
    }
    let mut choices = Vec::new();
    for prompt in 0..generation.num_prompts() {
        for generated in best(&pieces, generation.choices_of(prompt), num_choices) {
            let reason = reasons[generated].ok_or_else(|| ApiError::internal("the engine left a choice unfinished"))?;
            choices.push((reason, std::mem::take(&mut pieces[generated])));
        }
    }
    Ok(Whole { shape, envelope, choices, totals })
}

/// The `num` of these choices that the model finds most probable per token, best first; all of them in their own order when
/// there are no more.
fn best(pieces: &[Piece], choices: Range<usize>, num: usize) -> Vec<usize> {
    let mut ranked: Vec<usize> = choices.collect();
    if ranked.len() > num {
        ranked.sort_by(|&a, &b| pieces[b].mean_logprob().total_cmp(&pieces[a].mean_logprob()));
        ranked.truncate(num);
    }
    ranked
}
