//! Words that must not be generated, each given as its tokens: the last token of a word is ruled out where the generated
//! text ends with the tokens before it. What the prompt holds does not count.

use std::sync::Arc;

/// The words, and as much of the generated text as they need.
#[derive(Debug, Clone)]
pub(super) struct BadWords {
    words: Arc<[Vec<u32>]>,
    /// The last tokens generated, at least as many as the longest word has without its last.
    recent: Vec<u32>,
    longest: usize,
}

impl BadWords {
    pub(super) fn new(words: &[Vec<u32>]) -> BadWords {
        let longest = words.iter().map(Vec::len).max().unwrap_or(0);
        BadWords { words: words.into(), recent: Vec::new(), longest }
    }

    pub(super) fn is_off(&self) -> bool {
        self.words.is_empty()
    }

    /// Notes a generated token.
    pub(super) fn accept(&mut self, token: u32) {
        if self.longest > 1 {
            if self.recent.len() >= 2 * self.longest {
                self.recent.drain(..self.longest);
            }
            self.recent.push(token);
        }
    }

    /// The tokens that would complete a word.
    pub(super) fn completions(&self) -> impl Iterator<Item = u32> {
        self.words.iter().filter_map(|word| {
            let (&last, before) = word.split_last()?;
            self.recent.ends_with(before).then_some(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn completions_are_those_of_the_whole_text(
            words in prop::collection::vec(prop::collection::vec(0u32..3, 1..5), 0..6),
            text in prop::collection::vec(0u32..3, 0..40),
        ) {
            let mut bad_words = BadWords::new(&words);
            for end in 0..=text.len() {
                let completes = |word: &&Vec<u32>| text[..end].ends_with(&word[..word.len() - 1]);
                let expected: Vec<u32> = words.iter().filter(completes).map(|word| word[word.len() - 1]).collect();
                prop_assert_eq!(bad_words.completions().collect::<Vec<u32>>(), expected);
                text.get(end).into_iter().for_each(|&token| bad_words.accept(token));
            }
        }
    }
}
