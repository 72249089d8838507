//! `taper bench serve`: load on a server, level by level.

use super::{COMMIT, cannot_write, write};
use crate::args::{ArrivalsKind, BenchServeArgs};
use crate::commands::{chat, list};
use crate::generate::Generator;
use crate::output;
use anyhow::{Context, Result, bail};
use comfy_table::CellAlignment;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::time::SystemTime;
use taper_bench::load::{self, Address, Collected, Level, Plan, Progress, Session, Source};

pub(crate) fn run(args: &BenchServeArgs) -> Result<()> {
    // So that a wrong path is told before minutes of measuring.
    for path in [&args.json, &args.csv, &args.html].into_iter().flatten().filter(|path| *path != Path::new("-")) {
        File::options().create(true).append(true).open(path).with_context(|| cannot_write(path))?;
    }
    let levels = args.levels();
    if levels.iter().any(|level| level.load.amount().is_infinite() && level.stop.requests.is_none()) {
        bail!("--rate inf has no end by --duration: --requests says how many");
    }
    check_endpoint(args)?;
    let key = chat::api_key(args.api_key.as_deref(), &args.url);
    let base = chat::base_of(&args.url, key.as_deref())?;
    let roots = if base.starts_with("https") { chat::system_certificates()? } else { Vec::new() };
    let address = Address::new(&base, key.as_deref())?;
    let generator = Generator::new()?;
    let Some(session) = generator.unless_stopped(Session::open(address, &roots, plan(args)?))? else {
        bail!("stopped before anything was measured");
    };
    let session = session?;
    say(&format!("{} at {base}", session.model()));
    session.notes().iter().for_each(|note| say(note));

    let mut measured = Measured { rows: Vec::new(), notes: session.notes().to_vec(), succeeded: 0, first_error: None };
    for (index, level) in levels.iter().enumerate() {
        let mut collected = Collected::default();
        let shown = Shown::new();
        let mut show = |progress: &Progress| shown.show(progress);
        let is_stopped = generator.unless_stopped(session.run(index, level, &mut collected, &mut show))?.is_none();
        drop(shown);
        measured.add(&session, level, &collected);
        if is_stopped {
            let left = levels.len() - index - 1;
            let left = if left > 0 { format!("; {left} further not begun") } else { String::new() };
            measured.notes.push(format!("stopped by Ctrl-C at {}{left}", level.load));
            break;
        }
    }
    measured.tell(args, &levels)
}

/// Refuses what is about answers where there are none, and bursts that have no size.
fn check_endpoint(args: &BenchServeArgs) -> Result<()> {
    let limits = args.limit.unwrap_or_default();
    let of_answers = limits.ttft.is_some() || limits.itl.is_some() || limits.tpot.is_some();
    if !args.endpoint.endpoint().has_answer() && (args.ignore_eos || of_answers) {
        bail!("embeddings have no tokens of answers: leave out --ignore-eos, and of --limit all but e2e");
    }
    if args.ramp_up.is_some() && args.arrivals == ArrivalsKind::Burst {
        bail!("--ramp-up and --arrivals burst cannot be together: the bursts of a rate that grows have no size");
    }
    Ok(())
}

fn plan(args: &BenchServeArgs) -> Result<Plan> {
    let endpoint = args.endpoint.endpoint();
    let source = match &args.prompts {
        None => Source::Words { length: args.prompt_tokens, shared_prefix: args.shared_prefix },
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            Source::File(load::File::parse(&text, endpoint).with_context(|| path.display().to_string())?)
        }
    };
    // A server remembers the prompts of an earlier run, and would answer them sooner.
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    Ok(Plan {
        model: args.model_name.clone(),
        endpoint,
        temperature: args.temperature,
        ignore_eos: args.ignore_eos,
        extra: args.extra_body.clone().unwrap_or_default(),
        source,
        output: args.output_tokens,
        seed: args.seed.unwrap_or_else(now),
        timeout: args.timeout,
        limits: args.limit.unwrap_or_default(),
    })
}

/// Tells what may quote a server.
fn say(line: &str) {
    output::status(&output::spelled_out(line));
}

/// Progress of a level: a line that changes on a terminal, none where stderr is a file.
struct Shown(Option<ProgressBar>);

impl Shown {
    fn new() -> Shown {
        Shown(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            ProgressBar::new_spinner().with_style(style)
        }))
    }

    fn show(&self, progress: &Progress) {
        if let Some(bar) = &self.0 {
            bar.set_message(progress.to_string());
            bar.tick();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// What all levels gave.
struct Measured {
    rows: Vec<Value>,
    notes: Vec<String>,
    succeeded: u64,
    first_error: Option<String>,
}

impl Measured {
    fn add(&mut self, session: &Session, level: &Level, collected: &Collected) {
        self.succeeded += collected.num_succeeded();
        let mut errors = collected.errors();
        self.first_error = self.first_error.take().or_else(|| errors.next().map(|(_, _, words)| words.to_owned()));
        let row = session.row(level, collected, COMMIT);
        let figure = |pointer: &str| {
            row.pointer(pointer).and_then(Value::as_f64).map_or_else(|| "-".to_owned(), taper_bench::figure)
        };
        say(&format!(
            "{}: {} requests, {} failed, {} tokens/s, first token after {} ms",
            level.load,
            collected.num_succeeded(),
            collected.num_failed(),
            figure("/tok_s"),
            figure("/ttft_ms/p50")
        ));
        self.notes.extend(session.notes_of(level, collected));
        self.rows.push(row);
    }

    /// Prints and writes everything: each as far as it can, whatever became of the others.
    fn tell(&self, args: &BenchServeArgs, levels: &[Level]) -> Result<()> {
        let json: String = self.rows.iter().map(|row| format!("{row}\n")).collect();
        let (printed, written) = if args.json.as_deref() == Some(Path::new("-")) {
            self.notes.iter().for_each(|note| say(note));
            (output::print(&json), Ok(()))
        } else {
            (self.print(), args.json.as_deref().map_or(Ok(()), |path| write(path, json)))
        };
        let csv = args.csv.as_deref().map_or(Ok(()), |path| write(path, load::csv(&self.rows)));
        let page = args.html.as_deref().map_or(Ok(()), |path| {
            let amounts: Vec<f64> = levels.iter().map(|level| level.load.amount()).collect();
            let axis = levels.first().map_or("", |level| level.load.axis());
            write(path, load::html(&command(), &self.rows, &self.notes, axis, &amounts)?)?;
            output::status(&format!("report: {}", path.display()));
            Ok(())
        });
        printed.and(written).and(csv).and(page)?;
        match &self.first_error {
            Some(words) if self.succeeded == 0 => bail!("no request succeeded; the first failed: {words}"),
            None if self.succeeded == 0 => bail!("no request was answered"),
            _ => Ok(()),
        }
    }

    fn print(&self) -> Result<()> {
        let (titles, rows) = load::table(&self.rows);
        let mut table = list::table(&titles);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for cells in rows {
            table.add_row(cells);
        }
        output::line(&table.trim_fmt())?;
        self.notes.iter().try_for_each(|note| output::line(&output::spelled_out(note)))
    }
}

/// What was typed, without the key.
fn command() -> String {
    without_key(std::env::args().skip(1))
}

fn without_key(arguments: impl Iterator<Item = String>) -> String {
    let (mut words, mut is_key) = (vec!["taper".to_owned()], false);
    for argument in arguments {
        let shown = match argument.split_once('=') {
            _ if is_key => "...".to_owned(),
            Some(("--api-key", _)) => "--api-key=...".to_owned(),
            _ => argument.clone(),
        };
        is_key = argument == "--api-key";
        words.push(shown);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_does_not_have_the_key() {
        let shown = |line: &str| without_key(line.split(' ').map(str::to_owned));
        assert_eq!(shown("bench serve --api-key secret -c 2"), "taper bench serve --api-key ... -c 2");
        assert_eq!(shown("bench serve --api-key=secret"), "taper bench serve --api-key=...");
    }
}
