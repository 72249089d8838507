//! References that are chosen before a row's scores are known, and the rows they turn out not to fit.
//!
//! Bounded: a score in log2 units is at most `B = |q| max|k| scale log2(e)` in magnitude, so with `phi = floor(B) - 100` no
//! weight is above `2^101`. Where B is 100 or less none is below `2^-100` either, and a row is computed again only if its
//! weighted values overflow, which those below `2^26 / num_keys` cannot. Calibrated: phi is given, and a score that is not
//! below phi + b stops its row. A row that ends outside `2^-100 num_keys <= l < 2^126`, or with an o that is not finite, is
//! computed again under running references, alone.
//!
//! **Bits.** `o / l` has the bits that running references give as long as no rounding is lost at either end of the exponent.
//! Let the floors of a row's scores lie between lo and hi, and its values be whole multiples of `2^-u` (24 in F16 and Q8_0
//! caches). A weight is a multiple of `2^(floor x - m - 23)`, so under a reference m every sum is one of
//! `2^(lo - m - 23 - u)`. While that is at least `2^-149`, the smallest number, a result below the normal range is exact, and
//! one inside it is rounded at the same bit whatever m is: another m scales all sums by a power of two, and the quotient not
//! at all. Running references are at most hi, so the bits are equal when
//!
//! ```text
//! hi - lo <= 126 - u,    phi - lo <= 126 - u,    hi + 1 - phi + log2(num_keys max(|v|, 1)) < 128
//! ```
//!
//! which for F16 allows scores that are 102 apart.

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
            Softmax::Online | Softmax::OnlineThreshold | Softmax::Bounded => None,
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
        let block_lengths = storage.block_lengths(call.params.layer, kv_head);
        // Of the blocks before that of the row, of which `num_full` have been looked at.
        let mut longest = 0.0_f32;
        let mut num_full = 0;
        for row in call.step.spans[span].rows.clone() {
            let references = write(row);
            if let Softmax::Calibrated(ranges) | Softmax::CalibratedTwoSided(ranges) = call.params.softmax {
                references.fill(ranges[kv_head].phi as f32);
                continue;
            }
            let position = call.step.positions[row] as usize;
            let num_before = position / BLOCK_SIZE;
            for &block in &blocks[num_full..num_before] {
                longest = longest.max(block_lengths[block as usize]);
            }
            num_full = num_before;
            let own = storage.key_length(call.params.layer, blocks[num_full] as usize, kv_head, position % BLOCK_SIZE);
            let key = longest.max(own);
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
