//! One answer from the engine, for the commands of the terminal.

use anyhow::{anyhow, bail};
use clap::Args;
use std::sync::Arc;
use taper_engine::{Engine, EngineConfig, EngineHandle, Event, FinishReason, Request, Runner, SamplingParams, Usage};
use taper_text::Tokenizer;

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Randomness of the choice: 0 takes the most likely token
    #[arg(long, default_value_t = 0.8)]
    pub(crate) temperature: f32,
    /// Choose among the K most likely tokens; 0 for all
    #[arg(long, default_value_t = 40, value_name = "K")]
    pub(crate) top_k: u32,
    /// Choose among the most likely tokens that together have this probability
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    pub(crate) top_p: f32,
    /// Leave out tokens less likely than this share of the most likely one
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    pub(crate) min_p: f32,
    /// Seed of the random choice; the same seed gives the same text
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Stop before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The engine's parameters, for at most `max_tokens` tokens.
    pub(crate) fn params(&self, max_tokens: Option<usize>) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            stop: self.stop.clone(),
            max_tokens,
            ..SamplingParams::default()
        }
    }
}

/// A finished answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// Generated ids.
    pub(crate) tokens: Vec<u32>,
    /// Their text.
    pub(crate) text: String,
    /// Why it ended; `None` when it was interrupted.
    pub(crate) reason: Option<FinishReason>,
    /// Counts and times; `None` when it was interrupted.
    pub(crate) usage: Option<Usage>,
}

/// An engine for one user.
pub(crate) fn start(runner: Box<dyn Runner>, tokenizer: Arc<Tokenizer>) -> EngineHandle {
    Engine::start(runner, tokenizer, EngineConfig { max_batch: 1, ..EngineConfig::default() })
}

/// Runs one request. `on_text` sees every piece of text as it comes and ends the answer by returning `false`.
pub(crate) fn generate(
    engine: &EngineHandle,
    prompt_tokens: Vec<u32>,
    sampling: SamplingParams,
    mut on_text: impl FnMut(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<Answer> {
    let mut stream = engine.submit(Request { prompt_tokens, sampling })?;
    let mut answer = Answer { tokens: Vec::new(), text: String::new(), reason: None, usage: None };
    while let Some(event) = stream.blocking_recv() {
        let (text, tokens) = match event {
            Event::Text { text, tokens, .. } => (text, tokens),
            Event::Finished { reason, text, tokens, .. } => {
                answer.reason = Some(reason);
                (text, tokens)
            }
            Event::Done(usage) => {
                answer.usage = Some(usage);
                return Ok(answer);
            }
            Event::Failed(error) => return Err(error.into()),
        };
        answer.tokens.extend(tokens);
        answer.text.push_str(&text);
        // Asked even without text, so that Ctrl-C is seen at once.
        if !on_text(&text)? {
            return Ok(answer);
        }
    }
    bail!(anyhow!("the engine stopped before the answer was complete"))
}
