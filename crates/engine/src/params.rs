//! What a client may ask of the sampler, and the one place where it is checked.

mod samplers;

pub use samplers::{Dry, DynamicTemperature, Mirostat, MirostatVersion, Stage, Xtc};

/// Most choices that one request may ask for, as in OpenAI's interface.
pub const MAX_CHOICES: usize = 128;

/// Most tokens whose log-probabilities may be asked for beside the chosen one's, as in OpenAI's interface.
pub const MAX_LOGPROBS: u32 = 20;

/// A parameter that cannot be honoured; `param` is the name a client knows it by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {message}")]
pub struct InvalidParam {
    /// Name of the field.
    pub param: &'static str,
    /// What was given and what is accepted.
    pub message: String,
}

/// How the next token is chosen and when a sequence ends. The order in which the first group applies is in `sampler`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the logit of a token that the prompt or the generated text holds (multiplies it, if it is negative); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time that it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit when it was generated before; 0 is off.
    pub presence_penalty: f32,
    /// Tokens that these three penalties look at, from the end of the text; 0 turns them off, without it they look at all of it.
    pub penalty_last_n: Option<usize>,
    /// DRY, a penalty on repetitions.
    pub dry: Dry,
    /// The only tokens that may be chosen; without it, all.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Sequences of tokens that must not be generated.
    pub bad_words: Vec<Vec<u32>>,
    /// No end-of-generation token, no stop token and no stop string ends a choice that has fewer tokens.
    pub min_tokens: usize,
    /// The stages that apply, in this order; every one at most once.
    pub order: Vec<Stage>,
    /// Keep tokens whose logit is at most this many standard deviations below the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// Divides the logits. 0 takes the largest logit always, ties going to the lowest token id.
    pub temperature: f32,
    /// A temperature that depends on how sure the model is.
    pub dynamic_temperature: DynamicTemperature,
    /// Keep tokens at least this times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Keep only the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens with nearly typical information content whose mass reaches this; 1 keeps all.
    pub typical_p: f32,
    /// Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// XTC: now and then leave out the most probable tokens.
    pub xtc: Xtc,
    /// Tokens that min_p, typical_p, top_p and XTC keep at least.
    pub min_keep: usize,
    /// Mirostat, in place of all stages but the temperature.
    pub mirostat: Option<Mirostat>,
    /// The same seed gives the same text whatever else runs; without one every request differs.
    pub seed: Option<u64>,

    /// Most tokens to generate per choice; without it, the rest of the context.
    pub max_tokens: Option<usize>,
    /// Strings that end a choice; they are not part of its text.
    pub stop: Vec<String>,
    /// Tokens that end a choice; their text is not part of it.
    pub stop_token_ids: Vec<u32>,
    /// Control tokens whose text is part of the answer's text, such as the mark before a call of a tool; of others it is not.
    pub shown_tokens: Vec<u32>,
    /// Put the stop string or stop token that ended a choice into its text after all.
    pub include_stop_str_in_output: bool,
    /// Go on after an end-of-generation token (for benchmarks).
    pub ignore_eos: bool,
    /// Choices to generate.
    pub n: usize,

    /// Tell the log-probability of each generated token, and of this many most probable ones in its place.
    pub logprobs: Option<u32>,
    /// These are of the distribution that the token was drawn from, and not of the model's own.
    pub logprobs_of_draw: bool,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: None,
            dry: Dry::default(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            min_tokens: 0,
            order: Stage::DEFAULT_ORDER.to_vec(),
            top_n_sigma: 0.0,
            temperature: 1.0,
            dynamic_temperature: DynamicTemperature::default(),
            min_p: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            xtc: Xtc::default(),
            min_keep: 0,
            mirostat: None,
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            shown_tokens: Vec::new(),
            include_stop_str_in_output: false,
            ignore_eos: false,
            n: 1,
            logprobs: None,
            logprobs_of_draw: false,
            prompt_logprobs: None,
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
        for (param, share) in [("top_p", self.top_p), ("min_p", self.min_p), ("typical_p", self.typical_p)] {
            if !(0.0..=1.0).contains(&share) {
                return refuse(param, format!("must lie between 0 and 1, not {share}"));
            }
        }
        let additive = [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        for (param, penalty) in additive {
            if !(-2.0..=2.0).contains(&penalty) {
                return refuse(param, format!("must lie between -2 and 2, not {penalty}"));
            }
        }
        if !(0.01..=100.0).contains(&self.repetition_penalty) {
            return refuse(
                "repetition_penalty",
                format!("must lie between 0.01 and 100, not {}", self.repetition_penalty),
            );
        }
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            return refuse("logit_bias", format!("must lie between -100 and 100, not {bias} (of token {token})"));
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return refuse("allowed_token_ids", "must hold at least one token".to_owned());
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return refuse("bad_words", "must not hold a word without tokens".to_owned());
        }
        if self.max_tokens == Some(0) {
            return refuse("max_tokens", "must be at least 1".to_owned());
        }
        if self.max_tokens.is_some_and(|max_tokens| self.min_tokens > max_tokens) {
            return refuse("min_tokens", format!("must be at most max_tokens, not {}", self.min_tokens));
        }
        if !(1..=MAX_CHOICES).contains(&self.n) {
            return refuse("n", format!("must lie between 1 and {MAX_CHOICES}, not {}", self.n));
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop", "must not hold an empty string".to_owned());
        }
        for (param, num_top) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(num_top) = num_top.filter(|&num_top| num_top > MAX_LOGPROBS) {
                return refuse(param, format!("must be at most {MAX_LOGPROBS}, not {num_top}"));
            }
        }
        samplers::validate(self)
    }

    /// Refuses ids of tokens that a vocabulary of `vocab_size` does not have.
    pub fn check_tokens(&self, vocab_size: usize) -> Result<(), InvalidParam> {
        let biased: Vec<u32> = self.logit_bias.iter().map(|&(token, _)| token).collect();
        let lists = [
            ("logit_bias", biased.as_slice()),
            ("allowed_token_ids", self.allowed_token_ids.as_deref().unwrap_or_default()),
            ("stop_token_ids", &self.stop_token_ids),
        ];
        let words = self.bad_words.iter().map(|word| ("bad_words", word.as_slice()));
        let breakers = self.dry.sequence_breakers.iter().map(|words| ("dry_sequence_breakers", words.as_slice()));
        for (param, tokens) in lists.into_iter().chain(words).chain(breakers) {
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
                let message = format!("token {token} is out of range: the vocabulary has {vocab_size} tokens");
                return Err(InvalidParam { param, message });
            }
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
        let edges = SamplingParams {
            top_p: 0.0,
            min_p: 1.0,
            typical_p: 0.0,
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            repetition_penalty: 0.01,
            logit_bias: vec![(1, -100.0), (2, 100.0)],
            min_tokens: 7,
            max_tokens: Some(7),
            n: MAX_CHOICES,
            logprobs: Some(MAX_LOGPROBS),
            prompt_logprobs: Some(0),
            penalty_last_n: Some(0),
            dry: Dry { multiplier: 1e30, base: 1.0, allowed_length: 0, last_n: Some(0), ..Dry::default() },
            order: Vec::new(),
            top_n_sigma: 1e30,
            dynamic_temperature: DynamicTemperature { range: 1e30, exponent: 0.0 },
            xtc: Xtc { probability: 1.0, threshold: 1.0 },
            min_keep: usize::MAX,
            mirostat: Some(Mirostat { version: MirostatVersion::One, tau: 100.0, eta: 10.0 }),
            ..SamplingParams::default()
        };
        check(&edges, None);
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
            check(&SamplingParams { typical_p: share, ..default() }, Some("typical_p"));
        }
        for penalty in [-2.1, 2.1, f32::NAN] {
            check(&SamplingParams { presence_penalty: penalty, ..default() }, Some("presence_penalty"));
            check(&SamplingParams { frequency_penalty: penalty, ..default() }, Some("frequency_penalty"));
        }
        for penalty in [-1.0, 0.0, 101.0, f32::NAN] {
            check(&SamplingParams { repetition_penalty: penalty, ..default() }, Some("repetition_penalty"));
        }
        for bias in [-100.5, 101.0, f32::NAN] {
            check(&SamplingParams { logit_bias: vec![(1, 1.0), (2, bias)], ..default() }, Some("logit_bias"));
        }
        check(&SamplingParams { allowed_token_ids: Some(vec![]), ..default() }, Some("allowed_token_ids"));
        check(&SamplingParams { bad_words: vec![vec![1], vec![]], ..default() }, Some("bad_words"));
        check(&SamplingParams { max_tokens: Some(0), ..default() }, Some("max_tokens"));
        check(&SamplingParams { max_tokens: Some(3), min_tokens: 4, ..default() }, Some("min_tokens"));
        for n in [0, MAX_CHOICES + 1] {
            check(&SamplingParams { n, ..default() }, Some("n"));
        }
        check(&SamplingParams { stop: vec!["a".into(), String::new()], ..default() }, Some("stop"));
        check(&SamplingParams { logprobs: Some(21), ..default() }, Some("logprobs"));
        for bad in [-0.1, f32::NAN, f32::INFINITY] {
            check(&SamplingParams { top_n_sigma: bad, ..default() }, Some("top_n_sigma"));
            let dynamic = DynamicTemperature::default();
            let range = DynamicTemperature { range: bad, ..dynamic };
            check(&SamplingParams { dynamic_temperature: range, ..default() }, Some("dynatemp_range"));
            let exponent = DynamicTemperature { exponent: bad, ..dynamic };
            check(&SamplingParams { dynamic_temperature: exponent, ..default() }, Some("dynatemp_exponent"));
            let dry = Dry { multiplier: bad, ..Dry::default() };
            check(&SamplingParams { dry, ..default() }, Some("dry_multiplier"));
            check(&SamplingParams { dry: Dry { base: bad, ..Dry::default() }, ..default() }, Some("dry_base"));
            let xtc = Xtc { probability: bad, ..Xtc::default() };
            check(&SamplingParams { xtc, ..default() }, Some("xtc_probability"));
            check(
                &SamplingParams { xtc: Xtc { threshold: bad, ..Xtc::default() }, ..default() },
                Some("xtc_threshold"),
            );
            let mirostat = Mirostat::new(MirostatVersion::Two);
            let tau = Some(Mirostat { tau: bad, ..mirostat });
            check(&SamplingParams { mirostat: tau, ..default() }, Some("mirostat_tau"));
            let eta = Some(Mirostat { eta: bad, ..mirostat });
            check(&SamplingParams { mirostat: eta, ..default() }, Some("mirostat_eta"));
        }
        let dry = Dry { sequence_breakers: [vec![1], vec![]].into(), ..Dry::default() };
        check(&SamplingParams { dry, ..default() }, Some("dry_sequence_breakers"));
        let order = vec![Stage::TopK, Stage::TopP, Stage::TopK];
        check(&SamplingParams { order, ..default() }, Some("samplers"));
        check(&SamplingParams { prompt_logprobs: Some(21), ..default() }, Some("prompt_logprobs"));
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_named() {
        let default = SamplingParams::default;
        let check = |params: SamplingParams, refused| {
            assert_eq!(params.check_tokens(100).err().map(|error| error.param), refused);
        };
        check(SamplingParams { logit_bias: vec![(99, 1.0)], allowed_token_ids: Some(vec![99]), ..default() }, None);
        check(SamplingParams { logit_bias: vec![(1, 1.0), (100, 1.0)], ..default() }, Some("logit_bias"));
        check(SamplingParams { allowed_token_ids: Some(vec![100]), ..default() }, Some("allowed_token_ids"));
        check(SamplingParams { stop_token_ids: vec![u32::MAX], ..default() }, Some("stop_token_ids"));
        check(SamplingParams { bad_words: vec![vec![1], vec![2, 100]], ..default() }, Some("bad_words"));
        let dry = Dry { sequence_breakers: [vec![1, 100]].into(), ..Dry::default() };
        check(SamplingParams { dry, ..default() }, Some("dry_sequence_breakers"));
    }
}
