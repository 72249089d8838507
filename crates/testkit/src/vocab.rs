//! Vocabularies of both kinds: a byte-level one as GPT-2's tokenizer writes it, where every byte has a token whose id is the byte,
//! and one of SentencePiece's.

use crate::gguf::GgufBuilder;

/// Control tokens, in this order after the bytes and merges.
pub const SPECIAL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Merges by rank, in the vocabulary's own letters (`Ġ` is the space). Each result is a token after the bytes.
pub const MERGES: [(&str, &str); 12] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("o", "n"),
    ("Ġ", "a"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("in", "g"),
    ("Ċ", "Ċ"),
];

/// The smallest vocabulary.
pub const MIN_TOKENS: usize = 256 + MERGES.len() + SPECIAL_TOKENS.len();

/// The chat template that goes with the special tokens.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Tokens, their types, and merges.
#[derive(Debug, Clone)]
pub struct ByteVocab {
    /// The text of each token.
    pub tokens: Vec<String>,
    /// 1 normal, 3 control, 5 unused.
    pub token_types: Vec<i32>,
    /// Pairs, by rank.
    pub merges: Vec<String>,
}

impl ByteVocab {
    /// A vocabulary of `num_tokens`, filled up with unused tokens.
    pub fn new(num_tokens: usize) -> ByteVocab {
        assert!(num_tokens >= MIN_TOKENS, "a byte vocabulary has at least {MIN_TOKENS} tokens, not {num_tokens}");
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_letter(byte).to_string()).collect();
        tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
        let mut token_types = vec![1; tokens.len()];
        tokens.extend(SPECIAL_TOKENS.map(str::to_owned));
        token_types.resize(tokens.len(), 3);
        tokens.extend((tokens.len()..num_tokens).map(|id| format!("<|unused_{id}|>")));
        token_types.resize(tokens.len(), 5);
        let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
        ByteVocab { tokens, token_types, merges }
    }

    /// The id of a token by its text.
    pub fn id(&self, text: &str) -> u32 {
        let id = self.tokens.iter().position(|token| token == text);
        id.unwrap_or_else(|| panic!("no token {text:?}")) as u32
    }
}

/// The letter that stands for a byte: printable Latin-1 stands for itself, the others follow from U+0100 on.
pub fn byte_letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let num_before = (0..byte).filter(|&other| !is_printable(other)).count() as u32;
    char::from_u32(0x100 + num_before).expect("at most 68 bytes are not printable")
}

/// A file with SentencePiece's vocabulary: `<unk>`, `<s>`, `</s>`, the 256 bytes, and these pieces with their types (1 normal, 3
/// control, 4 added by a user) and scores.
pub fn sentence_piece(pieces: &[(&str, i32, f32)]) -> GgufBuilder {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    let mut scores = vec![0.0; tokens.len()];
    for (piece, kind, score) in pieces {
        tokens.push((*piece).to_owned());
        types.push(*kind);
        scores.push(*score);
    }
    GgufBuilder::new(3)
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_have_gpt2s_letters() {
        assert_eq!([b' ', b'\n', b'a', 0x7f, 0xad].map(byte_letter), ['Ġ', 'Ċ', 'a', 'ġ', 'Ń']);
    }

    #[test]
    fn tokens_are_distinct_and_merges_make_tokens() {
        let vocab = ByteVocab::new(300);
        assert_eq!(vocab.tokens.len(), 300);
        assert_eq!(vocab.token_types.len(), 300);
        assert_eq!(vocab.tokens.iter().collect::<HashSet<_>>().len(), 300);
        for merge in &vocab.merges {
            let (left, right) = merge.split_once(' ').unwrap();
            vocab.id(left);
            vocab.id(right);
            vocab.id(&format!("{left}{right}"));
        }
        assert_eq!(vocab.id("a"), u32::from(b'a'));
    }
}
