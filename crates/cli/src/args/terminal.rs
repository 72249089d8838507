//! What the terminal's commands are told beside the model: colours, a server instead of a model, shells and manual pages.

use super::Cli;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Error, ValueEnum, error::ErrorKind};
use clap_complete::Shell;
use std::path::PathBuf;

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is `dumb`.
    Auto,
    /// Also in a pipe.
    Always,
    /// Nowhere.
    Never,
}

/// A server that answers instead of a model that is loaded.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// Talk to a server with OpenAI's interface, such as `http://localhost:8080`, `https://api.example.com/v1` or `unix:PATH`, the
    /// socket of `taper serve --unix-socket`, instead of loading a model. Parameters that are not given are those of `taper serve` or
    /// of its model's file, and what these leave open is as without a server; others' servers are asked for the temperature and top_p
    /// that a model here would have.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Key for the server; an empty one is none [default: for a server on this machine the first of TAPER_API_KEY, else
    /// OPENAI_API_KEY].
    // No `env`: for `taper serve` the variable lists its own keys, which are not for a server elsewhere.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,

    /// Model of the server [default: its only one].
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(crate) model_name: Option<String>,
}

/// Arguments of `taper chat` that mean something with a server.
const REMOTE: [&str; 20] = [
    "url",
    "api_key",
    "model_name",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "max_tokens",
    "stop",
    "ignore_eos",
    "system",
    "think",
    "history",
    "color",
    "log_level",
];

impl RemoteArgs {
    /// Refuses what was typed for an engine that nobody starts. What the environment says is for other calls too.
    pub(crate) fn check(matches: &ArgMatches) -> Result<(), Error> {
        let Some(("chat", chat)) = matches.subcommand() else { return Ok(()) };
        let is_typed = |id: &str| chat.value_source(id) == Some(ValueSource::CommandLine);
        let conflict = |message: &str| Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        if !is_typed("url") {
            let is_idle = is_typed("api_key");
            return if is_idle { conflict("--api-key is for a server: --url names it") } else { Ok(()) };
        }
        let command = Cli::command();
        let known = command.find_subcommand("chat").into_iter().flat_map(clap::Command::get_arguments);
        let mut ids = known.map(|arg| arg.get_id().as_str()).filter(|id| !REMOTE.contains(id) && is_typed(id));
        let Some(id) = ids.next() else { return Ok(()) };
        let name = id.replace('_', "-");
        conflict(&format!("--{name} is about a model that is loaded here; with --url the server computes"))
    }
}

/// `taper completions`
#[derive(Debug, Args)]
#[command(
    after_help = "bash:       taper completions bash > ~/.local/share/bash-completion/completions/taper\nzsh:        taper completions zsh > DIR/_taper, where DIR is in $fpath\nfish:       taper completions fish > ~/.config/fish/completions/taper.fish"
)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `taper man`
#[derive(Debug, Args)]
#[command(
    after_help = "taper man | man -l -                 shows the page of `taper`\ntaper man ~/.local/share/man/man1    writes a page for it and for every command, for `man taper-serve`"
)]
pub(crate) struct ManArgs {
    /// Folder to write the pages of all commands into; without it, the page of `taper` is printed.
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &str) -> Result<(), String> {
        let matches = Cli::command().try_get_matches_from(["taper"].into_iter().chain(words.split(' '))).unwrap();
        RemoteArgs::check(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_of_a_model_are_refused_with_a_server() {
        assert_eq!(check("chat --url http://x --temperature 0 --seed 1 --system s --think off --color never"), Ok(()));
        assert_eq!(check("chat --threads 2"), Ok(()));
        assert!(check("chat --api-key k").unwrap_err().contains("--url"));
        for flag in ["--threads 2", "--model m", "--ctx 5", "--draft-model m", "--device cpu", "--chat-template chatml"]
        {
            let refused = check(&format!("chat --url http://x {flag}")).unwrap_err();
            let name = flag.split(' ').next().unwrap();
            assert!(refused.contains(name) && refused.contains("--url"), "{refused}");
        }
    }

    #[test]
    fn every_argument_that_a_server_takes_is_one() {
        let command = Cli::command();
        let mut chat = command.clone();
        chat.build();
        let chat = chat.find_subcommand("chat").unwrap();
        for id in REMOTE {
            assert!(chat.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
    }
}
