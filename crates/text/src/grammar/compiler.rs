//! From what a client asks to the grammar of a sequence, once per specification.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::json;

use super::vocabulary::GrammarVocabulary;
use super::{Grammar, GrammarError, GrammarSpec, gbnf, lark, limits, rehearsal, schema};
use crate::Tokenizer;

/// Compiled grammars that are kept. One takes tens of kilobytes to a few megabytes.
const CACHE_LEN: usize = 64;

/// Compiles grammars for one model. Made once and shared between threads.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocabulary: OnceLock<Result<Arc<GrammarVocabulary>, GrammarError>>,
    /// Grammars before their first token, by specification; the last used is last.
    cache: Mutex<VecDeque<(String, Arc<Grammar>)>>,
    slots: Arc<Slots>,
}

impl GrammarCompiler {
    /// Costs nothing yet: the vocabulary's trie is built by [`GrammarCompiler::prepare`] or by the first grammar.
    pub fn new(tokenizer: Arc<Tokenizer>) -> GrammarCompiler {
        GrammarCompiler { tokenizer, vocabulary: OnceLock::new(), cache: Mutex::default(), slots: Arc::default() }
    }

    /// Builds the trie of the vocabulary, if nobody did: for a thread in the background while the model loads.
    pub fn prepare(&self) -> Result<(), GrammarError> {
        self.vocabulary().map(drop)
    }

    /// The grammar of an answer to `prompt`, before its first token. Blocks while it compiles, up to some seconds for hostile
    /// input. The same specification again costs no more than a copy.
    ///
    /// The prompt matters for SentencePiece vocabularies only: where the answer begins a stretch of text, its first blank is
    /// the tokenizer's (see [`crate::Detokenizer::continuing`]), and the tokens spell a blank and then what is asked for.
    pub fn compile(&self, spec: &GrammarSpec, prompt: &[u32]) -> Result<Grammar, GrammarError> {
        let blank_first = self.tokenizer.has_space_prefix() && self.begins_text(prompt);
        let kind = spec.kind();
        for schema in spec.schemas() {
            limits::check_levels(kind, schema)?;
        }
        let key = format!("{blank_first} {}", key(spec));
        limits::check_size(kind, key.len())?;
        for schema in spec.schemas() {
            limits::check_optional_properties(kind, schema)?;
        }
        if let Some(grammar) = self.cached(&key) {
            return Ok(Grammar::clone(&grammar));
        }
        let vocabulary = self.vocabulary()?;
        let grammar = Arc::new(self.compile_apart(spec.clone(), blank_first, vocabulary)?);
        let copy = Grammar::clone(&grammar);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() == CACHE_LEN {
            cache.pop_front();
        }
        cache.push_back((key, grammar));
        Ok(copy)
    }

    fn vocabulary(&self) -> Result<Arc<GrammarVocabulary>, GrammarError> {
        self.vocabulary.get_or_init(|| GrammarVocabulary::new(&self.tokenizer).map(Arc::new)).clone()
    }

    fn begins_text(&self, prompt: &[u32]) -> bool {
        let Some(&last) = prompt.last() else { return true };
        self.tokenizer
            .kind(last)
            .is_some_and(|kind| kind.is_special() || kind == crate::vocabulary::TokenKind::UserDefined)
    }

    fn cached(&self, key: &str) -> Option<Arc<Grammar>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(other, _)| other == key)?;
        let entry = cache.remove(at)?;
        let grammar = Arc::clone(&entry.1);
        cache.push_back(entry);
        Some(grammar)
    }

    /// Compiles on a thread with a stack of its own, and waits for it so long. A compilation that is given up goes on until it
    /// meets one of the library's limits; until then it counts as running.
    fn compile_apart(
        &self,
        spec: GrammarSpec,
        blank_first: bool,
        vocabulary: Arc<GrammarVocabulary>,
    ) -> Result<Grammar, GrammarError> {
        let kind = spec.kind();
        let deadline = Instant::now() + limits::COMPILE_DEADLINE;
        let slot = Slot::take(&self.slots, deadline).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let compile = move || {
            let _slot = slot;
            // A panic of the library on some input must not cost more than this request.
            let outcome = catch_unwind(AssertUnwindSafe(|| build(&spec, blank_first, &vocabulary)));
            let outcome =
                outcome.unwrap_or_else(|_| Err(GrammarError::invalid(kind, "the compiler failed on it; simplify it")));
            // The receiver is gone if the deadline passed.
            let _ = sender.send(outcome);
        };
        std::thread::Builder::new()
            .name("taper-grammar-compile".to_owned())
            .stack_size(limits::COMPILE_STACK_BYTES)
            .spawn(compile)
            .map_err(|_| GrammarError::Busy)?;
        let deadline = limits::COMPILE_DEADLINE;
        receiver.recv_timeout(deadline).unwrap_or(Err(GrammarError::TooSlow { kind, seconds: deadline.as_secs() }))
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}

/// How many compilations run.
#[derive(Default)]
struct Slots {
    num_taken: Mutex<usize>,
    freed: Condvar,
}

/// One compilation that runs.
struct Slot(Arc<Slots>);

impl Slot {
    /// Waits for a place until the deadline.
    fn take(slots: &Arc<Slots>, deadline: Instant) -> Option<Slot> {
        let taken = slots.num_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = deadline.saturating_duration_since(Instant::now());
        let is_full = |num: &mut usize| *num >= limits::MAX_COMPILATIONS;
        let (mut taken, _) =
            slots.freed.wait_timeout_while(taken, wait, is_full).unwrap_or_else(PoisonError::into_inner);
        if is_full(&mut taken) {
            return None;
        }
        *taken += 1;
        Some(Slot(Arc::clone(slots)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.num_taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

/// A text that no other specification has.
fn key(spec: &GrammarSpec) -> String {
    let (name, text) = match spec {
        GrammarSpec::JsonObject => ("object", String::new()),
        GrammarSpec::JsonSchema(schema) => ("schema", schema.to_string()),
        GrammarSpec::Regex(expression) => ("regex", expression.clone()),
        GrammarSpec::Choice(texts) => ("choice", serde_json::Value::from(texts.clone()).to_string()),
        GrammarSpec::Lark(text) => ("lark", text.clone()),
        GrammarSpec::Gbnf(text) => ("gbnf", text.clone()),
        GrammarSpec::Answer(answer) => ("answer", answer.key(key)),
    };
    format!("{name} {text}")
}

/// A specification in the library's terms.
fn source(spec: &GrammarSpec) -> Result<TopLevelGrammar, GrammarError> {
    let kind = spec.kind();
    match spec {
        GrammarSpec::JsonObject => Ok(TopLevelGrammar::from_json_schema(schema::prepare(&json!({"type": "object"}))?)),
        GrammarSpec::JsonSchema(schema) => Ok(TopLevelGrammar::from_json_schema(schema::prepare(schema)?)),
        GrammarSpec::Regex(expression) => {
            limits::check_brackets(kind, expression)?;
            Ok(TopLevelGrammar::from_regex(expression))
        }
        GrammarSpec::Choice(texts) => {
            if texts.is_empty() || texts.len() > limits::MAX_CHOICES || texts.iter().any(String::is_empty) {
                let reason = format!("it must be 1 to {} texts, none of them empty", limits::MAX_CHOICES);
                return Err(GrammarError::invalid(kind, reason));
            }
            Ok(TopLevelGrammar::from_lark(lark::of_choice(texts)))
        }
        GrammarSpec::Lark(text) => {
            limits::check_brackets(kind, text)?;
            lark::check_no_token(text)?;
            Ok(TopLevelGrammar::from_lark(text.clone()))
        }
        GrammarSpec::Gbnf(text) => {
            limits::check_brackets(kind, text)?;
            Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?))
        }
        GrammarSpec::Answer(_) => Err(GrammarError::invalid(kind, "it cannot be part of another")),
    }
}

/// The same behind a blank.
fn after_blank(source: TopLevelGrammar) -> TopLevelGrammar {
    let outer = GrammarWithLexer::from_lark("start: \" \" @answer\n".to_owned());
    let named = |grammar| GrammarWithLexer { name: Some("answer".to_owned()), ..grammar };
    TopLevelGrammar {
        grammars: std::iter::once(outer).chain(source.grammars.into_iter().map(named)).collect(),
        max_tokens: None,
    }
}

fn build(spec: &GrammarSpec, blank_first: bool, vocabulary: &GrammarVocabulary) -> Result<Grammar, GrammarError> {
    let invalid = |error: &str| GrammarError::invalid(spec.kind(), first_lines(error));
    let (source, named) = match spec {
        GrammarSpec::Answer(answer) => answer.source(&vocabulary.sets.tokenizer, blank_first, source)?,
        _ if blank_first => (after_blank(source(spec)?), Vec::new()),
        _ => (source(spec)?, Vec::new()),
    };
    let mut parser = vocabulary.factory.create_parser(source).map_err(|error| invalid(&format!("{error:#}")))?;
    parser.bias_computer = vocabulary.slices.clone();
    let matcher = Matcher::new(Ok(parser));
    if let Some(error) = matcher.get_error() {
        return Err(invalid(&error));
    }
    let grammar = Grammar::new(matcher, Arc::clone(&vocabulary.sets), named, spec.json_start());
    // A grammar that cannot take its first step is the client's mistake now, and a failed answer later.
    match rehearsal::rehearse(&grammar) {
        Ok(rehearsed) => Ok(rehearsed.unwrap_or(grammar)),
        Err(GrammarError::Stuck(reason)) => Err(GrammarError::invalid(spec.kind(), reason)),
        Err(error) => Err(error),
    }
}

/// An error of the library, fit for a client: without its own appendices, and not endless.
pub(super) fn first_lines(error: &str) -> String {
    const MAX_CHARS: usize = 400;
    let text = error.split("\n<").next().unwrap_or_default().trim();
    limits::explain(text).chars().take(MAX_CHARS).collect()
}
