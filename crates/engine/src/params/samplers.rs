//! Parameters of samplers that have more than one, and the order in which samplers apply. What each does is in the module of its name in
//! `sampler`.

use super::InvalidParam;
use std::sync::Arc;

/// A sampler that weighs or leaves out tokens, in an order that a client may choose. One that the order does not name is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// `top_n_sigma`.
    TopNSigma,
    /// `temperature` and `dynamic_temperature`.
    Temperature,
    /// `min_p`.
    MinP,
    /// `top_k`.
    TopK,
    /// `typical_p`.
    TypicalP,
    /// `top_p`.
    TopP,
    /// `xtc`.
    Xtc,
}

impl Stage {
    /// The order where nobody says another.
    pub const DEFAULT_ORDER: [Stage; 7] =
        [Stage::TopNSigma, Stage::Temperature, Stage::MinP, Stage::TopK, Stage::TypicalP, Stage::TopP, Stage::Xtc];
}

/// A temperature between `temperature - range` (0 at the least) and `temperature + range`, the higher the less sure the model is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicTemperature {
    /// 0 is off.
    pub range: f32,
    /// The power of the share of the largest entropy at which the temperature rises.
    pub exponent: f32,
}

impl Default for DynamicTemperature {
    fn default() -> Self {
        DynamicTemperature { range: 0.0, exponent: 1.0 }
    }
}

/// Leaves out all tokens but the last of those that are at least this probable, with this probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// 0 is off.
    pub probability: f32,
    /// Above a half it is off.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Xtc { probability: 0.0, threshold: 0.1 }
    }
}

/// A penalty on tokens that go on with a repetition.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// The penalty of a repetition of the allowed length; 0 is off.
    pub multiplier: f32,
    /// What each further token of the repetition multiplies it by; at least 1.
    pub base: f32,
    /// Tokens that may be repeated without a penalty.
    pub allowed_length: usize,
    /// Tokens of the text that are looked at, from its end; without it, all.
    pub last_n: Option<usize>,
    /// Sequences of tokens that no repetition goes across.
    pub sequence_breakers: Arc<[Vec<u32>]>,
}

impl Default for Dry {
    fn default() -> Self {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: Some(64), sequence_breakers: Arc::default() }
    }
}

/// A truncation that holds the surprise of tokens near a target. It stands in for all other stages but the temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// Which one.
    pub version: MirostatVersion,
    /// The target in bits.
    pub tau: f32,
    /// How much of an error is corrected at each token.
    pub eta: f32,
}

impl Mirostat {
    /// The usual target and rate.
    pub fn new(version: MirostatVersion) -> Mirostat {
        Mirostat { version, tau: 5.0, eta: 0.1 }
    }
}

/// What the truncation of [`Mirostat`] goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// A number of tokens, from an estimate of the distribution's shape.
    One,
    /// The surprise of each token.
    Two,
}

/// Most bits of `mirostat_tau`: no token of a vocabulary is that surprising.
const MAX_TAU: f32 = 100.0;
/// Most of `mirostat_eta`; 1 corrects a whole error at once.
const MAX_ETA: f32 = 10.0;

/// Refuses what has no meaning, by the names that clients know.
pub(super) fn validate(params: &super::SamplingParams) -> Result<(), InvalidParam> {
    let refuse = |param, message| Err(InvalidParam { param, message });
    let at_least = [
        ("top_n_sigma", params.top_n_sigma, 0.0),
        ("dynatemp_range", params.dynamic_temperature.range, 0.0),
        ("dynatemp_exponent", params.dynamic_temperature.exponent, 0.0),
        ("dry_multiplier", params.dry.multiplier, 0.0),
        ("dry_base", params.dry.base, 1.0),
    ];
    for (param, value, least) in at_least {
        if !(value.is_finite() && value >= least) {
            return refuse(param, format!("must be a number of at least {least}, not {value}"));
        }
    }
    let mut between =
        vec![("xtc_probability", params.xtc.probability, 1.0), ("xtc_threshold", params.xtc.threshold, 1.0)];
    if let Some(Mirostat { tau, eta, .. }) = params.mirostat {
        between.extend([("mirostat_tau", tau, MAX_TAU), ("mirostat_eta", eta, MAX_ETA)]);
    }
    for (param, value, most) in between {
        if !(0.0..=most).contains(&value) {
            return refuse(param, format!("must lie between 0 and {most}, not {value}"));
        }
    }
    if params.dry.sequence_breakers.iter().any(Vec::is_empty) {
        return refuse("dry_sequence_breakers", "must not hold a sequence without tokens".to_owned());
    }
    let order = &params.order;
    if order.iter().enumerate().any(|(place, stage)| order[..place].contains(stage)) {
        return refuse("samplers", format!("must not name a sampler twice: {order:?}"));
    }
    Ok(())
}
