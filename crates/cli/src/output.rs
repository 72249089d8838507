//! stdout for results, stderr for everything else.

use crate::args::{Cli, Command, LogFormat};
use anyhow::{Context, Result};
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// What `taper serve` logs where nobody says it.
pub(crate) const SERVED_LEVEL: &str = "info";

/// Writes a piece of the result and shows it at once. A closed stdout is an error that [`is_broken_pipe`] knows.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// Writes a line of the result.
pub(crate) fn line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Tells the user something that is not the result.
pub(crate) fn status(text: &str) {
    // Without a stderr there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The same for a piece of a line, shown at once.
pub(crate) fn aside(text: &str) {
    let _ = write!(io::stderr().lock(), "{text}");
}

/// Says why the command failed. What the error quotes may come out of a file that nobody vouches for, so control
/// characters are spelled out: they could steer the terminal.
pub(crate) fn failure(error: &anyhow::Error) {
    status(&format!("taper: {}", spelled_out(&format!("{error:#}"))));
}

/// A text that cannot steer the terminal: control characters but line ends are spelled out.
pub(crate) fn spelled_out(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        let is_spelled_out = (c.is_control() && c != '\n') || is_bidi_control(c);
        if is_spelled_out { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Whether a character changes the direction in which those behind it are shown, and is not seen itself: with it a command can
/// look like another one. Marks that direct a single place, which Arabic and Hebrew are written with, are no such characters.
pub(crate) fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether the reason of an error is that nobody reads our stdout any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}

/// Logs to stderr: what `--log-level` says, else `TAPER_LOG`, else what suits the command.
pub(crate) fn start_logging(cli: &Cli) {
    let default = if matches!(cli.command, Command::Serve(_)) { SERVED_LEVEL } else { "warn" };
    let filter = EnvFilter::try_new(cli.log_level.as_deref().unwrap_or(default)).unwrap_or_else(|error| {
        status(&format!("--log-level is not understood ({error}); using {default}"));
        EnvFilter::new(default)
    });
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    match &cli.command {
        Command::Serve(args) if args.log_format == LogFormat::Json => log.json().init(),
        _ => log.with_ansi(io::stderr().is_terminal()).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_cannot_steer_the_terminal() {
        assert_eq!(spelled_out("tried:\n  a\u{1b}[2J, \u{9b}é\r"), "tried:\n  a\\u{1b}[2J, \\u{9b}é\\r");
        assert_eq!(spelled_out("a\u{202e}b\u{2066}\u{200f}"), "a\\u{202e}b\\u{2066}\u{200f}");
    }
}
