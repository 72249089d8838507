//! Progress bars for what takes long, on a terminal; a few lines where stderr is a file.

use crate::output;
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use taper_hub::Progress;

/// Shows what is being fetched or loaded.
pub(crate) struct Bars {
    bar: Mutex<Option<ProgressBar>>,
    is_terminal: bool,
    /// Told of every change as well: the server's health endpoint says how far it is.
    listener: Box<dyn Fn(&str) + Send + Sync>,
}

impl Bars {
    /// Shows on stderr.
    pub(crate) fn new() -> Bars {
        Bars::with_listener(|_| {})
    }

    /// Shows on stderr and tells `listener` in words.
    pub(crate) fn with_listener(listener: impl Fn(&str) + Send + Sync + 'static) -> Bars {
        Bars { bar: Mutex::new(None), is_terminal: std::io::stderr().is_terminal(), listener: Box::new(listener) }
    }

    fn with_bar(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Bars {
    fn start(&self, what: &str, total: Option<u64>) {
        (self.listener)(what);
        if !self.is_terminal {
            let size = total.map_or_else(String::new, |total| format!(" ({})", DecimalBytes(total)));
            output::status(&format!("{what}{size}"));
        }
        let bar = ProgressBar::new(0).with_message(what.to_string());
        bar.set_style(style(total.is_some()));
        bar.enable_steady_tick(Duration::from_millis(100));
        if let Some(total) = total {
            bar.set_length(total);
        }
        self.with_bar(|current| *current = Some(bar));
    }

    fn advance(&self, bytes: u64) {
        self.with_bar(|current| {
            let Some(bar) = current else { return };
            bar.inc(bytes);
            let percent = bar.length().filter(|total| *total > 0).map(|total| bar.position() * 100 / total);
            (self.listener)(&match percent {
                Some(percent) => format!("{}: {percent} %", bar.message()),
                None => format!("{}: {}", bar.message(), DecimalBytes(bar.position())),
            });
        });
    }

    fn finish(&self) {
        self.with_bar(|current| {
            if let Some(bar) = current.take() {
                bar.finish_and_clear();
            }
        });
    }

    fn note(&self, line: &str) {
        self.with_bar(|current| match current {
            Some(bar) if self.is_terminal => bar.println(line),
            _ => output::status(line),
        });
    }
}

fn style(has_total: bool) -> ProgressStyle {
    let template = if has_total {
        "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})"
    } else {
        "{msg} {spinner} {bytes} {bytes_per_sec}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}
