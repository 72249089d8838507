//! Special tokens inside a text: where they stand, and the ordinary text between them.
//!
//! Longer tokens are looked for first over the whole text, and among equals the leftmost; this is llama.cpp's rule.
//! Tokens that a user added to the vocabulary are found in every text. Control tokens are found only where the caller
//! trusts the text: a chat template's `<|im_end|>` ends a turn, the same characters typed by a user do not.

use std::collections::BTreeMap;

use ahash::{AHashMap, AHashSet};

use crate::vocabulary::{TokenKind, Vocabulary};

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

pub(crate) struct SpecialTokens {
    /// Those found in every text.
    user_defined: Finder,
    /// Those and the control tokens.
    all: Finder,
    /// Their first and last characters.
    borders: AHashSet<char>,
}

impl SpecialTokens {
    pub(crate) fn new(vocabulary: &Vocabulary) -> SpecialTokens {
        let of_kinds = |kinds: &[TokenKind]| {
            let tokens = (0u32..).zip(&vocabulary.texts).zip(&vocabulary.kinds);
            let chosen = tokens.filter(|((_, text), kind)| kinds.contains(kind) && !text.is_empty());
            Finder::new(chosen.map(|((id, text), _)| (text.clone(), id)))
        };
        let all = of_kinds(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown]);
        let borders = all.ids.keys().flat_map(|text| text.chars().next().into_iter().chain(text.chars().next_back()));
        SpecialTokens { user_defined: of_kinds(&[TokenKind::UserDefined]), borders: borders.collect(), all }
    }

    /// The special tokens in `text`, of both kinds: where they begin, and which.
    pub(crate) fn find(&self, text: &str) -> impl Iterator<Item = (usize, u32)> + use<> {
        self.all.find(text).into_iter().map(|(start, (_, id))| (start, id))
    }

    /// Whether `text` has the first or the last character of a special token, without which it cannot be part of one
    /// that the text around it begins or ends.
    pub(crate) fn may_touch(&self, text: &str) -> bool {
        text.chars().any(|letter| self.borders.contains(&letter))
    }

    /// The parts of `text` in order; no part is empty.
    pub(crate) fn split<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        let found = if parse_special { &self.all } else { &self.user_defined }.find(text);
        let mut fragments = Vec::with_capacity(2 * found.len() + 1);
        let mut done = 0;
        for (start, (end, id)) in found {
            if done < start {
                fragments.push(Fragment::Text(&text[done..start]));
            }
            fragments.push(Fragment::Token(id));
            done = end;
        }
        if done < text.len() {
            fragments.push(Fragment::Text(&text[done..]));
        }
        fragments
    }
}

struct Finder {
    ids: AHashMap<String, u32>,
    /// The lengths that occur, longest first.
    lengths: Vec<usize>,
    /// The bytes that tokens begin with: most positions of a text are ruled out by this alone.
    first_bytes: [bool; 256],
}

impl Finder {
    fn new(tokens: impl Iterator<Item = (String, u32)>) -> Finder {
        let ids: AHashMap<String, u32> = tokens.collect();
        let mut lengths: Vec<usize> = ids.keys().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut first_bytes = [false; 256];
        for text in ids.keys() {
            first_bytes[usize::from(text.as_bytes()[0])] = true;
        }
        Finder { ids, lengths, first_bytes }
    }

    /// The tokens in `text` that do not overlap: start to (end, id).
    fn find(&self, text: &str) -> BTreeMap<usize, (usize, u32)> {
        let mut found: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        let bytes = text.as_bytes();
        let starts: Vec<usize> = (0..bytes.len()).filter(|&at| self.first_bytes[usize::from(bytes[at])]).collect();
        if starts.is_empty() {
            return found;
        }
        for &length in &self.lengths {
            for &start in &starts {
                let end = start + length;
                let Some(&id) = text.get(start..end).and_then(|candidate| self.ids.get(candidate)) else { continue };
                let covered_before = found.range(..=start).next_back().is_some_and(|(_, &(other, _))| other > start);
                let covered_after = found.range(start..end).next().is_some();
                if !covered_before && !covered_after {
                    found.insert(start, (end, id));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(tokens: &[&str]) -> Finder {
        Finder::new((0u32..).zip(tokens).map(|(id, text)| ((*text).to_owned(), id)))
    }

    fn check(tokens: &[&str], text: &str, expected: &[(usize, u32)]) {
        let found: Vec<_> = finder(tokens).find(text).into_iter().map(|(start, (_, id))| (start, id)).collect();
        assert_eq!(found, expected, "{tokens:?} in {text:?}");
    }

    #[test]
    fn longer_tokens_are_found_first_and_never_overlap() {
        check(&["<a>", "<b>"], "x<a><b>y<a", &[(1, 0), (4, 1)]);
        check(&["  ", "    "], "       ", &[(0, 1), (4, 0)]);
        check(&["ab", "bcd"], "abcd", &[(1, 1)]);
        check(&["aa"], "aaaaa", &[(0, 0), (2, 0)]);
        check(&["é", "🦀"], "aé🦀é", &[(1, 0), (3, 1), (7, 0)]);
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        check(&["<a>"], "", &[]);
        check(&["<a>"], "<<<<", &[]);
        check(&[], "<a>", &[]);
    }
}
