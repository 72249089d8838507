//! Stop strings in a text that comes in pieces.
//!
//! Each stop string keeps the length of its longest beginning that the text so far ends with (Knuth, Morris and Pratt).
//! When one is complete, the text ends before it; until then the longest such beginning is held back and everything
//! before it may be shown. A byte of text costs amortised constant time per stop string, and how the text was cut into
//! pieces makes no difference.
//!
//! The match that is complete first counts; among those complete at the same byte, the longest, so that no part of any
//! is shown. Empty stop strings match nothing.

/// What may be shown after a piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// The index of the stop string that was found. From then on no more text comes out.
    pub matched: Option<usize>,
}

/// Watches a stream of text for stop strings.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text not shown yet: the beginning of some stop string.
    held: String,
    matched: Option<usize>,
}

#[derive(Debug, Clone)]
struct Stop {
    bytes: Vec<u8>,
    /// `fallback[n]`: the longest proper beginning that the first `n + 1` bytes end with.
    fallback: Vec<usize>,
    /// How many first bytes the text ends with.
    progress: usize,
}

impl Stop {
    fn new(text: String) -> Stop {
        let bytes = text.into_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at] = length;
        }
        Stop { bytes, fallback, progress: 0 }
    }

    /// Takes the next byte of the text; whether the stop string is complete with it.
    fn advance(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.progress > 0 && self.bytes[self.progress] != byte {
            self.progress = self.fallback[self.progress - 1];
        }
        self.progress += usize::from(self.bytes[self.progress] == byte);
        self.progress == self.bytes.len()
    }
}

impl StopMatcher {
    /// Watches for all of these; the indices of [`StopOutput::matched`] are those of `stops`.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        StopMatcher { stops: stops.into_iter().map(Stop::new).collect(), held: String::new(), matched: None }
    }

    /// Takes the next piece of text and returns what may be shown.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.matched.is_some() {
            return StopOutput { text: String::new(), matched: self.matched };
        }
        let held_len = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            let mut longest = 0;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.advance(byte) && stop.bytes.len() > longest {
                    longest = stop.bytes.len();
                    self.matched = Some(index);
                }
            }
            if self.matched.is_some() {
                self.held.truncate(held_len + at + 1 - longest);
                return StopOutput { text: std::mem::take(&mut self.held), matched: self.matched };
            }
        }
        let hold = self.stops.iter().map(|stop| stop.progress).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        StopOutput { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The end of the text: what was held back, or nothing after a match.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output for a text that comes in these pieces.
    fn output(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut text = String::new();
        let mut matched = None;
        for piece in pieces {
            let output = matcher.push(piece);
            text.push_str(&output.text);
            matched = output.matched;
        }
        text.push_str(&matcher.finish());
        (text, matched)
    }

    /// The definition, without cleverness: the shortest beginning of the text that ends with a stop string.
    fn expected(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(**stop));
            // `max_by_key` takes the last of equals, the matcher the first.
            if let Some((index, stop)) = ending.rev().max_by_key(|(_, stop)| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    fn check(stops: &[&str], pieces: &[&str], text: &str, matched: Option<usize>) {
        assert_eq!(output(stops, pieces), (text.to_owned(), matched), "{stops:?} in {pieces:?}");
    }

    #[test]
    fn a_stop_string_split_over_pieces_is_found() {
        check(&["</s>"], &["one<", "/s", ">two"], "one", Some(0));
        check(&["\n\n"], &["a\n", "\nb"], "a", Some(0));
        check(&["né"], &["n", "é"], "", Some(0));
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut matcher = StopMatcher::new(vec!["stop".into()]);
        assert_eq!(matcher.push("a st").text, "a ");
        assert_eq!(matcher.push("ay sto").text, "stay ");
        assert_eq!(matcher.push("s").text, "sto");
        assert_eq!(matcher.finish(), "s");
    }

    #[test]
    fn the_match_that_is_complete_first_counts() {
        check(&["late", "early"], &["an early and a late one"], "an ", Some(1));
        check(&["abcd", "bc"], &["xabcd"], "xa", Some(1));
        check(&["b", "abb", "ab"], &["xab"], "x", Some(2));
    }

    #[test]
    fn nothing_comes_out_after_a_match() {
        let mut matcher = StopMatcher::new(vec!["x".into()]);
        assert_eq!(matcher.push("axb"), StopOutput { text: "a".into(), matched: Some(0) });
        assert_eq!(matcher.push("c"), StopOutput { text: String::new(), matched: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn empty_stop_strings_and_none_at_all_match_nothing() {
        check(&[], &["a", "b"], "ab", None);
        check(&["", "b"], &["a", "bc"], "a", Some(1));
    }

    #[test]
    fn a_failed_beginning_falls_back_to_a_shorter_one() {
        check(&["aab"], &["aa", "a", "b"], "a", Some(0));
        check(&["abcabd"], &["abcab", "cabd"], "abc", Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn output_is_the_text_before_the_first_match_however_it_is_cut(
            text in "[abé🦀]{0,24}",
            stops in prop::collection::vec("[abé🦀]{0,4}", 0..4),
            cuts in prop::collection::vec(0usize..64, 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(output(&stops, &pieces), expected(&stops, &text));
        }
    }
}
