//! Rotary position embedding in place in fused qkv rows. Pairs and angles are described in `reference/rope.rs`; the two
//! products and their sum are rounded one by one, so that a compiler may vectorise them as it likes without a change of bits.

use super::isa::Isa;
use super::simd::{Kernel, Simd, run};
use crate::{HeadLayout, RopeKind};

/// Turns the query and key heads of each row by its row of angles.
pub(super) fn rotate_rows(
    isa: Isa,
    kind: RopeKind,
    heads: HeadLayout,
    angles: &[f32],
    rotary_dim: usize,
    qkv: &mut [f32],
) {
    run(isa, RotateRows { kind, heads, angles, rotary_dim, qkv });
}

struct RotateRows<'a> {
    kind: RopeKind,
    heads: HeadLayout,
    angles: &'a [f32],
    rotary_dim: usize,
    qkv: &'a mut [f32],
}

impl Kernel for RotateRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let heads = self.heads;
        if self.rotary_dim == 0 {
            return;
        }
        let rows = self.qkv.chunks_exact_mut(heads.qkv_width()).zip(self.angles.chunks_exact(self.rotary_dim));
        for (row, angles) in rows {
            let (cos, sin) = angles.split_at(self.rotary_dim / 2);
            let turned = &mut row[..heads.q_width() + heads.kv_width()];
            for head in turned.chunks_exact_mut(heads.head_dim) {
                let head = &mut head[..self.rotary_dim];
                match self.kind {
                    RopeKind::AdjacentPairs => adjacent_pairs(head, cos, sin),
                    RopeKind::HalfSplit => half_split(head, cos, sin),
                }
            }
        }
    }
}

#[inline(always)]
fn adjacent_pairs(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0;
    for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
        let [x, y] = *pair;
        *pair = [x * cos - y * sin, x * sin + y * cos];
    }
}

#[inline(always)]
fn half_split(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((x, y), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
    }
}
