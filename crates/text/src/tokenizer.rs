//! The tokenizer of a model: text to ids and ids to text.

use taper_checkpoint::Metadata;

use crate::byte_level::{self, ByteLevelBpe};
use crate::detokenizer::Assembler;
use crate::error::quoted;
use crate::sentence_piece::{self, SentencePiece};
use crate::special_tokens::{Fragment, SpecialTokens};
use crate::vocabulary::{ADD_BOS, TokenKind, Vocabulary, bad};
use crate::{Error, Prompt, end_of_generation};

const MODEL: &str = "tokenizer.ggml.model";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// How a text is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// The text comes from a chat template, so `<|im_end|>` in it is the token. Off for text that a user typed: there
    /// the same characters are ordinary text and cannot end a turn.
    pub parse_special: bool,
    /// Prepend BOS, if the file says that the model wants one and the tokens do not begin with it already.
    pub add_bos: bool,
}

/// Text to token ids and back, for one model. Made once and shared between threads.
///
/// `decode(encode(text))` gives the text again, except for bytes that the vocabulary has no token for (see the module
/// `byte_level`) and for `▁` in SentencePiece vocabularies, which is their blank.
pub struct Tokenizer {
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
    /// All tokens' bytes one after the other; token `i` is `piece_bytes[piece_ends[i - 1]..piece_ends[i]]`.
    piece_bytes: Vec<u8>,
    piece_ends: Vec<usize>,
    encoder: Encoder,
    special: SpecialTokens,
    special_ids: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    end_of_generation: Vec<u32>,
    adds_bos: bool,
    adds_eos: bool,
    /// A blank is put before each stretch of text, and taken away again when decoding.
    space_prefix: bool,
}

/// Tokens of one text, fragment by fragment.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// SentencePiece puts its blank at the start of the text and behind every special token.
    starts_text: bool,
}

impl<'a> Writer<'a> {
    fn new(tokenizer: &'a Tokenizer, text_len: usize) -> Writer<'a> {
        Writer { tokenizer, ids: Vec::with_capacity(text_len / 3 + 2), starts_text: true }
    }

    fn push(&mut self, fragments: &[Fragment<'_>]) -> Result<(), Error> {
        for fragment in fragments {
            match fragment {
                Fragment::Token(id) => self.ids.push(*id),
                Fragment::Text(text) => match &self.tokenizer.encoder {
                    Encoder::ByteLevelBpe(bpe) => bpe.encode(text, &mut self.ids)?,
                    Encoder::SentencePiece(model) => {
                        model.encode(text, self.tokenizer.space_prefix && self.starts_text, &mut self.ids);
                    }
                },
            }
            self.starts_text = matches!(fragment, Fragment::Token(_));
        }
        Ok(())
    }
}

enum Encoder {
    ByteLevelBpe(Box<ByteLevelBpe>),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// Reads the vocabulary of a GGUF file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let sentence_piece = match metadata.require_string(MODEL)? {
            "gpt2" => false,
            "llama" => true,
            other => {
                let supported = "gpt2 (byte-level BPE), llama (SentencePiece BPE)".to_owned();
                return Err(Error::UnsupportedModel { found: quoted(other), supported });
            }
        };
        let mut vocabulary = Vocabulary::from_metadata(metadata)?;
        let bos = vocabulary.special_id(metadata, BOS)?;
        let eos = vocabulary.special_id(metadata, EOS)?;
        let unknown = vocabulary.special_id(metadata, UNKNOWN)?;
        let end_of_generation = end_of_generation::find(metadata, &mut vocabulary)?;

        let encoder = if sentence_piece {
            Encoder::SentencePiece(SentencePiece::new(metadata, &vocabulary, unknown)?)
        } else {
            Encoder::ByteLevelBpe(Box::new(ByteLevelBpe::new(metadata, &vocabulary)?))
        };
        let adds_bos = match (metadata.bool(ADD_BOS)?, &encoder) {
            (Some(true), _) if bos.is_none() => return Err(bad(ADD_BOS, format!("it is true, but {BOS} is missing"))),
            (Some(adds), _) => adds,
            (None, Encoder::SentencePiece(_)) => true,
            (None, Encoder::ByteLevelBpe(bpe)) => bpe.adds_bos_by_default(),
        };
        let space_prefix = sentence_piece && metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);

        let mut piece_bytes = Vec::new();
        let mut piece_ends = Vec::with_capacity(vocabulary.len());
        for (id, (text, kind)) in vocabulary.texts.iter().zip(&vocabulary.kinds).enumerate() {
            match kind {
                TokenKind::Normal if sentence_piece => piece_bytes.extend(sentence_piece::decode(text)),
                TokenKind::Normal => piece_bytes.extend(byte_level::decode(text)),
                TokenKind::Byte => piece_bytes.push(vocabulary.byte(id)?),
                _ => piece_bytes.extend(text.bytes()),
            }
            piece_ends.push(piece_bytes.len());
        }

        let special = SpecialTokens::new(&vocabulary);
        let Vocabulary { texts, kinds, .. } = vocabulary;
        let special_ids = (0u32..).zip(&kinds).filter(|(_, kind)| kind.is_special()).map(|(id, _)| id).collect();
        Ok(Tokenizer {
            texts,
            kinds,
            piece_bytes,
            piece_ends,
            encoder,
            special,
            special_ids,
            bos,
            eos,
            end_of_generation,
            adds_bos,
            adds_eos: metadata.bool(ADD_EOS)?.unwrap_or(false),
            space_prefix,
        })
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        let mut writer = Writer::new(self, text.len());
        writer.push(&self.special.split(text, options.parse_special))?;
        Ok(self.with_bos(writer.ids, options.add_bos))
    }

    /// The tokens of a stretch of text that continues another: no blank is put before it, no control token parsed.
    pub(crate) fn encode_inner(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut writer = Writer::new(self, text.len());
        writer.starts_text = false;
        writer.push(&self.special.split(text, false))?;
        Ok(writer.ids)
    }

    /// The tokens of a conversation: control tokens where the template wrote them, text where a message did.
    pub fn encode_prompt(&self, prompt: &Prompt, add_bos: bool) -> Result<Vec<u32>, Error> {
        let mut writer = Writer::new(self, prompt.marked.len());
        for fragment in self.special.split(&prompt.marked, true) {
            match fragment {
                Fragment::Text(text) if text.contains(prompt.mark) => {
                    writer.push(&self.special.split(&text.replace(prompt.mark, ""), false))?;
                }
                fragment => writer.push(&[fragment])?,
            }
        }
        Ok(self.with_bos(writer.ids, add_bos))
    }

    fn with_bos(&self, mut ids: Vec<u32>, add_bos: bool) -> Vec<u32> {
        if let Some(bos) = self.bos
            && add_bos
            && self.adds_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Where in `text` control tokens begin.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        self.special.find(text).filter(|&(_, id)| self.is_control(id)).map(|(start, _)| start).collect()
    }

    /// The control tokens in `text`.
    pub(crate) fn control_tokens(&self, text: &str) -> Vec<u32> {
        self.special.find(text).map(|(_, id)| id).filter(|&id| self.is_control(id)).collect()
    }

    /// Whether `text` may hold a control token or a border of one.
    pub(crate) fn may_hold_control(&self, text: &str) -> bool {
        self.special.may_touch(text)
    }

    fn is_control(&self, id: u32) -> bool {
        self.kind(id) != Some(TokenKind::UserDefined)
    }

    /// The special token, control or added by a user, that is written so.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        match self.special.split(text, true).as_slice() {
            [Fragment::Token(id)] => Some(*id),
            _ => None,
        }
    }

    /// The same, if it is a control token: one that detokenizers leave out of an answer's text.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        self.special_token(text).filter(|&id| self.is_control(id))
    }

    /// The text of tokens. Bytes that are not UTF-8 become U+FFFD; ids beyond the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut assembler = Assembler::at_start();
        for &id in ids {
            assembler.push(self, id, skip_special, &mut text);
        }
        assembler.finish(&mut text);
        text
    }

    /// The token as the vocabulary writes it (`Ġhello`, `▁hello`, `<|im_end|>`).
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    /// The bytes that a token adds to the text; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.piece_ends.get(id)?;
        let start = if id == 0 { 0 } else { self.piece_ends[id - 1] };
        Some(&self.piece_bytes[start..end])
    }

    /// Number of tokens; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.texts.len()
    }

    /// The token that begins a text, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether [`EncodeOptions::add_bos`] has any effect.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// Every token after which generation ends, ascending: EOS and the ends of turns.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// The token that the model wants behind a text to be embedded, if the file says that it wants one. Behind a text to be continued
    /// it would be in the way.
    pub fn end_of_embedded(&self) -> Option<u32> {
        self.eos.filter(|_| self.adds_eos)
    }

    /// The text of [`Tokenizer::bos`] for chat templates; empty if there is none.
    pub fn bos_text(&self) -> &str {
        self.bos.and_then(|id| self.token_text(id)).unwrap_or_default()
    }

    /// The text of [`Tokenizer::eos`] for chat templates; empty if there is none.
    pub fn eos_text(&self) -> &str {
        self.eos.and_then(|id| self.token_text(id)).unwrap_or_default()
    }

    /// Whether a token is written by templates and never part of an answer's text: the ends of turns, BOS, reserved ones.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id).is_some_and(TokenKind::is_special)
    }

    /// All tokens of which [`Tokenizer::is_special`] is true, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn has_space_prefix(&self) -> bool {
        self.space_prefix
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
