//! The engine of this program as the one who answers.

use super::talker::{Cost, End, Reply, Talker};
use crate::answer::{self, Said, Splitter};
use crate::args::AnswerArgs;
use crate::generate::{self, ChatPrompt, Generator};
use crate::load::{self, Loaded};
use crate::parameters::Parameters;
use anyhow::{Result, bail};
use std::sync::Arc;
use taper_engine::{FinishReason, Request, SamplingParams};
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
        generate::chat_prompt(&loaded, &[ChatMessage::new("user", "hello")], &args.parameters())?;
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

    fn models(&mut self) -> Result<Vec<String>> {
        Ok(vec![self.loaded.id.clone()])
    }

    fn choose(&mut self, model: &str) -> Result<()> {
        if model == self.loaded.id {
            return Ok(());
        }
        bail!("one model is loaded here; `taper chat --model NAME` loads another, with --url a server may have several")
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        answer::check_thinking(&self.loaded, parameters)
    }

    fn answer(
        &mut self,
        prompt: &[ChatMessage],
        parameters: &Parameters,
        show: &mut dyn FnMut(Said<'_>) -> Result<()>,
    ) -> Result<Reply> {
        let Local { loaded, generator } = &*self;
        let ChatPrompt { prompt, reasoning, goes_on } = generate::chat_prompt(loaded, prompt, parameters)?;
        let prompt_tokens = loaded.tokenizer.encode_prompt(&prompt, true)?;
        let num_prompt_tokens = prompt_tokens.len();
        let mut said = Splitter::new(loaded, reasoning, goes_on);
        let sampling = SamplingParams { shown_tokens: said.shown_tokens(), ..parameters.sampling()? };
        let request = Request { prompt_tokens, sampling, ..Request::default() };
        let before = loaded.engine.status();
        let answer = generator.generate_stoppable(loaded, request, &mut |text: &str| said.push(text, show))?;
        said.finish(show)?;
        let after = loaded.engine.status();
        let timings = answer.usage.map(|usage| usage.timings);
        // The engine's own counts, which moved for nobody else: an answer that was stopped has no usage.
        let cost = Cost {
            tokens: answer.tokens.len(),
            prompt_tokens: Some(num_prompt_tokens),
            cached_tokens: Some((after.cached_tokens - before.cached_tokens) as usize),
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
        Ok(Reply { text: said.text, end, cost })
    }
}
