//! Progress on stderr: a bar where a person looks, plain lines where a file or a pipe does.

use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard};
use taper_hub::Progress;

/// Shows what takes long.
pub(crate) struct TerminalProgress {
    bar: Mutex<Option<ProgressBar>>,
    is_terminal: bool,
}

impl TerminalProgress {
    /// Progress on stderr.
    pub(crate) fn new() -> Self {
        TerminalProgress { bar: Mutex::new(None), is_terminal: std::io::stderr().is_terminal() }
    }

    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        // A bar is never half-written: a panic elsewhere leaves it usable.
        self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Progress for TerminalProgress {
    fn start(&self, what: &str, total: Option<u64>) {
        if !self.is_terminal {
            return output::note(what);
        }
        let (bar, template) = match total {
            Some(total) => {
                (ProgressBar::new(total), "{msg} [{bar:30}] {percent}% of {total_bytes} {bytes_per_sec} {eta}")
            }
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
        };
        let template = if what == "scoring tokens" { "{msg} [{bar:30}] {pos}/{len} {eta}" } else { template };
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_string());
        *self.bar() = Some(bar);
    }

    fn advance(&self, amount: u64) {
        if let Some(bar) = self.bar().as_ref() {
            bar.inc(amount);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    fn note(&self, line: &str) {
        match self.bar().as_ref() {
            Some(bar) => bar.suspend(|| output::note(line)),
            None => output::note(line),
        }
    }
}
