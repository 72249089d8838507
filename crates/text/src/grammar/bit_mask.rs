//! A set of tokens: one bit per token in words of 32, the lowest bit first. It is what a sampler is given.

/// Which tokens may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitMask {
    words: Vec<u32>,
    num_tokens: usize,
}

impl BitMask {
    /// The empty set over a vocabulary of `num_tokens`.
    pub fn new(num_tokens: usize) -> BitMask {
        BitMask { words: vec![0; num_tokens.div_ceil(32)], num_tokens }
    }

    /// The words: token `t` is bit `t % 32` of word `t / 32`. Bits beyond the vocabulary are zero.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether a token is in the set; a token beyond the vocabulary is not.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The tokens of the set, ascending.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.words).flat_map(|(at, &word)| bits(at, word))
    }

    /// The tokens that this set shares with another over the same vocabulary, ascending.
    pub(super) fn shared<'a>(&'a self, other: &'a BitMask) -> impl Iterator<Item = u32> + 'a {
        assert_eq!(self.num_tokens, other.num_tokens, "sets over one vocabulary");
        (0..).zip(self.words.iter().zip(&other.words)).flat_map(|(at, (left, right))| bits(at, left & right))
    }

    /// The number of tokens in the set.
    pub fn num_set(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Adds a token of the vocabulary.
    pub(super) fn insert(&mut self, token: u32) {
        assert!((token as usize) < self.num_tokens, "token {token} is not in the vocabulary");
        self.words[token as usize / 32] |= 1 << (token % 32);
    }

    /// Takes a token of the vocabulary out.
    pub(super) fn remove(&mut self, token: u32) {
        self.words[token as usize / 32] &= !(1 << (token % 32));
    }

    /// Becomes what `left` and `right` share. Both have a bit for each token at least.
    pub(super) fn assign_and(&mut self, left: &[u32], right: &BitMask) {
        assert!(left.len() >= self.words.len() && right.words.len() == self.words.len(), "sets over one vocabulary");
        for ((word, left), right) in self.words.iter_mut().zip(left).zip(&right.words) {
            *word = left & right;
        }
    }

    /// Adds the tokens of another set over the same vocabulary.
    pub(super) fn union(&mut self, other: &BitMask) {
        assert_eq!(self.num_tokens, other.num_tokens, "sets over one vocabulary");
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Becomes a copy of another set over the same vocabulary, in place.
    pub(super) fn assign(&mut self, other: &BitMask) {
        assert_eq!(self.num_tokens, other.num_tokens, "sets over one vocabulary");
        self.words.copy_from_slice(&other.words);
    }

    /// The vocabulary's size.
    pub(super) fn num_tokens(&self) -> usize {
        self.num_tokens
    }
}

/// The tokens of the word at a place.
fn bits(at: u32, word: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
        .take_while(|&rest| rest != 0)
        .map(move |rest| 32 * at + rest.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_ascending_whatever_word_they_are_in() {
        let mut mask = BitMask::new(70);
        for token in [69, 0, 31, 32, 63, 64] {
            mask.insert(token);
        }
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 31, 32, 63, 64, 69]);
        assert_eq!(mask.words(), [0x8000_0001, 0x8000_0001, 0x21]);
        assert_eq!(mask.num_set(), 6);
        assert!(mask.contains(69) && !mask.contains(68) && !mask.contains(70) && !mask.contains(4000));
        let mut other = BitMask::new(70);
        other.insert(31);
        other.insert(33);
        other.insert(69);
        assert_eq!(mask.shared(&other).collect::<Vec<_>>(), [31, 69]);
        mask.remove(31);
        assert_eq!(mask.shared(&other).collect::<Vec<_>>(), [69]);
    }

    #[test]
    fn an_intersection_drops_what_is_beyond_the_vocabulary() {
        let mut right = BitMask::new(33);
        right.insert(1);
        right.insert(32);
        let mut mask = BitMask::new(33);
        mask.assign_and(&[!0, !0, !0], &right);
        assert_eq!(mask, right);
    }
}
