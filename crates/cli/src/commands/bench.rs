//! `taper bench`: speed, with the bytes it moved.

use crate::args::{AttentionKind, BenchArgs, BenchCommand, BenchModelArgs, NamedCase};
use crate::commands::list;
use crate::load::{self, ModelTask};
use crate::output;
use crate::progress::Bars;
use anyhow::{Result, bail};
use serde::Serialize;
use taper_bench::{Case, Row};
use taper_kernels::Backend;
use taper_models::{Llama, ModelConfig};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        BenchCommand::Model(args) => model(args),
    }
}

/// A row and what was measured.
#[derive(Debug, Serialize)]
struct RowJson<'a> {
    model: &'a str,
    attention: &'static str,
    #[serde(flatten)]
    row: &'a Row,
    commit: &'static str,
}

fn model(args: &BenchModelArgs) -> Result<()> {
    let cases = if args.cases.is_empty() { default_cases() } else { args.cases.clone() };
    let progress = Bars::new();
    let resolved = load::resolve(&args.model.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let limit = ModelConfig::from_checkpoint(&checkpoint)?.context_len;
    if let Some(NamedCase { name, case }) = cases.iter().find(|named| named.case.context_len() > limit) {
        bail!("{name} needs a context of {} tokens, and the model was made for {limit}", case.context_len());
    }
    let plain: Vec<Case> = cases.iter().map(|named| named.case).collect();
    let options = taper_bench::load_options(&plain, args.model.attention.scheme());
    let file = resolved.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    load::with_model(&args.model, &checkpoint, options, &progress, Measure { args, cases, file })
}

fn default_cases() -> Vec<NamedCase> {
    let cases = [Case::Prompt(512), Case::Generate { tokens: 64, depth: 0 }];
    cases.map(|case| NamedCase { name: case.to_string(), case }).into()
}

struct Measure<'a> {
    args: &'a BenchModelArgs,
    cases: Vec<NamedCase>,
    file: String,
}

impl ModelTask for Measure<'_> {
    type Output = ();

    fn run<B: Backend>(self, mut model: Llama<B>) -> Result<()> {
        let header = ["CASE", "TOKENS/S", "P10", "P90", "MB/TOKEN", "GB/S"];
        let mut table = list::table(&header);
        let attention = match self.args.model.attention {
            AttentionKind::Splitkv => "split-kv",
            AttentionKind::Naive => "naive",
        };
        for NamedCase { name, case } in self.cases {
            let mut row = taper_bench::measure(&mut model, case, self.args.repeat)?;
            // Whoever reads rows looks for the name that was given.
            row.case = name;
            if self.args.json {
                let json = RowJson { model: &self.file, attention, row: &row, commit: env!("TAPER_COMMIT") };
                output::line(&serde_json::to_string(&json)?)?;
                continue;
            }
            output::status(&format!("{}: {:.1} tokens/s", row.case, row.median));
            let Row { median, p10, p90, bytes_per_token, gb_per_s, .. } = row;
            let figures = [median, p10, p90, bytes_per_token / 1e6, gb_per_s].map(|figure| format!("{figure:.2}"));
            table.add_row([row.case].into_iter().chain(figures));
        }
        if !self.args.json {
            let info = model.backend().info();
            output::line(&table.trim_fmt())?;
            let commit = env!("TAPER_COMMIT");
            output::line(&format!("{}, {} threads, {}, commit {commit}", self.file, info.threads, info.isa))?;
        }
        Ok(())
    }
}
