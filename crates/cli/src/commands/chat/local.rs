//! The engine of this program as the one who answers.

use super::talker::{Cost, End, Reply, Said, Talker};
use crate::args::AnswerArgs;
use crate::generate::{self, Generator};
use crate::load::{self, Loaded};
use crate::parameters::Parameters;
use anyhow::Result;
use std::sync::Arc;
use taper_engine::{FinishReason, Request};
use taper_text::ChatMessage;

pub(super) struct Local {
    loaded: Loaded,
    generator: Arc<Generator>,
}

impl Local {
    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be loaded, or cannot chat.
    pub(super) fn load(args: &AnswerArgs, generator: Arc<Generator>) -> Result<Local> {
        let loaded = load::load_for_one(args)?;
        // A model that cannot chat should say so before the first message is typed.
        generate::chat_tokens(&loaded, &[ChatMessage::new("user", "hello")])?;
        Ok(Local { loaded, generator })
    }
}

impl Talker for Local {
    fn model(&self) -> &str {
        &self.loaded.id
    }

    fn place(&self) -> String {
        format!("context of {} tokens", self.loaded.engine.limits().context_len)
    }

    fn answer(
        &mut self,
        prompt: &[ChatMessage],
        parameters: &Parameters,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<Reply> {
        let prompt_tokens = generate::chat_tokens(&self.loaded, prompt)?;
        let num_prompt_tokens = prompt_tokens.len();
        let request = Request { prompt_tokens, sampling: parameters.sampling()?, ..Request::default() };
        let before = self.loaded.engine.status();
        let answer =
            self.generator.generate_stoppable(&self.loaded, request, &mut |text: &str| show(Said::Answer(text)))?;
        let after = self.loaded.engine.status();
        let timings = answer.usage.map(|usage| usage.timings);
        let cost = Cost {
            tokens: answer.tokens.len(),
            prompt_tokens: Some(num_prompt_tokens),
            cached_tokens: answer.usage.map(|usage| usage.cached_tokens),
            first_token_s: timings.map(|timings| timings.queue_s + timings.prefill_s),
            decode_s: timings.map(|timings| timings.decode_s),
            right_guesses: Some((after.right_guesses - before.right_guesses) as usize),
            guesses: Some((after.guessed_tokens - before.guessed_tokens) as usize),
        };
        let end = match (answer.usage, answer.finish_reason) {
            (None, _) => End::Stopped,
            (_, Some(FinishReason::Length)) => End::Limit,
            _ => End::Complete,
        };
        Ok(Reply { text: answer.text, end, cost })
    }
}
