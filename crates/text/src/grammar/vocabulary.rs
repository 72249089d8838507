//! The vocabulary as grammars see it: a trie over the bytes of the tokens that are text, and the sets of tokens that end a
//! generation.
//!
//! Control, unknown and unused tokens have no bytes here, so no grammar can reach them, whatever their name spells. Nor
//! have tokens with the byte FF: it occurs in no UTF-8, and the trie's library marks special tokens with it. Everything
//! else has exactly the bytes that [`Tokenizer::token_bytes`] says, also if two tokens have the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::ParserFactory;
use toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::json_bounds::GrowingTokens;
use super::slices::Slices;
use super::{BitMask, GrammarError, limits, slices};
use crate::Tokenizer;
use crate::vocabulary::TokenKind;

/// Bytes of the longest token that the trie can hold (its nodes count their parents in ten bits).
const MAX_TOKEN_BYTES: usize = 1000;

/// Tokens by what they are to a grammar, and their bytes.
#[derive(Debug)]
pub(super) struct TokenSets {
    /// Tokens that spell text.
    pub(super) text: BitMask,
    /// Tokens that end a generation.
    pub(super) ends: BitMask,
    /// Tokens that close a JSON string, array or object, and do nothing else.
    pub(super) closing: BitMask,
    /// Tokens that can take a JSON text beyond a bound.
    pub(super) growing: GrowingTokens,
    pub(super) tokenizer: Arc<Tokenizer>,
}

/// What every grammar of one model shares.
pub(super) struct GrammarVocabulary {
    pub(super) factory: ParserFactory,
    pub(super) slices: Arc<Slices>,
    pub(super) sets: Arc<TokenSets>,
}

struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    /// What the library sees while it cuts slices of its own, which nobody uses: see [`Slices`].
    no_trie: TokTrie,
    is_complete: AtomicBool,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        if self.is_complete.load(Ordering::Relaxed) { &self.trie } else { &self.no_trie }
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        // Only a text that cannot be tokenized at all falls back on the longest tokens.
        let tokenize = |text: &str| {
            self.tokenizer.encode_inner(text).unwrap_or_else(|_| self.trie.greedy_tokenize(text.as_bytes()))
        };
        self.trie.tokenize_with_greedy_fallback(bytes, tokenize)
    }
}

impl GrammarVocabulary {
    /// Builds the trie: tens of milliseconds for 50,000 tokens.
    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Result<GrammarVocabulary, GrammarError> {
        // The library asserts the sizes that its nodes can hold, and a vocabulary comes from a file that anyone may have made.
        catch_unwind(AssertUnwindSafe(|| GrammarVocabulary::build(tokenizer)))
            .unwrap_or_else(|_| Err(GrammarError::Vocabulary("it does not fit a token trie".to_owned())))
    }

    fn build(tokenizer: &Arc<Tokenizer>) -> Result<GrammarVocabulary, GrammarError> {
        let num_tokens = tokenizer.vocab_size();
        let mut text = BitMask::new(num_tokens);
        let mut ends = BitMask::new(num_tokens);
        let mut closing = BitMask::new(num_tokens);
        for &token in tokenizer.end_of_generation() {
            ends.insert(token);
        }
        let mut words = Vec::with_capacity(num_tokens);
        for token in 0..num_tokens as u32 {
            let word = text_bytes(tokenizer, token).filter(|_| !ends.contains(token)).unwrap_or_default();
            if !word.is_empty() {
                text.insert(token);
                if word.iter().all(|byte| b"\"]},".contains(byte)) {
                    closing.insert(token);
                }
            }
            words.push(word.to_vec());
        }
        let first_end = tokenizer.end_of_generation().first().copied().unwrap_or(INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(num_tokens as u32, first_end), &words);
        let no_trie = TokTrie::from(&TokRxInfo::new(1, INVALID_TOKEN), &[b"a".to_vec()]);
        let is_complete = AtomicBool::new(false);
        let environment = Arc::new(Environment { tokenizer: Arc::clone(tokenizer), trie, no_trie, is_complete });
        let as_library: TokEnv = environment.clone();
        let mut factory = ParserFactory::new(&as_library, InferenceCapabilities::default(), &slices::expressions())
            .map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
        environment.is_complete.store(true, Ordering::Relaxed);
        let slices = Arc::new(Slices::new(&as_library));
        factory.quiet();
        *factory.limits_mut() = limits::parser_limits();
        let growing = GrowingTokens::new(&text, tokenizer);
        let sets = TokenSets { text, ends, closing, growing, tokenizer: Arc::clone(tokenizer) };
        Ok(GrammarVocabulary { factory, slices, sets: Arc::new(sets) })
    }
}

/// The bytes that a token adds to a text; none if it is not text.
fn text_bytes(tokenizer: &Tokenizer, token: u32) -> Option<&[u8]> {
    let kind = tokenizer.kind(token)?;
    // Behind a user's token, a vocabulary with a space prefix drops the next blank: bytes would depend on their neighbours.
    let moves_blanks = kind == TokenKind::UserDefined && tokenizer.has_space_prefix();
    let bytes = tokenizer.token_bytes(token)?;
    let is_text = !kind.is_special() && !moves_blanks && bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&0xff);
    is_text.then_some(bytes)
}
