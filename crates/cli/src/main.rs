//! The `taper` command: serves, chats, measures and fetches models. Results go to stdout, everything else to stderr.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod calibration_file;
mod color;
mod commands;
mod device;
mod facts;
mod generate;
mod listen;
mod load;
mod markdown;
mod output;
mod parameters;
mod piped;
mod progress;
mod settings;
mod signals;
mod suggestions;
mod traces;
mod tune_file;
mod unix_socket;

use args::Command;
use std::process::ExitCode;

/// Status of a command that could not compute where it was told to; as for other arguments that cannot be used.
const DEVICE_UNUSABLE: u8 = 2;
/// Status of a command whose settings cannot be used.
const UNUSABLE_ARGUMENTS: u8 = 2;

fn main() -> ExitCode {
    taper_kernels::heap::keep_small();
    let (cli, settings) = match settings::parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            output::failure(&error);
            return ExitCode::from(UNUSABLE_ARGUMENTS);
        }
    };
    output::start_logging(&cli);
    match settings::print_if_asked(&cli, &settings) {
        Ok(false) => drop(settings),
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            output::failure(&error);
            return ExitCode::FAILURE;
        }
    }
    if let Err(error) = device::check(&cli.command) {
        output::failure(&error);
        return ExitCode::from(DEVICE_UNUSABLE);
    }
    if let Err(error) = cli.command.check_quantization() {
        output::failure(&error);
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        Command::Serve(args) => commands::serve::run(args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Selftest(args) => commands::selftest::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Calibrate(args) => commands::calibrate::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough: `taper run ... | head`.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::failure(&error);
            ExitCode::FAILURE
        }
    }
}
