//! min_p: keep the tokens at least `min_p` times as probable as the most probable one.

/// Smallest weight worth carrying, as a logarithm: e^-40 = 4e-18. All of a vocabulary below it is less than one draw in
/// 10^12, beyond what the draw itself resolves for so many tokens.
const NEGLIGIBLE: f32 = -40.0;

/// The filter as a bound on (logit - max) / temperature, which is ln(p / p_max).
pub(super) fn threshold(min_p: f32) -> f32 {
    min_p.ln().max(NEGLIGIBLE)
}
