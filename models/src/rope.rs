//! The frequencies of rotary position embedding, with the scalings that extend a context:
//!
//! * plain: pair i of d/2 turns by `base^(-2i/d)` radians per position;
//! * factors (`rope_freqs.weight`, Llama 3.1 and later): pair i is divided by its factor;
//! * linear: all pairs are divided by one factor;
//! * YaRN (Peng et al., arXiv 2309.00071): pairs that turn often within the original context keep their speed, those that
//!   turn less than once are divided by the factor, those between are mixed; cos and sin grow by `1 + 0.1 ln factor`.
//!
//! The conventions (keys, defaults, rounding of YaRN's border pairs) are llama.cpp's, so that files mean the same here.

use crate::config::Keys;
use crate::registry::Architecture;
use crate::{Error, ModelConfig};
use std::f64::consts::PI;
use taper_checkpoint::Checkpoint;
use taper_kernels::Rope;

/// Turns within the original context from which on a pair keeps its speed.
const BETA_FAST: f64 = 32.0;
/// Turns below which a pair is slowed by the whole factor.
const BETA_SLOW: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    Linear { factor: f64 },
    Yarn { factor: f64, original_context_len: usize, attn_factor: f64 },
}

/// Reads the position embedding of a model whose tensors' shapes are checked.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    architecture: &Architecture,
    keys: &Keys<'_>,
    config: &ModelConfig,
) -> Result<Rope, Error> {
    let head_dim = config.heads.head_dim;
    let rotary_dim = keys.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
    if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        let expected = format!("it is even and at most the width of a head, {head_dim}");
        return Err(keys.bad("rope.dimension_count", rotary_dim, &expected));
    }
    let base = keys.metadata.f32(&keys.full("rope.freq_base"))?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 1.0) {
        return Err(keys.bad("rope.freq_base", base, "it is a number above 1"));
    }
    let scaling = scaling(keys, config.context_len)?;
    let mut inv_freq = frequencies(f64::from(base), rotary_dim, scaling);
    if architecture.rope_factors
        && let Some(tensor) = checkpoint.find(FACTORS)
    {
        if tensor.shape != [rotary_dim / 2] {
            return Err(Error::WrongShape {
                tensor: FACTORS.into(),
                expected: vec![rotary_dim / 2],
                found: tensor.shape.clone(),
            });
        }
        for (frequency, factor) in inv_freq.iter_mut().zip(tensor.to_f32()) {
            if !(factor.is_finite() && factor > 0.0) {
                let reason = format!("contains {factor}, and its values divide frequencies");
                return Err(Error::BadTensor { tensor: FACTORS.into(), reason });
            }
            *frequency /= f64::from(factor);
        }
    }
    let magnitude = magnitude(scaling);
    Ok(Rope { kind: architecture.rope, rotary_dim, inv_freq, magnitude })
}

/// The tensor of per-pair factors.
pub(crate) const FACTORS: &str = "rope_freqs.weight";

fn scaling(keys: &Keys<'_>, context_len: usize) -> Result<Scaling, Error> {
    // `rope.scale_linear` is what older files call the factor; an absent or zero factor means none.
    let mut factor = 1.0;
    for key in ["rope.scale_linear", "rope.scaling.factor"] {
        let Some(value) = keys.metadata.f32(&keys.full(key))? else { continue };
        if !(value.is_finite() && value >= 0.0) {
            return Err(keys.bad(key, value, "it is a positive number"));
        }
        factor = if value == 0.0 { 1.0 } else { f64::from(value) };
    }
    let kind = keys.metadata.string(&keys.full("rope.scaling.type"))?;
    match kind {
        Some("none") => Ok(Scaling::Linear { factor: 1.0 }),
        None | Some("linear") => Ok(Scaling::Linear { factor }),
        Some("yarn") => {
            let attn_factor = keys.metadata.f32(&keys.full("rope.scaling.attn_factor"))?.unwrap_or(1.0);
            if !(attn_factor.is_finite() && attn_factor > 0.0) {
                return Err(keys.bad("rope.scaling.attn_factor", attn_factor, "it is a positive number"));
            }
            let original_context_len =
                keys.optional_count("rope.scaling.original_context_length")?.unwrap_or(context_len);
            Ok(Scaling::Yarn { factor, original_context_len, attn_factor: f64::from(attn_factor) })
        }
        Some(other) => Err(Error::UnsupportedFeature {
            feature: format!("RoPE scaling of the kind `{other:.64}` (`{}`)", keys.full("rope.scaling.type")),
            advice: "none, linear and yarn run; choose a model of one of these".into(),
        }),
    }
}

fn frequencies(base: f64, rotary_dim: usize, scaling: Scaling) -> Vec<f64> {
    let plain = (0..rotary_dim / 2).map(|pair| base.powf(-2.0 * pair as f64 / rotary_dim as f64));
    match scaling {
        Scaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        Scaling::Yarn { factor, original_context_len, .. } => {
            let border = |turns: f64| {
                rotary_dim as f64 * (original_context_len as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
            };
            let first = border(BETA_FAST).floor().max(0.0);
            let last = border(BETA_SLOW).ceil().min(rotary_dim as f64 - 1.0);
            let kept = |pair: usize| 1.0 - ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            plain
                .enumerate()
                .map(|(pair, frequency)| frequency / factor * (1.0 - kept(pair)) + frequency * kept(pair))
                .collect()
        }
    }
}

fn magnitude(scaling: Scaling) -> f32 {
    match scaling {
        Scaling::Linear { .. } => 1.0,
        Scaling::Yarn { factor, attn_factor, .. } => (attn_factor * (1.0 + 0.1 * factor.max(1.0).ln())) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(actual: &[f64], expected: &[f64]) {
        assert_eq!(actual.len(), expected.len());
        for (actual, expected) in actual.iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-12 * expected.abs(), "{actual} is not {expected}");
        }
    }

    #[test]
    fn plain_frequencies_fall_from_one_by_equal_factors() {
        let plain = frequencies(10_000.0, 8, Scaling::Linear { factor: 1.0 });
        assert_near(&plain, &[1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn linear_scaling_slows_all_pairs_alike() {
        let scaled = frequencies(10_000.0, 8, Scaling::Linear { factor: 4.0 });
        assert_near(&scaled, &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_slows_slow_pairs_and_mixes_between() {
        // Base 10000, 64 dimensions, 2048 original positions: the borders are pairs 8 (8.07 rounded down) and 21 (20.1 up).
        let scaling = Scaling::Yarn { factor: 4.0, original_context_len: 2048, attn_factor: 1.0 };
        let scaled = frequencies(10_000.0, 64, scaling);
        let plain = frequencies(10_000.0, 64, Scaling::Linear { factor: 1.0 });
        assert_near(&scaled[..9], &plain[..9]);
        assert_near(&scaled[21..], &plain[21..].iter().map(|f| f / 4.0).collect::<Vec<_>>());
        let kept = 1.0 - (10.0 - 8.0) / (21.0 - 8.0);
        assert_near(&scaled[10..11], &[plain[10] * (kept + (1.0 - kept) / 4.0)]);
        assert!((magnitude(scaling) - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn yarn_with_borders_that_coincide_stays_finite() {
        let scaling = Scaling::Yarn { factor: 8.0, original_context_len: 1, attn_factor: 1.0 };
        assert!(frequencies(10_000.0, 4, scaling).iter().all(|frequency| frequency.is_finite()));
    }
}
