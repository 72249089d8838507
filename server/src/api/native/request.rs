//! llama-server's request: what it calls differently, what it assumes, and what is refused by name.

use serde_json::{Value, json};
use taper_engine::{MAX_LOGPROBS, SamplingParams};

use super::shape;
use crate::errors::ApiError;
use crate::fields::{Fields, integer_of, show};
use crate::limits::{MAX_CHOICES, MAX_PROMPTS, MAX_TOLD_BYTES};
use crate::mixed_prompt::{self, Mixing};
use crate::parameters::Parameters;
use crate::reply::json_len;
use crate::state::{Served, ServerState};
use crate::{body, unsupported};

/// llama-server's defaults.
pub(super) const TEMPERATURE: f64 = 0.8;
pub(super) const TOP_K: u32 = 40;
pub(super) const TOP_P: f64 = 0.95;
pub(super) const MIN_P: f64 = 0.05;
/// How llama-server writes "any seed", besides -1.
pub(super) const ANY_SEED: u64 = u32::MAX as u64;

/// The samplers in the order in which they apply here.
pub(super) const SAMPLERS: &[&str] = &["penalties", "temperature", "min_p", "top_k", "typ_p", "top_p"];
/// Samplers of llama-server that are always off here, so their place does not matter.
const OFF_SAMPLERS: &[&str] = &["dry", "xtc", "top_n_sigma"];

/// A parameter that is not there, and which values ask for nothing.
type Refused = (&'static str, fn(&Value) -> bool);

/// Parameters that are refused unless they are off, besides those that no endpoint has.
pub(crate) const REFUSED: &[Refused] = &[
    ("post_sampling_probs", is_off),
    ("grammar_lazy", is_off),
    ("grammar_triggers", is_empty),
    ("preserved_tokens", is_empty),
    ("image_data", is_empty),
    ("adaptive_target", is_negative),
    ("prompt_logprobs", is_never),
    ("return_tokens_as_token_ids", is_off),
];

/// Fields that change nothing in the answer: what belongs to samplers that are off, and what says how to compute it.
pub(crate) const HARMLESS: &[&str] = &[
    "dynatemp_exponent",
    "xtc_threshold",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_decay",
    "backend_sampling",
    "sse_ping_interval",
    // There is no shift of the context, so nothing is kept or discarded, and the cache is always asked.
    "n_keep",
    "n_discard",
    "n_cache_reuse",
];

fn is_off(value: &Value) -> bool {
    value == &Value::Bool(false) || value.as_f64() == Some(0.0)
}
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}
fn is_negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number < 0.0)
}
fn is_never(_: &Value) -> bool {
    false
}

/// A request that was understood.
pub(crate) struct Prepared {
    pub(super) parameters: Parameters,
    pub(super) prompts: Vec<Vec<u32>>,
    /// The prompts' texts, control tokens spelled out.
    pub(super) texts: Vec<String>,
    /// `generation_settings`.
    pub(super) settings: Value,
    /// `response_fields`; without any an answer has all of them.
    pub(super) response_fields: Vec<String>,
    /// `n_indent`.
    pub(super) least_indent: usize,
    pub(super) ignored: Vec<String>,
}

pub(crate) fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let prompt = fields.take("prompt").ok_or_else(|| {
        ApiError::missing(
            "prompt",
            "prompt is missing; it is a string, token ids, an array of both, or several of these",
        )
    })?;
    refuse(&mut fields)?;
    let own = Own::take(&mut fields)?;
    own.assume(&mut fields);
    let mut parameters = Parameters::take(&mut fields, state, served)?;
    own.apply(&mut parameters)?;
    parameters.check(served)?;

    let prompts = mixed_prompt::split(prompt, "prompt")?;
    if prompts.len() > MAX_PROMPTS {
        let message = format!("prompt has {} prompts; at most {MAX_PROMPTS} are taken in one request", prompts.len());
        return Err(ApiError::invalid("prompt", message));
    }
    let mixing = Mixing { add_special: true, parse_special: true };
    let encode = |prompt| mixed_prompt::encode(served, prompt, "prompt", mixing);
    let prompts: Vec<Vec<u32>> = prompts.into_iter().map(encode).collect::<Result<_, _>>()?;
    let ignored = unsupported::check_rest(fields, state)?;
    let texts: Vec<String> = prompts.iter().map(|tokens| served.model.tokenizer.decode(tokens, false)).collect();
    let settings = shape::settings(&parameters.sampling, parameters.stream);
    check_told(&texts, &settings, parameters.num_choices)?;
    let Own { response_fields, least_indent, .. } = own;
    Ok(Prepared { parameters, prompts, texts, settings, response_fields, least_indent, ignored })
}

/// Every choice's answer repeats its prompt and the settings.
fn check_told(texts: &[String], settings: &Value, num_choices: usize) -> Result<(), ApiError> {
    let settings = settings.to_string().len();
    let bytes: usize = texts.iter().map(|text| json_len(text) + settings).sum();
    if bytes.saturating_mul(num_choices) <= MAX_TOLD_BYTES {
        return Ok(());
    }
    let message = format!(
        "the answer would repeat more than {MAX_TOLD_BYTES} bytes of the request; ask about fewer prompts at a time, or for fewer choices"
    );
    Err(ApiError::invalid("prompt", message))
}

fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    for &(name, is_off) in REFUSED {
        if let Some(value) = fields.take(name)
            && !is_off(&value)
        {
            let message = format!("{name} is not supported by this server; leave it out (got {})", show(&value));
            return Err(ApiError::unsupported(name, message));
        }
    }
    for name in HARMLESS {
        fields.take(name);
    }
    Ok(())
}

/// What only llama-server has, or has under the same name with another meaning.
struct Own {
    /// Tokens of the answer, as it writes them: negative is the rest of the context, 0 is none.
    n_predict: Option<i64>,
    n_cmpl: Option<i64>,
    num_probs: Option<u32>,
    return_tokens: bool,
    temperature: f64,
    seed: Option<Value>,
    repeat_last_n: Option<i64>,
    samplers: Option<Vec<&'static str>>,
    response_fields: Vec<String>,
    least_indent: usize,
}

impl Own {
    fn take(fields: &mut Fields) -> Result<Own, ApiError> {
        let num_probs = match fields.integer("n_probs", 0..=i64::from(MAX_LOGPROBS))? {
            // llama-server's other name of it.
            None => fields.integer("logprobs", 0..=i64::from(MAX_LOGPROBS))?,
            asked => asked,
        };
        Ok(Own {
            n_predict: fields.integer("n_predict", -2..=i64::MAX)?,
            n_cmpl: fields.integer("n_cmpl", 1..=MAX_CHOICES as i64)?,
            num_probs: num_probs.filter(|num| *num > 0).map(|num| num as u32),
            return_tokens: fields.boolean("return_tokens")?.unwrap_or(false),
            // Less than 0 is greedy too.
            temperature: fields.number("temperature", -1.0..=2.0)?.map_or(TEMPERATURE, |number| number.max(0.0)),
            seed: fields
                .take("seed")
                .filter(|seed| integer_of(seed).is_none_or(|seed| seed != -1 && seed != ANY_SEED as i64)),
            repeat_last_n: fields.integer("repeat_last_n", -1..=i64::from(i32::MAX))?,
            samplers: samplers(fields)?,
            response_fields: response_fields(fields)?,
            least_indent: fields.integer("n_indent", 0..=i64::MAX)?.map_or(0, |num| num as usize),
        })
    }

    /// Puts what was read, or is assumed, where the parameters that all endpoints share are read from.
    fn assume(&self, fields: &mut Fields) {
        fields.assume("temperature", json!(self.temperature));
        fields.assume("top_k", json!(TOP_K));
        fields.assume("top_p", json!(TOP_P));
        fields.assume("min_p", json!(MIN_P));
        if let Some(seed) = &self.seed {
            fields.assume("seed", seed.clone());
        }
        if let Some(num) = self.n_cmpl {
            fields.assume("n", json!(num));
        }
    }

    fn apply(&self, parameters: &mut Parameters) -> Result<(), ApiError> {
        let sampling = &mut parameters.sampling;
        if let (Some(own), Some(other)) = (self.n_predict, sampling.max_tokens)
            && usize::try_from(own) != Ok(other)
        {
            let message = format!(
                "n_predict is {own} and max_tokens (or max_completion_tokens) is {other}, and both are the most tokens of \
                 the answer; give one of them"
            );
            return Err(ApiError::invalid("n_predict", message));
        }
        match self.n_predict {
            None => {}
            // The token that is chosen after the prompt is thrown away.
            Some(0) => {
                parameters.prompt_only = true;
                sampling.max_tokens = Some(1);
                sampling.min_tokens = 0;
            }
            Some(num) => sampling.max_tokens = usize::try_from(num).ok(),
        }
        parameters.details.logprobs = self.num_probs;
        sampling.logprobs = self.num_probs;
        parameters.details.token_ids |= self.return_tokens;
        if let Some(samplers) = &self.samplers {
            leave_out(sampling, samplers);
        }
        limit_penalties(self.repeat_last_n, "repeat_last_n", sampling)
    }
}

/// Applies `repeat_last_n`, which came in the field `field`: penalties look at the whole text here, and not at its last tokens.
pub(crate) fn limit_penalties(last_n: Option<i64>, field: &str, sampling: &mut SamplingParams) -> Result<(), ApiError> {
    let are_off =
        (sampling.repetition_penalty - 1.0).abs() + sampling.presence_penalty.abs() + sampling.frequency_penalty.abs()
            == 0.0;
    match last_n {
        None | Some(-1) => Ok(()),
        Some(0) => {
            penalties_off(sampling);
            Ok(())
        }
        Some(_) if are_off => Ok(()),
        Some(other) => {
            let message = format!(
                "{field} must be -1 (penalties look at the whole text on this server) or 0 (they are off), got {other}"
            );
            Err(ApiError::unsupported(field, message))
        }
    }
}

fn penalties_off(sampling: &mut SamplingParams) {
    let off = SamplingParams::default();
    sampling.repetition_penalty = off.repetition_penalty;
    sampling.presence_penalty = off.presence_penalty;
    sampling.frequency_penalty = off.frequency_penalty;
}

/// Turns off the samplers that a request does not name.
fn leave_out(sampling: &mut SamplingParams, named: &[&str]) {
    let off = SamplingParams::default();
    for sampler in SAMPLERS.iter().filter(|sampler| !named.contains(*sampler)) {
        match *sampler {
            "penalties" => penalties_off(sampling),
            // Greedy is a way to choose and no filter.
            "temperature" if sampling.temperature > 0.0 => sampling.temperature = off.temperature,
            "min_p" => sampling.min_p = off.min_p,
            "top_k" => sampling.top_k = off.top_k,
            "typ_p" => sampling.typical_p = off.typical_p,
            "top_p" => sampling.top_p = off.top_p,
            _ => {}
        }
    }
}

/// `response_fields`: names, and paths with slashes to fields of fields.
fn response_fields(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const FIELD: &str = "response_fields";
    let path = |item: Value| match item {
        Value::String(path) => Ok(path),
        other => {
            let message = format!("{FIELD} must be an array of strings, and has {}", show(&other));
            Err(ApiError::invalid(FIELD, message))
        }
    };
    fields.array(FIELD)?.unwrap_or_default().into_iter().map(path).collect()
}

/// `samplers`: names in the order of [`SAMPLERS`].
fn samplers(fields: &mut Fields) -> Result<Option<Vec<&'static str>>, ApiError> {
    let Some(items) = fields.array("samplers")? else { return Ok(None) };
    let mut named: Vec<&'static str> = Vec::new();
    let mut left = SAMPLERS.iter();
    for item in &items {
        let name = match item.as_str() {
            Some("typical_p" | "typical") => "typ_p",
            Some(name) => name,
            None => "",
        };
        if OFF_SAMPLERS.contains(&name) {
            continue;
        }
        let Some(sampler) = left.find(|sampler| **sampler == name) else {
            let message = format!(
                "samplers must be names in the order in which they apply on this server, which is {}; got {} in another place",
                SAMPLERS.join(", "),
                show(item)
            );
            return Err(ApiError::unsupported("samplers", message));
        };
        named.push(*sampler);
    }
    Ok(Some(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_repeats_is_counted_as_it_is_written() {
        let told = |text: &str| check_told(&[text.repeat(MAX_TOLD_BYTES / 4)], &json!({}), 1);
        assert!(told("x").is_ok());
        // Six bytes each.
        assert_eq!(told("\u{1}").unwrap_err().to_json()["error"]["param"], "prompt");
        assert!(check_told(&["x".repeat(MAX_TOLD_BYTES / 4)], &json!({}), 4).is_err(), "each choice repeats it");
    }
}
