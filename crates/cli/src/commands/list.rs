//! `taper list`: the models on this machine, and the aliases that could be fetched.

use crate::output;
use clap::Args as ClapArgs;
use taper_hub::{Hub, aliases};

/// Arguments of `taper list`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Print a JSON array of the models on this machine
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let models = Hub::from_env()?.list();
    if args.json {
        output::line(&serde_json::to_string(&models)?)?;
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.set_header(["model", "MB", "cache", "file"]);
    for model in &models {
        let (size, cache) = (format!("{:.0}", model.bytes as f64 / 1e6), format!("{:?}", model.source).to_lowercase());
        table.add_row([model.name.clone(), size, cache, model.path.display().to_string()]);
    }
    if models.is_empty() {
        output::line("no model is on this machine yet; `taper pull` fetches the default one")?;
    } else {
        output::line(&table.to_string())?;
    }
    output::line("aliases that `taper pull` and `--model` know:")?;
    for alias in aliases() {
        output::line(&format!("  {:16} {}", alias.name, alias.about))?;
    }
    Ok(())
}
