//! What keeps a JSON answer from going on for ever. JSON and most schemas bound neither the digits of a number nor the
//! nesting of a recursive type, and a model that falls into `0.000000...` or `{"child": {"child": ...` stays there.
//!
//! So a mask leaves out tokens that go beyond a bound, wherever a token remains that does not: a number ends as soon as it
//! may, an array closes, an optional property is skipped. What the grammar asks for beyond a bound (`"minimum": 1e30`,
//! required objects in objects) is written, and every answer is still one that the grammar allows. RFC 8259 names both
//! bounds as limits that readers of JSON have (sections 6 and 9).

use super::BitMask;
use crate::{ReasoningMarks, ReasoningStart, Tokenizer};

/// Digits of a number without its exponent. A 64-bit integer has 20, the shortest form of a double 17 and up to six zeros
/// before them; more than these no double holds.
const MAX_DIGITS: u8 = 24;
/// Digits of an exponent, leading zeros included.
const MAX_EXPONENT_DIGITS: u8 = 3;
/// An exponent. A number within these bounds is below 1e308, so it is finite as a double.
const MAX_EXPONENT: u16 = 308 - MAX_DIGITS as u16;
/// Arrays and objects in each other: sixteen generations of a tree that keeps its children in an array. Schemas of OpenAI's
/// strict mode spell out ten levels at most.
const MAX_DEPTH: u16 = 32;

/// The tokens of a vocabulary that can go beyond a bound: those with digits or opening brackets.
#[derive(Debug)]
pub(super) struct GrowingTokens {
    tokens: BitMask,
    /// The most digits of one of them.
    max_digits: usize,
    /// The most opening brackets of one of them.
    max_brackets: usize,
}

impl GrowingTokens {
    /// Those among the tokens of text.
    pub(super) fn new(text: &BitMask, tokenizer: &Tokenizer) -> GrowingTokens {
        let mut growing = GrowingTokens { tokens: BitMask::new(text.num_tokens()), max_digits: 0, max_brackets: 0 };
        for token in text.tokens() {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            let num_digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
            let num_brackets = bytes.iter().filter(|byte| b"[{".contains(byte)).count();
            if num_digits + num_brackets > 0 {
                growing.tokens.insert(token);
            }
            growing.max_digits = growing.max_digits.max(num_digits);
            growing.max_brackets = growing.max_brackets.max(num_brackets);
        }
        growing
    }
}

/// Where a JSON text stands, as far as the bounds ask. The text is one that a grammar of JSON allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JsonPosition {
    /// Arrays and objects that are open.
    depth: u16,
    part: Part,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    /// Outside strings and numbers.
    #[default]
    Between,
    String,
    /// Behind a backslash in a string.
    Escape,
    Mantissa {
        digits: u8,
    },
    Exponent {
        digits: u8,
        value: u16,
    },
    /// Where thoughts may stand before the JSON text; so many bytes of their first mark were seen.
    Start {
        marks: ReasoningMarks,
        matched: u8,
    },
    /// In thoughts; the text ends with so many bytes of their last mark.
    Thoughts {
        end: &'static str,
        matched: u8,
    },
}

impl JsonPosition {
    /// At the beginning of an answer whose JSON text stands behind thoughts.
    pub(super) fn before(reasoning: Option<(ReasoningMarks, ReasoningStart)>) -> JsonPosition {
        let part = match reasoning {
            None | Some((_, ReasoningStart::Over)) => Part::Between,
            Some((marks, ReasoningStart::Possible)) => Part::Start { marks, matched: 0 },
            Some((marks, ReasoningStart::Open)) => Part::Thoughts { end: marks.end, matched: 0 },
        };
        JsonPosition { depth: 0, part }
    }

    /// Takes the tokens beyond a bound out of a mask, unless nothing would be left. `growing` is of the mask's vocabulary.
    pub(super) fn narrow(self, mask: &mut BitMask, growing: &GrowingTokens, tokenizer: &Tokenizer) {
        if !self.is_near_bound(growing) {
            return;
        }
        let is_beyond = |&token: &u32| tokenizer.token_bytes(token).is_some_and(|bytes| { self }.advance(bytes));
        let beyond: Vec<u32> = mask.shared(&growing.tokens).filter(is_beyond).collect();
        if beyond.len() < mask.num_set() {
            beyond.into_iter().for_each(|token| mask.remove(token));
        }
    }

    /// Whether some token of the vocabulary could go beyond a bound from here.
    fn is_near_bound(self, growing: &GrowingTokens) -> bool {
        let digits = match self.part {
            Part::Mantissa { digits } => usize::from(digits),
            Part::Exponent { .. } => return true,
            _ => 0,
        };
        digits + growing.max_digits > usize::from(MAX_DIGITS)
            || usize::from(self.depth) + growing.max_brackets > usize::from(MAX_DEPTH)
    }

    /// Goes over a piece of the text. Whether a digit or a bracket of it goes beyond a bound.
    fn advance(&mut self, bytes: &[u8]) -> bool {
        // Every byte counts, also behind the first one too far.
        bytes.iter().filter(|&&byte| self.step(byte)).count() > 0
    }

    /// The place behind a piece of text.
    pub(super) fn behind(mut self, bytes: &[u8]) -> JsonPosition {
        self.advance(bytes);
        self
    }

    fn step(&mut self, byte: u8) -> bool {
        self.part = match (self.part, byte) {
            (Part::Start { marks, matched }, _) => {
                let start = marks.start.as_bytes();
                let seen = usize::from(matched);
                if start[seen] != byte {
                    // There are no thoughts, and what looked like their mark is JSON.
                    self.part = Part::Between;
                    let is_beyond = self.advance(&start[..seen]);
                    return self.step(byte) || is_beyond;
                }
                if seen + 1 == start.len() {
                    Part::Thoughts { end: marks.end, matched: 0 }
                } else {
                    Part::Start { marks, matched: matched + 1 }
                }
            }
            (Part::Thoughts { end, matched }, _) => {
                let mark = end.as_bytes();
                // The first byte of a mark occurs nowhere else in it.
                let matched = if mark[usize::from(matched)] == byte { matched + 1 } else { u8::from(mark[0] == byte) };
                if usize::from(matched) == mark.len() { Part::Between } else { Part::Thoughts { end, matched } }
            }
            (Part::Escape, _) => Part::String,
            (Part::String, b'\\') => Part::Escape,
            (Part::String, b'"') => Part::Between,
            (Part::String, _) => Part::String,
            (Part::Mantissa { digits }, b'0'..=b'9') => Part::Mantissa { digits: digits.saturating_add(1) },
            (Part::Mantissa { .. }, b'.') => self.part,
            (Part::Mantissa { .. }, b'e' | b'E') => Part::Exponent { digits: 0, value: 0 },
            (Part::Exponent { digits, value }, b'0'..=b'9') => Part::Exponent {
                digits: digits.saturating_add(1),
                value: value.saturating_mul(10).saturating_add(u16::from(byte - b'0')),
            },
            (Part::Exponent { .. }, b'+' | b'-') => self.part,
            (_, b'"') => Part::String,
            (_, b'0'..=b'9') => Part::Mantissa { digits: 1 },
            _ => Part::Between,
        };
        match (self.part, byte) {
            (Part::Mantissa { digits }, b'0'..=b'9') => digits > MAX_DIGITS,
            (Part::Exponent { digits, value }, b'0'..=b'9') => digits > MAX_EXPONENT_DIGITS || value > MAX_EXPONENT,
            (Part::Between, b'[' | b'{') => {
                self.depth = self.depth.saturating_add(1);
                self.depth > MAX_DEPTH
            }
            (Part::Between, b']' | b'}') => {
                self.depth = self.depth.saturating_sub(1);
                false
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` keeps to the bounds, and with `more` behind it it does not, at whatever byte a token ends.
    fn check(text: &str, more: &str) {
        let whole = [text, more].concat();
        for at in 0..=text.len() {
            let (left, right) = whole.as_bytes().split_at(at);
            assert!(!JsonPosition::default().advance(left), "{text}");
            assert!(JsonPosition::default().behind(left).advance(right), "{text} and {more}");
        }
    }

    #[test]
    fn digits_are_counted_in_one_number() {
        check("123456789012345678901234", "5");
        check("-0.00000000000000000000000", "0");
        check("[123456789012345678901234, 123456789012.345678901234", "5]");
        check("1.5e-284", "0");
        check("1E28", "5");
        check("1e000", "1");
    }

    #[test]
    fn levels_are_those_that_are_open() {
        check(&"[".repeat(32), "[");
        check(&"{\"a\": [".repeat(16), "{");
        check(&format!("{}[], {{}}, [1]", "[".repeat(31)), ", [[");
    }

    #[test]
    fn what_is_in_a_string_is_text() {
        let position = JsonPosition::default().behind("[".repeat(32).as_bytes());
        let zeros = "0".repeat(30);
        for text in [format!("\"{zeros}[[[\""), format!("\"\\\"{zeros}{{{{\""), format!("\"\\\\\", \"[{zeros}")] {
            assert!(!{ position }.advance(text.as_bytes()), "{text}");
        }
        assert!({ position }.advance(b"\"a\\\\\": ["));
        assert!({ position }.advance(format!("\"a\", {zeros}").as_bytes()));
    }

    #[test]
    fn thoughts_have_no_bounds_and_the_text_behind_them_has() {
        for marks in
            [ReasoningMarks { start: "<think>", end: "</think>" }, ReasoningMarks { start: "[THINK]", end: "[/THINK]" }]
        {
            let thoughts = format!("{}\"{}<<{}", "0".repeat(50), "[".repeat(50), marks.end);
            let json = format!(" {{\"a\": {}", "1".repeat(24));
            for (start, text) in [
                (ReasoningStart::Open, format!("{thoughts}{json}")),
                (ReasoningStart::Possible, format!("{}{thoughts}{json}", marks.start)),
                (ReasoningStart::Possible, json.clone()),
                (ReasoningStart::Over, json.clone()),
            ] {
                let position = JsonPosition::before(Some((marks, start)));
                assert!(!{ position }.advance(text.as_bytes()), "{text}");
                assert!(position.behind(text.as_bytes()).advance(b"1"), "{text}");
            }
            let deep = JsonPosition::before(Some((marks, ReasoningStart::Possible))).behind("[".repeat(32).as_bytes());
            assert!({ deep }.advance(b"["), "a bracket that could have begun a mark counts");
        }
    }

    #[test]
    fn the_greatest_number_within_the_bounds_is_finite() {
        let text = format!("{}e{MAX_EXPONENT}", "9".repeat(MAX_DIGITS.into()));
        assert!(!JsonPosition::default().advance(text.as_bytes()));
        assert!(text.parse::<f64>().is_ok_and(f64::is_finite));
    }
}
