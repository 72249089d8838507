//! Stdout, which belongs to results alone: notes and progress go to stderr.

use std::io::{self, Write};

/// Writes one line to stdout.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes a piece of text to stdout and shows it at once.
pub(crate) fn piece(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes one line to stderr; a closed stderr is nobody's loss.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
