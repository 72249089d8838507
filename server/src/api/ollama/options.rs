//! Ollama's `options`: the parameters of sampling under its names, with its defaults, beside those that all endpoints have.
//!
//! `num_ctx` says how much memory a model shall have; here all of the server's context is there in any case, and one that is
//! larger is told among the ignored fields.

use serde_json::{Value, json};

use crate::chat::check_single;
use crate::errors::ApiError;
use crate::fields::{Fields, UNBOUNDED, integer_of, show};
use crate::parameters::Parameters;
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::unsupported;

const FIELD: &str = "options";

/// Ollama's defaults.
const DEFAULTS: SamplingDefaults =
    SamplingDefaults { temperature: Some(0.8), top_k: Some(40), top_p: Some(0.9), ..SamplingDefaults::NONE };

/// A parameter that is not there, and which values ask for nothing.
type Refused = (&'static str, fn(&Value) -> bool);

/// Options that are refused unless they are off, besides those that no endpoint has.
pub(crate) const REFUSED: &[Refused] = &[
    // Beside the options, and not among them.
    ("stream", is_never),
    ("stream_options", is_never),
    // Its answers tell where the time went in its own words.
    ("timings", is_off),
    ("tfs_z", is_one),
    ("penalize_newline", is_on),
    ("logits_all", is_off),
    ("vocab_only", is_off),
    ("embedding_only", is_off),
];

/// Options that change nothing in the answer: of a shift of the context, which there is not.
pub(crate) const HARMLESS: &[&str] = &["num_keep"];

/// Options that say how to load and compute, which this server was told when it started; they are told among the ignored fields.
pub(crate) const LOADING: &[&str] = &[
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_batch",
    "numa",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "f16_kv",
    "draft_num_predict",
];

fn is_never(_: &Value) -> bool {
    false
}
fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
fn is_on(value: &Value) -> bool {
    value == &Value::Bool(true)
}
fn is_off(value: &Value) -> bool {
    value == &Value::Bool(false)
}

/// The fields of the options.
pub(super) fn fields_of(fields: &mut Fields) -> Result<Fields, ApiError> {
    fields.object(FIELD)?.map_or_else(|| Fields::nested(FIELD, json!({})), Ok)
}

/// Takes the options of a generation.
pub(super) fn take(
    fields: &mut Fields,
    state: &ServerState,
    served: &Served,
    ignored: &mut Vec<String>,
) -> Result<Parameters, ApiError> {
    let mut options = fields_of(fields)?;
    refuse(&mut options)?;
    take_num_ctx(&mut options, state, served, ignored)?;
    let num_predict = options.integer("num_predict", -2..=i64::MAX)?;
    // -1 is any.
    if let Some(seed) = options.take("seed").filter(|seed| integer_of(seed) != Some(-1)) {
        options.assume("seed", seed);
    }
    // It was named beside the options, if at all.
    options.assume("model", json!(served.model.id));
    let mut parameters = Parameters::take_up_to(UNBOUNDED, &mut options, state, served, DEFAULTS)?;
    check_single(&parameters)?;
    let sampling = &mut parameters.sampling;
    match num_predict {
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
    let unknown = unsupported::check_rest(options, state)?;
    ignored.extend(unknown.into_iter().map(|name| format!("{FIELD}.{name}")));
    Ok(parameters)
}

/// Takes `num_ctx`, which cannot give a model more than it has; the tokens that it asks for, up to those.
pub(super) fn take_num_ctx(
    options: &mut Fields,
    state: &ServerState,
    served: &Served,
    ignored: &mut Vec<String>,
) -> Result<usize, ApiError> {
    let context_len = served.model.context_len.min(served.model.engine.limits().context_len);
    let name = options.name_of("num_ctx");
    let asked = options.integer("num_ctx", 0..=i64::MAX)?.map_or(0, |num| usize::try_from(num).unwrap_or(usize::MAX));
    if asked > context_len {
        if state.first_sight(&name) {
            tracing::warn!(asked, context_len, "a request asks for more context than there is (options.num_ctx)");
        }
        ignored.push(name);
    }
    // 0 is how clients leave it open.
    Ok(if asked == 0 { context_len } else { asked.min(context_len) })
}

fn refuse(options: &mut Fields) -> Result<(), ApiError> {
    for &(name, asks_for_nothing) in REFUSED {
        if let Some(value) = options.take(name)
            && !asks_for_nothing(&value)
        {
            let name = options.name_of(name);
            let message = format!("{name} is not supported by this server; leave it out (got {})", show(&value));
            return Err(ApiError::unsupported(name, message));
        }
    }
    for name in HARMLESS {
        options.take(name);
    }
    Ok(())
}
