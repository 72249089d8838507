//! The parts of an answer that both generating endpoints share: its envelope, its usage, and the whole answer in one body.

use std::future::Future;
use std::ops::Range;
use std::task::{Context, Poll};

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use taper_engine::{Miss, TokenLogprobs};

use crate::errors::ApiError;
use crate::generation::{Output, Progress, Totals};
use crate::open_object::OpenObject;
use crate::parameters::Parameters;
use crate::reply;
use crate::sse;
use crate::state::{ServedModel, ServerState};

/// What the choices of an answer are made of.
pub(crate) trait AnswerPiece: Default + Clone + Send + Unpin + 'static {
    /// Adds what came next.
    fn append(&mut self, next: Self);
    /// Whether there is nothing in it but tokens without text.
    fn is_blank(&self) -> bool;
    /// How many tokens it has.
    fn num_tokens(&self) -> usize;
    /// How probable the model found it, per token.
    fn mean_logprob(&self) -> f64;
}

/// Where the choices of an answer come from. Dropping it cancels what is left of them.
pub(crate) trait Source: Sized + Send + Unpin + 'static {
    /// What they are made of.
    type Piece: AnswerPiece;
    /// Why one ends.
    type Reason: Copy + Send + Unpin + 'static;

    /// The next piece; `None` after [`Output::Totals`] or an error.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Next<Self>>>;
    /// How many choices are generated.
    fn num_choices(&self) -> usize;
    /// How many prompts there are.
    fn num_prompts(&self) -> usize;
    /// How many tokens they have.
    fn prompt_tokens(&self) -> usize;
    /// The choices of a prompt.
    fn choices_of(&self, prompt: usize) -> Range<usize>;
    /// What a prompt cost with all its choices, once they are complete.
    fn totals_of(&self, prompt: usize) -> Option<Totals>;

    /// [`Source::poll_next`] for asynchronous code.
    fn next(&mut self) -> impl Future<Output = Option<Next<Self>>> + Send {
        std::future::poll_fn(move |context| self.poll_next(context))
    }
}

/// What a source gives.
pub(crate) type Next<S> = Result<Output<<S as Source>::Piece, <S as Source>::Reason>, ApiError>;
/// What a shape writes.
type PieceOf<S> = <<S as Shape>::Source as Source>::Piece;
/// Why the choices end that a shape writes.
type ReasonOf<S> = <<S as Shape>::Source as Source>::Reason;

/// How one endpoint writes choices.
pub(crate) trait Shape: Send + Unpin + 'static {
    /// Where they come from.
    type Source: Source;
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
    /// The chunks of a piece.
    fn deltas(&mut self, choice: usize, piece: &PieceOf<Self>) -> Vec<Value>;
    /// The last chunk of a choice, with the tokens that came after its text.
    fn ending(&mut self, choice: usize, reason: ReasonOf<Self>, rest: &PieceOf<Self>) -> Value;
    /// A choice of a whole answer.
    fn whole(&mut self, choice: usize, reason: ReasonOf<Self>, piece: &PieceOf<Self>) -> Value;
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

    /// What a body or a chunk begins with.
    pub(crate) fn open(&self, object: &str) -> OpenObject {
        let fields = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        });
        OpenObject::of(&fields)
    }
}

/// OpenAI's `usage`.
pub(crate) fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": totals.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": totals.reasoning_tokens },
    })
}

/// The usage of a stream that goes on. What the prefix cache spared and what was thought is known at its end.
pub(crate) fn usage_so_far(prompt_tokens: usize, completion_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    })
}

/// Where the time went, with the names that llama.cpp's clients read. The first token belongs to the prompt's time, and
/// `prompt_n` counts the tokens of `cache_n` as well, which the prefix cache spared. `sample_ms` and `detokenize_ms` are no
/// further phases, but parts of `prompt_ms` and `predicted_ms`.
pub(crate) fn timings(totals: &Totals) -> Option<Value> {
    let timings = totals.timings?;
    let per_second = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let per_token_ms = |count: usize, seconds: f64| if count > 0 { seconds * 1e3 / count as f64 } else { 0.0 };
    let decoded = totals.completion_tokens.saturating_sub(1);
    Some(json!({
        "queue_ms": timings.queue_s * 1e3,
        "cache_n": totals.cached_tokens,
        "cache_miss_reason": totals.miss.map(|miss| reason_of(miss, totals.cached_tokens)),
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
        "sample_ms": timings.sample_s * 1e3,
        "detokenize_ms": timings.detokenize_s * 1e3,
        "recomputed_rows": totals.recomputed_rows,
    }))
}

/// Why the prefix cache had no more of a prompt than so many tokens.
fn reason_of(miss: Miss, cached_tokens: usize) -> String {
    match miss {
        Miss::New => "new".to_owned(),
        Miss::Evicted => "evicted".to_owned(),
        Miss::Departs { common } => format!("departs at token {}", cached_tokens + common),
    }
}

/// How much of a prompt is computed, with llama.cpp's names.
pub(crate) fn prompt_progress(progress: &Progress) -> Value {
    let Progress { total, cached, computed, seconds } = progress;
    json!({ "total": total, "cache": cached, "processed": computed, "time_ms": (seconds * 1e3).round() as u64 })
}

/// The `timings` of an answer that `source` has brought: of its one prompt unless `asked` says no; of several, which overlap, for
/// each of them where it says yes.
pub(crate) fn timings_of(source: &impl Source, totals: &Totals, asked: Option<bool>) -> Option<Value> {
    match asked {
        Some(false) => None,
        Some(true) if source.num_prompts() > 1 => {
            let of_prompt = |prompt| source.totals_of(prompt).as_ref().and_then(timings);
            Some((0..source.num_prompts()).map(of_prompt).collect::<Vec<_>>().into())
        }
        _ => timings(totals),
    }
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
    generation: S::Source,
    parameters: &Parameters,
    context: &Answering<'_>,
) -> Result<Response, ApiError> {
    let envelope = Envelope::new::<S>(context.model);
    let mut response = if parameters.stream {
        let keep_alive = context.state.timeouts().keep_alive;
        sse::respond(shape, envelope, generation, parameters, keep_alive).await?
    } else {
        let whole = collect(shape, envelope, generation, parameters).await?;
        let details = parameters.details;
        let is_large = details.logprobs.is_some() || details.prompt_logprobs.is_some();
        let text = if is_large { context.state.work().write(|| whole.write()).await? } else { whole.write() };
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
    };
    reply::report_ignored(&mut response, context.ignored);
    Ok(response)
}

/// An answer that is complete.
struct Whole<S: Shape> {
    shape: S,
    envelope: Envelope,
    choices: Vec<(ReasonOf<S>, PieceOf<S>)>,
    totals: Totals,
    timings: Option<Value>,
}

impl<S: Shape> Whole<S> {
    /// Its text. One choice after another, because as a value it takes up to twenty times the memory.
    fn write(mut self) -> String {
        let mut body = self.envelope.open(S::OBJECT);
        let choices = self.choices.iter().enumerate();
        body.add_array("choices", choices.map(|(place, (reason, piece))| self.shape.whole(place, *reason, piece)));
        let mut rest = json!({});
        self.shape.complete(&mut rest);
        rest["usage"] = usage(&self.totals);
        if let Some(timings) = self.timings {
            rest["timings"] = timings;
        }
        body.add_all(&rest);
        body.close()
    }
}

/// Waits for the whole answer. Where more choices are generated than answered with, the most probable by token win.
async fn collect<S: Shape>(
    mut shape: S,
    envelope: Envelope,
    mut generation: S::Source,
    parameters: &Parameters,
) -> Result<Whole<S>, ApiError> {
    let mut pieces = vec![PieceOf::<S>::default(); generation.num_choices()];
    let mut reasons = vec![None; pieces.len()];
    let mut totals = Totals::default();
    while let Some(output) = generation.next().await {
        match output? {
            Output::PromptLogprobs { prompt, logprobs } => shape.prompt_logprobs(prompt, logprobs),
            // Of streams.
            Output::Progress { .. } => {}
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
        for generated in best(&pieces, generation.choices_of(prompt), parameters.num_choices) {
            let reason = reasons[generated].ok_or_else(|| ApiError::internal("the engine left a choice unfinished"))?;
            choices.push((reason, std::mem::take(&mut pieces[generated])));
        }
    }
    let timings = timings_of(&generation, &totals, parameters.timings);
    Ok(Whole { shape, envelope, choices, totals, timings })
}

/// The `num` of these choices that the model finds most probable per token, best first; all of them in their own order when
/// there are no more.
fn best<P: AnswerPiece>(pieces: &[P], choices: Range<usize>, num: usize) -> Vec<usize> {
    let mut ranked: Vec<usize> = choices.collect();
    if ranked.len() > num {
        ranked.sort_by(|&a, &b| pieces[b].mean_logprob().total_cmp(&pieces[a].mean_logprob()));
        ranked.truncate(num);
    }
    ranked
}
