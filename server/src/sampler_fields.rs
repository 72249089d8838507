//! The fields of llama.cpp's samplers, under its names and with its defaults, and `samplers`, the order in which they apply.
//!
//! Penalties and DRY change logits before anything is left out, so they come first here; the others come in any order. Mirostat stands
//! in for all but these two and the temperature.

use serde_json::Value;
use taper_engine::{Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplingParams, Stage, Xtc};

use crate::errors::ApiError;
use crate::fields::{Fields, UNBOUNDED, show};
use crate::limits::{MAX_DRY_BREAKERS, MAX_STOP_BYTES};
use crate::state::Served;

/// A sampler that `samplers` may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sampler {
    Penalties,
    Dry,
    Stage(Stage),
}

/// Names, letters and other names of the samplers, in the order in which they apply where nothing is said.
const TABLE: [(&str, char, &[&str], Sampler); 9] = [
    ("penalties", 'e', &[], Sampler::Penalties),
    ("dry", 'd', &[], Sampler::Dry),
    ("top_n_sigma", 's', &[], Sampler::Stage(Stage::TopNSigma)),
    ("temperature", 't', &["temp"], Sampler::Stage(Stage::Temperature)),
    ("min_p", 'm', &[], Sampler::Stage(Stage::MinP)),
    ("top_k", 'k', &[], Sampler::Stage(Stage::TopK)),
    ("typ_p", 'y', &["typical_p", "typical", "typ"], Sampler::Stage(Stage::TypicalP)),
    ("top_p", 'p', &["nucleus"], Sampler::Stage(Stage::TopP)),
    ("xtc", 'x', &[], Sampler::Stage(Stage::Xtc)),
];

/// What breaks repetitions where nothing is said.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The names of all samplers in the order in which they apply where nothing is said.
pub(crate) fn default_names() -> Vec<&'static str> {
    TABLE.iter().map(|&(name, ..)| name).collect()
}

/// Takes the fields; the names of the samplers in the order in which they apply.
pub(crate) fn take(
    fields: &mut Fields,
    served: &Served,
    sampling: &mut SamplingParams,
) -> Result<Vec<&'static str>, ApiError> {
    let up_to_one = |fields: &mut Fields, field: &str| fields.number(field, 0.0..=1.0);
    sampling.penalty_last_n = last_n(fields, "repeat_last_n")?.unwrap_or(sampling.penalty_last_n);
    sampling.dry = dry(fields, served)?;
    // Less than 0 is how llama.cpp writes "off".
    sampling.top_n_sigma = fields.number("top_n_sigma", -UNBOUNDED..=UNBOUNDED)?.map_or(0.0, |n| n.max(0.0) as f32);
    let plain = DynamicTemperature::default();
    sampling.dynamic_temperature = DynamicTemperature {
        range: fields.number("dynatemp_range", 0.0..=UNBOUNDED)?.map_or(plain.range, |range| range as f32),
        exponent: fields.number("dynatemp_exponent", 0.0..=UNBOUNDED)?.map_or(plain.exponent, |power| power as f32),
    };
    let plain = Xtc::default();
    sampling.xtc = Xtc {
        probability: up_to_one(fields, "xtc_probability")?.map_or(plain.probability, |p| p as f32),
        threshold: up_to_one(fields, "xtc_threshold")?.map_or(plain.threshold, |p| p as f32),
    };
    sampling.min_keep = fields.integer("min_keep", 0..=i64::from(i32::MAX))?.map_or(0, |num| num as usize);
    sampling.mirostat = mirostat(fields)?;
    let Some(named) = named(fields)? else { return Ok(default_names()) };
    apply(&named.iter().map(|&(_, sampler)| sampler).collect::<Vec<Sampler>>(), sampling);
    Ok(named.into_iter().map(|(name, _)| name).collect())
}

/// A number of last tokens, where -1 is all.
fn last_n(fields: &mut Fields, field: &str) -> Result<Option<Option<usize>>, ApiError> {
    Ok(fields.integer(field, -1..=i64::from(i32::MAX))?.map(|num| usize::try_from(num).ok()))
}

fn mirostat(fields: &mut Fields) -> Result<Option<Mirostat>, ApiError> {
    let version = match fields.integer("mirostat", 0..=2)? {
        Some(1) => Some(MirostatVersion::One),
        Some(2) => Some(MirostatVersion::Two),
        _ => None,
    };
    let tau = fields.number("mirostat_tau", 0.0..=100.0)?;
    let eta = fields.number("mirostat_eta", 0.0..=10.0)?;
    Ok(version.map(|version| {
        let plain = Mirostat::new(version);
        let or = |given: Option<f64>, plain: f32| given.map_or(plain, |number| number as f32);
        Mirostat { version, tau: or(tau, plain.tau), eta: or(eta, plain.eta) }
    }))
}

fn dry(fields: &mut Fields, served: &Served) -> Result<Dry, ApiError> {
    let plain = Dry::default();
    let multiplier = fields.number("dry_multiplier", 0.0..=UNBOUNDED)?.map_or(plain.multiplier, |factor| factor as f32);
    let base = fields.number("dry_base", 1.0..=UNBOUNDED)?.map_or(plain.base, |base| base as f32);
    let allowed_length = fields.integer("dry_allowed_length", 0..=i64::from(i32::MAX))?;
    let last_n = last_n(fields, "dry_penalty_last_n")?.unwrap_or(plain.last_n);
    let breakers = breakers(fields)?;
    Ok(Dry {
        multiplier,
        base,
        allowed_length: allowed_length.map_or(plain.allowed_length, |len| len as usize),
        last_n,
        // The vocabulary is looked through for them.
        sequence_breakers: if multiplier > 0.0 {
            sequences(&breakers, served)?.into()
        } else {
            plain.sequence_breakers
        },
    })
}

/// The texts of `dry_sequence_breakers`.
fn breakers(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const FIELD: &str = "dry_sequence_breakers";
    let name = fields.name_of(FIELD);
    let Some(items) = fields.array(FIELD)? else { return Ok(DRY_BREAKERS.map(str::to_owned).into()) };
    if items.len() > MAX_DRY_BREAKERS {
        let message = format!("{name} has {} texts; at most {MAX_DRY_BREAKERS} are taken", items.len());
        return Err(ApiError::invalid(name, message));
    }
    let check = |item: Value| match item {
        Value::String(text) if !text.is_empty() && text.len() <= MAX_STOP_BYTES => Ok(text),
        other => {
            let message = format!("each of {name} must have 1 to {MAX_STOP_BYTES} bytes, got {}", show(&other));
            Err(ApiError::invalid(name.clone(), message))
        }
    };
    items.into_iter().map(check).collect()
}

fn sequences(texts: &[String], served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
    let mut sequences = served.model.tokenizer.sequences_with(texts).map_err(|error| {
        ApiError::invalid("dry_sequence_breakers", format!("dry_sequence_breakers cannot be tokenized: {error}"))
    })?;
    // A vocabulary may have tokens that the model does not.
    let vocab_size = served.vocab_size();
    sequences.retain(|tokens| tokens.iter().all(|&token| (token as usize) < vocab_size));
    Ok(sequences)
}

/// `samplers`: an array of names, or a text of letters.
fn named(fields: &mut Fields) -> Result<Option<Vec<(&'static str, Sampler)>>, ApiError> {
    let field = fields.name_of("samplers");
    let items = match fields.take("samplers") {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        // With one letter more than there are samplers, one is unknown or there twice.
        Some(Value::String(letters)) => {
            letters.chars().take(TABLE.len() + 1).map(|letter| letter.to_string().into()).collect()
        }
        Some(other) => {
            let message = format!("{field} must be an array of names or a string of letters, got {}", show(&other));
            return Err(ApiError::invalid(field, message));
        }
    };
    let mut named: Vec<(&'static str, Sampler)> = Vec::new();
    for item in &items {
        let Some(found) = item.as_str().and_then(find) else {
            let names: Vec<String> = TABLE.iter().map(|(name, letter, ..)| format!("{name} ({letter})")).collect();
            let message = format!("{field} may name {}; got {}", names.join(", "), show(item));
            return Err(ApiError::unsupported(field, message));
        };
        if named.contains(&found) {
            let message = format!("{field} names {} twice, and in its order each sampler has one place", found.0);
            return Err(ApiError::unsupported(field, message));
        }
        let comes_too_late = match found.1 {
            Sampler::Penalties => !named.is_empty(),
            Sampler::Dry => named.iter().any(|&(_, before)| before != Sampler::Penalties),
            Sampler::Stage(_) => false,
        };
        if comes_too_late {
            let message = format!(
                "{field} must begin with penalties and then dry, where it names them, and may have the others in any order; \
                 got {} after {}",
                found.0,
                named.last().map_or("nothing", |&(name, _)| name),
            );
            return Err(ApiError::unsupported(field, message));
        }
        named.push(found);
    }
    Ok(Some(named))
}

/// The sampler of a name, in any of its spellings, or of a letter.
fn find(text: &str) -> Option<(&'static str, Sampler)> {
    let spelled = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let is_it = |&&(name, letter, others, _): &&(&str, char, &[&str], Sampler)| {
        let mut names = others.iter().chain([&name]);
        text.chars().eq([letter]) || names.any(|name| spelled(name) == spelled(text))
    };
    TABLE.iter().find(is_it).map(|&(name, .., sampler)| (name, sampler))
}

/// Sets the order, and turns off the samplers that it does not name.
fn apply(named: &[Sampler], sampling: &mut SamplingParams) {
    let off = SamplingParams::default();
    let is_named = |sampler| named.contains(&sampler);
    if !is_named(Sampler::Penalties) {
        sampling.repetition_penalty = off.repetition_penalty;
        sampling.presence_penalty = off.presence_penalty;
        sampling.frequency_penalty = off.frequency_penalty;
    }
    if !is_named(Sampler::Dry) {
        sampling.dry.multiplier = off.dry.multiplier;
    }
    let stages = named.iter().filter_map(|sampler| match sampler {
        Sampler::Stage(stage) => Some(*stage),
        Sampler::Penalties | Sampler::Dry => None,
    });
    sampling.order = stages.collect();
    for stage in Stage::DEFAULT_ORDER.into_iter().filter(|stage| !is_named(Sampler::Stage(*stage))) {
        match stage {
            Stage::TopNSigma => sampling.top_n_sigma = off.top_n_sigma,
            // Greedy is a way to choose and no filter.
            Stage::Temperature if sampling.temperature == 0.0 => sampling.order.push(stage),
            Stage::Temperature => sampling.temperature = off.temperature,
            Stage::MinP => sampling.min_p = off.min_p,
            Stage::TopK => sampling.top_k = off.top_k,
            Stage::TypicalP => sampling.typical_p = off.typical_p,
            Stage::TopP => sampling.top_p = off.top_p,
            Stage::Xtc => sampling.xtc.probability = off.xtc.probability,
        }
        if stage == Stage::Temperature {
            sampling.dynamic_temperature.range = off.dynamic_temperature.range;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(samplers: &Value) -> Result<Vec<&'static str>, String> {
        let Value::Object(body) = json!({ "samplers": samplers }) else { unreachable!() };
        let named = named(&mut Fields::new(body)).map_err(|error| error.message().to_owned())?;
        Ok(named.unwrap_or_default().into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn llama_cpps_order_is_taken_in_all_its_spellings() {
        let expected = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"];
        assert_eq!(names(&json!(expected)).unwrap(), expected);
        assert_eq!(names(&json!("edskypmxt")).unwrap(), expected);
        let spelled = ["Penalties", "DRY", "top-n-sigma", "topk", "typical_p", "nucleus", "min-p", "xtc", "temp"];
        assert_eq!(names(&json!(spelled)).unwrap(), expected);
        assert_eq!(names(&json!(default_names())).unwrap(), default_names());
        assert_eq!((names(&json!([])).unwrap(), names(&json!("")).unwrap()), (vec![], vec![]));
    }

    #[test]
    fn what_cannot_be_honoured_is_said() {
        let refused = |samplers: &Value, part: &str| {
            let message = names(samplers).unwrap_err();
            assert!(message.starts_with("samplers ") && message.contains(part), "{message}");
        };
        refused(&json!(["top_k", "penalties"]), "got penalties after top_k");
        refused(&json!(["dry", "penalties"]), "got penalties after dry");
        refused(&json!("kd"), "got dry after top_k");
        refused(&json!("kk"), "top_k twice");
        refused(&json!(["top_k", "k"]), "top_k twice");
        refused(&json!(["infill"]), "temperature (t)");
        refused(&json!("ez"), "got \"z\"");
        refused(&json!([1]), "got 1");
        refused(&json!(5), "array of names");
    }

    #[test]
    fn what_is_not_named_is_off() {
        let all = SamplingParams {
            repetition_penalty: 1.1,
            dry: Dry { multiplier: 1.0, ..Dry::default() },
            top_n_sigma: 1.0,
            temperature: 0.5,
            dynamic_temperature: DynamicTemperature { range: 0.1, exponent: 1.0 },
            min_p: 0.1,
            top_k: 5,
            typical_p: 0.5,
            top_p: 0.5,
            xtc: Xtc { probability: 0.5, threshold: 0.1 },
            ..SamplingParams::default()
        };
        let mut none = all.clone();
        apply(&[], &mut none);
        assert_eq!(none, SamplingParams { order: Vec::new(), ..SamplingParams::default() });
        let mut greedy = SamplingParams { temperature: 0.0, ..all.clone() };
        apply(&[Sampler::Stage(Stage::TopK)], &mut greedy);
        assert_eq!((greedy.order, greedy.temperature), (vec![Stage::TopK, Stage::Temperature], 0.0));
        let mut same = all.clone();
        apply(&TABLE.map(|(.., sampler)| sampler), &mut same);
        assert_eq!(same, all);
    }
}
