//! Rotary position embedding: pair i of a head is turned by `position * inv_freq[i]` radians.
//!
//! Two kinds of pairs, see [`RopeKind`]. Angles come once per step as `[cos of all pairs | sin of all pairs]` and are
//! shared by all layers.

use crate::{Rope, RopeKind};

/// `[cos | sin]` of every pair at one position, in float64 until the end.
pub(crate) fn angles_row(rope: &Rope, position: u32, out: &mut [f32]) {
    let (cos_row, sin_row) = out.split_at_mut(rope.inv_freq.len());
    let magnitude = f64::from(rope.magnitude);
    for ((cos, sin), inv_freq) in cos_row.iter_mut().zip(sin_row).zip(&rope.inv_freq) {
        let angle = f64::from(position) * inv_freq;
        *cos = (angle.cos() * magnitude) as f32;
        *sin = (angle.sin() * magnitude) as f32;
    }
}

/// Turns one head in place by a row of angles.
pub(super) fn rotate_head(kind: RopeKind, angles: &[f32], head: &mut [f32]) {
    let num_pairs = angles.len() / 2;
    for pair in 0..num_pairs {
        let (cos, sin) = (angles[pair], angles[num_pairs + pair]);
        let (i, j) = match kind {
            RopeKind::AdjacentPairs => (2 * pair, 2 * pair + 1),
            RopeKind::HalfSplit => (pair, pair + num_pairs),
        };
        let (x, y) = (head[i], head[j]);
        head[i] = x * cos - y * sin;
        head[j] = x * sin + y * cos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quarter_turn(kind: RopeKind) -> [f32; 6] {
        // The first pair turns by 90 degrees per position, the second not at all; the last two elements are not rotary.
        let rope = Rope { kind, rotary_dim: 4, inv_freq: vec![std::f64::consts::FRAC_PI_2, 0.0], magnitude: 1.0 };
        let mut angles = [0.0; 4];
        angles_row(&rope, 1, &mut angles);
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        rotate_head(kind, &angles, &mut head);
        head.map(|x| (x * 1e6).round() / 1e6)
    }

    #[test]
    fn adjacent_pairs_turn_neighbours() {
        assert_eq!(quarter_turn(RopeKind::AdjacentPairs), [-2.0, 1.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn half_split_turns_elements_half_the_rotary_part_apart() {
        assert_eq!(quarter_turn(RopeKind::HalfSplit), [-3.0, 2.0, 1.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn magnitude_scales_cosine_and_sine() {
        let rope = Rope { kind: RopeKind::HalfSplit, rotary_dim: 2, inv_freq: vec![0.0], magnitude: 1.5 };
        let mut angles = [0.0; 2];
        angles_row(&rope, 7, &mut angles);
        assert_eq!(angles, [1.5, 0.0]);
    }
}
