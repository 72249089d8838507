//! Draft models: the file, whether its vocabulary is that of the large model, and how much it remembers.

use super::{open as open_file, resolve, tokenizer};
use anyhow::{Result, bail};
use taper_checkpoint::Checkpoint;
use taper_hub::Progress;
use taper_kernels::{Backend, KvDtype};
use taper_models::{Llama, LoadOptions};
use taper_text::Tokenizer;

/// Finds and opens a draft model for a model with the vocabulary `large`.
pub(super) fn open(name: &str, large: &Tokenizer, progress: &dyn Progress) -> Result<Checkpoint> {
    let checkpoint = open_file(&resolve(name, progress)?.path)?;
    check_vocabulary(name, &*tokenizer(&checkpoint)?, large)?;
    Ok(checkpoint)
}

/// Guesses are token ids, so an id has to mean the same to both. One may have ids beyond the other's last.
fn check_vocabulary(name: &str, small: &Tokenizer, large: &Tokenizer) -> Result<()> {
    let common = small.vocab_size().min(large.vocab_size()) as u32;
    let differing: Vec<u32> = (0..common).filter(|&id| small.token_text(id) != large.token_text(id)).collect();
    let Some(&first) = differing.first() else { return Ok(()) };
    let text = |tokenizer: &Tokenizer| tokenizer.token_text(first).unwrap_or_default().to_owned();
    bail!(
        "the draft model {name} has another vocabulary than the model: {} of {common} tokens differ, the first is {first}, \
         {:?} there and {:?} here; a draft model of the same family is needed",
        differing.len(),
        text(small),
        text(large)
    )
}

/// As many positions as the large model has, for as many sequences.
pub(super) fn options<B: Backend>(large: &Llama<B>, max_batch: usize, kv_dtype: KvDtype) -> LoadOptions {
    LoadOptions {
        context_len: Some(large.context_len()),
        num_blocks: Some(large.num_blocks()),
        max_logit_rows: max_batch,
        max_rows: LoadOptions::default().max_rows.max(max_batch),
        kv_dtype,
        ..LoadOptions::default()
    }
}
