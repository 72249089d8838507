//! The rows of what a model is measured against, in turns with it.

use crate::{Measurement, Summary};

/// What a model is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Our network with all attention scores in memory.
    NaiveAttention,
    /// Our network with running references in its softmax.
    OnlineSoftmax,
    /// Candle's network on the same file.
    Candle,
}

impl Peer {
    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Peer::NaiveAttention => "naive-attention",
            Peer::OnlineSoftmax => "online-softmax",
            Peer::Candle => "candle",
        }
    }

    /// The peer's row on the case of `ours`. How many bytes it reads is its own business.
    pub fn row(self, ours: &Measurement, samples: &[f64]) -> Measurement {
        let mut params = ours.params.clone();
        params.insert("network".into(), self.name().into());
        for ours in ["attention", "softmax", "recomputed_rows"] {
            params.remove(ours);
        }
        if self == Peer::Candle && ours.params["keys"] != "none" {
            params.insert("keys".into(), "computed".into());
        }
        params.insert("samples".into(), samples.into());
        let case = format!("{}, {}", ours.case, self.name());
        Measurement { case, params, summary: Summary::of(samples), bytes: None, gbps: None, ..ours.clone() }
    }

    /// How many times faster `ours` was, sample by sample.
    pub fn ratio_row(self, ours: &Measurement, samples: &[f64], theirs: &[f64]) -> Measurement {
        let ratios: Vec<f64> = samples.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        let mut row = self.row(ours, &ratios);
        row.params.insert("network".into(), ours.params["network"].clone());
        row.params.insert("against".into(), self.name().into());
        Measurement { case: format!("{} against {}", ours.case, self.name()), unit: "x", ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params;

    #[test]
    fn a_ratio_is_of_samples_that_alternated() {
        let ours = Measurement {
            bench: "model",
            case: "tg2".into(),
            params: params([("network", "taper".into()), ("attention", "split-kv".into()), ("keys", "none".into())]),
            summary: Summary::of(&[10.0, 30.0]),
            unit: "tokens/s",
            bytes: Some(1.0),
            gbps: Some(1.0),
        };
        let ratio = Peer::Candle.ratio_row(&ours, &[10.0, 30.0], &[5.0, 10.0]);
        assert_eq!((ratio.case.as_str(), ratio.unit), ("tg2 against candle", "x"));
        assert_eq!((ratio.summary.median, ratio.params["samples"].clone()), (2.5, vec![2.0, 3.0].into()));
        let theirs = Peer::Candle.row(&ours, &[5.0]);
        assert_eq!((theirs.params["network"].clone(), theirs.gbps), ("candle".into(), None));
    }
}
