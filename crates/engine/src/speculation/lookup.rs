//! Where the last tokens of a sequence stood before.

use super::acceptance::{Class, Guess};
use std::collections::HashMap;

/// Beyond this a longer match says nothing more.
const LONGEST_MATCH: usize = 32;
/// Earlier places that are compared, latest first.
const MAX_PLACES: usize = 16;

/// An index of a sequence's own tokens, which it does not keep: for every pair of neighbours, the places where it ends, and
/// for every token the last one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lookup {
    /// The last place where a pair ends.
    latest_pair: HashMap<[u32; 2], usize>,
    /// The place before that where the pair ending here ends; `usize::MAX` when there is none.
    earlier: Vec<usize>,
    /// The last place of a token.
    latest_single: HashMap<u32, usize>,
    /// The place before that of the last token.
    single: Option<usize>,
}

impl Lookup {
    /// An index of `tokens`.
    pub(crate) fn new(tokens: &[u32]) -> Self {
        let mut lookup = Lookup::default();
        (1..=tokens.len()).for_each(|len| lookup.note_last(&tokens[..len]));
        lookup
    }

    /// Takes in the last of `tokens`; it has seen those before.
    pub(crate) fn note_last(&mut self, tokens: &[u32]) {
        let place = self.earlier.len();
        debug_assert_eq!(place + 1, tokens.len(), "tokens are indexed one by one");
        let earlier = tokens.last_chunk().and_then(|&pair| self.latest_pair.insert(pair, place));
        self.earlier.push(earlier.unwrap_or(usize::MAX));
        self.single = tokens.last().and_then(|&token| self.latest_single.insert(token, place));
    }

    /// At most `max_len` tokens that followed the longest earlier match of the last of `tokens`, the latest among equals. A
    /// single token is a match where no pair is.
    pub(crate) fn guess(&self, tokens: &[u32], max_len: usize) -> Guess {
        let mut best = self.single.map(|place| (match_len(tokens, place), place));
        let mut place = self.earlier.last().copied().unwrap_or(usize::MAX);
        for _ in 0..MAX_PLACES {
            if place == usize::MAX {
                break;
            }
            let match_len = match_len(tokens, place);
            if best.is_none_or(|(longest, _)| match_len > longest) {
                best = Some((match_len, place));
            }
            place = self.earlier[place];
        }
        let Some((match_len, place)) = best else { return Guess::default() };
        // What follows may reach into the last tokens themselves, when a period repeats; then it goes round.
        let period = tokens.len() - 1 - place;
        let guessed: Vec<u32> = (0..max_len).map(|i| tokens[place + 1 + i % period]).collect();
        // Each token that is right makes the match longer by one.
        let classes = (match_len..match_len + guessed.len()).map(Class::matched).collect();
        Guess { tokens: guessed, classes }
    }
}

/// How many tokens up to `place` agree with the last ones.
fn match_len(tokens: &[u32], place: usize) -> usize {
    let (there, here) = (tokens[..=place].iter().rev(), tokens.iter().rev());
    there.zip(here).take(LONGEST_MATCH).take_while(|(there, here)| there == here).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[u32], match_len: usize, guess: &[u32]) {
        let classes = (match_len..match_len + guess.len()).map(Class::matched).collect();
        let expected = Guess { tokens: guess.to_vec(), classes };
        assert_eq!(Lookup::new(tokens).guess(tokens, 3), expected, "after {tokens:?}");
    }

    #[test]
    fn what_followed_before_is_guessed_again() {
        check(&[1, 2, 3, 4, 5, 1, 2], 2, &[3, 4, 5]);
        check(&[1, 2, 3, 4, 5, 1, 2, 3], 3, &[4, 5, 1]);
    }

    #[test]
    fn nothing_is_guessed_after_new_tokens() {
        check(&[], 0, &[]);
        check(&[1], 0, &[]);
        check(&[1, 2, 3, 4], 0, &[]);
    }

    #[test]
    fn a_single_token_is_a_match_where_no_pair_is() {
        check(&[1, 9, 9, 2, 1], 1, &[9, 9, 2]);
        check(&[1, 8, 1, 7, 2, 1], 1, &[7, 2, 1]);
    }

    #[test]
    fn the_longest_match_counts_and_the_latest_among_equals() {
        check(&[7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2], 3, &[30, 8, 1]);
        check(&[1, 2, 30, 8, 1, 2, 40, 9, 1, 2], 2, &[40, 9, 1]);
    }

    #[test]
    fn a_period_goes_on() {
        check(&[5, 6, 5, 6, 5, 6], 4, &[5, 6, 5]);
        check(&[5, 5, 5], 2, &[5, 5, 5]);
    }
}
