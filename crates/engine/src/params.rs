//! What a client may ask of the sampler, and the one place where it is checked.

/// Most choices that one request may ask for, as in OpenAI's interface.
pub const MAX_CHOICES: usize = 128;

/// A parameter that cannot be honoured; `param` is the name a client knows it by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {message}")]
pub struct InvalidParam {
    /// Name of the field.
    pub param: &'static str,
    /// What was given and what is accepted.
    pub message: String,
}

/// How the next token is chosen and when a sequence ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits. 0 takes the largest logit always, ties going to the lowest token id.
    pub temperature: f32,
    /// Keep only the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// The same seed gives the same text whatever else runs; without one every request differs.
    pub seed: Option<u64>,
    /// Most tokens to generate per choice; without it, the rest of the context.
    pub max_tokens: Option<usize>,
    /// Strings that end a choice; they are not part of its text.
    pub stop: Vec<String>,
    /// Choices to generate.
    pub n: usize,
    /// Go on after an end-of-generation token (for benchmarks).
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            n: 1,
            ignore_eos: false,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding, everything else at its default.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Refuses what has no meaning, naming the first field at fault.
    pub fn validate(&self) -> Result<(), InvalidParam> {
        let refuse = |param, message| Err(InvalidParam { param, message });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("temperature", format!("must be a number of at least 0, not {}", self.temperature));
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refuse("top_p", format!("must lie between 0 and 1, not {}", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", format!("must lie between 0 and 1, not {}", self.min_p));
        }
        if self.max_tokens == Some(0) {
            return refuse("max_tokens", "must be at least 1".to_owned());
        }
        if !(1..=MAX_CHOICES).contains(&self.n) {
            return refuse("n", format!("must lie between 1 and {MAX_CHOICES}, not {}", self.n));
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop", "must not hold an empty string".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(params: &SamplingParams, refused: Option<&str>) {
        assert_eq!(params.validate().err().map(|error| error.param), refused, "{params:?}");
    }

    #[test]
    fn defaults_and_edges_are_accepted() {
        check(&SamplingParams::default(), None);
        check(&SamplingParams::greedy(), None);
        check(&SamplingParams { top_p: 0.0, min_p: 1.0, n: MAX_CHOICES, ..SamplingParams::default() }, None);
    }

    #[test]
    fn each_bad_field_is_named() {
        let default = SamplingParams::default;
        for temperature in [-0.1, f32::NAN, f32::INFINITY] {
            check(&SamplingParams { temperature, ..default() }, Some("temperature"));
        }
        for share in [-0.1, 1.1, f32::NAN] {
            check(&SamplingParams { top_p: share, ..default() }, Some("top_p"));
            check(&SamplingParams { min_p: share, ..default() }, Some("min_p"));
        }
        check(&SamplingParams { max_tokens: Some(0), ..default() }, Some("max_tokens"));
        for n in [0, MAX_CHOICES + 1] {
            check(&SamplingParams { n, ..default() }, Some("n"));
        }
        check(&SamplingParams { stop: vec!["a".into(), String::new()], ..default() }, Some("stop"));
    }
}
