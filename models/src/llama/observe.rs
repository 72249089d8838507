//! A network whose scores are looked at, for calibration.

use super::Llama;
use taper_kernels::{Backend, ScoreStatistics};

impl<B: Backend> Llama<B> {
    /// Collects statistics of all scores from now on.
    pub(crate) fn start_observing(&mut self) {
        let heads = vec![ScoreStatistics::default(); self.config.heads.num_kv_heads];
        self.observed = Some(vec![heads; self.config.num_layers]);
    }

    /// Ends that; the statistics per layer and KV head.
    pub(crate) fn finish_observing(&mut self) -> Vec<Vec<ScoreStatistics>> {
        self.observed.take().unwrap_or_default()
    }
}
