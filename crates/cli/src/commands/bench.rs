//! `taper bench`: speeds, with the bytes they move.

use crate::load::{self, BackendKind, ModelArgs};
use crate::output;
use crate::progress::TerminalProgress;
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use taper_bench::{Case, Row, load_options, measure};
use taper_hub::Progress;
use taper_kernels::{Backend, Reference};
use taper_models::Llama;

/// Arguments of `taper bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prompt and decode speed of a model
    Model(ModelBench),
}

#[derive(Debug, ClapArgs)]
struct ModelBench {
    #[command(flatten)]
    model: ModelArgs,
    /// What to measure, may be repeated: ppN (prompt of N tokens), tgN or tgN@DEPTH (N generated tokens, after DEPTH), bN (N sequences of 32 prompt tokens, 48 generated)
    #[arg(long = "case", default_values = ["pp512", "tg64"])]
    cases: Vec<Case>,
    /// Samples per case; each takes at least two seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// One JSON object per case on stdout instead of a table
    #[arg(long)]
    json: bool,
}

/// A row with what names the run.
#[derive(Serialize)]
struct NamedRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    model: &'a str,
    attention: &'a str,
    commit: &'a str,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Model(args) => model(args),
    }
}

fn model(args: &ModelBench) -> anyhow::Result<()> {
    let progress = TerminalProgress::new();
    let resolved = load::resolve(&args.model.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let options = load_options(&args.cases, args.model.attention_scheme());
    match args.model.backend {
        BackendKind::Cpu => {
            let model = load::network(args.model.cpu()?, &checkpoint, options, &progress)?;
            rows(args, &resolved.id, model, &progress)
        }
        BackendKind::Reference => {
            let model = load::network(Reference::new(), &checkpoint, options, &progress)?;
            rows(args, &resolved.id, model, &progress)
        }
    }
}

fn rows<B: Backend>(args: &ModelBench, id: &str, mut model: Llama<B>, progress: &dyn Progress) -> anyhow::Result<()> {
    let mut table = comfy_table::Table::new();
    table.set_header(["case", "tok/s", "p10", "p90", "MB/token", "GB/s", "threads", "isa"]);
    for case in &args.cases {
        progress.note(&format!("measuring {case}, {} samples of at least 2 s", args.repeat));
        let row = measure(&mut model, *case, args.repeat as usize)?;
        if args.json {
            let attention = match args.model.attention {
                load::AttentionKind::SplitKv => "split-kv",
                load::AttentionKind::Naive => "naive",
            };
            let named = NamedRow { row: &row, model: id, attention, commit: env!("TAPER_COMMIT") };
            output::line(&serde_json::to_string(&named)?)?;
        } else {
            table.add_row([
                row.case.clone(),
                format!("{:.1}", row.median),
                format!("{:.1}", row.p10),
                format!("{:.1}", row.p90),
                format!("{:.1}", row.bytes_per_token / 1e6),
                format!("{:.1}", row.gb_per_s),
                row.threads.to_string(),
                row.isa.clone(),
            ]);
        }
    }
    if !args.json {
        output::line(&table.to_string())?;
    }
    Ok(())
}
