//! Drawing a token from a row of logits. `kernels/cuda/choose.cu` has the formulas; masses are whole numbers, so every backend that
//! draws gives the same token.

use crate::Draw;

/// Of a weight of 1.
const UNITS: f32 = 17_592_186_044_416.0;
/// `2^f` on [0, 1], lowest power first, as in `cpu/vector_math.rs`.
const COEFFICIENTS: [f32; 6] = [0.999_999_94, 0.693_153_1, 0.240_153_62, 0.055_826_318, 0.008_989_34, 0.001_877_576_7];

/// `2^x` for x in (-45, 0], and zero below.
fn weight(x: f32) -> f32 {
    if x <= -45.0 {
        return 0.0;
    }
    let (floor, fraction) = (x.floor(), x - x.floor());
    let power = COEFFICIENTS[..5].iter().rev().fold(COEFFICIENTS[5], |sum, &c| sum.mul_add(fraction, c));
    power * f32::from_bits(((floor as i32 + 127) as u32) << 23)
}

/// A token that may be drawn.
struct Token {
    id: usize,
    /// From the largest logit.
    distance: f32,
    mass: u64,
}

fn mass(tokens: &[Token]) -> u64 {
    tokens.iter().map(|token| token.mass).sum()
}

/// The token of a draw; none where a logit is not a number, or the largest is infinite.
pub(super) fn choose(logits: &[f32], draw: &Draw) -> Option<u32> {
    let largest = logits.iter().copied().reduce(|a, b| if a.is_nan() || a > b { a } else { b })?;
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    if draw.temperature == 0.0 {
        return logits.iter().position(|&logit| logit == largest).map(|id| id as u32);
    }
    let (inverse, least) = (draw.inverse_temperature(), draw.min_p * weight(0.0));
    let mut tokens: Vec<Token> = Vec::new();
    for (id, logit) in logits.iter().enumerate() {
        let distance = (largest - logit).abs();
        let weight = weight(-(distance * inverse));
        let mass = (weight * UNITS) as u64;
        if weight >= least && mass > 0 {
            tokens.push(Token { id, distance, mass });
        }
    }
    tokens.sort_by(|a, b| a.distance.total_cmp(&b.distance));
    if draw.top_k > 0 {
        tokens.truncate(draw.top_k as usize);
    }
    if draw.top_p < 1.0 {
        let all = mass(&tokens);
        let goal = ((f64::from(draw.top_p) * all as f64).ceil() as u64).clamp(1, all);
        let mut sum = 0;
        let reaches = |token: &Token| {
            sum += token.mass;
            sum >= goal
        };
        let last = tokens.iter().position(reaches)?;
        tokens.truncate(last + 1);
    }
    tokens.sort_by_key(|token| token.id);
    let target = ((u128::from(draw.unit) * u128::from(mass(&tokens))) >> 64) as u64;
    let mut sum = 0;
    let passes = |token: &&Token| {
        sum += token.mass;
        sum > target
    };
    tokens.iter().find(passes).map(|token| token.id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAW: Draw = Draw { temperature: 1.0, min_p: 0.0, top_k: 0, top_p: 1.0, unit: 0 };

    fn share(of: f64) -> u64 {
        (of * 2f64.powi(64)) as u64
    }

    /// The tokens of a row with these probabilities, at 100 shares of the interval.
    fn tokens(probabilities: &[f32], draw: Draw) -> Vec<u32> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let at = |i| choose(&logits, &Draw { unit: share((f64::from(i) + 0.5) / 100.0), ..draw }).unwrap();
        (0..100).map(at).collect()
    }

    fn count(tokens: &[u32]) -> [usize; 4] {
        [0, 1, 2, 3].map(|id| tokens.iter().filter(|&&token| token == id).count())
    }

    #[test]
    fn shares_are_those_of_the_distribution() {
        const P: [f32; 4] = [0.1, 0.4, 0.3, 0.2];
        assert_eq!(count(&tokens(&P, DRAW)), [10, 40, 30, 20]);
        assert!(tokens(&P, DRAW).is_sorted(), "by ascending id");
        assert_eq!(count(&tokens(&P, Draw { top_k: 2, ..DRAW })), [0, 57, 43, 0]);
        assert_eq!(count(&tokens(&P, Draw { top_p: 0.65, ..DRAW })), [0, 57, 43, 0]);
        assert_eq!(count(&tokens(&P, Draw { top_p: 0.75, ..DRAW })), [0, 44, 34, 22]);
        assert_eq!(count(&tokens(&P, Draw { min_p: 0.6, ..DRAW })), [0, 57, 43, 0]);
        assert_eq!(count(&tokens(&P, Draw { top_k: 3, top_p: 0.4, ..DRAW })), [0, 100, 0, 0]);
        assert_eq!(count(&tokens(&P, Draw { temperature: 0.5, ..DRAW })), [3, 54, 30, 13]);
        assert_eq!(count(&tokens(&P, Draw { temperature: 0.0, ..DRAW })), [0, 100, 0, 0]);
    }

    #[test]
    fn the_lower_ids_go_first_among_equals() {
        assert_eq!(count(&tokens(&[0.25; 4], Draw { top_k: 2, ..DRAW })), [50, 50, 0, 0]);
        assert_eq!(count(&tokens(&[0.25; 4], Draw { top_p: 0.6, ..DRAW })), [33, 34, 33, 0]);
        assert_eq!(count(&tokens(&[0.25; 4], Draw { temperature: 0.0, ..DRAW })), [100, 0, 0, 0]);
    }

    #[test]
    fn what_is_no_distribution_gives_no_token() {
        for logits in [&[1.0, f32::NAN][..], &[f32::NAN, 1.0], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 3]] {
            for temperature in [0.0, 1.0] {
                assert_eq!(choose(logits, &Draw { temperature, ..DRAW }), None, "{logits:?}");
            }
        }
        let alone = [f32::NEG_INFINITY, -3e38, f32::NEG_INFINITY];
        for temperature in [0.0, 1e-30, 1.0, 1e30] {
            assert_eq!(choose(&alone, &Draw { temperature, unit: u64::MAX, ..DRAW }), Some(1));
        }
    }
}
