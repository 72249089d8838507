//! `silu(gate) * up`, with `silu(x) = x / (1 + 2^(-x log2 e))`.

use super::isa::Isa;
use super::simd::{Kernel, LANES, Simd, load_part, run, store_part};
use super::vector_math::exp2_from;

/// Rows of `gate_up` are `[gate | up]`, each `width` elements like the rows of `out`.
pub(super) fn silu_mul(isa: Isa, gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (gate_up, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = gate_up.split_at(width);
        silu_mul_row(isa, gate, up, out);
    }
}

/// The same for elements of one row, all of one length.
pub(super) fn silu_mul_row(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "gate, up and output are equally long");
    run(isa, SiluMul { gate, up, out });
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gate, gate_rest) = self.gate.as_chunks::<LANES>();
        let (up, up_rest) = self.up.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            s.store(s.mul(silu(s, s.load(gate)), s.load(up)), out);
        }
        if !gate_rest.is_empty() {
            let y = s.mul(silu(s, load_part(s, gate_rest)), load_part(s, up_rest));
            store_part(s, y, out_rest);
        }
    }
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let exponential = exp2_from(s, s.mul(x, s.splat(-std::f32::consts::LOG2_E)), zero);
    s.div(x, s.add(s.splat(1.0), exponential))
}
