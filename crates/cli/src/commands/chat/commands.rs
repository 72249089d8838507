//! The commands of the chat: a row each.

use super::conversation::{Conversation, Loaded};
use super::{Chat, Next};
use crate::output;
use crate::parameters::{DEFAULT, TABLE};
use anyhow::{Context, Result, anyhow, bail};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A command.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Other names, which work and are not shown.
    aliases: &'static [&'static str],
    /// What may follow it, as the help shows it.
    arguments: &'static str,
    help: &'static str,
    /// What Tab completes behind it.
    pub(super) completes: Completes,
    run: fn(&mut Chat, &str) -> Result<Next>,
}

/// Two are one when they have the same name: [`ROWS`] has each once.
impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.name == other.name
    }
}

impl Eq for Row {}

/// What Tab completes behind a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completes {
    Nothing,
    Parameters,
    Files,
}

/// Every command, in the order of the help.
pub(super) static ROWS: [Row; 14] = [
    Row {
        name: "/system",
        aliases: &[],
        arguments: "[TEXT]",
        help: "tell the model this before the conversation, and begin anew; without TEXT, show it",
        completes: Completes::Nothing,
        run: system,
    },
    Row {
        name: "/set",
        aliases: &[],
        arguments: "[NAME [VALUE]]",
        help: "set a parameter, such as temperature; `default` takes it back; without VALUE, show it",
        completes: Completes::Parameters,
        run: set,
    },
    Row {
        name: "/read",
        aliases: &[],
        arguments: "FILE",
        help: "put the text of a file behind the next message",
        completes: Completes::Files,
        run: read,
    },
    Row {
        name: "/model",
        aliases: &[],
        arguments: "[NAME]",
        help: "let another model of the server answer; without NAME, show which there are",
        completes: Completes::Nothing,
        run: model,
    },
    Row {
        name: "/show",
        aliases: &[],
        arguments: "",
        help: "show the model, the system text and the parameters",
        completes: Completes::Nothing,
        run: show,
    },
    Row {
        name: "/save",
        aliases: &[],
        arguments: "FILE",
        help: "write the conversation to a file, as JSON",
        completes: Completes::Files,
        run: |chat, file| save(chat, file, false),
    },
    Row {
        name: "/save!",
        aliases: &[],
        arguments: "FILE",
        help: "the same, where the file is there and has something else",
        completes: Completes::Files,
        run: |chat, file| save(chat, file, true),
    },
    Row {
        name: "/load",
        aliases: &[],
        arguments: "FILE",
        help: "go on with a conversation from a file",
        completes: Completes::Files,
        run: load,
    },
    Row {
        name: "/regen",
        aliases: &["/retry"],
        arguments: "",
        help: "answer the last message anew",
        completes: Completes::Nothing,
        run: |chat, _| chat.answer_anew().map(|()| Next::GoOn),
    },
    Row {
        name: "/continue",
        aliases: &[],
        arguments: "",
        help: "go on with the last answer, such as one that the limit or Ctrl-C has cut",
        completes: Completes::Nothing,
        run: |chat, _| chat.go_on().map(|()| Next::GoOn),
    },
    Row {
        name: "/clear",
        aliases: &["/reset"],
        arguments: "",
        help: "begin anew, with the same system text and parameters",
        completes: Completes::Nothing,
        run: |chat, _| {
            chat.conversation.clear();
            chat.read_files.clear();
            chat.note("a new conversation");
            Ok(Next::GoOn)
        },
    },
    Row {
        name: "/stats",
        aliases: &[],
        arguments: "",
        help: "what the answers so far cost",
        completes: Completes::Nothing,
        run: |chat, _| {
            chat.note(&chat.totals.summary());
            Ok(Next::GoOn)
        },
    },
    Row {
        name: "/help",
        aliases: &["/?"],
        arguments: "",
        help: "show this",
        completes: Completes::Nothing,
        run: |_, _| {
            output::status(&help());
            Ok(Next::GoOn)
        },
    },
    Row {
        name: "/exit",
        aliases: &["/quit", "/bye"],
        arguments: "",
        help: "leave (so does Ctrl-D)",
        completes: Completes::Nothing,
        run: |_, _| Ok(Next::Leave),
    },
];

/// The command of that name.
pub(super) fn find(word: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == word || row.aliases.contains(&word))
}

/// The names that are shown.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// Runs a command on what follows it.
pub(super) fn run(chat: &mut Chat, row: &Row, argument: &str) -> Result<Next> {
    if row.arguments.is_empty() && !argument.is_empty() {
        bail!("{} takes nothing behind it; a message that begins so needs a blank before it", row.name);
    }
    if !row.arguments.is_empty() && !row.arguments.starts_with('[') && argument.is_empty() {
        bail!("{} needs a {}", row.name, row.arguments);
    }
    (row.run)(chat, argument)
}

pub(super) fn help() -> String {
    let usage = |row: &Row| [row.name, row.arguments].join(" ").trim_end().to_owned();
    let width = ROWS.iter().map(|row| usage(row).len()).max().unwrap_or(0);
    let mut lines: Vec<String> = ROWS.iter().map(|row| format!("{:<width$}  {}", usage(row), row.help)).collect();
    lines.push(
        "A line that ends in \\ goes on in the next; \"\"\" begins and ends a message of several lines; a paste is one.".into(),
    );
    lines.push("Ctrl-G opens the line in $VISUAL or $EDITOR, Tab completes, the arrow keys recall.".into());
    lines.push("Ctrl-C stops an answer. Everything else is a message.".into());
    lines.join("\n")
}

fn system(chat: &mut Chat, text: &str) -> Result<Next> {
    if text.is_empty() {
        let shown = chat.conversation.system().map(str::to_owned);
        chat.note(&shown.unwrap_or_else(|| "there is no system text; the template may have its own".into()));
    } else {
        chat.conversation = Conversation::new(Some(text.to_owned()));
        chat.read_files.clear();
        chat.note("a new conversation with this system text");
    }
    Ok(Next::GoOn)
}

fn set(chat: &mut Chat, argument: &str) -> Result<Next> {
    if argument.is_empty() {
        output::status(&output::spelled_out(&parameters(chat, true)));
        return Ok(Next::GoOn);
    }
    let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    let (name, value) = (name.replace('-', "_"), value.trim());
    if value.is_empty() {
        let Some(row) = TABLE.iter().find(|row| row.name == name) else {
            // Says what it may have meant.
            chat.parameters.clone().set(&name, DEFAULT).map_err(anyhow::Error::msg)?;
            return Ok(Next::GoOn);
        };
        chat.note(&format!("{name} is {}: {}", chat.parameters.text_of(row), row.help));
        return Ok(Next::GoOn);
    }
    let mut parameters = chat.parameters.clone();
    parameters.set(&name, value).map_err(anyhow::Error::msg)?;
    chat.talker.check(&parameters)?;
    chat.parameters = parameters;
    let shown = TABLE.iter().find(|row| row.name == name).map(|row| chat.parameters.text_of(row));
    chat.note(&format!("{name} is {}", shown.unwrap_or_default()));
    Ok(Next::GoOn)
}

/// A line per parameter: all, or those that are not at their default.
fn parameters(chat: &Chat, all: bool) -> String {
    let shown =
        TABLE.iter().map(|row| (row, chat.parameters.shown(row.name))).filter(|(_, value)| all || value.is_some());
    let lines = shown.map(|(row, value)| {
        let value = value.as_deref().unwrap_or(row.default_text());
        if all { format!("{:<18} {value:<10} {}", row.name, row.help) } else { format!("{:<18} {value}", row.name) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn show(chat: &mut Chat, _: &str) -> Result<Next> {
    let system = chat.conversation.system().unwrap_or("none; the template may have its own");
    let mut lines = vec![
        format!("{:<18} {}, {}", "model", chat.talker.model(), chat.talker.place()),
        format!("{:<18} {system}", "system"),
        format!("{:<18} {} and answers", "conversation", taper_bench::counted(chat.conversation.len(), "message")),
    ];
    let files = chat.read_files.names();
    if !files.is_empty() {
        lines.push(format!("{:<18} {}", "next message with", files.join(", ")));
    }
    lines.push(parameters(chat, false));
    output::status(&output::spelled_out(lines.join("\n").trim_end()));
    Ok(Next::GoOn)
}

fn read(chat: &mut Chat, file: &str) -> Result<Next> {
    let bytes = chat.read_files.read(&path_of(file))?;
    let names = chat.read_files.names().join(", ");
    chat.note(&format!("behind the next message: {names}; {}", taper_bench::counted(bytes, "byte")));
    Ok(Next::GoOn)
}

fn model(chat: &mut Chat, name: &str) -> Result<Next> {
    if !name.is_empty() {
        chat.talker.choose(name)?;
        chat.note(&format!("{name} answers from now on, {}", chat.talker.place()));
        return Ok(Next::GoOn);
    }
    let mut models = chat.talker.models()?;
    let current = chat.talker.model();
    // A name that the server knows and does not list.
    if !models.iter().any(|model| model == current) {
        models.insert(0, current.to_owned());
    }
    let mark = |model: &String| if model == current { '*' } else { ' ' };
    let lines: Vec<String> = models.iter().map(|model| format!("{} {model}", mark(model))).collect();
    output::status(&output::spelled_out(&lines.join("\n")));
    Ok(Next::GoOn)
}

fn save(chat: &mut Chat, file: &str, replaces: bool) -> Result<Next> {
    let path = path_of(file);
    let json = chat.conversation.to_json(chat.talker.model(), &chat.parameters);
    let text = serde_json::to_string_pretty(&json)? + "\n";
    // In words only: a pipe that nobody reads is not our stdout, whose end is the chat's.
    let cannot = |problem: &dyn Display| anyhow!("cannot write {}: {problem}", path.display());
    if !replaces && !chat.known_files.may_replace(&path).map_err(|error| cannot(&error))? {
        return Err(cannot(&format!("it is there, and not as this chat left it; /save! {file} replaces it")));
    }
    chat.known_files.write(&path, text.as_bytes()).map_err(|error| cannot(&error))?;
    chat.note(&format!("{} written to {}", taper_bench::counted(chat.conversation.len(), "message"), path.display()));
    Ok(Next::GoOn)
}

fn load(chat: &mut Chat, file: &str) -> Result<Next> {
    let path = path_of(file);
    let Loaded { conversation, parameters, left_out } =
        chat.known_files.read(&path).with_context(|| format!("cannot load {}, nothing has changed", path.display()))?;
    chat.conversation = conversation;
    chat.read_files.clear();
    if let Some(mut parameters) = parameters {
        if let Err(error) = chat.talker.check(&parameters) {
            parameters.think = None;
            chat.note(&format!("{error:#}; it is auto"));
        }
        chat.parameters = parameters;
    }
    chat.note(&format!("{} from {}", taper_bench::counted(chat.conversation.len(), "message"), path.display()));
    if !left_out.is_empty() {
        chat.note(&format!("left out of it: {}", left_out.join(", ")));
    }
    Ok(Next::GoOn)
}

/// A path as a shell would read it, as far as a home and what Tab escapes go.
fn path_of(text: &str) -> PathBuf {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let text = rustyline::completion::unescape(text, Some('\\'));
    if let (Some(rest), Some(home)) = (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        return Path::new(&home).join(rest);
    }
    PathBuf::from(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_help_and_one_name() {
        let help = help();
        for row in &ROWS {
            assert!(
                help.contains(&format!("{}  ", row.name)) || help.contains(&format!("{} {}", row.name, row.arguments))
            );
            assert!(row.name.starts_with('/') && !row.help.is_empty());
            assert_eq!(
                ROWS.iter().filter(|other| other.name == row.name || other.aliases.contains(&row.name)).count(),
                1
            );
            assert_eq!(find(row.name), Some(row));
            for alias in row.aliases {
                assert_eq!(find(alias), Some(row));
            }
        }
        assert_eq!(find("/nothing"), None);
    }

    #[test]
    fn paths_may_begin_at_home_and_have_blanks() {
        assert_eq!(path_of("a\\ b.json"), PathBuf::from("a b.json"));
        assert_eq!(path_of("\"a b.json\""), PathBuf::from("a b.json"));
        if let Some(home) = std::env::var_os("HOME") {
            assert_eq!(path_of("~/x"), Path::new(&home).join("x"));
        }
    }
}
