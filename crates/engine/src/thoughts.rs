//! A budget of thoughts. Once a model has thought so many tokens, the tokens of the mark that ends thoughts come next, whatever it
//! says, and the answer goes on behind them.
//!
//! What counts are the tokens between the marks. One with the last of the first mark in it does not; the end mark, where the model
//! writes it itself, does not where the budget is not used up before it. Marks are looked for in bytes, since they are one token in
//! one vocabulary and several in another. If the model had begun the end mark by the tokens that it usually has, only the others are
//! forced.
//!
//! Whether a token is forced depends on the tokens before it alone, so guesses are verified as ever and answers do not depend on
//! company.

use taper_text::{EncodeOptions, ReasoningMarks, ReasoningStart, Tokenizer};

/// How long a model may think before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkingBudget {
    max_tokens: usize,
    marks: ReasoningMarks,
    start: ReasoningStart,
    /// The tokens of the end mark; at least one.
    end: Vec<u32>,
}

impl ThinkingBudget {
    /// At most `max_tokens` between these marks, in answers that begin at `start`. `None` where the vocabulary cannot spell the end
    /// mark.
    pub fn new(
        max_tokens: usize,
        marks: ReasoningMarks,
        start: ReasoningStart,
        tokenizer: &Tokenizer,
    ) -> Option<ThinkingBudget> {
        let end = match tokenizer.special_token(marks.end) {
            Some(token) => vec![token],
            None => tokenizer.encode(marks.end, EncodeOptions { parse_special: true, add_bos: false }).ok()?,
        };
        // Otherwise it would be forced without an end.
        let bytes: Vec<u8> =
            end.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap_or_default()).copied().collect();
        has(&bytes, marks.end).then_some(ThinkingBudget { max_tokens, marks, start, end })
    }
}

/// The thoughts of one choice, as far as they were written.
#[derive(Debug, Clone)]
pub(crate) struct Thoughts {
    budget: ThinkingBudget,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Thoughts may begin; what was said so far.
    Start(Vec<u8>),
    Thinking {
        num_tokens: usize,
        /// The end of what was said, shorter than the end mark.
        tail: Vec<u8>,
        /// How many tokens of the end mark were written last.
        num_matched: usize,
    },
    Over,
}

impl Thoughts {
    /// Before the first token of an answer.
    pub(crate) fn new(budget: ThinkingBudget) -> Thoughts {
        let state = match budget.start {
            ReasoningStart::Possible => State::Start(Vec::new()),
            ReasoningStart::Open => State::Thinking { num_tokens: 0, tail: Vec::new(), num_matched: 0 },
            ReasoningStart::Over => State::Over,
        };
        Thoughts { budget, state }
    }

    /// The token that must come next, if the budget is used up.
    pub(crate) fn due(&self) -> Option<u32> {
        match self.state {
            State::Thinking { num_tokens, num_matched, .. } if num_tokens >= self.budget.max_tokens => {
                self.budget.end.get(num_matched).copied()
            }
            _ => None,
        }
    }

    /// Notes the next token.
    pub(crate) fn accept(&mut self, token: u32, tokenizer: &Tokenizer) {
        let ThinkingBudget { marks, end, .. } = &self.budget;
        let bytes = spelled(token, *marks, tokenizer);
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Start(mut said) => {
                said.extend_from_slice(bytes);
                let text = String::from_utf8_lossy(&said);
                let text = text.trim_start();
                match text.strip_prefix(marks.start) {
                    Some(thoughts) => State::thinking(0, thoughts.as_bytes().to_vec(), 0, marks.end),
                    None if marks.start.starts_with(text) => State::Start(text.as_bytes().to_vec()),
                    None => State::Over,
                }
            }
            State::Thinking { num_tokens, mut tail, num_matched } => {
                tail.extend_from_slice(bytes);
                State::thinking(num_tokens + 1, tail, matched(end, num_matched, token), marks.end)
            }
            State::Over => State::Over,
        };
    }
}

impl State {
    /// In thoughts that end with `tail`, unless that has the end mark.
    fn thinking(num_tokens: usize, mut tail: Vec<u8>, num_matched: usize, end: &str) -> State {
        if has(&tail, end) {
            return State::Over;
        }
        let num_old = tail.len().saturating_sub(end.len() - 1);
        tail.drain(..num_old);
        State::Thinking { num_tokens, tail, num_matched }
    }
}

/// What a token adds to the text. Control tokens are not shown in it, but for the marks.
fn spelled(token: u32, marks: ReasoningMarks, tokenizer: &Tokenizer) -> &[u8] {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    let is_mark = bytes == marks.start.as_bytes() || bytes == marks.end.as_bytes();
    if tokenizer.is_special(token) && !is_mark { &[] } else { bytes }
}

/// Whether a mark stands in bytes.
fn has(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
}

/// How many tokens of `mark` stand at the end of a text that ended with `before` of them, when `token` follows.
fn matched(mark: &[u32], before: usize, token: u32) -> usize {
    // The longest beginning of the mark that ends what it had and the token.
    let ends_with = |len: usize| {
        let (kept, start) = (len - 1, before + 1 - len);
        mark[len - 1] == token && mark[..kept] == mark[start..start + kept]
    };
    (1..=(before + 1).min(mark.len())).rev().find(|&len| ends_with(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const MARKS: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };

    /// Token ids below 256 are bytes.
    fn tokenizer() -> Tokenizer {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(&taper_testkit::tiny::TinyModel::default().to_gguf()).expect("it is written");
        let checkpoint = taper_checkpoint::Checkpoint::open(file.path()).expect("it is a model");
        Tokenizer::from_metadata(checkpoint.metadata()).expect("it has a vocabulary")
    }

    /// What is written by a model that would go on with each of `said`, byte by byte, and has its way where nothing is due.
    fn written(max_tokens: usize, start: ReasoningStart, said: &str) -> String {
        let tokenizer = tokenizer();
        let mut thoughts =
            Thoughts::new(ThinkingBudget::new(max_tokens, MARKS, start, &tokenizer).expect("bytes spell it"));
        let mut written = Vec::new();
        for token in said.bytes().map(u32::from) {
            let token = thoughts.due().unwrap_or(token);
            thoughts.accept(token, &tokenizer);
            written.extend_from_slice(tokenizer.token_bytes(token).expect("it is in the vocabulary"));
        }
        String::from_utf8(written).expect("it is text")
    }

    fn check(max_tokens: usize, start: ReasoningStart, said: &str, expected: &str) {
        assert_eq!(written(max_tokens, start, said), expected, "{max_tokens} tokens of {said:?}");
    }

    #[test]
    fn the_mark_is_forced_after_as_many_tokens_as_may_be() {
        use ReasoningStart::{Open, Over, Possible};
        // The mark has seven tokens; what the model would have said in their places is lost.
        check(3, Open, "abc1234567de", "abc</think>de");
        check(0, Open, "1234567ab", "</think>ab");
        check(2, Possible, "\n<think>ab1234567cd", "\n<think>ab</think>cd");
        check(0, Possible, "<think>1234567ab", "<think></think>ab");
        check(3, Over, "abcdefghij", "abcdefghij");
        check(3, Possible, "abc <think>defgh", "abc <think>defgh");
        check(3, Possible, "<thin</think>abcdef", "<thin</think>abcdef");
    }

    #[test]
    fn thoughts_that_end_in_time_are_left_alone() {
        use ReasoningStart::{Open, Possible};
        check(20, Open, "hm</think>and so on, for as long as it takes", "hm</think>and so on, for as long as it takes");
        check(20, Possible, "<think>hm</think>and so on, and on", "<think>hm</think>and so on, and on");
        // Once they are over, they do not begin again.
        check(9, Open, "</think><think>and so on", "</think><think>and so on");
    }

    #[test]
    fn a_mark_that_the_model_had_begun_is_completed() {
        use ReasoningStart::Open;
        check(4, Open, "ab</12345cd", "ab</think>cd");
        check(4, Open, "abc<123456de", "abc</think>de");
        check(4, Open, "a<</12345bc", "a<</think>bc");
        check(4, Open, "</th123ab", "</think>ab");
        // Not by its usual tokens, in which "in" is one: the whole mark is written.
        check(5, Open, "</thi1234567ab", "</thi</think>ab");
    }

    #[test]
    fn beginnings_of_a_mark_are_found_however_they_overlap() {
        let mark = [1, 2, 1, 3];
        let after = |tokens: &[u32]| tokens.iter().fold(0, |before, &token| matched(&mark, before, token));
        assert_eq!(after(&[1, 2, 1]), 3);
        assert_eq!(after(&[1, 2, 1, 2]), 2);
        assert_eq!(after(&[1, 2, 1, 2, 1, 3]), 4);
        assert_eq!(after(&[1, 1]), 1);
        assert_eq!(after(&[1, 2, 5]), 0);
        assert_eq!(after(&[5]), 0);
    }
}
