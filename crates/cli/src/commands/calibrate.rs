//! `taper calibrate`: references of the softmax from the scores of a text.

use crate::args::CalibrateArgs;
use crate::calibration_file::CalibrationFile;
use crate::commands::{list, perplexity};
use crate::load::{self, ModelTask};
use crate::output;
use crate::progress::Bars;
use anyhow::{Result, bail};
use comfy_table::CellAlignment;
use taper_hub::Progress;
use taper_kernels::{BLOCK_SIZE, Backend};
use taper_models::{Calibration, Llama, LoadOptions};
use taper_text::EncodeOptions;

pub(crate) fn run(args: &CalibrateArgs) -> Result<()> {
    let text = perplexity::read_text(&args.text)?;
    let progress = Bars::new();
    let resolved = load::resolve(&args.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let tokenizer = load::tokenizer(&checkpoint)?;
    let ctx = args.ctx as usize;
    let tokens = tokenizer.encode(&text, EncodeOptions { parse_special: false, add_bos: true })?;
    if tokens.len() < ctx {
        bail!("{} has {} tokens; at least {ctx}, one chunk of --ctx, are needed", args.text.display(), tokens.len());
    }
    let options = LoadOptions {
        context_len: Some(ctx),
        num_blocks: Some(ctx.div_ceil(BLOCK_SIZE)),
        max_logit_rows: 1,
        kv_dtype: args.model_args().kv_dtype()?,
        ..LoadOptions::default()
    };
    let num_tokens = tokens.len();
    let task = Observe { tokens, bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()), progress: &progress };
    let calibration = load::with_model(&args.model_args(), &checkpoint, options, &progress, task)?;
    let text = args.text.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = CalibrationFile::new(&resolved, text, (num_tokens, ctx), calibration)?;
    let path = file.path()?;
    file.write(&path)?;
    show(&file.layers)?;
    output::status(&format!("written to {}; `--softmax auto` uses it from now on", path.display()));
    Ok(())
}

struct Observe<'a> {
    tokens: Vec<u32>,
    /// Takes the place of each chunk's first token: no sequence that is served begins without it.
    bos: Option<u32>,
    progress: &'a dyn Progress,
}

impl ModelTask for Observe<'_> {
    type Output = Calibration;

    fn run<B: Backend>(mut self, mut model: Llama<B>) -> Result<Calibration> {
        for chunk in self.tokens.chunks_mut(model.context_len()) {
            chunk[0] = self.bos.unwrap_or(chunk[0]);
        }
        self.progress.start("tokens", Some(self.tokens.len() as u64));
        let mut before = 0;
        let calibration = Calibration::measure(&mut model, &self.tokens, &mut |done| {
            self.progress.advance((done - before) as u64);
            before = done;
        });
        self.progress.finish();
        Ok(calibration?)
    }
}

/// A line per layer and KV head.
fn show(calibration: &Calibration) -> Result<()> {
    let mut table = list::table(&["layer", "KV head", "phi", "a", "b", "recomputed, predicted", "softmax"]);
    for column in 0..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (index, layer) in calibration.layers.iter().enumerate() {
        for (kv_head, head) in layer.heads.iter().enumerate() {
            table.add_row([
                index.to_string(),
                kv_head.to_string(),
                head.phi.to_string(),
                head.a.to_string(),
                head.b.to_string(),
                format!("{:.4} %", head.predicted_rate * 100.0),
                if layer.excluded { "online" } else { "calibrated" }.to_string(),
            ]);
        }
    }
    output::line(&table.trim_fmt())?;
    let excluded = calibration.layers.iter().filter(|layer| layer.excluded).count();
    output::line(&format!("{excluded} of {} layers keep the online softmax", calibration.layers.len()))
}
