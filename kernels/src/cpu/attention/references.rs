//! References that are chosen before a row's scores are known, and the rows they turn out not to fit.

use super::super::kv_cache::{Format, Storage};
use super::super::simd::{Kernel, Simd, load_part};
use super::Call;
use crate::{BLOCK_SIZE, Softmax};
use std::sync::atomic::AtomicBool;

/// Room between the bound of the scores and the largest exponent, which is left for the sums.
const HEADROOM: f32 = 100.0;
/// A weight of `2^127` or more would be cut to it.
const LARGEST_EXPONENT: f32 = 127.0;

/// What scores may be, relative to the reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A score this far above the reference stops its row.
    pub(super) above: f32,
    /// A score this far or less above the reference stops its row as well.
    pub(super) below: Option<f32>,
}

/// Memory for the references of a step and the rows that they do not fit; `[rows][num_heads]`.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) values: Vec<f32>,
    pub(super) unfit: Vec<AtomicBool>,
}

impl References {
    /// Room for a step, with nothing unfit.
    pub(super) fn reset(&mut self, len: usize) {
        self.values.resize(len, 0.0);
        self.unfit.clear();
        self.unfit.resize_with(len, AtomicBool::default);
    }
}

impl Call<'_> {
    /// What the scores of a KV head may be, if that is limited.
    pub(super) fn limits(&self, kv_head: usize) -> Option<Limits> {
        match self.params.softmax {
            Softmax::Online | Softmax::Bounded => None,
            Softmax::Calibrated(ranges) => Some(Limits { above: ranges[kv_head].b.min(LARGEST_EXPONENT), below: None }),
            Softmax::CalibratedTwoSided(ranges) => {
                let range = ranges[kv_head];
                Some(Limits { above: range.b.min(LARGEST_EXPONENT), below: Some(range.a) })
            }
        }
    }
}

/// Fills in the references of the rows of a span for the query heads of one KV head.
pub(super) struct FixReferences<'a, F: Format, W> {
    pub(super) call: Call<'a>,
    pub(super) storage: &'a Storage<F>,
    pub(super) span: usize,
    pub(super) kv_head: usize,
    /// Where the references of a row go.
    pub(super) write: W,
}

impl<'a, F: Format, W: FnMut(usize) -> &'a mut [f32]> Kernel for FixReferences<'a, F, W> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, storage, span, kv_head, mut write } = self;
        let blocks = call.blocks(span);
        // Of the blocks before that of the row.
        let mut longest = 0.0_f32;
        let mut num_full = 0;
        for row in call.step.spans[span].rows.clone() {
            let references = write(row);
            if let Softmax::Calibrated(ranges) | Softmax::CalibratedTwoSided(ranges) = call.params.softmax {
                references.fill(ranges[kv_head].phi as f32);
                continue;
            }
            let position = call.step.positions[row] as usize;
            let length =
                |block: usize, place| storage.key_length(call.params.layer, blocks[block] as usize, kv_head, place);
            for block in num_full..position / BLOCK_SIZE {
                longest = longest.max(length(block, BLOCK_SIZE - 1));
            }
            num_full = position / BLOCK_SIZE;
            let key = longest.max(length(num_full, position % BLOCK_SIZE));
            for (index, reference) in references.iter_mut().enumerate() {
                let query = query_length(s, call.query(row, kv_head * call.group() + index), call.log2_scale());
                *reference = (query * key * rounding(call.params.heads.head_dim)).floor() - HEADROOM;
            }
        }
    }
}

/// A score is a sum of `head_dim` products in float32, and the two lengths are such sums: what their rounding may add to
/// the bound of the score, with room to spare.
fn rounding(head_dim: usize) -> f32 {
    1.0 + (4 * head_dim + 64) as f32 * f32::EPSILON
}

/// Length of a query in log2 units, rounded as the scores see it.
#[inline(always)]
fn query_length<S: Simd>(s: S, query: &[f32], scale: f32) -> f32 {
    let mut squares = s.splat(0.0);
    for part in query.chunks(super::super::simd::LANES) {
        let x = s.mul(load_part(s, part), s.splat(scale));
        squares = s.fma(x, x, squares);
    }
    s.sum(squares).sqrt()
}
