//! The vocabulary as the file has it, checked: texts, kinds, scores and the ids of special tokens.
//!
//! Everything here came from a file that anyone may have made, so every length and id is checked once, here; the rest
//! of the crate may rely on it: one kind per text, no text twice, ids in range.

use ahash::AHashMap;
use taper_checkpoint::Metadata;

use crate::Error;
use crate::error::quoted;

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// What a token is for; the numbers are GGUF's `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A piece of ordinary text.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Steers the model; never part of the text.
    Control,
    /// Added to the vocabulary by hand: found in any text before all other splitting.
    UserDefined,
    /// A place holder.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    fn from_gguf(number: i32) -> TokenKind {
        match number {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            // 0 is "undefined"; text is the useful reading of it and of numbers yet to come.
            _ => TokenKind::Normal,
        }
    }

    /// Whether [`crate::Tokenizer::decode`] leaves the token out when asked to skip special ones.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown | TokenKind::Unused)
    }
}

/// Texts and kinds by id, and ids by text.
pub(crate) struct Vocabulary {
    pub(crate) texts: Vec<String>,
    pub(crate) kinds: Vec<TokenKind>,
    pub(crate) ids: AHashMap<String, u32>,
}

impl Vocabulary {
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Vocabulary, Error> {
        let texts = metadata.require_strings(TOKENS)?.to_vec();
        if texts.is_empty() {
            return Err(bad(TOKENS, "it holds no token"));
        }
        // Ids travel as u32, and some callers keep them as i32.
        if texts.len() > i32::MAX as usize {
            return Err(bad(TOKENS, format!("it holds {} tokens", texts.len())));
        }
        let kinds = match metadata.i32s(TOKEN_TYPE)? {
            Some(numbers) => {
                same_length(TOKEN_TYPE, numbers.len(), texts.len())?;
                numbers.into_iter().map(TokenKind::from_gguf).collect()
            }
            None => vec![TokenKind::Normal; texts.len()],
        };
        let mut ids = AHashMap::with_capacity(texts.len());
        for (id, text) in (0u32..).zip(&texts) {
            // Several empty texts occur in real files as place holders; nothing can be looked up by one.
            if text.is_empty() {
                continue;
            }
            if let Some(first) = ids.insert(text.clone(), id) {
                return Err(bad(TOKENS, format!("tokens {first} and {id} are both {}", quoted(text))));
            }
        }
        Ok(Vocabulary { texts, kinds, ids })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The value of a `..._token_id` key.
    pub(crate) fn special_id(&self, metadata: &Metadata, key: &'static str) -> Result<Option<u32>, Error> {
        match metadata.u32(key)? {
            Some(id) if id as usize >= self.len() => {
                Err(bad(key, format!("it is {id}, but the vocabulary has {} tokens", self.len())))
            }
            id => Ok(id),
        }
    }

    /// The byte that a token of kind [`TokenKind::Byte`] stands for.
    pub(crate) fn byte(&self, id: usize) -> Result<u8, Error> {
        let text = &self.texts[id];
        let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        digits
            .filter(|digits| digits.len() == 2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(|| bad(TOKENS, format!("byte token {id} is {}; expected <0x00> to <0xFF>", quoted(text))))
    }
}

pub(crate) fn same_length(key: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(bad(key, format!("it has {found} elements, but {TOKENS} has {expected}")))
}

pub(crate) fn bad(key: &'static str, reason: impl Into<String>) -> Error {
    Error::BadVocabulary { key, reason: reason.into() }
}
