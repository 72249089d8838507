//! The `taper` command: an LLM server, a chat and measurements in one binary. One file per command in `commands/`.
#![forbid(unsafe_code)]

mod commands;
mod generate;
mod load;
mod output;
mod progress;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A language-model server for one machine: low latency per token, the same answer every time.
#[derive(Debug, Parser)]
#[command(name = "taper", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API
    Serve(commands::serve::Args),
    /// Chat in the terminal
    Chat(commands::chat::Args),
    /// Answer one prompt, from -p or stdin, and exit
    Run(commands::run::Args),
    /// Fetch a model; prints the path of its file as the last line
    Pull(commands::pull::Args),
    /// List the models on this machine
    List(commands::list::Args),
    /// Perplexity of a model on a text, comparable with llama-perplexity
    Perplexity(commands::perplexity::Args),
    /// Measure speed
    Bench(commands::bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => commands::serve::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("taper: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our stdout went away (`taper ... | head`): the end of the work, not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent_and_every_one_has_help() {
        let mut command = super::Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{} has no description", sub.get_name());
            for arg in sub.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {} has no help", sub.get_name(), arg.get_id());
            }
        }
    }
}
