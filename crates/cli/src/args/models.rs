//! The models of `taper serve`: `--model` may name several, which share memory.

use super::positive;
use crate::args::engine::size;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// All that `--model` says; [`super::ModelArgs`] has the first.
#[derive(Debug, Clone)]
pub(crate) struct ModelNames(pub(crate) Vec<String>);

/// The flag, which the other commands give one value.
pub(super) fn several(model: Arg) -> Arg {
    model
        .action(ArgAction::Append)
        .value_delimiter(',')
        .value_name("[NAME=]SOURCE")
        .help(
            "An alias, a .gguf file or a folder with one, `hf:org/repo[/file.gguf][@revision]`, or `pip:package[==version]`; with NAME= \
             before it requests call it so, with NAME=NAME2= also by the second name. May be given several times, or several with commas \
             between: requests choose by `model`, the first is the default and is loaded at the start, the others by their first request",
        )
}

impl FromArgMatches for ModelNames {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        // They are left in place for the derived reader, which takes the first.
        Ok(ModelNames(matches.get_many::<String>("model").into_iter().flatten().cloned().collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ModelNames {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// How much of several models may be loaded.
#[derive(Debug, Clone, Args)]
pub(crate) struct SeveralArgs {
    /// Most models that are loaded at a time; beyond them the one that was used longest ago makes room once nobody uses it
    /// [default: as many as memory holds].
    #[arg(long, value_name = "N", value_parser = positive, env = "TAPER_MAX_LOADED_MODELS")]
    pub(crate) max_loaded_models: Option<usize>,

    /// Most bytes that files and KV caches of loaded models take together. Without --kv-cache-size a quarter of it is for KV
    /// caches, the same for each model [default: of several models nine tenths of what is free at the start].
    #[arg(long, value_name = "SIZE", value_parser = size, env = "TAPER_MODEL_MEMORY")]
    pub(crate) model_memory: Option<usize>,
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn serve_takes_several_models_and_other_commands_one() {
        let names = |words: &str| {
            let cli = Cli::try_parse_from(["taper"].into_iter().chain(words.split_whitespace())).ok()?;
            let Command::Serve(args) = cli.command else { return Some(Vec::new()) };
            assert_eq!(args.models.0[0], args.model.model, "{words}");
            Some(args.models.0)
        };
        let of =
            |words: &[&str]| -> Option<Vec<String>> { Some(words.iter().map(|word| (*word).to_owned()).collect()) };
        assert_eq!(names("serve"), of(&[taper_hub::DEFAULT_MODEL]));
        assert_eq!(names("serve -m a"), of(&["a"]));
        assert_eq!(names("serve --model x=a,b --model c"), of(&["x=a", "b", "c"]));
        assert_eq!(names("chat --model a,b"), of(&[]), "a file of that name");
        assert_eq!(names("chat --model a --model b"), None);
        assert_eq!(names("serve --max-loaded-models 0"), None);
    }
}
