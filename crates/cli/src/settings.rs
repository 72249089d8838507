//! Settings of `taper serve` from four places: a flag overrides an environment variable, that overrides the file of `--config`,
//! and that the default.
//!
//! The file's values become the defaults of the command line, so that each is read and checked as its flag is.

use crate::args::{Cli, Command, Device, EngineArgs, KvKind, RemoteArgs, RunArgs, ServeArgs};
use crate::output;
use anyhow::{Context, Result, anyhow, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use std::any::TypeId;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taper_kernels::cpu::cores::Cores;
use taper_kernels::cpu::isa::Isa;
use toml::{Table, Value};

/// The command whose settings these are.
const COMMAND: &str = "serve";
/// Flags that are no settings.
const NO_SETTINGS: [&str; 4] = ["config", "print-config", "help", "version"];
/// What `--print-config` says only the number of.
const SECRET: &str = "api-key";
/// Variables that are read elsewhere than on the command line of `taper serve`.
const OTHER_VARIABLES: [&str; 7] = [
    "TAPER_CACHE",
    "TAPER_FATBIN",
    "TAPER_FATBIN_CACHE",
    "TAPER_HISTORY",
    "TAPER_COMMIT",
    "TAPER_REQUIRE_CUDA_KERNELS",
    "TAPER_DENY_SPILLS",
];
/// How they begin where there are many.
const OTHER_PREFIXES: [&str; 2] = ["TAPER_TEST_", "TAPER_CUDA_"];
/// Edits that make a variable another by mistake.
const MOST_EDITS: usize = 2;

/// The command line of this process, with the settings of its `--config` file. Ends the process where the command line
/// cannot be understood, or asks for help.
///
/// # Errors
/// When the file cannot be read or holds something that is no setting, which is named.
pub(crate) fn parse() -> Result<(Cli, Settings)> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    parse_from(command(), &arguments).map_err(|error| match error.downcast::<clap::Error>() {
        Ok(error) => error.exit(),
        Err(error) => error,
    })
}

fn parse_from(mut command: clap::Command, arguments: &[OsString]) -> Result<(Cli, Settings)> {
    let mut matches = command.clone().try_get_matches_from(arguments)?;
    RemoteArgs::check(&matches)?;
    RunArgs::check(&matches)?;
    let order = settings_of(&command).map(|arg| arg.get_id().to_string()).collect();
    let mut cli = Cli::from_arg_matches(&matches)?;
    let mut file = None;
    if let Command::Serve(args) = &cli.command
        && let Some(path) = args.operation.config.clone()
    {
        let settings = read(&path, &command).with_context(|| format!("--config {}", path.display()))?;
        command = with_defaults(command, &settings);
        matches = command.clone().try_get_matches_from(arguments)?;
        cli = Cli::from_arg_matches(&matches)?;
        file = Some(File { path, settings });
    }
    EngineArgs::check(&matches)?;
    let mut settings = Settings { command, order, matches, file, is_socket_unused: false };
    settings.choose_socket(&mut cli)?;
    Ok((cli, settings))
}

/// The command line, in which every setting has a variable: TAPER_ and its name, where it says no other.
fn command() -> clap::Command {
    let with_variable = |arg: Arg| match long(&arg) {
        Some(name) if arg.get_env().is_none() && !NO_SETTINGS.contains(&name) => {
            let variable = format!("TAPER_{}", name.replace('-', "_").to_uppercase());
            arg.env(variable)
        }
        _ => arg,
    };
    Cli::command().mut_subcommand(COMMAND, |serve| serve.mut_args(with_variable))
}

/// Where all settings come from.
pub(crate) struct Settings {
    command: clap::Command,
    /// The arguments' ids as the command line has them: in `command` those that the file sets come last.
    order: Vec<String>,
    matches: ArgMatches,
    file: Option<File>,
    /// Whether --host or --port override the --unix-socket that is set.
    is_socket_unused: bool,
}

/// Where a value comes from; higher ones override lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Default,
    File,
    Variable,
    Flag,
}

struct File {
    path: PathBuf,
    settings: Vec<Setting>,
}

/// One setting of a file.
struct Setting {
    /// The argument's.
    id: String,
    values: Vec<String>,
}

/// What TOML has for an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Boolean,
    /// Or a string, for `"30s"` and `"2GiB"`.
    Number,
    Text,
}

fn kind(arg: &Arg) -> Kind {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Kind::Boolean;
    }
    let parsed = arg.get_value_parser().type_id();
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
        TypeId::of::<Duration>(),
    ];
    if numbers.iter().any(|number| parsed == *number) { Kind::Number } else { Kind::Text }
}

fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The arguments that are settings: the command's, and those of all commands.
fn settings_of(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let own = command.find_subcommand(COMMAND).into_iter().flat_map(clap::Command::get_arguments);
    own.chain(command.get_arguments()).filter(|arg| long(arg).is_some_and(|name| !NO_SETTINGS.contains(&name)))
}

fn long(arg: &Arg) -> Option<&str> {
    arg.get_long()
}

fn read(path: &Path, command: &clap::Command) -> Result<Vec<Setting>> {
    let text = std::fs::read_to_string(path).context("the file cannot be read")?;
    // The error's own text would quote the line, which may hold a key.
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let begin = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(begin).filter(|&byte| byte == b'\n').count() + 1;
        anyhow!("line {line} is not TOML: {}", error.message())
    })?;
    let mut settings: Vec<Setting> = Vec::new();
    for (key, value) in &table {
        let setting = setting(command, key, value)?;
        if settings.iter().any(|other| other.id == setting.id) {
            bail!("{key} is set twice, with - and with _");
        }
        settings.push(setting);
    }
    Ok(settings)
}

fn setting(command: &clap::Command, key: &str, value: &Value) -> Result<Setting> {
    let name = key.replace('_', "-");
    let Some(arg) = settings_of(command).find(|arg| long(arg) == Some(&name)) else {
        let distance = |other: &str| strsim::damerau_levenshtein(&name, other);
        let nearest = settings_of(command).filter_map(long).min_by_key(|other| distance(other)).unwrap_or_default();
        bail!("there is no setting {key:?}; the nearest is {nearest:?}");
    };
    let values = values(arg, value).with_context(|| key.to_owned())?;
    // As its flag would be read; what is wrong between settings is seen when all are known.
    let flags = values.iter().map(|value| match kind(arg) {
        Kind::Boolean => format!("--{name}"),
        Kind::Number | Kind::Text => format!("--{name}={value}"),
    });
    let flags = flags.filter(|_| kind(arg) != Kind::Boolean || values == ["true"]);
    let words = ["taper".to_owned(), COMMAND.to_owned()].into_iter().chain(flags);
    if let Err(error) = command.clone().try_get_matches_from(words)
        && matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
    {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        bail!("{key}: {}", first.strip_prefix("error: ").unwrap_or(first));
    }
    Ok(Setting { id: arg.get_id().to_string(), values })
}

fn values(arg: &Arg, value: &Value) -> Result<Vec<String>> {
    match value {
        Value::Array(items) if is_list(arg) => items.iter().map(|item| scalar(arg, item)).collect(),
        other => Ok(vec![scalar(arg, other)?]),
    }
}

fn scalar(arg: &Arg, value: &Value) -> Result<String> {
    match (kind(arg), value) {
        (Kind::Boolean, Value::Boolean(value)) => Ok(value.to_string()),
        (Kind::Number, Value::Integer(value)) => Ok(value.to_string()),
        (Kind::Number, Value::Float(value)) => Ok(value.to_string()),
        (Kind::Number | Kind::Text, Value::String(value)) => Ok(value.clone()),
        (kind, other) => {
            let expected = match kind {
                Kind::Boolean => "a boolean",
                Kind::Number => "a number, or a string with a unit",
                Kind::Text if is_list(arg) => "a string, or an array of strings",
                Kind::Text => "a string",
            };
            bail!("expected {expected}, got the type {}", other.type_str())
        }
    }
}

fn with_defaults(command: clap::Command, settings: &[Setting]) -> clap::Command {
    settings.iter().fold(command, |command, Setting { id, values }| {
        let is_own =
            command.find_subcommand(COMMAND).is_some_and(|serve| serve.get_arguments().any(|arg| arg.get_id() == id));
        let with_default = |arg: Arg| arg.default_values(values.clone());
        if is_own {
            command.mut_subcommand(COMMAND, |serve| serve.mut_arg(id, with_default))
        } else {
            command.mut_arg(id, with_default)
        }
    })
}

impl Settings {
    /// Leaves out a Unix socket where a host or a port comes from a higher place.
    fn choose_socket(&mut self, cli: &mut Cli) -> Result<()> {
        let (Command::Serve(args), Some(served)) = (&mut cli.command, self.matches.subcommand_matches(COMMAND)) else {
            return Ok(());
        };
        if args.operation.unix_socket.is_none() {
            return Ok(());
        }
        let socket = self.rank("unix_socket", served);
        let address = self.rank("host", served).max(self.rank("port", served));
        if socket == Rank::Flag && address == Rank::Flag {
            let message = "--unix-socket cannot be used with --host or --port";
            return Err(self.command.error(ErrorKind::ArgumentConflict, message).into());
        }
        if address > socket {
            args.operation.unix_socket = None;
            self.is_socket_unused = true;
        }
        Ok(())
    }

    /// Where the value of the argument `id` comes from.
    fn rank(&self, id: &str, served: &ArgMatches) -> Rank {
        match (served.value_source(id), &self.file) {
            (Some(ValueSource::CommandLine), _) => Rank::Flag,
            (Some(ValueSource::EnvVariable), _) => Rank::Variable,
            (_, Some(file)) if file.settings.iter().any(|setting| setting.id == id) => Rank::File,
            _ => Rank::Default,
        }
    }

    /// All of them, as a file that `--config` reads, with where each comes from; of those that are not set, what they will be, or what
    /// decides it.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub(crate) fn to_toml(&self, args: &ServeArgs) -> Result<String> {
        let mut text = String::new();
        let served = self.matches.subcommand_matches(COMMAND).context("only `taper serve` has settings")?;
        let find = |id: &String| settings_of(&self.command).find(|arg| arg.get_id() == id.as_str());
        for arg in self.order.iter().filter_map(find) {
            let (id, name) = (arg.get_id().as_str(), long(arg).unwrap_or_default());
            let raw: Vec<String> = served
                .try_get_raw(id)
                .ok()
                .flatten()
                .map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect())
                .unwrap_or_default();
            let (source, is_default) = self.source(arg, served);
            if arg.is_hide_set() && is_default {
                continue;
            }
            if raw.is_empty() {
                // As a comment: in a file it would be set, also on another machine.
                let value = resolved(args, id).map(|value| format!(" {value}")).unwrap_or_default();
                let why = default_of(arg).map(|why| format!(": {why}")).unwrap_or_default();
                writeln!(text, "# {name} ={value}  # not set{why}")?;
            } else if id == "unix_socket" && self.is_socket_unused {
                // As a comment: in a file it would be used.
                writeln!(text, "# {name} = {}  # {source}, overridden by host or port", to_value(arg, &raw))?;
            } else if name == SECRET {
                // As a comment: nobody should run a server with the key "***".
                writeln!(text, "# {name} = {}  # {source}", Value::from(vec!["***"; raw.len()]))?;
            } else {
                writeln!(text, "{name} = {}  # {source}", to_value(arg, &raw))?;
            }
        }
        Ok(text)
    }

    /// In words, and whether nobody set it.
    fn source(&self, arg: &Arg, served: &ArgMatches) -> (String, bool) {
        match (self.rank(arg.get_id().as_str(), served), &self.file) {
            (Rank::Flag, _) => ("flag".to_owned(), false),
            (Rank::Variable, _) => (format!("env {}", arg.get_env().unwrap_or_default().to_string_lossy()), false),
            (Rank::File, Some(file)) => (format!("file {}", file.path.display()), false),
            _ => ("default".to_owned(), true),
        }
    }
}

/// What a setting will be that nobody set, where that is known without a model.
fn resolved(args: &ServeArgs, id: &str) -> Option<Value> {
    let is_on_cpu = !matches!(args.model.device.device, Device::Cuda(_));
    match id {
        "threads" if is_on_cpu => Some(i64::try_from(Cores::of_this_machine().threads).ok()?.into()),
        "isa" if is_on_cpu => Some(Isa::best().name().into()),
        "kv_cache_dtype" => Some(KvKind::name_of(args.model.kv_dtype().ok()?).into()),
        "log_level" => Some(output::SERVED_LEVEL.into()),
        _ => None,
    }
}

/// What an argument's help says that decides it where it is not set.
fn default_of(arg: &Arg) -> Option<String> {
    let help = arg.get_help()?.to_string();
    let (_, default) = help.rsplit_once("[default: ")?;
    default.split(']').next().map(str::to_owned)
}

fn to_value(arg: &Arg, raw: &[String]) -> Value {
    let one = |raw: &String| match kind(arg) {
        // A variable says it in any of clap's words.
        Kind::Boolean => {
            Value::Boolean(matches!(raw.to_ascii_lowercase().as_str(), "1" | "true" | "t" | "yes" | "y" | "on"))
        }
        Kind::Number => match (raw.parse(), raw.parse()) {
            (Ok(integer), _) => Value::Integer(integer),
            (_, Ok(float)) => Value::Float(float),
            _ => Value::String(raw.clone()),
        },
        Kind::Text => Value::String(raw.clone()),
    };
    if is_list(arg) {
        Value::Array(raw.iter().map(one).collect())
    } else {
        raw.first().map_or(Value::Boolean(false), one)
    }
}

/// Those of the variables `names` that nothing reads, but that are almost one that is read; each with that one.
pub(crate) fn misspelled_variables(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let command = command();
    let own = command.find_subcommand(COMMAND).into_iter().flat_map(clap::Command::get_arguments);
    let read: Vec<String> = own
        .chain(command.get_arguments())
        .filter_map(Arg::get_env)
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let mut misspelled = Vec::new();
    for name in names.filter(|name| name.starts_with("TAPER_")) {
        let is_other =
            OTHER_VARIABLES.contains(&name.as_str()) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let nearest = read.iter().map(|other| (strsim::damerau_levenshtein(&name, other), other)).min();
        if let Some((1..=MOST_EDITS, other)) = nearest
            && !is_other
        {
            misspelled.push((name, other.clone()));
        }
    }
    misspelled
}

/// Prints the settings where `--print-config` asks for them; whether it did.
///
/// # Errors
/// When nobody reads them.
pub(crate) fn print_if_asked(cli: &Cli, settings: &Settings) -> Result<bool> {
    match &cli.command {
        Command::Serve(args) if args.operation.print_config => {
            output::print(&settings.to_toml(args)?)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// The command line without the environment of whoever runs the tests.
#[cfg(test)]
pub(crate) fn without_variables(command: clap::Command) -> clap::Command {
    let without = |arg: Arg| arg.env(None::<&'static str>);
    command.mut_args(without).mut_subcommand(COMMAND, |serve| serve.mut_args(without))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ServeArgs;

    fn parsed(file: &str, flags: &str) -> Result<(ServeArgs, Settings)> {
        parsed_with(&[], file, flags)
    }

    /// With variables for the arguments `variables`, which say what PATH does: every process has that one.
    fn parsed_with(variables: &[&str], file: &str, flags: &str) -> Result<(ServeArgs, Settings)> {
        let command = variables.iter().fold(without_variables(command()), |command, id| {
            command.mut_subcommand(COMMAND, |serve| serve.mut_arg(id, |arg| arg.env("PATH")))
        });
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("taper.toml");
        std::fs::write(&path, file)?;
        let words = ["taper", "serve", "--config"].map(OsString::from).into_iter().chain([path.into()]);
        let words: Vec<OsString> = words.chain(flags.split_whitespace().map(OsString::from)).collect();
        let (cli, settings) = parse_from(command, &words)?;
        match cli.command {
            Command::Serve(args) => Ok((*args, settings)),
            _ => bail!("it is serve"),
        }
    }

    fn refusal(file: &str) -> String {
        match parsed(file, "") {
            Ok(_) => panic!("it is accepted: {file}"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn a_flag_overrides_the_file_and_the_file_the_default() {
        let file =
            "max_queued = 7\nmax-batch = 3\nlog-format = \"json\"\nrequest-timeout = 2.5\napi_key = ['a', 'b']\n";
        let (args, _) = parsed(file, "--max-batch 5 --cors-origin http://a").unwrap();
        assert_eq!((args.max_queued, args.max_batch, args.max_queued_tokens), (7, 5, 1 << 20));
        assert_eq!(args.request_timeout, Some(Duration::from_millis(2500)));
        assert_eq!((args.operation.api_key.len(), args.operation.cors_origin.len()), (2, 1));
        let (args, _) = parsed(file, "--api-key c").unwrap();
        assert_eq!(args.operation.api_key.len(), 1, "not added to the file's");
    }

    #[test]
    fn the_socket_or_the_port_is_used_whichever_comes_from_the_higher_place() {
        let socket = "unix-socket = 's'";
        let cases: &[(&[&str], &str, &str, bool)] = &[
            (&[], "", "--port 80", false),
            (&[], "", "--unix-socket s", true),
            // As the container has it.
            (&["host"], "", "--unix-socket s", true),
            (&["host"], socket, "", false),
            (&["unix_socket"], "port = 80", "", true),
            (&["unix_socket"], "", "--host a", false),
            (&["unix_socket", "host"], "", "", true),
            (&[], socket, "", true),
            (&[], socket, "--port 80", false),
            (&[], "unix-socket = 's'\nport = 80", "", true),
        ];
        for &(variables, file, flags, is_socket) in cases {
            let (args, settings) = parsed_with(variables, file, flags).unwrap();
            assert_eq!(args.operation.unix_socket.is_some(), is_socket, "{variables:?} {file:?} {flags:?}");
            let text = settings.to_toml(&args).unwrap();
            assert_eq!(text.lines().any(|line| line.starts_with("unix-socket")), is_socket, "{text}");
        }
        for address in ["--port 80", "--host a"] {
            let error = parsed("", &format!("--unix-socket s {address}")).err().expect("they contradict each other");
            assert!(error.to_string().contains("--unix-socket cannot be used with --host or --port"), "{error}");
        }
    }

    #[test]
    fn the_size_of_a_cache_needs_its_folder_only_where_it_was_typed() {
        let error = parsed("", "--cache-dir-size 1GiB").err().expect("there is no folder");
        assert!(error.to_string().contains("--cache-dir,"), "{error}");
        let cases: &[(&[&str], &str, &str)] = &[
            (&[], "cache-dir = 'a'", "--cache-dir-size 1GiB"),
            (&["cache_dir"], "", "--cache-dir-size 1GiB"),
            (&[], "", "--cache-dir a --cache-dir-size 1GiB"),
            (&[], "cache-dir-size = '1GiB'", ""),
        ];
        for &(variables, file, flags) in cases {
            let (args, _) = parsed_with(variables, file, flags).unwrap();
            assert_eq!(args.engine.cache_dir_size, 1 << 30, "{variables:?} {file:?} {flags:?}");
        }
    }

    #[test]
    fn what_is_no_setting_is_refused_with_the_nearest_name() {
        for (file, nearest) in [("prot = 1", "port"), ("api_keys = 1", "api-key"), ("max-queue = 1", "max-queued")] {
            assert!(refusal(file).contains(&format!("the nearest is {nearest:?}")), "{}", refusal(file));
        }
        for no_setting in ["config = 'a'", "print-config = true", "help = true"] {
            assert!(refusal(no_setting).contains("there is no setting"), "{no_setting}");
        }
    }

    #[test]
    fn wrong_values_name_the_key_and_what_is_expected() {
        for (file, parts) in [
            ("port = true", ["port", "a number"]),
            ("host = 5", ["host", "a string"]),
            ("host = ['a']", ["host", "array"]),
            ("api-key = [1]", ["api-key", "array of strings"]),
            ("port = 70000", ["port", "70000"]),
            ("port = 'http'", ["port", "invalid digit"]),
            ("kv-cache-size = 5", ["kv-cache-size", "a unit"]),
            ("speculation = 'sometimes'", ["speculation", "sometimes"]),
            ("[server]\nport = 1", ["server", "no setting"]),
            ("port = 1\nport = 2", ["line 2", "duplicate"]),
            ("max-batch = 1\nmax_batch = 1", ["max", "twice"]),
        ] {
            let message = refusal(file);
            assert!(parts.iter().all(|part| message.contains(part)), "{file}: {message}");
            assert!(message.contains("taper.toml"), "{message}");
        }
    }

    #[test]
    fn a_key_is_not_repeated_whatever_is_wrong() {
        for file in ["api-key = \"sesame", "api-key = ['sesame', 5]", "api-key = sesame", "api-keys = 'sesame'"] {
            assert!(!refusal(file).contains("sesame"), "{}", refusal(file));
        }
        let (args, settings) = parsed("api-key = 'sesame'", "").unwrap();
        let text = settings.to_toml(&args).unwrap();
        assert!(text.contains("# api-key = [\"***\"]  # file") && !text.contains("sesame"), "{text}");
    }

    #[test]
    fn what_is_printed_is_a_file_with_the_same_settings() {
        let file = "max-queued = 7\nrequest-timeout = '2.5s'\nkv-cache-size = '1GiB'\nlog-level = 'warn'\n";
        let (args, settings) = parsed(file, "--port 0 --model m\u{fc}del --cors-origin http://a,http://b").unwrap();
        let text = settings.to_toml(&args).unwrap();
        for line in ["port = 0  # flag", "max-headers = 100  # default", "# draft-model =  # not set"] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        assert!(text.contains("max-queued = 7  # file ") && text.contains("log-level = \"warn\"  # file "), "{text}");
        let (args, again) = parsed(&text, "").unwrap();
        let values = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| line.rsplit_once("  #").map_or(line, |(value, _)| value).to_owned()).collect()
        };
        assert_eq!(values(&again.to_toml(&args).unwrap()), values(&text));
    }

    /// The names of the settings, in their order.
    fn names(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.trim_start_matches("# ").split(" =").next()).collect()
    }

    // Only true and false were read, and a container with TAPER_REQUIRE_MODEL=1 did not start.
    #[test]
    fn the_variable_of_a_flag_takes_the_words_for_yes_and_no() {
        let yes = ["1", "true", "yes", "ON"].map(|word| (word, true));
        let no = ["0", "false", "no", "Off"].map(|word| (word, false));
        for (word, is_on) in yes.into_iter().chain(no) {
            // A default is read as a variable is; to set a variable is not safe while other tests run.
            let setting = Setting { id: "require_model".to_owned(), values: vec![word.to_owned()] };
            let command = with_defaults(without_variables(command()), &[setting]);
            let (cli, settings) = parse_from(command, &["taper", "serve"].map(OsString::from)).unwrap();
            let Command::Serve(args) = cli.command else { panic!("it is serve") };
            assert_eq!(args.operation.require_model, is_on, "{word}");
            let text = settings.to_toml(&args).unwrap();
            assert!(text.contains(&format!("require-model = {is_on}  #")), "{word}: {text}");
        }
    }

    #[test]
    fn settings_of_the_file_stand_where_they_would_without_it() {
        let (args, settings) = parsed("", "").unwrap();
        let without = settings.to_toml(&args).unwrap();
        let (args, settings) = parsed("max-queued = 7\nthreads = 2\nlog-level = 'warn'\ndevice = 'cpu'\n", "").unwrap();
        assert_eq!(names(&settings.to_toml(&args).unwrap()), names(&without));
    }

    #[test]
    fn what_is_not_set_says_what_it_will_be_or_what_decides_it() {
        let printed = |flags: &str| {
            let (args, settings) = parsed("", flags).unwrap();
            settings.to_toml(&args).unwrap()
        };
        let (text, on_gpu) = (printed(""), printed("--device cuda"));
        let line = |text: &str, name: &str| {
            let begin = format!("# {name} = ");
            text.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
        };
        let threads = Cores::of_this_machine().threads;
        for (name, expected) in [
            ("threads", format!("{threads}  # not set: one per performance core; `taper doctor` lists them")),
            ("isa", format!("\"{}\"  # not set: the best this machine has", Isa::best().name())),
            ("kv-cache-dtype", "\"f16\"  # not set: f16, on a GPU bf16".to_owned()),
            ("ctx", " # not set: what the model was made for, as far as memory allows".to_owned()),
            ("rate-limit", " # not set: no limit".to_owned()),
            ("log-level", "\"info\"  # not set".to_owned()),
            ("draft-model", " # not set".to_owned()),
        ] {
            assert_eq!(line(&text, name), format!("# {name} = {expected}"));
        }
        assert!(line(&text, "kv-cache-size").contains("# not set: four full contexts"), "{text}");
        assert!(line(&on_gpu, "threads").starts_with("# threads =  # not set"), "{on_gpu}");
        assert!(line(&on_gpu, "kv-cache-dtype").starts_with("# kv-cache-dtype = \"bf16\""), "{on_gpu}");
        // It is a file that sets nothing else.
        let (args, again) = parsed(&text, "").unwrap();
        assert_eq!(names(&again.to_toml(&args).unwrap()), names(&text));
        assert_eq!((args.model.threads, args.model.isa, args.context.ctx), (None, None, None));
    }

    #[test]
    fn a_variable_that_is_almost_a_settings_is_noticed() {
        let names =
            "TAPER_PROT TAPER_MAX_QUEUE TAPER_PORT TAPER_LOG TAPER_CONFIG TAPER_CACHE TAPER_TEST_MODEL TAPER_ELSE PORT";
        let noticed = misspelled_variables(names.split(' ').map(str::to_owned));
        let expected = [("TAPER_PROT", "TAPER_PORT"), ("TAPER_MAX_QUEUE", "TAPER_MAX_QUEUED")];
        assert_eq!(noticed, expected.map(|(name, nearest)| (name.to_owned(), nearest.to_owned())));
    }

    #[test]
    fn every_setting_has_a_variable_of_its_name() {
        for arg in settings_of(&command()).filter(|arg| !arg.is_hide_set()) {
            let name = long(arg).unwrap_or_default();
            let expected = match name {
                "log-level" => "TAPER_LOG".to_owned(),
                _ => format!("TAPER_{}", name.replace('-', "_").to_uppercase()),
            };
            assert_eq!(arg.get_env().map(|env| env.to_string_lossy().into_owned()), Some(expected), "--{name}");
        }
    }
}
