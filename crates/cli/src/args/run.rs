//! `taper run` on the command line.

use super::{AnswerArgs, Cli};
use clap::{ArgMatches, Args, CommandFactory, Error, error::ErrorKind};
use std::path::PathBuf;

/// `taper run`
#[derive(Debug, Args)]
#[command(
    after_help = "The answer goes to stdout, everything else to stderr. With --json stdout is one line:\n{\"model\": ..., \"prompt_tokens\": [ids], \"tokens\": [ids], \"text\": ..., \"finish_reason\": ..., \"usage\": {...}, \"timings\": {...}}\nA model may think before it answers: its thoughts go to stderr, in the JSON they are \"reasoning_content\"."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,

    /// The prompt, in quotes. Files come after it, then what is piped in; a pipe that is silent for three seconds is left alone.
    /// Without a prompt and --file, all of stdin is the prompt.
    // A list, so that those who forget the quotes are told of them.
    #[arg(value_name = "PROMPT", conflicts_with = "prompt")]
    pub(crate) words: Vec<String>,

    /// The prompt as an option; there is one of the two.
    #[arg(long, short = 'p', value_name = "TEXT")]
    pub(crate) prompt: Option<String>,

    /// A file with more of the prompt; may be given several times.
    #[arg(long = "file", short = 'f', value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Wait for the end of stdin, however long a pipe is silent.
    #[arg(long)]
    pub(crate) stdin: bool,

    /// Continue the prompt as it is, without the chat template.
    #[arg(long, conflicts_with_all = ["system", "think"])]
    pub(crate) raw: bool,

    #[command(flatten)]
    pub(crate) form: FormArgs,

    /// Print one JSON object on one line instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    /// Refuses several prompts: mostly one without its quotes, or a model or a file where the prompt belongs.
    pub(crate) fn check(matches: &ArgMatches) -> Result<(), Error> {
        let Some(("run", run)) = matches.subcommand() else { return Ok(()) };
        let mut words = run.get_many::<String>("words").into_iter().flatten();
        let (Some(first), Some(second)) = (words.next(), words.next()) else { return Ok(()) };
        let message = format!(
            "there is one prompt, and {first:?} and {second:?} are two: one of several words is put in quotes, --model names a model, \
             --file a file with more of the prompt"
        );
        Err(Cli::command().error(ErrorKind::TooManyValues, message))
    }

    /// The prompt of the command line.
    pub(crate) fn typed(&self) -> Option<&str> {
        self.words.first().or(self.prompt.as_ref()).map(String::as_str)
    }
}

/// The form that the answer must have.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct FormArgs {
    /// Answer with JSON that this schema allows: the schema itself, or a file with it.
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) json_schema: Option<String>,

    /// Answer with a text that this regular expression matches from end to end.
    #[arg(long, value_name = "REGEX")]
    pub(crate) regex: Option<String>,

    /// Answer with this text, or another that is given so.
    #[arg(long = "choice", value_name = "TEXT")]
    pub(crate) choices: Vec<String>,
}
