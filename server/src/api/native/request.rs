//! llama-server's request: what it calls differently, what it assumes, and what is refused by name.

use serde_json::{Value, json};
use taper_engine::MAX_LOGPROBS;

use super::shape;
use crate::errors::ApiError;
use crate::fields::{Fields, UNBOUNDED, either, integer_of, show};
use crate::limits::{MAX_CHOICES, MAX_PROMPTS, MAX_TOLD_BYTES};
use crate::mixed_prompt::{self, Mixing};
use crate::parameters::Parameters;
use crate::reply::json_len;
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::{body, unsupported};

/// llama-server's defaults.
pub(super) const DEFAULTS: SamplingDefaults = SamplingDefaults {
    temperature: Some(0.8),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    ..SamplingDefaults::NONE
};
/// How llama-server writes "any seed", besides -1.
pub(super) const ANY_SEED: u64 = u32::MAX as u64;

/// A parameter that is not there, and which values ask for nothing.
type Refused = (&'static str, fn(&Value) -> bool);

/// Parameters that are refused unless they are off, besides those that no endpoint has.
pub(crate) const REFUSED: &[Refused] = &[
    ("grammar_lazy", is_off),
    ("grammar_triggers", is_empty),
    ("preserved_tokens", is_empty),
    ("image_data", is_empty),
    ("adaptive_target", is_negative),
    ("prompt_logprobs", is_never),
    ("return_tokens_as_token_ids", is_off),
];

/// Fields that change nothing in the answer: what belongs to a sampler that is off, and what says how to compute it.
pub(crate) const HARMLESS: &[&str] = &[
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
    let mut parameters = Parameters::take_up_to(UNBOUNDED, &mut fields, state, served, DEFAULTS)?;
    own.apply(&mut parameters)?;
    parameters.settle(served)?;

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
    let settings = shape::settings(&parameters.sampling, &parameters.samplers, parameters.stream, usize::MAX);
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
    temperature: Option<f64>,
    seed: Option<Value>,
    post_sampling_probs: bool,
    response_fields: Vec<String>,
    least_indent: usize,
}

impl Own {
    fn take(fields: &mut Fields) -> Result<Own, ApiError> {
        let num_probs = either(["n_probs", "logprobs"], |name| fields.integer(name, 0..=i64::from(MAX_LOGPROBS)))?;
        Ok(Own {
            n_predict: fields.integer("n_predict", -2..=i64::MAX)?,
            n_cmpl: either(["n_cmpl", "n"], |name| fields.integer(name, 1..=MAX_CHOICES as i64))?,
            num_probs: num_probs.filter(|num| *num > 0).map(|num| num as u32),
            return_tokens: fields.boolean("return_tokens")?.unwrap_or(false),
            // Less than 0 is greedy too.
            temperature: fields.number("temperature", -UNBOUNDED..=UNBOUNDED)?.map(|number| number.max(0.0)),
            seed: fields
                .take("seed")
                .filter(|seed| integer_of(seed).is_none_or(|seed| seed != -1 && seed != ANY_SEED as i64)),
            post_sampling_probs: fields.boolean("post_sampling_probs")?.unwrap_or(false),
            response_fields: response_fields(fields)?,
            least_indent: fields.integer("n_indent", 0..=i64::MAX)?.map_or(0, |num| num as usize),
        })
    }

    /// Puts what was read where the parameters that all endpoints share are read from.
    fn assume(&self, fields: &mut Fields) {
        if let Some(temperature) = self.temperature {
            fields.assume("temperature", json!(temperature));
        }
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
            // Less than 0 is the rest of the context.
            Some(num) => {
                parameters.default_max_tokens = None;
                sampling.max_tokens = usize::try_from(num).ok();
            }
        }
        parameters.details.logprobs = self.num_probs;
        sampling.logprobs = self.num_probs;
        sampling.logprobs_of_draw = self.post_sampling_probs;
        parameters.details.token_ids |= self.return_tokens;
        Ok(())
    }
}

/// Most paths of `response_fields`; an answer has half as many fields.
const MAX_RESPONSE_FIELDS: usize = 64;
/// Most bytes of one.
const MAX_RESPONSE_FIELD_BYTES: usize = 256;

/// `response_fields`: names, and paths with slashes to fields of fields; each once.
fn response_fields(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const FIELD: &str = "response_fields";
    let items = fields.array(FIELD)?.unwrap_or_default();
    if items.len() > MAX_RESPONSE_FIELDS {
        let message = format!("{FIELD} may have {MAX_RESPONSE_FIELDS} paths, got {}", items.len());
        return Err(ApiError::invalid(FIELD, message));
    }
    let mut paths = Vec::new();
    for item in items {
        match item {
            Value::String(path) if path.len() <= MAX_RESPONSE_FIELD_BYTES => {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            other => {
                let message = format!(
                    "{FIELD} must be an array of strings of at most {MAX_RESPONSE_FIELD_BYTES} bytes, and has {}",
                    show(&other)
                );
                return Err(ApiError::invalid(FIELD, message));
            }
        }
    }
    Ok(paths)
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
