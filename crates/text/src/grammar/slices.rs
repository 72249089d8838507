//! Masks of whole sets of tokens: where a grammar takes, or refuses, all tokens of one kind of character and some length, they
//! are decided together, and only the rest of the vocabulary is walked.
//!
//! Two ways lead there. That a JSON string takes any text without quotes, or any of sixteen characters, the library proves
//! from the expressions. Where a string or a word may have fewer characters, the lexer is asked: if each ASCII
//! character of the kind leads to one and the same state, and from there each to the next, then a token of the kind is decided
//! by its length alone. A walk would come by each of tens of thousands of tokens near the end of a string.

use std::array;

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};

use super::token_trie::TokenTrie;

/// Work that may go into a proof; what is not proven by then is walked. The library's figure.
const PROOF_FUEL: u64 = 1000;
/// The longest tokens, in characters, that are decided by their length. Hardly any text is longer.
const MAX_RUN: usize = 16;

/// What a parser has to know to prove that it takes the inside of a string, by its place.
pub(super) fn expressions() -> [String; 2] {
    const INSIDE: &str = r#"[^"\\\x00-\x1F\x7F]"#;
    [format!("{INSIDE}+"), format!("{INSIDE}{{1,{MAX_RUN}}}")]
}
const ANY_TEXT: usize = 0;
const SHORT_TEXT: usize = 1;

/// Whether a character is one of [`expressions`].
fn is_inside(char: char) -> bool {
    !matches!(char, '"' | '\\' | '\0'..='\x1f' | '\x7f')
}

/// How many characters a token has, if each is of a kind.
fn length(bytes: &[u8], is_of: fn(char) -> bool) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.chars().all(is_of).then(|| text.chars().count())
}

/// Tokens that are in a mask together, and all others.
struct Slice {
    tokens: SimpleVob,
    rest: TokenTrie,
}

/// Tokens of one kind of ASCII character.
struct Run {
    characters: Vec<u8>,
    /// By the number of characters: those that are not longer.
    up_to: [SimpleVob; MAX_RUN + 1],
    /// Tokens with other characters, or longer ones.
    rest: TokenTrie,
}

/// Computes masks for the parsers of one vocabulary.
pub(super) struct Slices {
    environment: TokEnv,
    all: TokenTrie,
    any_text: Slice,
    short_text: Slice,
    inside: Run,
    word: Run,
}

impl Slices {
    /// Sorts a vocabulary: tens of milliseconds and some megabytes for 50,000 tokens.
    pub(super) fn new(environment: &TokEnv) -> Slices {
        let vocabulary = environment.tok_trie();
        let tokens = (0..vocabulary.vocab_size() as u32).map(|token| (token, vocabulary.token(token)));
        let texts: Vec<(u32, &[u8])> = tokens.filter(|(_, bytes)| !bytes.is_empty()).collect();
        let set_of = |has: &dyn Fn(&[u8]) -> bool| {
            let mut set = vocabulary.alloc_token_set();
            texts.iter().filter(|(_, bytes)| has(bytes)).for_each(|&(token, _)| set.allow_token(token));
            set
        };
        let trie_of = |has: &dyn Fn(&[u8]) -> bool| {
            TokenTrie::new(texts.iter().filter(|(_, bytes)| has(bytes)).map(|&(token, bytes)| (token, bytes)))
        };
        let is_short = |bytes: &[u8], is_of: fn(char) -> bool| length(bytes, is_of).is_some_and(|len| len <= MAX_RUN);
        let run = |is_of: fn(char) -> bool| {
            let mut up_to = array::from_fn(|_| vocabulary.alloc_token_set());
            for &(token, bytes) in &texts {
                let shortest = length(bytes, is_of).unwrap_or(usize::MAX);
                up_to.iter_mut().skip(shortest).for_each(|set| set.allow_token(token));
            }
            let characters = (0..=127).filter(|&byte: &u8| is_of(byte.into())).collect();
            Run { characters, up_to, rest: trie_of(&|bytes| !is_short(bytes, is_of)) }
        };
        let slice = |has: &dyn Fn(&[u8]) -> bool| Slice { tokens: set_of(has), rest: trie_of(&|bytes| !has(bytes)) };
        Slices {
            all: trie_of(&|_| true),
            any_text: slice(&|bytes| length(bytes, is_inside).is_some()),
            short_text: slice(&|bytes| is_short(bytes, is_inside)),
            inside: run(|char| char.is_ascii() && is_inside(char)),
            word: run(|char| char.is_ascii_lowercase()),
            environment: environment.clone(),
        }
    }

    /// Adds what is decided together, and returns what is left to walk.
    fn decide(&self, recognizer: &mut ParserRecognizer<'_>, mask: &mut SimpleVob) -> &TokenTrie {
        for (place, slice) in [(ANY_TEXT, &self.any_text), (SHORT_TEXT, &self.short_text)] {
            if takes(recognizer, place) {
                mask.or(&slice.tokens);
                return &slice.rest;
            }
        }
        for run in [&self.inside, &self.word] {
            if let Some(length) = run.length(recognizer) {
                mask.or(&run.up_to[length]);
                return &run.rest;
            }
        }
        &self.all
    }
}

/// Whether the lexer provably takes, in its state, all that an expression matches.
fn takes(recognizer: &mut ParserRecognizer<'_>, expression: usize) -> bool {
    let state = recognizer.lexer_state();
    let lexer = recognizer.lexer_mut();
    lexer.subsume_possible(state) && lexer.check_subsume(state, expression, PROOF_FUEL, None).unwrap_or(false)
}

impl Run {
    /// How many characters of its kind are taken one after another, whichever they are; nothing if it depends on which.
    fn length(&self, recognizer: &mut ParserRecognizer<'_>) -> Option<usize> {
        recognizer.trie_started("run");
        let mut num_taken = 0;
        let length = loop {
            let state = recognizer.lexer_state();
            match self.next_state(recognizer) {
                Err(Differs) => break None,
                Ok(None) => break Some(num_taken),
                Ok(Some(next)) if next == state => break Some(MAX_RUN),
                Ok(Some(_)) if num_taken + 1 == MAX_RUN => break Some(MAX_RUN),
                Ok(Some(_)) => {
                    recognizer.try_push_byte(self.characters[0]);
                    num_taken += 1;
                }
            }
        };
        recognizer.pop_bytes(num_taken);
        recognizer.trie_finished();
        length
    }

    /// The lexer's state behind any of the characters, nothing if all are refused.
    fn next_state(&self, recognizer: &mut ParserRecognizer<'_>) -> Result<Option<StateID>, Differs> {
        let num_rows = num_rows(recognizer);
        let mut first = None;
        for &character in &self.characters {
            let is_taken = recognizer.try_push_byte(character);
            let next = is_taken.then(|| recognizer.lexer_state());
            recognizer.pop_bytes(is_taken.into());
            // Where a lexeme ends, there is more to a state than the lexer's.
            if num_rows != self::num_rows(recognizer) || *first.get_or_insert(next) != next {
                return Err(Differs);
            }
        }
        Ok(first.flatten())
    }
}

/// One character leads elsewhere than another.
struct Differs;

/// Counts the lexemes that ended: each makes a row of the parser, or takes one that was made.
fn num_rows(recognizer: &mut ParserRecognizer<'_>) -> usize {
    let stats = recognizer.stats_mut();
    stats.rows + stats.cached_rows
}

impl BiasComputer for Slices {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut mask = self.trie().alloc_token_set();
        // Behind forced bytes, tokens begin earlier than the lexer's state.
        let rest = if start.is_empty() { self.decide(recognizer, &mut mask) } else { &self.all };
        rest.add_taken(recognizer, &mut mask, start);
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.environment.tok_trie()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use ahash::RandomState;
    use llguidance::Matcher;
    use llguidance::api::TopLevelGrammar;
    use llguidance::earley::SlicedBiasComputer;
    use taper_checkpoint::Checkpoint;
    use taper_testkit::schemas::{SEED, schemas};
    use taper_testkit::tiny::TinyModel;

    use crate::Tokenizer;
    use crate::grammar::vocabulary::GrammarVocabulary;

    /// The test kit's vocabulary, and a real one if a model's file is named.
    fn vocabularies() -> Vec<GrammarVocabulary> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), TinyModel::default().to_gguf()).unwrap();
        let paths = [Some(file.path().to_owned()), std::env::var_os("TAPER_TEST_MODEL").map(Into::into)];
        let tokenizer = |path| Tokenizer::from_metadata(Checkpoint::open(path).unwrap().metadata()).unwrap();
        paths.iter().flatten().map(|path| GrammarVocabulary::new(&Arc::new(tokenizer(path))).unwrap()).collect()
    }

    #[test]
    fn masks_are_those_of_a_walk_through_the_whole_vocabulary() {
        let mut sources: Vec<TopLevelGrammar> =
            schemas(SEED, 60).into_iter().map(|case| TopLevelGrammar::from_json_schema(case.schema)).collect();
        for (min, max) in [(0, 1), (1, 3), (0, 7), (5, 24), (2, 100)] {
            let schema = serde_json::json!({"type": "string", "minLength": min, "maxLength": max});
            sources.push(TopLevelGrammar::from_json_schema(schema));
        }
        sources.extend(
            ["[a-z]{1,16}@[a-z]+", "([a-z]{2,5}-){3}[^x]{0,9}x", "(a|b)*abb", "x{3}[a-z]{3}"]
                .map(TopLevelGrammar::from_regex),
        );
        // Lexemes that end within a token, and leave the lexer in the state that it was in.
        sources.push(TopLevelGrammar::from_lark("start: A A A \"!\"\nA: /[a-z]/".to_owned()));
        let dice = RandomState::with_seeds(1, 1, 2, 3);
        for vocabulary in vocabularies() {
            let plain = Arc::new(SlicedBiasComputer::new(&vocabulary.slices.environment, &[]).unwrap());
            for (case, source) in sources.iter().enumerate() {
                let matcher = |computer: Arc<dyn BiasComputer>| {
                    let mut parser = vocabulary.factory.create_parser(source.clone()).unwrap();
                    parser.bias_computer = computer;
                    Matcher::new(Ok(parser))
                };
                let (mut sliced, mut walked) = (matcher(vocabulary.slices.clone()), matcher(plain.clone()));
                for step in 0..60 {
                    if sliced.is_stopped() {
                        break;
                    }
                    let (mask, expected) = (sliced.compute_mask().unwrap(), walked.compute_mask().unwrap());
                    assert!(mask == expected, "grammar {case}, step {step}");
                    let taken: Vec<u32> = mask.iter().filter(|&token| vocabulary.sets.text.contains(token)).collect();
                    let Some(&token) = taken.get(dice.hash_one((case, step)) as usize % taken.len().max(1)) else {
                        break;
                    };
                    sliced.consume_token(token).unwrap();
                    walked.consume_token(token).unwrap();
                }
            }
        }
    }
}
