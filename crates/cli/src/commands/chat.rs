//! `taper chat`: a conversation in the terminal, or one message per line where stdin is not one.

use crate::args::ChatArgs;
use crate::generate::{self, Generator};
use crate::load::{self, Loaded};
use crate::output;
use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use taper_engine::SamplingParams;
use taper_text::ChatMessage;

const HELP: &str = "\
/system TEXT  tell the model this before the conversation, and begin anew; without TEXT, show it
/clear        begin anew, with the same system text
/help         show this
/exit         leave (so does Ctrl-D)
Ctrl-C stops an answer. Everything else is a message.";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let sampling = args.sampling.params()?;
    let loaded = load::load_for_one(&args.model, &args.context, &args.engine)?;
    // A model that cannot chat should say so before the first message is typed.
    generate::chat_tokens(&loaded, &[ChatMessage::new("user", "hello")])?;
    let mut chat =
        Chat { generator: Generator::new()?, sampling, conversation: Conversation::new(args.system.clone()), loaded };
    if std::io::stdin().is_terminal() { interactive(&mut chat, args) } else { piped(&mut chat) }
}

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Message(&'a str),
    System(Option<&'a str>),
    Clear,
    Help,
    Exit,
    Unknown(&'a str),
}

fn parse(line: &str) -> Input<'_> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "" => Input::Nothing,
        "/system" => Input::System(Some(rest.trim()).filter(|text| !text.is_empty())),
        "/clear" => Input::Clear,
        "/help" => Input::Help,
        "/exit" | "/quit" | "/bye" => Input::Exit,
        // A path or a regular expression may begin with a slash; a lone word that does is a slip.
        word if word.starts_with('/') && rest.is_empty() && !word[1..].contains('/') => Input::Unknown(word),
        _ => Input::Message(line),
    }
}

/// What has been said.
struct Conversation {
    system: Option<String>,
    messages: Vec<ChatMessage>,
}

impl Conversation {
    fn new(system: Option<String>) -> Conversation {
        let messages = system.iter().map(|text| ChatMessage::new("system", text)).collect();
        Conversation { system, messages }
    }

    fn clear(&mut self) {
        *self = Conversation::new(self.system.take());
    }
}

struct Chat {
    loaded: Loaded,
    generator: Generator,
    sampling: SamplingParams,
    conversation: Conversation,
}

impl Chat {
    /// Acts on a line; whether to go on.
    fn act(&mut self, line: &str) -> Result<bool> {
        match parse(line) {
            Input::Nothing => {}
            Input::Exit => return Ok(false),
            Input::Help => output::status(HELP),
            Input::Clear => {
                self.conversation.clear();
                output::status("[a new conversation]");
            }
            Input::System(None) => {
                let shown = self.conversation.system.as_deref();
                output::status(shown.unwrap_or("[there is no system text; the template may have its own]"));
            }
            Input::System(Some(text)) => {
                self.conversation = Conversation::new(Some(text.to_string()));
                output::status("[a new conversation with this system text]");
            }
            Input::Unknown(command) => output::status(&format!("[{command} is not a command; /help shows them]")),
            Input::Message(text) => self.answer(text)?,
        }
        Ok(true)
    }

    /// Answers a message. A message that cannot be answered is taken back, and the conversation goes on.
    fn answer(&mut self, text: &str) -> Result<()> {
        self.conversation.messages.push(ChatMessage::new("user", text));
        let mut show = |text: &str| output::print(text);
        let answer = generate::chat_tokens(&self.loaded, &self.conversation.messages).and_then(|tokens| {
            let num_tokens = tokens.len();
            let answer = self.generator.generate(&self.loaded, tokens, self.sampling.clone(), true, &mut show)?;
            Ok((num_tokens, answer))
        });
        match answer {
            Ok((num_tokens, answer)) => {
                output::print("\n")?;
                output::status(&format!("[{}]", answer.summary(num_tokens)));
                // What was said before Ctrl-C was said.
                self.conversation.messages.push(ChatMessage::new("assistant", answer.text));
                Ok(())
            }
            Err(error) if output::is_broken_pipe(&error) => Err(error),
            Err(error) => {
                self.conversation.messages.pop();
                output::status(&format!("[{error:#}; /clear begins anew]"));
                Ok(())
            }
        }
    }
}

fn interactive(chat: &mut Chat, args: &ChatArgs) -> Result<()> {
    load::announce(&chat.loaded);
    output::status("/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves");
    let mut editor = DefaultEditor::new().context("cannot use the terminal")?;
    let mut history = args.history.clone().or_else(default_history);
    // The first time there is none; a device or a pipe might never end.
    if let Some(path) = history.as_ref().filter(|path| path.is_file()) {
        editor.load_history(path).ok();
    }
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                if !line.trim().is_empty() {
                    editor.add_history_entry(line.as_str())?;
                }
                // One that cannot be kept is no reason to stop talking, and to be told of it once is enough.
                history = history.filter(|path| save_history(&mut editor, path));
                if !chat.act(&line)? {
                    return Ok(());
                }
            }
            // At the prompt there is no answer to stop; the line is given up, as in a shell.
            Err(ReadlineError::Interrupted) => output::status("[/exit or Ctrl-D leaves]"),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
}

fn piped(chat: &mut Chat) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        if !chat.act(&line.context("cannot read messages from stdin")?)? {
            break;
        }
    }
    Ok(())
}

/// Writes the history; whether that worked.
fn save_history(editor: &mut DefaultEditor, path: &Path) -> bool {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).ok();
    }
    let saved = editor.save_history(path);
    if let Err(error) = &saved {
        output::status(&format!("[the history cannot be kept in {}: {error}]", path.display()));
    }
    saved.is_ok()
}

fn default_history() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = var("XDG_STATE_HOME").or_else(|| Some(var("HOME")?.join(".local/state")))?;
    Some(state.join("taper/chat_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        assert_eq!(parse("  "), Input::Nothing);
        assert_eq!(parse(" hello there "), Input::Message("hello there"));
        assert_eq!(parse("/system be brief "), Input::System(Some("be brief")));
        assert_eq!(parse("/system"), Input::System(None));
        assert_eq!(parse("/clear"), Input::Clear);
        assert_eq!(parse("/exit"), Input::Exit);
        assert_eq!(parse("/clera"), Input::Unknown("/clera"));
        assert_eq!(parse("/etc/passwd"), Input::Message("/etc/passwd"));
        assert_eq!(parse("/what is this"), Input::Message("/what is this"));
    }

    #[test]
    fn a_cleared_conversation_keeps_its_system_text() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.messages.push(ChatMessage::new("user", "hello"));
        conversation.clear();
        assert_eq!(conversation.messages, [ChatMessage::new("system", "be brief")]);
        assert!(Conversation::new(None).messages.is_empty());
    }
}
