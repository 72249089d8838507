//! `taper man`: the manual pages, made from what `--help` says.

use crate::args::{Cli, ManArgs};
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;
use std::fs;

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = &args.dir else { return output::print(&String::from_utf8_lossy(&page(&command)?)) };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in pages(&command)? {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        output::line(&path.display().to_string())?;
    }
    Ok(())
}

/// The names of files and their texts: for the command and all below it that are shown, but for `help`, which repeats them.
fn pages(command: &clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut found = vec![(format!("{name}.1"), page(command)?)];
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        found.extend(pages(below)?);
    }
    Ok(found)
}

fn page(command: &clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).context("cannot make the page")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_its_arguments() {
        let mut command = Cli::command();
        command.build();
        let pages = pages(&command).unwrap();
        fn check(command: &clap::Command, pages: &[(String, Vec<u8>)]) {
            let name = format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name()));
            let (_, text) = pages.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("no {name}"));
            let text = String::from_utf8_lossy(text).replace('\\', "");
            for long in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long) {
                assert!(text.contains(&format!("--{long}")), "{name}: --{long}");
            }
            command.get_subcommands().filter(|below| below.get_name() != "help").for_each(|below| check(below, pages));
        }
        check(&command, &pages);
        assert!(pages.iter().any(|(name, _)| name == "taper-bench-model.1"));
    }
}
