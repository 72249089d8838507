//! `--color`, and what a terminal is told of a text's look.

use crate::args::ColorChoice;
use crate::markdown::Shown;
use std::io::IsTerminal;

/// The terminal's own look.
pub(crate) const RESET: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";

/// How a character looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) is_bold: bool,
    pub(crate) is_italic: bool,
    pub(crate) is_dim: bool,
    pub(crate) color: Option<Color>,
}

/// Of the eight that a user has chosen for the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    Yellow = 33,
    Cyan = 36,
}

impl Look {
    const PLAIN: Look = Look { is_bold: false, is_italic: false, is_dim: false, color: None };
    /// A mark of markdown.
    pub(crate) const MARK: Look = Look { is_dim: true, ..Look::PLAIN };
    /// The mark of an item of a list.
    pub(crate) const ITEM: Look = Look { color: Some(Color::Yellow), ..Look::PLAIN };
    /// Code.
    pub(crate) const CODE: Look = Look { color: Some(Color::Cyan), ..Look::PLAIN };
    /// A heading.
    pub(crate) const HEADING: Look = Look { is_bold: true, color: Some(Color::Yellow), ..Look::PLAIN };

    /// What a terminal that shows text in the look `before` is told.
    pub(crate) fn change_from(self, before: Look, out: &mut String) {
        if before != Look::PLAIN {
            out.push_str(RESET);
        }
        let codes = [self.is_bold.then_some(1), self.is_dim.then_some(2), self.is_italic.then_some(3)];
        let codes = codes.into_iter().flatten().chain(self.color.map(|color| color as u8));
        let codes: Vec<String> = codes.map(|code| code.to_string()).collect();
        if !codes.is_empty() {
            out.push_str(&format!("\x1b[{}m", codes.join(";")));
        }
    }
}

/// A line that steps back behind the answer, on a stream that may have colours.
pub(crate) fn dimmed(line: &str, has_color: bool) -> String {
    if has_color { format!("{DIM}{line}{RESET}") } else { line.to_owned() }
}

/// What an answer on stdout looks like.
pub(crate) fn of_stdout(choice: ColorChoice) -> Shown {
    let is_terminal = std::io::stdout().is_terminal();
    match (is_colored(choice, is_terminal, &|name| std::env::var(name).ok()), is_terminal) {
        (true, _) => Shown::Styled,
        (false, true) => Shown::Safe,
        (false, false) => Shown::Plain,
    }
}

/// Whether lines on stderr may be dimmed.
pub(crate) fn on_stderr(choice: ColorChoice) -> bool {
    is_colored(choice, std::io::stderr().is_terminal(), &|name| std::env::var(name).ok())
}

fn is_colored(choice: ColorChoice, is_terminal: bool, var: &dyn Fn(&str) -> Option<String>) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        // https://no-color.org: set to anything but nothing.
        ColorChoice::Auto => {
            is_terminal
                && var("NO_COLOR").is_none_or(|value| value.is_empty())
                && var("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let colored = |choice, is_terminal, name: &str, value: &str| {
            is_colored(choice, is_terminal, &|asked| (asked == name).then(|| value.to_owned()))
        };
        use ColorChoice::{Always, Auto, Never};
        assert!(colored(Auto, true, "TERM", "xterm"));
        assert!(!colored(Auto, true, "TERM", "dumb"));
        assert!(!colored(Auto, true, "NO_COLOR", "1"));
        assert!(colored(Auto, true, "NO_COLOR", ""));
        assert!(!colored(Auto, false, "TERM", "xterm"));
        assert!(colored(Always, false, "NO_COLOR", "1"));
        assert!(!colored(Never, true, "TERM", "xterm"));
    }
}
