//! References for the calibrated softmax, chosen from the scores that a model has on a text.
//!
//! Per (layer, KV head): phi is the centre of the whole numbers that 99.99 % of the scores, and 99.99 % of the rows with
//! their largest score, lie between, and `a < x - phi < b` is that range. A row is predicted to be computed again when its
//! largest score leaves what the row test of `taper_kernels::Softmax::Calibrated` accepts for certain; a layer in which that
//! is more than one row in a hundred keeps the online softmax.

use crate::{Error, Llama, LogitRows, ModelSoftmax, SequenceSlice};
use serde::{Deserialize, Serialize};
use taper_kernels::{BLOCK_SIZE, Backend, Histogram, ScoreStatistics, UnifiedRange};

/// Share of scores, and of rows, that a range leaves out, both ends together.
const LEFT_OUT: f64 = 1e-4;
/// A layer with a larger share of rows to be computed again is excluded.
const MOST_RECOMPUTED: f64 = 0.01;
/// A row of L keys is accepted when its sum of weights, as an exponent, is at least this plus `log2 L` and below [`HIGHEST_SUM`].
const LOWEST_SUM: i32 = -100;
const HIGHEST_SUM: i32 = 126;

/// What was found for one KV head; numbers are in log2 units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadCalibration {
    /// The reference.
    pub phi: i32,
    /// Lower end of the range, relative to `phi`.
    pub a: f32,
    /// Upper end of the range, relative to `phi`.
    pub b: f32,
    /// Share of rows that will be computed again.
    pub predicted_rate: f64,
}

/// What was found for one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerCalibration {
    /// Mean over its heads.
    pub predicted_rate: f64,
    /// Whether it keeps the online softmax.
    pub excluded: bool,
    /// Its KV heads.
    pub heads: Vec<HeadCalibration>,
}

impl LayerCalibration {
    /// From the scores of its KV heads, in contexts of up to `context_len` keys.
    fn of(statistics: &[ScoreStatistics], context_len: usize) -> Self {
        let heads: Vec<_> = statistics.iter().map(|one| HeadCalibration::of(one, context_len)).collect();
        let predicted_rate = heads.iter().map(|head| head.predicted_rate).sum::<f64>() / heads.len() as f64;
        Self { predicted_rate, excluded: predicted_rate > MOST_RECOMPUTED, heads }
    }

    /// The ranges of its heads, unless it is excluded.
    fn ranges(&self) -> Option<Vec<UnifiedRange>> {
        let range = |&HeadCalibration { phi, a, b, .. }: &HeadCalibration| UnifiedRange { phi, a, b };
        (!self.excluded).then(|| self.heads.iter().map(range).collect())
    }
}

impl HeadCalibration {
    fn of(statistics: &ScoreStatistics, context_len: usize) -> Self {
        let ScoreStatistics { all, largest } = statistics;
        let lowest = all.quantile(LEFT_OUT / 2.0).unwrap_or(0);
        let highest = [all.quantile(1.0 - LEFT_OUT / 2.0), largest.quantile(1.0 - LEFT_OUT)];
        let highest = highest.into_iter().flatten().max().unwrap_or(0);
        let phi = (lowest + highest + 1).div_euclid(2);
        // A score whose floor is `lowest` may be that number, and must lie above a; one of `highest` lies below the next.
        let (below, above) = (lowest - 1 - phi, highest + 1 - phi);
        let predicted_rate = recompute_rate(largest, phi, above, context_len);
        Self { phi, a: below as f32, b: above as f32, predicted_rate }
    }
}

/// Share of rows whose largest score alone does not make sure that their sum is accepted: `2^(x - phi) <= l < L 2^(x + 1 - phi)`
/// for a largest score of floor x among L keys.
fn recompute_rate(largest: &Histogram, phi: i32, b: i32, context_len: usize) -> f64 {
    let log2_len = context_len.next_power_of_two().ilog2() as i32;
    let accepted = LOWEST_SUM + log2_len..b.min(HIGHEST_SUM - log2_len);
    let refused: u64 = largest.floors().filter(|(x, _)| !accepted.contains(&(x - phi))).map(|(_, count)| count).sum();
    refused as f64 / largest.total().max(1) as f64
}

/// What calibration found for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration {
    /// Its layers.
    pub layers: Vec<LayerCalibration>,
}

impl Calibration {
    /// Runs `tokens` in chunks of the model's context that know nothing of each other, and looks at the scores. `progress` is
    /// told of the tokens done. A last chunk that is not full is run as well.
    ///
    /// # Errors
    /// What the model's forward pass says.
    ///
    /// # Panics
    /// Without tokens.
    pub fn measure<B: Backend>(
        model: &mut Llama<B>,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, Error> {
        assert!(!tokens.is_empty(), "there is a text");
        let context_len = model.context_len();
        let block_table: Vec<u32> = (0..context_len.div_ceil(BLOCK_SIZE) as u32).collect();
        model.start_observing();
        let mut done = 0;
        for chunk in tokens.chunks(context_len) {
            for start in (0..chunk.len()).step_by(model.max_rows()) {
                let tokens = &chunk[start..chunk.len().min(start + model.max_rows())];
                model.forward(&[SequenceSlice {
                    tokens,
                    start,
                    block_table: &block_table,
                    logits: LogitRows::None,
                }])?;
                done += tokens.len();
                progress(done);
            }
        }
        let observed = model.finish_observing();
        Ok(Self { layers: observed.iter().map(|layer| LayerCalibration::of(layer, context_len)).collect() })
    }

    /// The references that follow from it.
    pub fn softmax(&self) -> ModelSoftmax {
        ModelSoftmax::Calibrated(self.layers.iter().map(LayerCalibration::ranges).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(rows: usize, score: impl Fn(usize, usize) -> f32) -> ScoreStatistics {
        let mut statistics = ScoreStatistics::default();
        for row in 0..rows {
            let scores = (0..100).map(|key| score(row, key));
            statistics.largest.add(scores.clone().fold(f32::NEG_INFINITY, f32::max));
            scores.for_each(|x| statistics.all.add(x));
        }
        statistics
    }

    #[test]
    fn the_reference_is_the_centre_and_the_range_holds_the_scores() {
        let head = HeadCalibration::of(&statistics(500, |_, key| key as f32 - 20.0), 128);
        assert_eq!((head.phi, head.a, head.b, head.predicted_rate), (30, -51.0, 50.0, 0.0));
    }

    #[test]
    fn equal_scores_lie_strictly_inside_their_range() {
        let head = HeadCalibration::of(&statistics(10, |_, _| 3.0), 128);
        assert!(head.a < 3.0 - head.phi as f32 && 3.0 - (head.phi as f32) < head.b, "{head:?}");
    }

    #[test]
    fn a_layer_of_scores_that_no_exponent_spans_is_excluded() {
        let narrow = statistics(200, |_, key| key as f32 / 10.0);
        let wide = statistics(200, |row, _| if row % 2 == 0 { 200.0 } else { -200.0 });
        assert!(!LayerCalibration::of(&[narrow.clone(), narrow.clone()], 128).excluded);
        let layer = LayerCalibration::of(&[narrow, wide], 128);
        assert!(layer.excluded && layer.heads[0].predicted_rate == 0.0 && layer.heads[1].predicted_rate == 1.0);
        assert_eq!(layer.ranges(), None);
    }

    #[test]
    fn rows_whose_largest_score_lies_far_below_the_others_are_predicted() {
        // One row in fifty has scores 120 below; it is inside (a, b), and its sum too small all the same.
        let mixed = statistics(1000, |row, _| if row % 50 == 0 { -120.0 } else { 110.0 });
        assert_eq!(HeadCalibration::of(&mixed, 128).predicted_rate, 1.0 / 50.0);
    }
}
