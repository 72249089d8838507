//! What the program tells of the model's file and of its own start, for the endpoints that repeat it, and how fast tokens
//! come. Nothing here may be secret: whoever reaches the server reads it.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::sampling_defaults::SamplingDefaults;

/// What is known besides the served model; what is not known is left out of answers.
#[derive(Debug, Clone, Default)]
pub struct ServerFacts {
    /// The model's file.
    pub model_path: Option<String>,
    /// What the file calls its kind of network, such as `llama`.
    pub architecture: Option<String>,
    /// What most of its weights are stored as, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// Numbers in all of its tensors.
    pub num_params: Option<u64>,
    /// Bytes of the file.
    pub model_bytes: Option<u64>,
    /// Tokens of context that the model was made for.
    pub trained_context_len: Option<usize>,
    /// What the file suggests for requests that do not say how tokens are chosen.
    pub sampling: SamplingDefaults,
    /// What computes, such as `cpu` or `cuda:0`.
    pub device: Option<String>,
    /// Options the server was started with, by their names; no secrets.
    pub options: Map<String, Value>,
}

/// Readings of the generated tokens' counter that are closer together than this are one.
const SHORTEST: Duration = Duration::from_secs(1);

/// Tokens per second between two readings of their counter.
#[derive(Debug)]
pub(crate) struct Throughput {
    since: Option<(Instant, u64)>,
    latest: f64,
}

impl Throughput {
    pub(crate) const fn new() -> Self {
        Self { since: None, latest: 0.0 }
    }

    /// The mean since the reading before this one. Whoever asks again within a second hears the same.
    pub(crate) fn read(&mut self, now: Instant, num_tokens: u64) -> f64 {
        match self.since {
            Some((since, _)) if now.saturating_duration_since(since) < SHORTEST => return self.latest,
            Some((since, before)) => {
                let seconds = now.saturating_duration_since(since).as_secs_f64();
                self.latest = num_tokens.saturating_sub(before) as f64 / seconds;
            }
            None => {}
        }
        self.since = Some((now, num_tokens));
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_mean_since_the_last_reading_but_never_of_less_than_a_second() {
        let mut throughput = Throughput::new();
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(throughput.read(at(0), 100), 0.0);
        assert_eq!(throughput.read(at(999), 5000), 0.0);
        assert_eq!(throughput.read(at(2000), 300), 100.0);
        assert_eq!(throughput.read(at(2500), 9000), 100.0);
        assert_eq!(throughput.read(at(6000), 320), 5.0);
        assert_eq!(throughput.read(at(7000), 0), 0.0, "a counter that began anew");
    }
}
