//! Whoever answers: the engine of this program, or a server. The chat does not know which.

use crate::answer::Said;
use crate::parameters::Parameters;
use anyhow::Result;
use taper_text::ChatMessage;

/// Whoever answers.
pub(super) trait Talker {
    /// The model's name.
    fn model(&self) -> &str;

    /// Where it is, for `/show`: the context, or the address.
    fn place(&self) -> String;

    /// The names of all models that could answer.
    ///
    /// # Errors
    /// When they cannot be found out.
    fn models(&mut self) -> Result<Vec<String>>;

    /// Has another model answer from now on.
    ///
    /// # Errors
    /// When there is none of this name.
    fn choose(&mut self, model: &str) -> Result<()>;

    /// Refuses parameters that nothing would come of.
    ///
    /// # Errors
    /// In words.
    fn check(&self, parameters: &Parameters) -> Result<()>;

    /// Answers the last message of `prompt`, or goes on with it where it is an answer itself, and hands the text to `show` as it
    /// comes; Ctrl-C ends the answer.
    ///
    /// # Errors
    /// When there is no answer, with the reason in words; the chat goes on after it.
    fn answer(
        &mut self,
        prompt: &[ChatMessage],
        parameters: &Parameters,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<Reply>;
}

/// An answer.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) text: String,
    pub(super) end: End,
    pub(super) cost: Cost,
}

/// Why an answer ended.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The model, or a stop text, ended it.
    #[default]
    Complete,
    /// `max_tokens` or the context did.
    Limit,
    /// Ctrl-C did.
    Stopped,
    /// Something else, in words.
    Other(String),
}

/// What an answer cost, as far as it is known.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    pub(super) tokens: usize,
    pub(super) prompt_tokens: Option<usize>,
    /// Of the prompt, those that were not computed again.
    pub(super) cached_tokens: Option<usize>,
    /// Seconds until the first token was there.
    pub(super) first_token_s: Option<f64>,
    /// Seconds from there to the last one.
    pub(super) decode_s: Option<f64>,
    /// Guessed tokens that were right.
    pub(super) right_guesses: Option<usize>,
    /// Guessed tokens that were verified.
    pub(super) guesses: Option<usize>,
}

impl Cost {
    /// Tokens per second after the first.
    fn rate(&self) -> Option<f64> {
        let seconds = self.decode_s.filter(|seconds| *seconds > 0.0)?;
        (self.tokens > 1).then(|| (self.tokens - 1) as f64 / seconds)
    }

    /// Tokens, speed and what was spared, in words.
    fn words(&self) -> String {
        let mut words = vec![taper_bench::counted(self.tokens, "token")];
        words.extend(self.rate().map(|rate| format!("{rate:.1} tokens/s")));
        words.extend(self.first_token_s.map(|seconds| format!("first token after {:.0} ms", seconds * 1e3)));
        words.extend(self.prompt_tokens.map(|tokens| format!("prompt of {tokens}")));
        words.extend(self.cached_tokens.filter(|tokens| *tokens > 0).map(|tokens| format!("{tokens} of it cached")));
        words.extend(self.guessed());
        words.join(", ")
    }

    fn guessed(&self) -> Option<String> {
        let right = self.right_guesses?;
        match self.guesses {
            Some(0) => None,
            Some(all) => Some(format!("{right} of {all} guesses right")),
            None => (right > 0).then(|| format!("{right} right guesses")),
        }
    }
}

impl Reply {
    /// One line for people.
    pub(super) fn summary(&self) -> String {
        let words = self.cost.words();
        match &self.end {
            End::Complete => words,
            End::Limit => format!("{words}, cut at the limit"),
            End::Stopped => format!("stopped after {words}"),
            End::Other(reason) => format!("{words}; {reason}"),
        }
    }
}

/// What all answers cost together, for `/stats`.
#[derive(Debug, Default)]
pub(super) struct Totals {
    answers: usize,
    cost: Cost,
    /// Of answers whose speed is known.
    timed_tokens: usize,
}

impl Totals {
    pub(super) fn add(&mut self, cost: &Cost) {
        fn sum<T: std::ops::Add<Output = T> + Copy>(total: &mut Option<T>, more: Option<T>) {
            *total = match (*total, more) {
                (Some(total), Some(more)) => Some(total + more),
                (total, more) => total.or(more),
            };
        }
        self.answers += 1;
        self.cost.tokens += cost.tokens;
        if cost.decode_s.is_some() {
            self.timed_tokens += cost.tokens.saturating_sub(1);
        }
        sum(&mut self.cost.prompt_tokens, cost.prompt_tokens);
        sum(&mut self.cost.cached_tokens, cost.cached_tokens);
        sum(&mut self.cost.first_token_s, cost.first_token_s);
        sum(&mut self.cost.decode_s, cost.decode_s);
        sum(&mut self.cost.right_guesses, cost.right_guesses);
        sum(&mut self.cost.guesses, cost.guesses);
    }

    /// One line for people.
    pub(super) fn summary(&self) -> String {
        let Totals { answers, cost, timed_tokens } = self;
        if *answers == 0 {
            return "no answers yet".to_owned();
        }
        let mut words = vec![taper_bench::counted(*answers, "answer"), taper_bench::counted(cost.tokens, "token")];
        let seconds = cost.decode_s.filter(|seconds| *seconds > 0.0 && *timed_tokens > 0);
        words.extend(seconds.map(|seconds| format!("{:.1} tokens/s on average", *timed_tokens as f64 / seconds)));
        words.extend(cost.prompt_tokens.map(|tokens| format!("prompts of {tokens} in all")));
        words.extend(cost.cached_tokens.map(|tokens| format!("{tokens} of them cached")));
        words.extend(cost.guessed());
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(end: End) -> Reply {
        let cost = Cost {
            tokens: 11,
            prompt_tokens: Some(40),
            cached_tokens: Some(32),
            first_token_s: Some(0.012),
            decode_s: Some(0.1),
            right_guesses: Some(3),
            guesses: Some(5),
        };
        Reply { text: "x".into(), end, cost }
    }

    #[test]
    fn a_line_says_speed_first_token_and_what_was_spared() {
        let words =
            "11 tokens, 100.0 tokens/s, first token after 12 ms, prompt of 40, 32 of it cached, 3 of 5 guesses right";
        assert_eq!(reply(End::Complete).summary(), words);
        assert_eq!(reply(End::Limit).summary(), format!("{words}, cut at the limit"));
        assert!(reply(End::Stopped).summary().starts_with("stopped after 11 tokens"));
        assert!(reply(End::Other("lost".into())).summary().ends_with("; lost"));
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        assert_eq!(Reply::default().summary(), "0 tokens");
    }

    #[test]
    fn totals_add_up() {
        let mut totals = Totals::default();
        assert_eq!(totals.summary(), "no answers yet");
        totals.add(&reply(End::Complete).cost);
        totals.add(&reply(End::Stopped).cost);
        totals.add(&Cost { tokens: 2, ..Cost::default() });
        let words = "3 answers, 24 tokens, 100.0 tokens/s on average, prompts of 80 in all, 64 of them cached, 6 of 10 guesses right";
        assert_eq!(totals.summary(), words);
    }
}
