//! The state of one sequence under its grammar.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;

use super::json_bounds::JsonPosition;
use super::vocabulary::TokenSets;
use super::{BitMask, GrammarError};

/// What a sequence may say next. A clone is independent of its original, and may go to another thread.
///
/// Tokens that end a generation never reach the parser: they are allowed exactly where the grammar may end, and once one is
/// accepted nothing but them may follow.
pub struct Grammar {
    /// Boxed: it is a kilobyte, and grammars travel between threads at each token.
    matcher: Box<Matcher>,
    sets: Arc<TokenSets>,
    /// Control tokens that the grammar names; it reaches no others.
    named: Arc<[u32]>,
    /// Of a grammar of JSON, where the text stands at its beginning and behind each accepted token of text.
    positions: Option<Vec<JsonPosition>>,
    /// Accepted tokens of text.
    num_text: usize,
    /// Accepted tokens that end a generation; they come last.
    num_ends: usize,
}

impl Clone for Grammar {
    fn clone(&self) -> Grammar {
        // Deep: a shallow clone shares its lexer, and one sequence's fault or appetite for states would be all sequences'.
        let matcher = Box::new(self.matcher.deep_clone());
        let (sets, named) = (Arc::clone(&self.sets), Arc::clone(&self.named));
        Grammar { matcher, sets, named, positions: self.positions.clone(), ..*self }
    }
}

impl Grammar {
    /// At its beginning. Masks of a grammar of JSON, which begins at `start`, keep to the bounds of the module `json_bounds`.
    pub(super) fn new(matcher: Matcher, sets: Arc<TokenSets>, named: Vec<u32>, start: Option<JsonPosition>) -> Grammar {
        let positions = start.map(|start| vec![start]);
        Grammar { matcher: Box::new(matcher), sets, named: named.into(), positions, num_text: 0, num_ends: 0 }
    }

    /// Whether a grammar may ever ask for the token.
    fn is_reachable(&self, token: u32) -> bool {
        self.sets.text.contains(token) || self.named.contains(&token)
    }

    /// An empty mask of the vocabulary's size.
    pub fn empty_mask(&self) -> BitMask {
        BitMask::new(self.sets.text.num_tokens())
    }

    /// The tokens that may come next, into a mask of [`Grammar::empty_mask`]'s size. There is at least one.
    ///
    /// Of JSON, what would make a number or the nesting endless is left out where there is another way: what
    /// [`Grammar::accept`] takes is more than what is here. Where bytes are forced, only their usual tokenization is allowed: see [`Grammar::forced`].
    pub fn mask(&mut self, mask: &mut BitMask) -> Result<(), GrammarError> {
        if self.is_finished() {
            mask.assign(&self.sets.ends);
        } else {
            let allowed = self.matcher.compute_mask().map_err(stuck)?;
            mask.assign_and(allowed.as_slice(), &self.sets.text);
            self.named.iter().filter(|&&token| allowed.is_allowed(token)).for_each(|&token| mask.insert(token));
            if self.may_end() {
                mask.union(&self.sets.ends);
            }
            if let Some(positions) = &self.positions {
                let position = positions.last().copied().unwrap_or_default();
                position.narrow(mask, &self.sets.growing, &self.sets.tokenizer);
            }
        }
        if mask.num_set() == 0 {
            return Err(GrammarError::Stuck("no token of the vocabulary continues it".to_owned()));
        }
        Ok(())
    }

    /// Takes the token that came next. A refused token changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.sets.ends.contains(token) {
            if !self.may_end() {
                return Err(GrammarError::Refused(token));
            }
            self.num_ends += 1;
            return Ok(());
        }
        let is_valid = self.num_ends == 0
            && self.is_reachable(token)
            && self.matcher.validate_tokens(&[token]).map_err(stuck)? == 1;
        if !is_valid {
            return Err(GrammarError::Refused(token));
        }
        self.matcher.consume_token(token).map_err(stuck)?;
        self.num_text += 1;
        if let Some(positions) = &mut self.positions {
            let position = positions.last().copied().unwrap_or_default();
            positions.push(position.behind(self.sets.tokenizer.token_bytes(token).unwrap_or_default()));
        }
        Ok(())
    }

    /// Takes back the last `num` accepted tokens.
    pub fn rollback(&mut self, num: usize) -> Result<(), GrammarError> {
        assert!(num <= self.num_accepted(), "{num} tokens of {} cannot be taken back", self.num_accepted());
        let num_ends = num.min(self.num_ends);
        self.matcher.rollback(num - num_ends).map_err(stuck)?;
        // The library keeps its last mask by the lexer's state and the parser's depth, which another text may have too.
        self.matcher.invalidate_bias_cache();
        self.num_ends -= num_ends;
        self.num_text -= num - num_ends;
        if let Some(positions) = &mut self.positions {
            positions.truncate(1 + self.num_text);
        }
        Ok(())
    }

    /// The tokens that must come next, none of them accepted yet: the usual tokenization of the bytes that every
    /// continuation begins with. The last bytes are left out where a longer token could begin with them, so the model still
    /// chooses among all tokenizations that are usual for what follows. Words are split as the tokenizer would split the
    /// forced bytes behind the last token alone; a split that depends on text further back may differ from the usual one.
    pub fn forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        if self.is_finished() {
            return Ok(Vec::new());
        }
        let forced = self.matcher.compute_ff_tokens();
        match self.matcher.get_error() {
            Some(error) => Err(stuck(error)),
            None => Ok(if forced.iter().all(|&token| self.is_reachable(token)) { forced } else { Vec::new() }),
        }
    }

    /// Tokens that close a JSON string, array or object.
    pub(super) fn closing(&self) -> &BitMask {
        &self.sets.closing
    }

    /// Accepted tokens.
    pub fn num_accepted(&self) -> usize {
        self.num_text + self.num_ends
    }

    /// Whether nothing may follow but a token that ends a generation.
    pub fn is_finished(&self) -> bool {
        self.num_ends > 0 || matches!(self.matcher.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
    }

    /// Whether the text so far is complete; it may go on nevertheless.
    pub fn may_end(&mut self) -> bool {
        self.is_finished() || self.matcher.is_accepting().unwrap_or(false)
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("num_accepted", &self.num_accepted())
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

fn stuck(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::Stuck(super::compiler::first_lines(&error.to_string()))
}
