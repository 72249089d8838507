//! The ways to compute attention that take turns.

use taper_kernels::{AttentionScheme, Softmax, UnifiedRange};

/// A way to compute attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Split-KV, references that run along with the keys.
    Online,
    /// Split-KV, a calibrated reference per KV head.
    Calibrated,
    /// Split-KV, a reference from a bound of the scores.
    Bounded,
    /// Split-KV, references that run along with the keys and are raised late; a GPU's.
    OnlineThreshold,
    /// Ours with all scores in memory.
    Naive,
    /// Candle's tensors with all scores in memory.
    Candle,
    /// No attention: as many bytes as its keys and values read by plain loads, the ceiling of the same moments.
    Reads,
}

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 7] =
        [Arm::Online, Arm::Calibrated, Arm::Bounded, Arm::OnlineThreshold, Arm::Naive, Arm::Candle, Arm::Reads];

    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Online => "online",
            Arm::Calibrated => "calibrated",
            Arm::Bounded => "bounded",
            Arm::OnlineThreshold => "online-threshold",
            Arm::Naive => "naive",
            Arm::Candle => "candle",
            Arm::Reads => "reads",
        }
    }

    /// Whether its references are fixed beforehand, so that rows may have to be computed again.
    pub fn is_unified(self) -> bool {
        matches!(self, Arm::Calibrated | Arm::Bounded)
    }

    /// How our kernels are told; `None` for what is not attention of ours.
    pub(super) fn ours(self) -> Option<Way> {
        match self {
            Arm::Online => Some((AttentionScheme::SplitKv, Softmax::Online)),
            Arm::Calibrated => Some((AttentionScheme::SplitKv, Softmax::Calibrated(&[]))),
            Arm::Bounded => Some((AttentionScheme::SplitKv, Softmax::Bounded)),
            Arm::OnlineThreshold => Some((AttentionScheme::SplitKv, Softmax::OnlineThreshold)),
            Arm::Naive => Some((AttentionScheme::Naive, Softmax::Online)),
            Arm::Candle | Arm::Reads => None,
        }
    }
}

/// Scheme and references.
pub(super) type Way = (AttentionScheme, Softmax<'static>);

/// What a calibration would find, roughly: keys and queries between -1 and 1 have scores far inside.
pub(super) const RANGE: UnifiedRange = UnifiedRange { phi: 0, a: -60.0, b: 60.0 };
