//! `taper bench chat` on the command line.

use super::{BenchOutputArgs, ModelArgs, positive};
use clap::Args;
use taper_bench::chat::Script;

/// `taper bench chat`
#[derive(Debug, Args)]
#[command(
    after_help = "Milliseconds to the logits of each answer's first token, and the prompt tokens computed for it, where whole blocks of the conversation are reused. With one path the answers are reused as they were generated; with two (prompts with mixed activations, generated tokens with full ones) every answer is computed again as a prompt in the next turn. Both kinds of activations are measured, whatever --activations says; their samples alternate. Tokens are random and seeded. Without flags it takes about a minute."
)]
pub(crate) struct BenchChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Questions, each with an answer.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
    pub(crate) turns: usize,

    /// Tokens that a question adds, those of the template among them.
    #[arg(long, value_name = "TOKENS", default_value_t = 40, value_parser = positive)]
    pub(crate) question: usize,

    /// Tokens of an answer.
    #[arg(long, value_name = "TOKENS", default_value_t = 120, value_parser = positive)]
    pub(crate) answer: usize,

    /// Samples per row.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = positive)]
    pub(crate) repeat: usize,

    #[command(flatten)]
    pub(crate) output: BenchOutputArgs,
}

impl BenchChatArgs {
    pub(crate) fn script(&self) -> Script {
        Script { turns: self.turns, question_len: self.question, answer_len: self.answer }
    }
}
