//! Softmax, and the algebra that attention rests on.
//!
//! A partial result over a set of keys is a [`State`] (m, l, o): a reference exponent, the sum of `exp(x - m)`, and the
//! sum of values so weighted. Two states over disjoint sets merge into the state of their union:
//! `m = max(m1, m2)`, `l = l1 e^(m1 - m) + l2 e^(m2 - m)`, `o` likewise; the answer is `o / l`. Merging is associative
//! and commutative up to rounding.

/// Three-pass softmax in place: maximum, sum, divide.
pub(super) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f64 = scores.iter().map(|&x| f64::from(x)).sum();
    scores.iter_mut().for_each(|x| *x = (f64::from(*x) / sum) as f32);
}

/// Softmax-weighted sum of values over some keys, not yet divided.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// Reference: the largest score, minus infinity over no keys.
    pub(super) m: f32,
    /// Sum of `exp(score - m)`.
    pub(super) l: f32,
    /// Sum of `exp(score - m) * value`.
    pub(super) o: Vec<f32>,
}

impl State {
    /// The state over no keys: the neutral element of merging.
    pub(super) fn empty(head_dim: usize) -> Self {
        Self { m: f32::NEG_INFINITY, l: 0.0, o: vec![0.0; head_dim] }
    }

    /// The state over some keys, given their scores and values.
    pub(super) fn of<'a>(scores: &[f32], values: impl Iterator<Item = &'a [f32]>, head_dim: usize) -> Self {
        let mut state = Self::empty(head_dim);
        state.m = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (score, value) in scores.iter().zip(values) {
            let p = (score - state.m).exp();
            state.l += p;
            for (o, v) in state.o.iter_mut().zip(value) {
                *o += p * v;
            }
        }
        state
    }

    /// The state over the keys of both.
    pub(super) fn merge(self, other: &Self) -> Self {
        if self.m == f32::NEG_INFINITY {
            return other.clone();
        }
        if other.m == f32::NEG_INFINITY {
            return self;
        }
        let m = self.m.max(other.m);
        let (mine, theirs) = ((self.m - m).exp(), (other.m - m).exp());
        let o = self.o.iter().zip(&other.o).map(|(a, b)| a * mine + b * theirs).collect();
        Self { m, l: self.l * mine + other.l * theirs, o }
    }

    /// Divides: the answer over all keys merged so far.
    pub(super) fn finish(&self, out: &mut [f32]) {
        for (out, o) in out.iter_mut().zip(&self.o) {
            *out = o / self.l;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_states_equal_the_state_of_all_keys() {
        let scores = [0.5, -3.0, 80.0, 79.0, 1.0];
        let values: Vec<[f32; 2]> = (0..5).map(|i| [i as f32, 1.0]).collect();
        let of =
            |range: std::ops::Range<usize>| State::of(&scores[range.clone()], values[range].iter().map(|v| &v[..]), 2);
        let mut expected = [0.0; 2];
        of(0..5).finish(&mut expected);
        for cut in 0..=5 {
            let mut actual = [0.0; 2];
            of(0..cut).merge(&of(cut..5)).finish(&mut actual);
            for (a, e) in actual.iter().zip(expected) {
                assert!((a - e).abs() < 1e-6, "cut at {cut}: {actual:?} {expected:?}");
            }
        }
    }

    #[test]
    fn probabilities_sum_to_one_even_for_huge_scores() {
        let mut scores = [1000.0, 1000.0, -1000.0];
        softmax(&mut scores);
        assert_eq!(scores, [0.5, 0.5, 0.0]);
    }
}
