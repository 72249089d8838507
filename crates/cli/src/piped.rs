//! The prompt that comes through stdin.
//!
//! Beside `-p`, a pipe may hold more of the prompt (`cat notes | taper run -p "Summarise"`) or may just have been
//! inherited from a service that never closes it. Nothing tells the two apart but time, so the first byte is waited for
//! a while; a pipe that has begun is read to its end.

use anyhow::{Context, Result, bail};
use std::fs::Metadata;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::output;

/// How long a pipe may stay silent beside `-p`.
const PATIENCE: Duration = Duration::from_secs(3);

/// More than any context holds; an endless input should not fill the memory.
const MAX_BYTES: u64 = 64 << 20;

/// All of stdin.
pub(crate) fn read() -> Result<String> {
    if std::io::stdin().is_terminal() {
        bail!("no prompt: give one, as in `taper run \"TEXT\"`, or pipe one in; `taper chat` is for talking");
    }
    text_of(std::io::stdin().lock())
}

/// What stdin adds to a prompt; `None` where it is neither a pipe nor a file, or a pipe that stays silent.
pub(crate) fn read_beside_prompt() -> Result<Option<String>> {
    let is_some = |meta: &Metadata| meta.file_type().is_fifo() || meta.file_type().is_file();
    if !std::fs::metadata("/dev/stdin").is_ok_and(|meta| is_some(&meta)) {
        return Ok(None);
    }
    let (begins, begun) = channel();
    let (sends_rest, rest) = channel();
    // A thread that waits for ever ends with the program.
    std::thread::Builder::new().name("taper-stdin".to_owned()).spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut first = [0];
        let result = match stdin.read(&mut first) {
            Ok(len) => {
                let _ = begins.send(());
                text_of(first[..len].chain(stdin))
            }
            Err(error) => Err(error).context("cannot read the prompt from stdin"),
        };
        let _ = sends_rest.send(result);
    })?;
    if begun.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        output::status(
            "nothing came through stdin: answering the prompt alone (--stdin waits for it, `< /dev/null` leaves it out at once)",
        );
        return Ok(None);
    }
    rest.recv().context("reading stdin crashed")?.map(Some)
}

fn text_of(input: impl Read) -> Result<String> {
    text(input, "the prompt on stdin")
}

/// All of `input`, which is `what`.
pub(crate) fn text(input: impl Read, what: &str) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {what}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{what} is longer than {} MiB", MAX_BYTES >> 20);
    }
    String::from_utf8(bytes).with_context(|| format!("{what} is not UTF-8"))
}

/// Parts of a prompt as one. A file's last line end is not an empty line before the next part.
pub(crate) fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut parts = parts.peekable();
    let mut text = String::new();
    while let Some(part) = parts.next() {
        if parts.peek().is_some() {
            text.push_str(part.strip_suffix('\n').unwrap_or(part));
            text.push('\n');
        } else {
            text.push_str(part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_lines_below_each_other() {
        let joined = |parts: &[&str]| joined(parts.iter().copied());
        assert_eq!(joined(&["a\n", "b\n\n", "c\n"]), "a\nb\n\nc\n");
        assert_eq!((joined(&["a"]), joined(&[])), ("a".into(), String::new()));
    }

    #[test]
    fn an_endless_input_is_refused() {
        assert!(text_of(std::io::repeat(b'a')).is_err_and(|error| error.to_string().contains("64 MiB")));
    }
}
