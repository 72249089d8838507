//! `taper completions`: what completes the command line in a shell.

use crate::args::{Cli, CompletionsArgs};
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: written to a closed pipe, clap_complete panics.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "taper", &mut script);
    output::print(&String::from_utf8(script).context("the script is not UTF-8")?)
}
