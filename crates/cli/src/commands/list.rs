//! `taper list`: models on this machine, and the short names of those that can be pulled.

use crate::args::ListArgs;
use crate::output;
use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::DecimalBytes;
use serde_json::json;
use taper_hub::{Cache, Hub, LocalModel};

pub(crate) fn run(args: &ListArgs) -> Result<()> {
    if args.aliases { aliases(args.json) } else { models(args.json) }
}

fn models(as_json: bool) -> Result<()> {
    let models = Hub::from_env()?.list();
    if as_json {
        output::line(&serde_json::to_string(&models)?)?;
        return Ok(());
    }
    if models.is_empty() {
        output::status("no models here yet; `taper pull` fetches the default one, `taper list --aliases` shows others");
        return Ok(());
    }
    let mut table = table(&["NAME", "MODEL", "SIZE", "CACHE"]);
    for LocalModel { name, title, bytes, source, .. } in models {
        let cache = match source {
            Cache::Taper => "taper",
            Cache::Hub => "hub",
            Cache::Ollama => "ollama",
        };
        table.add_row([name, title, DecimalBytes(bytes).to_string(), cache.to_string()]);
    }
    output::line(&table.trim_fmt())?;
    Ok(())
}

fn aliases(as_json: bool) -> Result<()> {
    let rows = taper_hub::aliases().iter().map(|alias| {
        let sources: Vec<String> = alias.sources.iter().map(|source| source.name().to_string()).collect();
        (alias.name, alias.about, sources)
    });
    if as_json {
        let rows: Vec<_> =
            rows.map(|(name, about, sources)| json!({ "name": name, "about": about, "sources": sources })).collect();
        output::line(&serde_json::to_string(&rows)?)?;
        return Ok(());
    }
    let mut table = table(&["ALIAS", "MODEL"]);
    for (name, about, _) in rows {
        table.add_row([name, about]);
    }
    output::line(&table.trim_fmt())?;
    Ok(())
}

/// Columns without lines; on a terminal as wide as it is, in a pipe as wide as it needs.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table
}
