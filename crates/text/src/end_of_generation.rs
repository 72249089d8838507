//! Which tokens end a generation.
//!
//! A file names one EOS, but chat models end a turn with another token, and many files name the wrong one of the two.
//! So, as llama.cpp does, tokens are also known by their texts. They count as control tokens whatever the file says of
//! them, or they would show up in answers. One exception is ours: in Qwen's vocabulary `</s>` is an ordinary token, the
//! end of struck-out text in HTML, and stays one.

use taper_checkpoint::Metadata;

use crate::Error;
use crate::vocabulary::{TokenKind, Vocabulary};

/// End of a text, of a turn, or of a message before a tool call, in the families that share our vocabularies.
const END_TEXTS: &[&str] = &[
    "</s>",
    "<EOT>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
    "_<EOT>",
];

/// Borders between files in the training data of code models: after one, the model invents another file.
const FILE_BORDER_TEXTS: &[&str] = &[
    "<PAD>",
    "<REPO>",
    "<fim-pad>",
    "<fim-repo>",
    "<fim_pad>",
    "<reponame>",
    "<|file_sep|>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "[PAD]",
];

/// Keys that name such tokens.
const KEYS: &[&str] = &[
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// The ids that end a generation, ascending; marks well-known texts as control tokens.
pub(crate) fn find(metadata: &Metadata, vocabulary: &mut Vocabulary) -> Result<Vec<u32>, Error> {
    let mut ends = Vec::new();
    for key in KEYS {
        ends.extend(vocabulary.special_id(metadata, key)?);
    }
    for &text in END_TEXTS.iter().chain(FILE_BORDER_TEXTS) {
        if let Some(&id) = vocabulary.ids.get(text) {
            if text == "</s>" && vocabulary.kinds[id as usize] == TokenKind::Normal {
                continue;
            }
            ends.push(id);
            vocabulary.kinds[id as usize] = TokenKind::Control;
        }
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
