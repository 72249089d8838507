//! `silu(gate) * up`, the middle of a SwiGLU network: `silu(x) = x / (1 + exp(-x))`.

/// A row of `gate_up` is `[gate | up]`, each as wide as `out`.
pub(super) fn silu_mul_row(gate_up: &[f32], out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    for ((out, &gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = silu(gate) * up;
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_half_of_small_numbers_all_of_large_ones_and_nothing_of_negative_ones() {
        let mut out = [0.0; 4];
        silu_mul_row(&[0.0, 100.0, -200.0, 1.0, 9.0, 2.0, 5.0, 1.0], &mut out);
        assert_eq!(out[..2], [0.0, 200.0]);
        assert!(out[2].abs() < 1e-30);
        assert!((out[3] - 0.731_058_6).abs() < 1e-6);
    }
}
