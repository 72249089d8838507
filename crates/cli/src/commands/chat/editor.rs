//! The line in the terminal: editing, history, Tab, lines that go on, and an editor of the user's own.

use super::commands::{self, Completes};
use super::input::is_open_block;
use crate::generate::Generator;
use crate::output;
use crate::parameters::TABLE;
use anyhow::{Context as _, Result, bail};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Before a line, and before one that goes on.
const PROMPT: &str = "> ";
const MORE: &str = ". ";
/// Lines that are remembered, of all chats together.
const MAX_HISTORY_LEN: usize = 10_000;

/// What a person did at the prompt.
#[derive(Debug)]
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C.
    GivenUp,
    /// Ctrl-D.
    End,
}

/// A terminal that lines are typed in.
pub(super) struct LineEditor {
    editor: Editor<Completion, DefaultHistory>,
    /// None where it cannot be kept.
    history: Option<PathBuf>,
    /// Set by Ctrl-G.
    wants_editor: Arc<AtomicBool>,
}

impl LineEditor {
    /// On stdin, with the lines of earlier chats. `generator` is told when a line ends.
    pub(super) fn new(history: Option<PathBuf>, generator: Arc<Generator>) -> Result<LineEditor> {
        let config = Config::builder().completion_type(CompletionType::List).completion_show_all_if_ambiguous(true);
        let config = config.max_history_size(MAX_HISTORY_LEN).context("cannot keep a history")?.build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Completion(FilenameCompleter::new())));
        let wants_editor = Arc::new(AtomicBool::new(false));
        // The line editor sets signals back to what they were before a line: from the first line on, that is our handler.
        generator.watch();
        let enter = EventHandler::Conditional(Box::new(EnterKey(generator)));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::NONE), enter);
        let key = EditorKey(Arc::clone(&wants_editor));
        editor.bind_sequence(KeyEvent::ctrl('G'), EventHandler::Conditional(Box::new(key)));
        // The first time there is none; a device or a pipe might never end.
        if let Some(path) = history.as_ref().filter(|path| path.is_file()) {
            editor.load_history(path).ok();
        }
        Ok(LineEditor { editor, history, wants_editor })
    }

    /// Waits for a line; `goes_on` where it belongs to the one before.
    pub(super) fn read(&mut self, goes_on: bool) -> Result<Typed> {
        let prompt = if goes_on { MORE } else { PROMPT };
        let mut text = String::new();
        loop {
            let line = match self.editor.readline_with_initial(prompt, (&text, "")) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(Typed::GivenUp),
                Err(ReadlineError::Eof) => return Ok(Typed::End),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            if !self.wants_editor.swap(false, Ordering::Relaxed) {
                return Ok(Typed::Line(line));
            }
            text = edit(&line).unwrap_or_else(|error| {
                output::status(&format!("[{error:#}]"));
                line
            });
        }
    }

    /// Remembers a whole message or command, for this chat and later ones.
    pub(super) fn remember(&mut self, text: &str) -> Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.editor.add_history_entry(text)?;
        // One that cannot be kept is no reason to stop talking, and to be told of it once is enough.
        if let Some(path) = self.history.take()
            && self.save(&path)
        {
            self.history = Some(path);
        }
        Ok(())
    }

    /// Writes the history; whether that worked.
    fn save(&mut self, path: &Path) -> bool {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).ok();
        }
        // A file gets the new lines only: another chat may have added its own, and one that cannot be read is left as it is. What
        // is no file would be read first too, and might never end; a pipe would wait for its reader even to be opened.
        let saved = match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_fifo() => Err("it is a pipe".to_owned()),
            Ok(meta) if !meta.is_file() => self.editor.save_history(path).map_err(|error| error.to_string()),
            _ => self.editor.append_history(path).map_err(|error| error.to_string()),
        };
        if let Err(error) = &saved {
            output::status(&format!("[the history cannot be kept in {}: {error}]", path.display()));
        }
        saved.is_ok()
    }
}

/// Where lines are remembered unless somebody says so.
pub(super) fn default_history() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = var("XDG_STATE_HOME").or_else(|| Some(var("HOME")?.join(".local/state")))?;
    Some(state.join("taper/chat_history"))
}

/// Enter: a line end within a block of `"""`, else the end of the line, and from there on Ctrl-C is for the answer.
struct EnterKey(Arc<Generator>);

impl ConditionalEventHandler for EnterKey {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext<'_>) -> Option<Cmd> {
        if is_open_block(at.line()) {
            return Some(Cmd::Newline);
        }
        self.0.watch();
        None
    }
}

/// Ctrl-G: ends the line, to be edited elsewhere.
struct EditorKey(Arc<AtomicBool>);

impl ConditionalEventHandler for EditorKey {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(true, Ordering::Relaxed);
        Some(Cmd::AcceptLine)
    }
}

/// A file for an editor, which only its user may read; removed when dropped.
struct Draft(PathBuf);

impl Draft {
    fn new(text: &str) -> Result<Draft> {
        for attempt in 0.. {
            let path = std::env::temp_dir().join(format!("taper-{}-{attempt}.md", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    let draft = Draft(path);
                    file.write_all(text.as_bytes())
                        .and_then(|()| file.flush())
                        .context("cannot write for the editor")?;
                    return Ok(draft);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 100 => {}
                Err(error) => return Err(error).with_context(|| format!("cannot write {}", path.display())),
            }
        }
        bail!("cannot write for the editor")
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What the user's editor makes of a text.
fn edit(text: &str) -> Result<String> {
    let var = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let command = var("VISUAL").or_else(|| var("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let draft = Draft::new(text)?;
    // As git does it: the variable may have arguments.
    let shell = Command::new("sh").args(["-c", &format!("{command} \"$@\""), "sh"]).arg(&draft.0).status();
    let status = shell.context("cannot run sh, which runs the editor")?;
    if !status.success() {
        bail!("the editor {command:?} ended with {status}; the line is as it was");
    }
    let text = fs::read_to_string(&draft.0).with_context(|| format!("cannot read what {command:?} wrote"))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// Tab: commands, names of parameters, and files where a command wants one.
struct Completion(FilenameCompleter);

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..pos];
        match completed(before) {
            Some((Completes::Files, _)) => self.0.complete(line, pos, context),
            Some((_, names)) => {
                let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
                let pair = |name: &str| Pair { display: name.to_owned(), replacement: format!("{name} ") };
                Ok((start, names.into_iter().map(pair).collect()))
            }
            None => Ok((pos, Vec::new())),
        }
    }
}

/// What the word before the cursor may become; `None` in a message.
fn completed(before: &str) -> Option<(Completes, Vec<&'static str>)> {
    if !before.starts_with('/') {
        return None;
    }
    let Some((command, argument)) = before.split_once(char::is_whitespace) else {
        return Some((Completes::Nothing, commands::names().filter(|name| name.starts_with(before)).collect()));
    };
    match commands::find(command)?.completes {
        Completes::Files => Some((Completes::Files, Vec::new())),
        Completes::Parameters if !argument.contains(char::is_whitespace) => {
            let names = TABLE.iter().map(|row| row.name).filter(|name| name.starts_with(argument));
            Some((Completes::Parameters, names.collect()))
        }
        Completes::Parameters | Completes::Nothing => None,
    }
}

impl Helper for Completion {}
impl Highlighter for Completion {}
impl Validator for Completion {}
impl Hinter for Completion {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tab_knows_commands_parameters_and_files() {
        let names = |before| completed(before).map(|(_, names)| names);
        assert_eq!(names("/sy"), Some(vec!["/system"]));
        assert_eq!(names("/s"), Some(vec!["/system", "/set", "/show", "/save", "/save!", "/stats"]));
        assert_eq!(names("/set pre"), Some(vec!["presence_penalty"]));
        assert_eq!(names("/set th"), Some(vec!["think"]));
        assert_eq!(names("/set top_p 0"), None);
        for command in ["/load x", "/read x"] {
            assert_eq!(completed(command), Some((Completes::Files, vec![])));
        }
        assert_eq!(names("/nothing x"), None);
        assert_eq!(names("hello /s"), None);
    }

    #[test]
    fn a_draft_is_the_users_own_and_goes() {
        use std::os::unix::fs::PermissionsExt;
        let (one, two) = (Draft::new("a").unwrap(), Draft::new("b").unwrap());
        assert_ne!(one.0, two.0);
        assert_eq!(fs::metadata(&one.0).unwrap().permissions().mode() & 0o777, 0o600);
        let path = one.0.clone();
        drop(one);
        assert!(!path.exists());
    }
}
