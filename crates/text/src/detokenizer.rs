//! Tokens to text as they come.
//!
//! A token is some bytes, not some characters: an emoji may be spread over four tokens. Bytes are held back until they
//! are whole characters or can no longer become one (then they are U+FFFD, as in a conversion of the whole). Every token
//! costs its own length; nothing is decoded twice.

use std::sync::Arc;

use crate::Tokenizer;
use crate::vocabulary::TokenKind;

/// Bytes of tokens put together to characters. Shared by [`Tokenizer::decode`] and [`Detokenizer`], so they agree.
#[derive(Debug, Clone)]
pub(crate) struct Assembler {
    /// An unfinished character: at most three bytes between calls.
    pending: Vec<u8>,
    /// The next token begins a stretch of text, where encoding would have put a blank.
    starts_text: bool,
}

impl Assembler {
    pub(crate) fn at_start() -> Assembler {
        Assembler { pending: Vec::new(), starts_text: true }
    }

    /// Adds a token and appends to `text` what is certain by now.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, skip_special: bool, text: &mut String) {
        let (Some(kind), Some(mut bytes)) = (tokenizer.kind(id), tokenizer.token_bytes(id)) else { return };
        let parts_text = kind.is_special() || kind == TokenKind::UserDefined;
        if self.starts_text && !parts_text && tokenizer.has_space_prefix() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.starts_text = parts_text;
        if skip_special && kind.is_special() {
            return;
        }
        self.pending.extend_from_slice(bytes);
        self.take_characters(text);
    }

    /// Appends what is left; an unfinished character is U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn take_characters(&mut self, text: &mut String) {
        let mut unfinished = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            // At the very end it may be the beginning of a character.
            let could_continue = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if could_continue && chunks.peek().is_none() {
                unfinished = invalid.len();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - unfinished);
    }
}

/// Incremental detokenizer of one text; special tokens are left out of a generated one.
///
/// All results joined are exactly [`Tokenizer::decode`] of all tokens.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    assembler: Assembler,
    skips_special: bool,
    /// Special tokens that are not left out.
    shown: Arc<[u32]>,
}

impl Detokenizer {
    /// For tokens that begin a text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer { tokenizer, assembler: Assembler::at_start(), skips_special: true, shown: Arc::default() }
    }

    /// For the tokens of a prompt: the text of special ones is part of it.
    pub fn keeping_special(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer { skips_special: false, ..Detokenizer::new(tokenizer) }
    }

    /// For tokens that continue a prompt. Differs from [`Detokenizer::new`] for SentencePiece vocabularies only: after
    /// a prompt that ends in ordinary text, the blank of a first token ` world` is part of the answer.
    pub fn continuing(tokenizer: Arc<Tokenizer>, prompt: &[u32]) -> Detokenizer {
        let mut detokenizer = Detokenizer::new(tokenizer);
        if let Some(kind) = prompt.last().and_then(|&id| detokenizer.tokenizer.kind(id)) {
            detokenizer.assembler.starts_text = kind.is_special() || kind == TokenKind::UserDefined;
        }
        detokenizer
    }

    /// The same, but the text of these special tokens is part of the text.
    #[must_use]
    pub fn showing(mut self, tokens: &[u32]) -> Detokenizer {
        self.shown = tokens.into();
        self
    }

    /// Takes the next token; returns the characters that it completes, which may be none.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        let skips_special = self.skips_special && !self.shown.contains(&id);
        self.assembler.push(&self.tokenizer, id, skips_special, &mut text);
        text
    }

    /// The end: what was held back.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.assembler.finish(&mut text);
        text
    }
}

#[cfg(test)]
mod tests;
