//! RMS normalisation: `y_i = x_i * w_i / sqrt(mean(x^2) + eps)`, per row, and per head for
//! Qwen3's q and k. The squares are summed in sixteen lanes and then by a fixed tree, whatever the instruction set.

use super::isa::Isa;
use super::simd::{Kernel, LANES, Simd, load_part, run, store_part};
use crate::HeadLayout;

/// `out = norm(x)` for rows as wide as `weight`.
pub(super) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    run(isa, RmsNorm { x, weight, eps, out });
}

/// `residual += delta`.
pub(super) fn add(isa: Isa, residual: &mut [f32], delta: &[f32]) {
    run(isa, Add { residual, delta });
}

/// Normalises every query and key head of fused qkv rows in place.
pub(super) fn qk_norm(isa: Isa, qkv: &mut [f32], heads: HeadLayout, q_weight: &[f32], k_weight: &[f32], eps: f32) {
    run(isa, QkNorm { qkv, heads, q_weight, k_weight, eps });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.weight.len();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let scale = s.splat(inverse_rms(s, x, self.eps));
            let (x, x_rest) = x.as_chunks::<LANES>();
            let (weight, weight_rest) = self.weight.as_chunks::<LANES>();
            let (out, out_rest) = out.as_chunks_mut::<LANES>();
            for ((x, weight), out) in x.iter().zip(weight).zip(out) {
                s.store(s.mul(s.mul(s.load(x), scale), s.load(weight)), out);
            }
            if !x_rest.is_empty() {
                let y = s.mul(s.mul(load_part(s, x_rest), scale), load_part(s, weight_rest));
                store_part(s, y, out_rest);
            }
        }
    }
}

struct QkNorm<'a> {
    qkv: &'a mut [f32],
    heads: HeadLayout,
    q_weight: &'a [f32],
    k_weight: &'a [f32],
    eps: f32,
}

impl Kernel for QkNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let heads = self.heads;
        for row in self.qkv.chunks_exact_mut(heads.qkv_width()) {
            let normalised = &mut row[..heads.q_width() + heads.kv_width()];
            for (index, head) in normalised.chunks_exact_mut(heads.head_dim).enumerate() {
                let weight = if index < heads.num_heads { self.q_weight } else { self.k_weight };
                let scale = s.splat(inverse_rms(s, head, self.eps));
                let (head, head_rest) = head.as_chunks_mut::<LANES>();
                let (weight, weight_rest) = weight.as_chunks::<LANES>();
                for (x, weight) in head.iter_mut().zip(weight) {
                    s.store(s.mul(s.mul(s.load(x), scale), s.load(weight)), x);
                }
                if !head_rest.is_empty() {
                    let y = s.mul(s.mul(load_part(s, head_rest), scale), load_part(s, weight_rest));
                    store_part(s, y, head_rest);
                }
            }
        }
    }
}

struct Add<'a> {
    residual: &'a mut [f32],
    delta: &'a [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (residual, residual_rest) = self.residual.as_chunks_mut::<LANES>();
        let (delta, delta_rest) = self.delta.as_chunks::<LANES>();
        for (residual, delta) in residual.iter_mut().zip(delta) {
            s.store(s.add(s.load(residual), s.load(delta)), residual);
        }
        for (residual, delta) in residual_rest.iter_mut().zip(delta_rest) {
            *residual += delta;
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut squares = s.splat(0.0);
    for x in whole {
        let x = s.load(x);
        squares = s.fma(x, x, squares);
    }
    if !rest.is_empty() {
        let x = load_part(s, rest);
        squares = s.fma(x, x, squares);
    }
    1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()
}
