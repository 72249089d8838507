//! Byte-level BPE, the `gpt2` kind of vocabulary.
//!
//! Text is cut into words by a [`PreTokenizer`]; each byte of a word becomes one printable character of a 256-letter
//! alphabet; the merges of the file then join letters into tokens (by `tokenizers`' BPE). A token is those letters, so
//! decoding maps them back to bytes, and any byte string comes back exactly.
//!
//! Some vocabularies lack letters: the default model has none for six control characters and for the bytes F1 and F2,
//! which begin unassigned planes of Unicode. As in llama.cpp and in the authors' own tokenizer, such a byte is left
//! out of the tokens, and nothing is merged across the gap.

use std::sync::LazyLock;

use ahash::{AHashMap, AHashSet};
use taper_checkpoint::Metadata;
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use crate::Error;
use crate::error::quoted;
use crate::pre_tokenizer::PreTokenizer;
use crate::vocabulary::{Vocabulary, bad};

const MERGES: &str = "tokenizer.ggml.merges";

/// The letter of each byte: printable Latin-1 stands for itself, the rest for U+0100 and up in order.
static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("68 code points from U+0100 are all characters")
    })
});

/// The byte of each letter.
static BYTES: LazyLock<AHashMap<char, u8>> = LazyLock::new(|| LETTERS.iter().copied().zip(0u8..=255).collect());

/// The bytes of a token's text. Characters outside the alphabet stand for themselves.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match BYTES.get(&letter) {
            Some(&byte) => bytes.push(byte),
            None => bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

/// Encodes ordinary text, special tokens being cut out before.
pub(crate) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    bpe: BPE,
    /// Which bytes have a token of their own.
    has_letter: [bool; 256],
}

impl ByteLevelBpe {
    pub(crate) fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<ByteLevelBpe, Error> {
        let pre_tokenizer = PreTokenizer::from_metadata(metadata)?;
        let merges = merges(metadata.require_strings(MERGES)?, vocabulary)?;
        let has_letter = LETTERS.map(|letter| vocabulary.ids.contains_key(letter.encode_utf8(&mut [0; 4]) as &str));
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary.ids.clone(), merges)
            .ignore_merges(pre_tokenizer.whole_words_first())
            .build()
            .map_err(|error| bad(MERGES, error.to_string()))?;
        Ok(ByteLevelBpe { pre_tokenizer, bpe, has_letter })
    }

    pub(crate) fn adds_bos_by_default(&self) -> bool {
        self.pre_tokenizer.adds_bos()
    }

    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Error> {
        let mut letters = String::new();
        for word in self.pre_tokenizer.words(text) {
            // One run per stretch of bytes that have letters; nearly always the whole word.
            for run in word.as_bytes().split(|&byte| !self.has_letter[usize::from(byte)]) {
                letters.clear();
                letters.extend(run.iter().map(|&byte| LETTERS[usize::from(byte)]));
                let tokens =
                    self.bpe.tokenize(&letters).map_err(|error| Error::Encode { reason: error.to_string() })?;
                ids.extend(tokens.iter().map(|token| token.id));
            }
        }
        Ok(())
    }
}

/// `"left right"` lines as pairs, each checked: both halves and their sum are tokens, none occurs twice.
fn merges(lines: &[String], vocabulary: &Vocabulary) -> Result<Vec<(String, String)>, Error> {
    let mut pairs = Vec::with_capacity(lines.len());
    let mut seen = AHashSet::with_capacity(lines.len());
    let mut joined = String::new();
    for (rank, line) in lines.iter().enumerate() {
        let Some((left, right)) = line.split_once(' ') else {
            return Err(bad(MERGES, format!("merge {rank} is {}; expected two tokens and a space", quoted(line))));
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocabulary.ids.contains_key(token) {
                let reason = format!("merge {rank} needs {}, which is not in the vocabulary", quoted(token));
                return Err(bad(MERGES, reason));
            }
        }
        // The first of two equal merges has the better rank and counts.
        if seen.insert(line.as_str()) {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_gpt2s_and_distinct() {
        assert_eq!((LETTERS[b'A' as usize], LETTERS[b' ' as usize], LETTERS[b'\n' as usize]), ('A', 'Ġ', 'Ċ'));
        assert_eq!((LETTERS[0x00], LETTERS[0x7F], LETTERS[0xAD], LETTERS[0xFF]), ('Ā', 'ġ', 'Ń', 'ÿ'));
        assert_eq!(BYTES.len(), 256);
    }

    #[test]
    fn decoding_gives_back_every_byte() {
        let all: String = LETTERS.iter().collect();
        assert_eq!(decode(&all), (0..=255).collect::<Vec<u8>>());
        assert_eq!(decode("▁"), "▁".as_bytes(), "outside the alphabet");
    }
}
