//! From lines to messages and commands. A line that ends in `\` goes on in the next, and what begins with `"""` goes on until
//! these marks come again.

use super::commands::{self, Row};
use crate::parameters::nearest;

const QUOTES: &str = "\"\"\"";

/// Lines on their way to becoming a whole.
#[derive(Debug, Default)]
pub(super) struct Assembly(String);

impl Assembly {
    /// Takes a line, or several at once; the whole, if it is one by now.
    pub(super) fn push(&mut self, line: &str) -> Option<String> {
        self.0.push_str(line);
        if is_open_block(&self.0) {
            self.0.push('\n');
            return None;
        }
        if self.0.ends_with('\\') {
            self.0.pop();
            self.0.push('\n');
            return None;
        }
        Some(self.take())
    }

    /// Whether the next line goes on with one before.
    pub(super) fn is_begun(&self) -> bool {
        !self.0.is_empty()
    }

    /// What there is, whole or not.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}

/// Whether a text begins a block of `"""`, behind a command or not, and does not end it.
pub(super) fn is_open_block(text: &str) -> bool {
    argument(text).starts_with(QUOTES) && text.matches(QUOTES).count() % 2 == 1
}

/// A text without its command, if it begins with one.
fn argument(text: &str) -> &str {
    if !text.starts_with('/') {
        return text.trim_start();
    }
    text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start())
}

/// What a block of `"""` holds, without the line ends next to its marks; another text as it is.
fn unquoted(text: &str) -> &str {
    let inner = text.trim().strip_prefix(QUOTES).and_then(|text| text.strip_suffix(QUOTES));
    match inner.filter(|inner| !inner.contains(QUOTES)) {
        Some(inner) => {
            let inner = inner.strip_prefix('\n').unwrap_or(inner);
            inner.strip_suffix('\n').unwrap_or(inner)
        }
        None => text,
    }
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input<'a> {
    Nothing,
    Message(&'a str),
    /// With its argument, which is empty where there is none.
    Command(&'static Row, &'a str),
    /// What looks like a command; and one that it may have meant.
    Unknown(&'a str, Option<&'static str>),
}

/// Reads a whole. A path or a question may begin with a slash too: a word that is no command is one that was mistyped only where
/// it stands alone or is nearly one. Behind a blank everything is a message.
pub(super) fn parse(text: &str) -> Input<'_> {
    let message = || {
        let inner = unquoted(text);
        let said = if inner.len() == text.len() { text.trim() } else { inner };
        if said.trim().is_empty() { Input::Nothing } else { Input::Message(said) }
    };
    if !text.starts_with('/') {
        return message();
    }
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if let Some(row) = commands::find(word) {
        return Input::Command(row, unquoted(rest.trim()));
    }
    let near = nearest(word, commands::names());
    if word[1..].contains('/') || (near.is_none() && !rest.trim().is_empty()) {
        return message();
    }
    Input::Unknown(word, near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(lines: &[&str]) -> Vec<String> {
        let mut assembly = Assembly::default();
        let mut out: Vec<String> = lines.iter().filter_map(|line| assembly.push(line)).collect();
        if assembly.is_begun() {
            out.push(format!("open: {}", assembly.take()));
        }
        out
    }

    #[test]
    fn a_backslash_at_the_end_goes_on_in_the_next_line() {
        assert_eq!(whole(&["a", "b"]), ["a", "b"]);
        assert_eq!(whole(&["a\\", "b\\", "c", "d"]), ["a\nb\nc", "d"]);
        assert_eq!(whole(&["a\\b"]), ["a\\b"]);
        assert_eq!(whole(&["a\\"]), ["open: a\n"]);
    }

    #[test]
    fn a_block_goes_on_until_its_marks_come_again() {
        assert_eq!(whole(&["\"\"\"", "a\\", "", "b", "\"\"\"", "c"]), ["\"\"\"\na\\\n\nb\n\"\"\"", "c"]);
        assert_eq!(whole(&["\"\"\"a\"\"\""]), ["\"\"\"a\"\"\""]);
        assert_eq!(whole(&["/system \"\"\"a", "b\"\"\""]), ["/system \"\"\"a\nb\"\"\""]);
        assert_eq!(whole(&["say \"\"\" now"]), ["say \"\"\" now"], "a block begins a message");
    }

    fn message(text: &str) -> Input<'_> {
        Input::Message(text)
    }

    #[test]
    fn lines_are_commands_or_messages() {
        let command = |text| match parse(text) {
            Input::Command(row, argument) => (row.name, argument),
            other => panic!("{text:?} is {other:?}"),
        };
        assert_eq!(parse("  "), Input::Nothing);
        assert_eq!(parse(" hello there "), message("hello there"));
        assert_eq!(command("/system be brief "), ("/system", "be brief"));
        assert_eq!(command("/system"), ("/system", ""));
        assert_eq!(command("/system a\nb"), ("/system", "a\nb"));
        assert_eq!(command("/quit"), ("/exit", ""));
        assert_eq!(parse("/clera"), Input::Unknown("/clera", Some("/clear")));
        assert_eq!(parse("/sett seed 1"), Input::Unknown("/sett", Some("/set")));
        assert_eq!(parse("/gibberish"), Input::Unknown("/gibberish", None));
        assert_eq!(parse("/etc/passwd"), message("/etc/passwd"));
        assert_eq!(parse("/what is this"), message("/what is this"));
        assert_eq!(parse(" /clear"), message("/clear"), "a blank before it makes it a message");
    }

    #[test]
    fn the_marks_of_a_block_are_not_part_of_it() {
        assert_eq!(parse("\"\"\"\na\n\n b\n\"\"\""), message("a\n\n b"));
        assert_eq!(parse("/system \"\"\"\na\nb\n\"\"\""), parse("/system a\nb"));
        let python = "\"\"\"doc\"\"\"\nx = \"\"\"y\"\"\"";
        assert_eq!(parse(python), message(python), "a pasted program keeps its own");
    }
}
