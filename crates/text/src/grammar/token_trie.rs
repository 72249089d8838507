//! A trie of tokens for walks of a grammar: which of them may come next.
//!
//! A walk tries all children of each node that it reaches, and most of them fail. So children lie beside each other: the
//! weights of a model have emptied the processor's caches when a mask is due, and a trie in the order of its texts costs a
//! cache miss for each child.

use std::ops::Range;

use llguidance::toktrie::{Recognizer, SimpleVob};

const NO_TOKEN: u32 = u32::MAX;

/// Tokens by their bytes.
#[derive(Debug)]
pub(super) struct TokenTrie {
    /// The children of each node beside each other, the root's first.
    nodes: Vec<Node>,
    num_roots: u32,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The token that ends here, or [`NO_TOKEN`].
    token: u32,
    first_child: u32,
    num_children: u32,
    byte: u8,
}

impl Node {
    fn children(&self) -> Range<u32> {
        self.first_child..self.first_child + self.num_children
    }
}

/// A token's bytes and its number.
type Text<'a> = (&'a [u8], u32);

impl TokenTrie {
    /// Of tokens that have bytes. Several may have the same.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>) -> TokenTrie {
        let mut texts: Vec<Text<'a>> = tokens.map(|(token, bytes)| (bytes, token)).collect();
        texts.sort_unstable();
        // The texts of each node and the bytes that they share. A node's children are made when its turn comes.
        let mut of_nodes: Vec<(&[Text<'a>], usize)> = groups(&texts, 0).map(|texts| (texts, 1)).collect();
        let num_roots = of_nodes.len() as u32;
        let mut nodes = Vec::new();
        while let Some(&(texts, depth)) = of_nodes.get(nodes.len()) {
            let (bytes, token) = texts[0];
            let token = if bytes.len() == depth { token } else { NO_TOKEN };
            let first_child = of_nodes.len() as u32;
            of_nodes.extend(groups(texts, depth).map(|texts| (texts, depth + 1)));
            let num_children = of_nodes.len() as u32 - first_child;
            nodes.push(Node { token, first_child, num_children, byte: bytes[depth - 1] });
        }
        TokenTrie { nodes, num_roots }
    }

    /// Adds the tokens that `start` begins with, and returns the nodes behind it.
    fn add_parts(&self, mask: &mut SimpleVob, start: &[u8]) -> Range<u32> {
        let mut siblings = 0..self.num_roots;
        for &byte in start {
            let mut behind = 0..0;
            for node in siblings.map(|at| &self.nodes[at as usize]).filter(|node| node.byte == byte) {
                if node.token != NO_TOKEN {
                    mask.allow_token(node.token);
                }
                // Of nodes with the same byte one at most has children.
                if node.num_children > 0 {
                    behind = node.children();
                }
            }
            siblings = behind;
        }
        siblings
    }

    /// Adds the tokens that a recognizer takes to a mask. It has taken the bytes `start` already: tokens begin with them, or
    /// are a part of them.
    pub(super) fn add_taken(&self, recognizer: &mut impl Recognizer, mask: &mut SimpleVob, start: &[u8]) {
        recognizer.trie_started("mask");
        let mut siblings = self.add_parts(mask, start);
        let mut parents = Vec::new();
        loop {
            let Some(at) = siblings.next() else {
                let Some(above) = parents.pop() else { break };
                siblings = above;
                recognizer.pop_bytes(1);
                continue;
            };
            let node = &self.nodes[at as usize];
            if !recognizer.try_push_byte(node.byte) {
                continue;
            }
            if node.token != NO_TOKEN {
                mask.allow_token(node.token);
            }
            if node.num_children == 0 {
                recognizer.pop_bytes(1);
            } else {
                parents.push(std::mem::replace(&mut siblings, node.children()));
            }
        }
        recognizer.trie_finished();
    }
}

/// Of sorted texts that share `depth` bytes, those that go on, by their next byte. Tokens with all the same bytes are groups of
/// their own, the last of them together with what goes on behind it.
fn groups<'t, 'a>(texts: &'t [Text<'a>], depth: usize) -> impl Iterator<Item = &'t [Text<'a>]> + use<'t, 'a> {
    let num_ended = texts.partition_point(|(bytes, _)| bytes.len() <= depth);
    let ends = move |bytes: &[u8]| bytes.len() == depth + 1;
    texts[num_ended..]
        .chunk_by(move |(left, _), (right, _)| left[depth] == right[depth] && !(ends(left) && ends(right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the texts that begin like a given one, or that it begins with.
    struct Prefix<'a> {
        text: &'a [u8],
        pushed: Vec<u8>,
    }

    impl Recognizer for Prefix<'_> {
        fn pop_bytes(&mut self, num: usize) {
            self.pushed.truncate(self.pushed.len() - num);
        }
        fn collapse(&mut self) {}
        fn trie_finished(&mut self) {
            assert!(self.pushed.is_empty(), "every byte is taken back");
        }
        fn try_push_byte(&mut self, byte: u8) -> bool {
            let takes = self.text.get(self.pushed.len()).is_none_or(|&next| next == byte);
            if takes {
                self.pushed.push(byte);
            }
            takes
        }
    }

    #[test]
    fn a_walk_finds_what_the_recognizer_takes_whatever_tokens_share() {
        let words = ["a", "ab", "abc", "b", "ab", "abd", "é", "", "abc", "ac", "ab"];
        let tokens = (0..).zip(words.map(str::as_bytes)).filter(|(_, bytes)| !bytes.is_empty());
        let trie = TokenTrie::new(tokens);
        for text in ["", "a", "ab", "abc", "abcd", "b", "c", "\u{e9}"] {
            let mut mask = SimpleVob::alloc(words.len());
            trie.add_taken(&mut Prefix { text: text.as_bytes(), pushed: Vec::new() }, &mut mask, b"");
            for (token, word) in (0..).zip(words) {
                let is_taken = !word.is_empty() && (word.starts_with(text) || text.starts_with(word));
                assert_eq!(mask.is_allowed(token), is_taken, "{word:?} behind {text:?}");
            }
            let mut same = SimpleVob::alloc(words.len());
            trie.add_taken(&mut Prefix { text: b"", pushed: Vec::new() }, &mut same, text.as_bytes());
            assert_eq!(same, mask, "{text:?} taken before");
        }
    }
}
