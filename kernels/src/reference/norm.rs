//! RMS normalisation: `y_i = x_i * w_i / sqrt(mean(x^2) + eps)`, per row or, for Qwen3's q and k, per head.

use crate::HeadLayout;

/// Normalises `x` into `out`.
pub(super) fn rms_norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Normalises every query and key head of a fused qkv row in place.
pub(super) fn qk_norm_row(qkv: &mut [f32], heads: HeadLayout, q_weight: &[f32], k_weight: &[f32], eps: f32) {
    let all_heads = qkv.chunks_exact_mut(heads.head_dim);
    for (index, head) in all_heads.take(heads.num_heads + heads.num_kv_heads).enumerate() {
        let weight = if index < heads.num_heads { q_weight } else { k_weight };
        let scale = inverse_rms(head, eps);
        for (x, weight) in head.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}

fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let sum: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    (1.0 / (sum / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_root_mean_square_five_is_divided_by_five() {
        let mut out = [0.0; 2];
        rms_norm_row(&[1.0, 7.0], &[1.0, 2.0], 0.0, &mut out);
        assert_eq!(out, [0.2, 2.8]);
    }

    #[test]
    fn values_are_left_alone_and_each_head_is_its_own_norm() {
        let heads = HeadLayout { num_heads: 1, num_kv_heads: 1, head_dim: 2 };
        let mut qkv = [3.0, 3.0, 1.0, 7.0, 5.0, 6.0];
        qk_norm_row(&mut qkv, heads, &[1.0, 1.0], &[2.0, 1.0], 0.0);
        for (actual, expected) in qkv.iter().zip([1.0, 1.0, 0.4, 1.4, 5.0, 6.0]) {
            assert!((actual - expected).abs() < 1e-6, "{qkv:?}");
        }
    }
}
