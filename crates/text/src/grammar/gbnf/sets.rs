//! Sets of bytes, and what continues a lexeme.

use std::collections::HashSet;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder, StateID};

use super::KIND;
use crate::grammar::GrammarError;

/// States of a lexeme's automaton that are looked at; a larger one counts as continued by everything.
const MAX_STATES: usize = 512;
/// Work on one state at most, in the library's unit.
const MAX_FUEL: u64 = 1_000_000;

/// A set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteSet([u128; 2]);

impl ByteSet {
    pub(super) const EMPTY: ByteSet = ByteSet([0; 2]);
    const ALL: ByteSet = ByteSet([u128::MAX; 2]);

    pub(super) fn with(mut self, byte: u8) -> ByteSet {
        self.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
        self
    }

    pub(super) fn union(self, other: ByteSet) -> ByteSet {
        ByteSet([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    pub(super) fn meets(self, other: ByteSet) -> bool {
        self.0[0] & other.0[0] != 0 || self.0[1] & other.0[1] != 0
    }

    /// At least the bytes that characters of a class begin with.
    pub(super) fn of_class(ranges: &[(char, char)], negated: bool) -> ByteSet {
        let first = |letter: char| {
            let mut bytes = [0; 4];
            letter.encode_utf8(&mut bytes);
            bytes[0]
        };
        if negated {
            let is_excluded = |byte: u8| ranges.iter().any(|range| (range.0..=range.1).contains(&char::from(byte)));
            let ascii = (0..128).filter(|&byte| !is_excluded(byte));
            return ascii.chain(0xc2..=0xf4).fold(ByteSet::EMPTY, ByteSet::with);
        }
        ranges.iter().flat_map(|&(low, high)| first(low)..=first(high)).fold(ByteSet::EMPTY, ByteSet::with)
    }
}

/// What is known of a regular expression.
pub(super) struct Lexeme {
    pub(super) may_be_empty: bool,
    /// The bytes that may come behind a whole match and still be part of a longer one.
    pub(super) continued_by: ByteSet,
}

impl Lexeme {
    /// Goes through the states of the expression's automaton.
    pub(super) fn new(expression: &str) -> Result<Lexeme, GrammarError> {
        let invalid = |error: &dyn std::fmt::Display| GrammarError::invalid(KIND, error.to_string());
        let mut builder = RegexBuilder::new();
        let root = builder.mk(&RegexAst::Regex(expression.to_owned())).map_err(|error| invalid(&error))?;
        let mut regex: Regex = builder.into_regex_limited(root, MAX_FUEL).map_err(|error| invalid(&error))?;
        let initial = regex.initial_state();
        let may_be_empty = regex.is_accepting(initial);
        let mut continued_by = ByteSet::EMPTY;
        let mut seen: HashSet<StateID> = HashSet::from([initial]);
        let mut waiting = vec![initial];
        while let Some(state) = waiting.pop() {
            let is_accepting = regex.is_accepting(state);
            for byte in 0..=255 {
                let next = regex.transition(state, byte);
                if next.is_dead() {
                    continue;
                }
                if is_accepting {
                    continued_by = continued_by.with(byte);
                }
                if seen.insert(next) {
                    waiting.push(next);
                }
            }
            if seen.len() > MAX_STATES {
                return Ok(Lexeme { may_be_empty, continued_by: ByteSet::ALL });
            }
        }
        Ok(Lexeme { may_be_empty, continued_by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &[u8]) -> ByteSet {
        text.iter().copied().fold(ByteSet::EMPTY, ByteSet::with)
    }

    fn check(expression: &str, may_be_empty: bool, continued_by: &[u8]) {
        let lexeme = Lexeme::new(expression).unwrap();
        assert_eq!(lexeme.may_be_empty, may_be_empty, "{expression}");
        assert_eq!(lexeme.continued_by, bytes(continued_by), "{expression}");
    }

    #[test]
    fn a_lexeme_is_continued_by_what_makes_a_longer_match() {
        check("abc", false, b"");
        check("(?:in|int)", false, b"t");
        check("(?:a|abx)b", false, b"x");
        check("[ab]*", true, b"ab");
        check("\"(?:[^\"\\\\]|\\\\n)*\"", false, b"");
    }

    #[test]
    fn classes_begin_with_the_first_bytes_of_their_characters() {
        assert_eq!(ByteSet::of_class(&[('a', 'c'), ('é', 'é')], false), bytes(b"abc\xc3"));
        let others = ByteSet::of_class(&[('a', 'z')], true);
        assert!(!others.meets(bytes(b"amz")) && others.meets(bytes(b"A")) && others.meets(bytes(b"\xf0")));
    }
}
