//! Which references the softmax of each layer has, and how often they did not fit.

use crate::{Error, ModelConfig};
use taper_kernels::{Softmax, UnifiedRange};

/// References of a whole model. The answer does not depend on them ([`Softmax`]).
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ModelSoftmax {
    /// Running ones everywhere.
    #[default]
    Online,
    /// Running ones that are raised late ([`Softmax::OnlineThreshold`]), everywhere.
    OnlineThreshold,
    /// From the lengths of query and keys, everywhere.
    Bounded,
    /// Per layer the ranges of its KV heads; a layer without has running ones.
    Calibrated(Vec<Option<Vec<UnifiedRange>>>),
    /// As `Calibrated`, with the two-sided test of [`Softmax::CalibratedTwoSided`]; for measurements.
    CalibratedTwoSided(Vec<Option<Vec<UnifiedRange>>>),
}

impl ModelSoftmax {
    /// `online`, `online-threshold`, `bounded`, `calibrated` or `calibrated-two-sided`.
    pub fn name(&self) -> &'static str {
        match self {
            ModelSoftmax::Online => "online",
            ModelSoftmax::OnlineThreshold => "online-threshold",
            ModelSoftmax::Bounded => "bounded",
            ModelSoftmax::Calibrated(_) => "calibrated",
            ModelSoftmax::CalibratedTwoSided(_) => "calibrated-two-sided",
        }
    }

    /// The references of a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> Softmax<'_> {
        match self {
            ModelSoftmax::Online => Softmax::Online,
            ModelSoftmax::OnlineThreshold => Softmax::OnlineThreshold,
            ModelSoftmax::Bounded => Softmax::Bounded,
            ModelSoftmax::Calibrated(layers) => layers[layer].as_deref().map_or(Softmax::Online, Softmax::Calibrated),
            ModelSoftmax::CalibratedTwoSided(layers) => {
                layers[layer].as_deref().map_or(Softmax::Online, Softmax::CalibratedTwoSided)
            }
        }
    }

    /// Whether there is a range for every KV head of `config`.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), Error> {
        let (ModelSoftmax::Calibrated(layers) | ModelSoftmax::CalibratedTwoSided(layers)) = self else { return Ok(()) };
        let (num_layers, num_kv_heads) = (config.num_layers, config.heads.num_kv_heads);
        if layers.len() == num_layers && layers.iter().flatten().all(|ranges| ranges.len() == num_kv_heads) {
            return Ok(());
        }
        Err(Error::BadOption(format!(
            "the calibration is not of a model with {num_layers} layers of {num_kv_heads} KV heads"
        )))
    }
}

/// (row, query head) pairs that attention computed in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttendedRows {
    /// All of them.
    pub computed: u64,
    /// Those computed a second time, online, because their fixed reference did not fit.
    pub recomputed: u64,
}
