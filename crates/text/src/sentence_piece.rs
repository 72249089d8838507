//! SentencePiece BPE, the `llama` kind of vocabulary.
//!
//! Blanks become `▁`, one is put before the text (unless the file says no), and then adjacent symbols are merged, the
//! pair whose merged text has the best score first and the leftmost among equals, until no pair is a piece. A
//! character that is no piece is spelled in byte tokens. There is no list of merges: a score is a merge's rank. Runs of
//! one character can be merged in several ways with equal scores, which is why the leftmost rule is part of the
//! algorithm and a precomputed merge list (as `tokenizers` would need) cannot express it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ahash::AHashMap;
use taper_checkpoint::Metadata;

use crate::Error;
use crate::vocabulary::{SCORES, TOKENS, TokenKind, Vocabulary, bad, same_length};

/// What stands for a blank in pieces.
const BLANK: &str = "\u{2581}";

/// The text of a piece with its blanks back.
pub(crate) fn decode(piece: &str) -> Vec<u8> {
    piece.replace(BLANK, " ").into_bytes()
}

/// Encodes ordinary text, special tokens being cut out before.
pub(crate) struct SentencePiece {
    pieces: AHashMap<String, Piece>,
    bytes: Box<[u32; 256]>,
}

#[derive(Clone, Copy)]
struct Piece {
    id: u32,
    score: f32,
}

impl SentencePiece {
    /// `unknown` stands for bytes that have no token.
    pub(crate) fn new(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
    ) -> Result<SentencePiece, Error> {
        let scores = metadata.require_f32s(SCORES)?;
        same_length(SCORES, scores.len(), vocabulary.len())?;
        let mut bytes = [None; 256];
        let mut pieces = AHashMap::with_capacity(vocabulary.len());
        for (id, (text, kind)) in vocabulary.texts.iter().zip(&vocabulary.kinds).enumerate() {
            match kind {
                TokenKind::Byte => bytes[usize::from(vocabulary.byte(id)?)] = Some(id as u32),
                TokenKind::Normal | TokenKind::UserDefined => {
                    pieces.insert(text.clone(), Piece { id: id as u32, score: scores[id] });
                }
                // Text must never become one of these by merging.
                TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => {}
            }
        }
        let mut spelled = Box::new([0; 256]);
        for (byte, id) in bytes.iter().enumerate() {
            spelled[byte] = id.or(unknown).ok_or_else(|| {
                bad(TOKENS, format!("it has neither a token <0x{byte:02X}> nor one for unknown characters"))
            })?;
        }
        Ok(SentencePiece { pieces, bytes: spelled })
    }

    pub(crate) fn encode(&self, text: &str, space_prefix: bool, ids: &mut Vec<u32>) {
        let prefix = if space_prefix { BLANK } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', BLANK));
        let mut merging = Merging::new(self, &text);
        merging.run();
        for symbol in merging.symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let text = &text[symbol.start..symbol.end];
            match self.pieces.get(text) {
                Some(piece) => ids.push(piece.id),
                None => ids.extend(text.bytes().map(|byte| self.bytes[usize::from(byte)])),
            }
        }
    }
}

/// A stretch of the text; empty once it has been merged into its left neighbour.
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible merge of the symbols `left` and `right`, valid while they still end where they did.
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    end: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(other.end.cmp(&self.end))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// The state of merging one text: symbols as a linked list over the text, and a heap of candidates.
struct Merging<'a> {
    model: &'a SentencePiece,
    text: &'a str,
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    fn new(model: &'a SentencePiece, text: &'a str) -> Merging<'a> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, letter))| Symbol {
                start,
                end: start + letter.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Merging { model, text, symbols, candidates: BinaryHeap::new() }
    }

    fn run(&mut self) {
        for left in 0..self.symbols.len() {
            self.consider(Some(left), self.symbols[left].next);
        }
        while let Some(Candidate { left, right, end, .. }) = self.candidates.pop() {
            // Stale when either side was merged away or has grown since.
            let stale = self.symbols[left].next != Some(right) || self.symbols[right].end != end;
            if stale || self.symbols[left].start == self.symbols[left].end {
                continue;
            }
            let next = self.symbols[right].next;
            self.symbols[left].end = end;
            self.symbols[left].next = next;
            self.symbols[right].end = self.symbols[right].start;
            if let Some(next) = next {
                self.symbols[next].previous = Some(left);
            }
            self.consider(self.symbols[left].previous, Some(left));
            self.consider(Some(left), next);
        }
    }

    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let end = self.symbols[right].end;
        if let Some(piece) = self.model.pieces.get(&self.text[self.symbols[left].start..end]) {
            self.candidates.push(Candidate { score: piece.score, left, right, end });
        }
    }
}
