//! Small vocabularies of both kinds for the tests of this crate, as GGUF files so that reading them is tested too.

use taper_checkpoint::Checkpoint;
use taper_testkit::gguf::{GgufBuilder, Value};
use taper_testkit::vocab::ByteVocab;

use crate::{EncodeOptions, Error, Tokenizer};

/// Every byte, a dozen merges, and `<|endoftext|>`, `<|im_start|>`, `<|im_end|>` as control tokens.
pub(crate) fn byte_level() -> GgufBuilder {
    let vocab = ByteVocab::new(taper_testkit::vocab::MIN_TOKENS);
    GgufBuilder::new(3)
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &vocab.tokens)
        .i32s("tokenizer.ggml.token_type", &vocab.token_types)
        .strings("tokenizer.ggml.merges", &vocab.merges)
        .u32("tokenizer.ggml.bos_token_id", vocab.id("<|im_start|>"))
        .u32("tokenizer.ggml.eos_token_id", vocab.id("<|im_end|>"))
}

/// The pieces of [`sentence_piece`] with their scores; ids follow the 3 special tokens and 256 bytes.
pub(crate) const PIECES: [(&str, f32); 16] = [
    ("aa", -1.0),
    ("▁a", -2.0),
    ("aaa", -3.0),
    ("he", -4.0),
    ("ll", -5.0),
    ("hell", -6.0),
    ("hello", -7.0),
    ("▁hello", -8.0),
    ("▁▁", -9.0),
    ("▁", -20.0),
    ("a", -21.0),
    ("e", -22.0),
    ("h", -23.0),
    ("l", -24.0),
    ("o", -25.0),
    ("s", -26.0),
];

/// `<unk>`, `<s>`, `</s>`, the 256 bytes, [`PIECES`], and `<tool>`, added by a user.
pub(crate) fn sentence_piece() -> GgufBuilder {
    let mut pieces = PIECES.map(|(piece, score)| (piece, 1, score)).to_vec();
    pieces.push(("<tool>", 4, 0.0));
    taper_testkit::vocab::sentence_piece(&pieces)
}

pub(crate) fn tokenizer(file: &GgufBuilder) -> Result<Tokenizer, Error> {
    let path = tempfile::NamedTempFile::new().expect("there is room").into_temp_path();
    std::fs::write(&path, file.build()).expect("there is room");
    Tokenizer::from_metadata(Checkpoint::open(&path)?.metadata())
}

/// The string arrays of a file with one element replaced or added.
pub(crate) fn with_string(file: GgufBuilder, key: &str, at: usize, text: &str) -> GgufBuilder {
    let value = file.keys().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
    let Some(Value::Array(kind, mut items)) = value else { panic!("{key} is no array") };
    let text = Value::String(text.into());
    if at < items.len() {
        items[at] = text;
    } else {
        items.push(text);
    }
    file.set(key, Value::Array(kind, items))
}

/// The texts of the tokens of `text`, special tokens parsed.
pub(crate) fn pieces<'t>(tokenizer: &'t Tokenizer, text: &str) -> Vec<&'t str> {
    let ids = tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: false });
    ids.expect("it can be encoded").iter().map(|&id| tokenizer.token_text(id).expect("it is a token")).collect()
}
