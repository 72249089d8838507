//! DRY, "don't repeat yourself" (P. E. Weidmann, 2024, text-generation-webui's pull request 5677): a penalty on tokens that would go on
//! with a repetition.
//!
//! Let the text end with the same `n` tokens that stand before an earlier token `t`, and `n` be the largest such number for `t`: then `t`
//! would repeat `n + 1` tokens, and where `n >= allowed_length`
//!
//! ```text
//! logit(t) -= multiplier * base^(n - allowed_length)
//! ```
//!
//! The text is the last `last_n` tokens of prompt and answer. A sequence breaker, such as a line break or a colon, is what repetitions
//! may not go across: `n` counts tokens behind the last one, and a token that is one by itself is never penalised. So the marks that a
//! chat's turns begin with stay as probable as they are.

use crate::{Dry as Params, SamplingParams};
use std::collections::HashMap;
use std::sync::Arc;

/// No penalty is larger: a logit stays a number, whatever the power.
const MAX_PENALTY: f32 = 1e30;

/// The repetitions of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Arc<Breakers>,
    /// The last tokens of the text, at least those that are looked at.
    text: Vec<u32>,
    /// Tokens behind the last sequence breaker.
    num_unbroken: usize,
}

impl Dry {
    /// `None` where nothing is penalised.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Option<Dry> {
        let &Params { multiplier, base, allowed_length, last_n, ref sequence_breakers } = &params.dry;
        let last_n = last_n.unwrap_or(usize::MAX);
        if multiplier == 0.0 || last_n == 0 {
            return None;
        }
        let breakers = Arc::new(Breakers::new(sequence_breakers));
        let (text, num_unbroken) = (Vec::new(), 0);
        let mut dry = Dry { multiplier, base, allowed_length, last_n, breakers, text, num_unbroken };
        // A breaker may begin before the tokens that are looked at.
        let num_seen = last_n.saturating_add(dry.breakers.longest);
        prompt[prompt.len().saturating_sub(num_seen)..].iter().for_each(|&token| dry.accept(token));
        Some(dry)
    }

    /// Notes a token of the text.
    pub(super) fn accept(&mut self, token: u32) {
        let most = self.last_n.saturating_add(self.breakers.longest);
        if self.text.len() / 2 >= most {
            self.text.drain(..self.text.len() - most);
        }
        self.text.push(token);
        self.num_unbroken = if self.breakers.end(&self.text) { 0 } else { self.num_unbroken + 1 };
    }

    pub(super) fn apply(&self, row: &mut [f32]) {
        for (token, len) in self.repetitions() {
            if let Some(logit) = row.get_mut(token as usize) {
                // Beyond the largest power there is, it is infinite.
                let power = self.base.powi(i32::try_from(len - self.allowed_length).unwrap_or(i32::MAX));
                *logit -= (self.multiplier * power).min(MAX_PENALTY);
            }
        }
    }

    /// Tokens that would go on with a repetition of at least the allowed length, and how many tokens are repeated before each.
    fn repetitions(&self) -> Vec<(u32, usize)> {
        let text = &self.text[self.text.len().saturating_sub(self.last_n)..];
        if self.num_unbroken < self.allowed_length || text.len() <= self.allowed_length {
            return Vec::new();
        }
        let common = common_ends(text);
        let lens = common.iter().map(|&len| len.min(self.num_unbroken)).enumerate().skip(1);
        let long = lens.filter(|&(_, len)| len >= self.allowed_length);
        let mut found: Vec<(u32, usize)> = long.map(|(back, len)| (text[text.len() - back], len)).collect();
        found.retain(|&(token, _)| !self.breakers.has(token));
        // Of each token the longest.
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup_by_key(|&mut (token, _)| token);
        found
    }
}

/// For each number of tokens: how many the text's end has in common with the end of the text before its last so many. This is the
/// Z-function of the reversed text (Gusfield, "Algorithms on strings, trees and sequences", 1997), which takes linear time.
fn common_ends(text: &[u32]) -> Vec<usize> {
    let len = text.len();
    let back = |place: usize| text[len - 1 - place];
    let mut common = vec![0; len];
    // The last stretch that was found equal to the text's end: what is known of that is known of it.
    let (mut begin, mut end) = (0, 0);
    for place in 1..len {
        let mut num = if place < end { common[place - begin].min(end - place) } else { 0 };
        while place + num < len && back(num) == back(place + num) {
            num += 1;
        }
        common[place] = num;
        if place + num > end {
            (begin, end) = (place, place + num);
        }
    }
    common
}

/// Sequences that break repetitions, by their last tokens.
#[derive(Debug, Default)]
struct Breakers {
    /// What stands before the last token of each.
    by_last: HashMap<u32, Vec<Vec<u32>>>,
    longest: usize,
}

impl Breakers {
    fn new(sequences: &[Vec<u32>]) -> Breakers {
        let mut breakers = Breakers::default();
        for (last, before) in sequences.iter().filter_map(|sequence| sequence.split_last()) {
            breakers.by_last.entry(*last).or_default().push(before.to_vec());
            breakers.longest = breakers.longest.max(before.len() + 1);
        }
        breakers
    }

    /// Whether a text ends with one.
    fn end(&self, text: &[u32]) -> bool {
        let Some((last, before)) = text.split_last() else { return false };
        self.by_last.get(last).is_some_and(|sequences| sequences.iter().any(|sequence| before.ends_with(sequence)))
    }

    /// Whether a token is one by itself.
    fn has(&self, token: u32) -> bool {
        self.by_last.get(&token).is_some_and(|sequences| sequences.iter().any(Vec::is_empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens are letters of a text.
    fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn dry(dry: Params, prompt: &str, generated: &str) -> Dry {
        let params = SamplingParams { dry: Params { multiplier: 1.0, ..dry }, ..SamplingParams::default() };
        params.validate().unwrap();
        let mut dry = Dry::new(&params, &tokens(prompt)).unwrap();
        tokens(generated).into_iter().for_each(|token| dry.accept(token));
        dry
    }

    fn breakers(texts: &[&str]) -> Arc<[Vec<u32>]> {
        texts.iter().map(|text| tokens(text)).collect()
    }

    fn check(params: Params, prompt: &str, generated: &str, expected: &[(char, usize)]) {
        let mut found = dry(params, prompt, generated).repetitions();
        found.sort_unstable();
        let mut expected: Vec<(u32, usize)> = expected.iter().map(|&(token, len)| (u32::from(token), len)).collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{prompt:?} {generated:?}");
    }

    #[test]
    fn what_goes_on_with_a_repetition_is_found() {
        let from = |allowed_length| Params { allowed_length, ..Params::default() };
        check(from(2), "abcde abc", "", &[('d', 3)]);
        check(from(2), "abcde", " abc", &[('d', 3)]);
        check(from(1), "abcde xbc", "", &[('d', 2)]);
        check(from(3), "abcde xbc", "", &[]);
        // The longest repetition counts, and each token that goes on with one.
        check(from(1), "abcx bcx bcy abc", "", &[('x', 3), ('y', 2)]);
        check(from(2), "aaaaa", "", &[('a', 4)]);
        check(from(0), "abc", "", &[('b', 0), ('c', 0)]);
        check(from(1), "a", "", &[]);
        check(from(1), "", "", &[]);
    }

    #[test]
    fn only_the_last_tokens_are_looked_at() {
        let last = |last_n| Params { last_n, allowed_length: 2, ..Params::default() };
        check(last(Some(9)), "abcde abc", "", &[('d', 3)]);
        check(last(Some(8)), "abcde abc", "", &[('d', 2)]);
        check(last(Some(7)), "abcde abc", "", &[]);
        check(
            last(None),
            "abcde and a hundred letters more that do not matter, as long as they are different: abc",
            "",
            &[('d', 3)],
        );
        let off = Params { last_n: Some(0), multiplier: 1.0, ..Params::default() };
        assert!(Dry::new(&SamplingParams { dry: off, ..SamplingParams::default() }, &[1, 1, 1]).is_none());
    }

    #[test]
    fn no_repetition_goes_across_a_breaker() {
        let with = |texts: &[&str]| Params { sequence_breakers: breakers(texts), ..Params::default() };
        check(with(&[]), "ab:cdx ab:cd", "", &[('x', 5)]);
        check(with(&[":"]), "ab:cdx ab:cd", "", &[('x', 2)]);
        check(with(&["b:"]), "ab:cdx ab:cd", "", &[('x', 2)]);
        check(with(&["c"]), "ab:cdx ab:cd", "", &[]);
        check(with(&["x"]), "ab:cdx ab:cd", "", &[]);
        check(with(&["dx"]), "ab:cdx ab:cd", "", &[('x', 5)]);
    }

    #[test]
    fn the_penalty_grows_by_the_base_and_stays_a_number() {
        let mut row = vec![1.0; 256];
        let of = |base, text| dry(Params { base, ..Params::default() }, text, "");
        of(3.0, "abcde abc").apply(&mut row);
        assert_eq!(row[usize::from(b'd')], 1.0 - 3.0);
        assert_eq!(row.iter().filter(|&&logit| logit == 1.0).count(), 255);
        of(1e30, &"a".repeat(60)).apply(&mut row);
        assert_eq!(row[usize::from(b'a')], -MAX_PENALTY);
    }

    /// By the definition, from the whole text.
    fn expected(params: &Params, text: &[u32]) -> Vec<(u32, usize)> {
        let all = &text[text.len().saturating_sub(params.last_n.unwrap_or(usize::MAX))..];
        let broken = |end: &usize| params.sequence_breakers.iter().any(|breaker| text[..*end].ends_with(breaker));
        let unbroken = text.len() - (0..=text.len()).rev().find(broken).unwrap_or(0);
        let mut found: Vec<(u32, usize)> = Vec::new();
        for (place, &token) in all.iter().enumerate() {
            let is_common = |len: &usize| *len <= unbroken && all[..place].ends_with(&all[all.len() - len..]);
            let len = (0..=place).rev().find(is_common).unwrap_or(0);
            let is_long = len >= params.allowed_length && place > 0;
            if is_long && !params.sequence_breakers.contains(&vec![token]) {
                found.push((token, len));
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup_by_key(|found| found.0);
        found
    }

    proptest! {
        #[test]
        fn it_agrees_with_its_definition_token_by_token(
            text in prop::collection::vec(0u32..3, 0..60),
            prompt_len in any::<prop::sample::Index>(),
            last_n in prop::option::of(1usize..30),
            allowed_length in 0usize..4,
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 1..4), 0..2),
        ) {
            let params = Params { multiplier: 1.0, last_n, allowed_length, sequence_breakers: sequences.into(), ..Params::default() };
            let prompt_len = prompt_len.index(text.len() + 1);
            let sampling = SamplingParams { dry: params.clone(), ..SamplingParams::default() };
            let mut dry = Dry::new(&sampling, &text[..prompt_len]).unwrap();
            for end in prompt_len..=text.len() {
                prop_assert_eq!(dry.repetitions(), expected(&params, &text[..end]));
                text.get(end).into_iter().for_each(|&token| dry.accept(token));
            }
        }
    }
}
