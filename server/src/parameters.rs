//! The parameters that both generating endpoints read, under OpenAI's names and vLLM's.
//!
//! `max_completion_tokens` is OpenAI's newer name of `max_tokens`; when both are given and differ, the newer name counts.
//! llama.cpp's `repeat_penalty` is read as vLLM's `repetition_penalty`, over the whole text unless `repeat_last_n` says otherwise.
//! The order in which samplers apply is the engine's, whatever the order of the fields, or that of `samplers`.
//! What a request leaves open is filled by `sampling_defaults`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use taper_engine::{SamplingParams, ThinkingBudget};
use taper_text::{Grammar, GrammarCompiler, GrammarError};

use crate::errors::ApiError;
use crate::fields::{Fields, either, show};
use crate::grammar_fields::{self, Form, FormPart};
use crate::limits::{MAX_CHOICES, MAX_PROMPT_DETAIL_BYTES, MAX_SALT_BYTES, MAX_STOP_BYTES, MAX_STOP_TOKENS, MAX_STOPS};
use crate::sampler_fields;
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::token_fields::{bad_words, logit_bias, token_ids};
use crate::token_json::Details;

/// The highest temperature in OpenAI's interface.
const MAX_TEMPERATURE: f64 = 2.0;

/// How long it is looked for which part of a form is at fault.
const MAX_SEARCH: Duration = Duration::from_secs(5);

/// What a request asks for, whatever its prompt looks like.
#[derive(Default)]
pub(crate) struct Parameters {
    pub(crate) sampling: SamplingParams,
    /// The names of the samplers in the order in which they apply.
    pub(crate) samplers: Vec<&'static str>,
    /// The limit of tokens that [`Parameters::settle`] sets where `sampling` has none; an endpoint that was told that there shall be
    /// none takes it away.
    pub(crate) default_max_tokens: Option<usize>,
    pub(crate) stream: bool,
    /// Whether a stream ends with a chunk of usage.
    pub(crate) include_usage: bool,
    /// `t_max_predict_ms`.
    pub(crate) predict_limit: Option<Duration>,
    /// Whether a stream tells how much of its prompts is computed.
    pub(crate) tells_progress: bool,
    /// Whether every chunk of a stream has the usage so far.
    pub(crate) continuous_usage: bool,
    /// Whether the answer tells where the time went; unless it is said, that depends on the endpoint.
    pub(crate) timings: Option<bool>,
    /// What the answer tells about tokens.
    pub(crate) details: Details,
    /// Choices to answer with; `sampling.n` are generated, and the best of them chosen.
    pub(crate) num_choices: usize,
    /// Nothing is asked for but what is told of the prompt (`max_tokens` 0).
    pub(crate) prompt_only: bool,
    /// The form that every answer must have.
    pub(crate) form: Option<Form>,
    /// The same for each prompt, compiled; empty without a form.
    pub(crate) grammars: Vec<Arc<Grammar>>,
    /// How long a chat model may think.
    pub(crate) thinking: Option<ThinkingBudget>,
    /// vLLM's `priority`: lower is served earlier.
    pub(crate) priority: i32,
    /// vLLM's `cache_salt`: cached prompts are shared only under the same one.
    pub(crate) cache_salt: Option<String>,
}

impl Parameters {
    /// Takes the shared fields; the model's name is checked too. What the request leaves open is the server's to say, then the
    /// model's, then that of the `protocol`. The endpoint adds its own fields and calls [`Parameters::settle`].
    pub(crate) fn take(
        fields: &mut Fields,
        state: &ServerState,
        served: &Served,
        protocol: SamplingDefaults,
    ) -> Result<Self, ApiError> {
        Self::take_up_to(MAX_TEMPERATURE, fields, state, served, protocol)
    }

    /// The same with another bound of the temperature.
    pub(crate) fn take_up_to(
        max_temperature: f64,
        fields: &mut Fields,
        state: &ServerState,
        served: &Served,
        protocol: SamplingDefaults,
    ) -> Result<Self, ApiError> {
        check_model(fields, state, served)?;
        let open = state.sampling_defaults(&served.model.id).or(protocol).sampling();
        let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
        let older = fields.integer("max_tokens", 1..=i64::MAX)?;
        let count = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        let repetition_penalty =
            either(["repetition_penalty", "repeat_penalty"], |name| number(fields, name, 0.01, 100.0))?;
        let details = Details::take(fields)?;
        let biases = logit_bias(fields, served)?;
        let mut bad_words = bad_words(fields, &served.model.tokenizer)?;
        bad_words.extend(biases.banned.into_iter().map(|token| vec![token]));
        let n = fields.integer("n", 1..=MAX_CHOICES as i64)?.map_or(1, count);
        let mut sampling = SamplingParams {
            logit_bias: biases.added,
            repetition_penalty: repetition_penalty.unwrap_or(open.repetition_penalty),
            frequency_penalty: number(fields, "frequency_penalty", -2.0, 2.0)?.unwrap_or(open.frequency_penalty),
            presence_penalty: number(fields, "presence_penalty", -2.0, 2.0)?.unwrap_or(open.presence_penalty),
            // An empty list restricts nothing, as a client that always sends the field means it.
            allowed_token_ids: token_ids(fields, "allowed_token_ids")?.filter(|tokens| !tokens.is_empty()),
            bad_words,
            min_tokens: fields.integer("min_tokens", 0..=i64::MAX)?.map_or(0, count),
            temperature: number(fields, "temperature", 0.0, max_temperature)?.unwrap_or(open.temperature),
            min_p: number(fields, "min_p", 0.0, 1.0)?.unwrap_or(open.min_p),
            top_k: match fields.integer("top_k", -1..=i64::from(i32::MAX))? {
                None => open.top_k,
                // -1 is how vLLM writes "all", which is 0 here.
                Some(k) => u32::try_from(k).unwrap_or(0),
            },
            typical_p: number(fields, "typical_p", 0.0, 1.0)?.unwrap_or(open.typical_p),
            top_p: number(fields, "top_p", 0.0, 1.0)?.unwrap_or(open.top_p),
            seed: seed(fields)?,
            max_tokens: newer.or(older).map(count),
            stop: stop_strings(fields, "stop")?,
            stop_token_ids: stop_token_ids(fields)?,
            shown_tokens: Vec::new(),
            include_stop_str_in_output: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            n,
            logprobs: None,
            prompt_logprobs: details.prompt_logprobs,
            ..SamplingParams::default()
        };
        let samplers = sampler_fields::take(fields, served, &mut sampling)?;
        let priority = priority(fields)?;
        let cache_salt = cache_salt(fields)?;
        let form = grammar_fields::take(fields)?;
        let timings = fields.boolean("timings")?;
        let tells_progress = fields.boolean("return_progress")?.unwrap_or(false);
        let predict_limit = fields.integer("t_max_predict_ms", -1..=i64::MAX)?.filter(|ms| *ms > 0);
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let (include_usage, continuous_usage) = stream_options(fields, stream)?;
        if stream && details.prompt_logprobs.is_some() {
            let message = "prompt_logprobs is not available in a stream; leave out stream";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        Ok(Self {
            sampling,
            samplers,
            default_max_tokens: open.max_tokens,
            stream,
            include_usage,
            continuous_usage,
            tells_progress,
            predict_limit: predict_limit.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis),
            timings,
            details,
            num_choices: n,
            prompt_only: false,
            form,
            grammars: Vec::new(),
            thinking: None,
            priority,
            cache_salt,
        })
    }

    /// What compiles the form that answers to `prompts` must have, for each of them; `None` without a form. Blocks, up to some
    /// seconds for a hostile one.
    pub(crate) fn compiler(
        &self,
        served: &Arc<Served>,
        prompts: &[Vec<u32>],
    ) -> Option<impl FnOnce() -> Result<Vec<Arc<Grammar>>, ApiError> + Send + 'static> {
        let Form { field, spec, parts } = self.form.clone()?;
        let grammars = Arc::clone(&served.grammars);
        // Of a prompt only its end matters to a grammar, so a batch compiles few.
        let ends: Vec<Option<u32>> = prompts.iter().map(|prompt| prompt.last().copied()).collect();
        Some(move || {
            let mut compiled = HashMap::new();
            let compile = |end: Option<u32>| {
                if let Some(grammar) = compiled.get(&end) {
                    return Ok(Arc::clone(grammar));
                }
                let grammar = grammars.compile(&spec, end.as_slice()).map(Arc::new).map_err(|error| match error {
                    GrammarError::Busy => ApiError::busy(&error.to_string()),
                    error => match culprit(&grammars, &parts) {
                        Some((field, error)) => ApiError::invalid(field, error.to_string()),
                        None => ApiError::invalid(field, error.to_string()),
                    },
                })?;
                compiled.insert(end, Arc::clone(&grammar));
                Ok(grammar)
            };
            ends.into_iter().map(compile).collect()
        })
    }

    /// Refuses an answer that would tell too much of prompts of `num_tokens` in all. With `echo` it repeats them, and the
    /// completions' log-probabilities tell of them too.
    pub(crate) fn check_told_of_prompts(&self, num_tokens: usize, echo: bool) -> Result<(), ApiError> {
        let Details { prompt_logprobs, logprobs, token_ids, .. } = self.details;
        // Bytes of an answer: `"1234":{"logprob":-1.2345678,"rank":1,"decoded_token":" word"},`, `1234,` and ` word`.
        let of_logprobs = |num_top: Option<u32>| num_top.map_or(0, |num_top| 65 * (num_top as usize + 1));
        let told = [
            ("prompt_logprobs", of_logprobs(prompt_logprobs)),
            ("logprobs", of_logprobs(logprobs.filter(|_| echo))),
            ("return_token_ids", if token_ids { 6 } else { 0 }),
            ("echo", if echo { 5 } else { 0 }),
        ];
        let per_token: usize = told.iter().map(|(_, bytes)| bytes).sum();
        let bytes = per_token.saturating_mul(num_tokens).saturating_mul(self.num_choices);
        let Some((param, _)) = told.iter().find(|(_, bytes)| *bytes > 0).filter(|_| bytes > MAX_PROMPT_DETAIL_BYTES)
        else {
            return Ok(());
        };
        let message = format!(
            "with {param} this answer would tell about {bytes} bytes of its prompts, and at most {MAX_PROMPT_DETAIL_BYTES} \
             are told; ask for less of each token, for fewer choices, or about shorter prompts"
        );
        Err(ApiError::invalid(*param, message))
    }

    /// Sets the limit of tokens that nobody gave, and refuses what has no meaning together.
    pub(crate) fn settle(&mut self, served: &Served) -> Result<(), ApiError> {
        self.sampling.max_tokens = self.sampling.max_tokens.or(self.default_max_tokens);
        let vocab_size = served.vocab_size();
        let checked = self.sampling.validate().and_then(|()| self.sampling.check_tokens(vocab_size));
        checked.map_err(|error| ApiError::invalid(error.param, format!("{} {}", error.param, error.message)))
    }
}

/// Takes the model's name, which has to be one of the served model's, and to be there if the server insists; an empty one is none.
/// Among several the request was sent to it by this name.
pub(crate) fn check_model(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<(), ApiError> {
    match fields.string("model")?.filter(|name| !name.is_empty()) {
        Some(name) if !state.answers_to(&served.model.id, &name) => {
            Err(ApiError::model_not_found(&show(&Value::String(name)), &[&served.model.id]))
        }
        None => check_unnamed(state, served),
        Some(_) => Ok(()),
    }
}

/// Refuses a request that does not name its model, if the server insists on that.
pub(crate) fn check_unnamed(state: &ServerState, served: &Served) -> Result<(), ApiError> {
    if !state.config().require_model {
        return Ok(());
    }
    let message = format!("model is missing; the first one here is {}", show(&Value::from(served.model.id.as_str())));
    Err(ApiError::missing("model", message))
}

/// Lower is served earlier; 0 unless given.
pub(crate) fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    Ok(fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.map_or(0, |priority| priority as i32))
}

/// The first part of a form that cannot be compiled by itself, if it is found soon.
fn culprit(grammars: &GrammarCompiler, parts: &[FormPart]) -> Option<(String, GrammarError)> {
    let begin = Instant::now();
    parts.iter().take_while(|_| begin.elapsed() < MAX_SEARCH).find_map(|part| match grammars.compile(&part.spec, &[]) {
        Err(error @ (GrammarError::Invalid { .. } | GrammarError::TooSlow { .. })) => Some((part.field.clone(), error)),
        _ => None,
    })
}

/// A string that is not empty, as vLLM has it.
pub(crate) fn cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    match fields.string("cache_salt")? {
        Some(salt) if salt.is_empty() || salt.len() > MAX_SALT_BYTES => {
            let message = format!("cache_salt must have 1 to {MAX_SALT_BYTES} bytes, got {}", salt.len());
            Err(ApiError::invalid("cache_salt", message))
        }
        salt => Ok(salt),
    }
}

/// `stream_options`: whether a stream ends with usage, and whether each chunk has it.
fn stream_options(fields: &mut Fields, stream: bool) -> Result<(bool, bool), ApiError> {
    const OBFUSCATION: &str = "include_obfuscation";
    let Some(mut options) = fields.object("stream_options")? else { return Ok((false, false)) };
    let mut is_asked = |name| options.boolean(name).map(|asked| asked.unwrap_or(false));
    let told = (is_asked("include_usage")?, is_asked("continuous_usage_stats")?);
    if !stream {
        let message = "stream_options needs stream to be true; leave it out";
        return Err(ApiError::invalid("stream_options", message));
    }
    if is_asked(OBFUSCATION)? {
        // Nothing is hidden here, which the header of ignored fields shall say.
        options.assume(OBFUSCATION, Value::Bool(true));
    }
    Ok(told)
}

/// A number between two bounds.
fn number(fields: &mut Fields, field: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
    Ok(fields.number(field, least..=most)?.map(|number| number as f32))
}

fn stop_token_ids(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let tokens = token_ids(fields, "stop_token_ids")?.unwrap_or_default();
    if tokens.len() > MAX_STOP_TOKENS {
        let message = format!("stop_token_ids has {} tokens; at most {MAX_STOP_TOKENS} are taken", tokens.len());
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    Ok(tokens)
}

/// Any 64-bit integer, signed or not: only equality of seeds matters.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    match fields.take("seed") {
        None => Ok(None),
        Some(value) => match value.as_u64().or_else(|| crate::fields::integer_of(&value).map(i64::cast_unsigned)) {
            Some(seed) => Ok(Some(seed)),
            None => Err(ApiError::invalid("seed", format!("seed must be an integer of 64 bits, got {}", show(&value)))),
        },
    }
}

/// One stop string or several.
pub(crate) fn stop_strings(fields: &mut Fields, field: &str) -> Result<Vec<String>, ApiError> {
    let items = match fields.take(field) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MAX_STOPS => items,
        Some(Value::Array(items)) => {
            let message = format!("{field} has {} strings; at most {MAX_STOPS} are taken", items.len());
            return Err(ApiError::invalid(field, message));
        }
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => {
            let message = format!("{field} must be a string or an array of strings, got {}", show(&other));
            return Err(ApiError::invalid(field, message));
        }
    };
    let check = |item: Value| match item {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_STOP_BYTES => Ok(text),
        other => {
            let message = format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes, got {}", show(&other));
            Err(ApiError::invalid(field, message))
        }
    };
    items.into_iter().map(check).collect()
}
