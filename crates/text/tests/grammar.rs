//! Two hundred seeded schemas: whatever is chosen among the mask's tokens becomes a document that another library validates,
//! and every document that a schema allows is accepted token by token.
//!
//! They run over the byte-level vocabulary of the test kit, and over a real one when `TAPER_TEST_MODEL` names a model's file.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use taper_checkpoint::Checkpoint;
use taper_testkit::rng::SplitMix;
use taper_testkit::schemas::{SEED, SchemaCase, one_line, schemas};
use taper_testkit::tiny::TinyModel;
use taper_text::{EncodeOptions, Grammar, GrammarCompiler, GrammarSpec, Tokenizer};

/// Far more than any document takes; a walk that is still not at its end then goes in circles.
const MAX_TOKENS: usize = 4000;

fn tokenizers() -> Vec<Arc<Tokenizer>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TinyModel::default().to_gguf()).unwrap();
    let paths = [Some(file.path().to_owned()), std::env::var_os("TAPER_TEST_MODEL").map(Into::into)];
    let open = |path| Arc::new(Tokenizer::from_metadata(Checkpoint::open(path).unwrap().metadata()).unwrap());
    paths.iter().flatten().map(|path: &std::path::PathBuf| open(path)).collect()
}

fn compile(compiler: &GrammarCompiler, case: &SchemaCase) -> Grammar {
    let grammar = compiler.compile(&GrammarSpec::JsonSchema(case.schema.clone()), &[]);
    grammar.unwrap_or_else(|error| panic!("schema {}: {error}\n{}", case.index, case.schema))
}

/// Chooses among the allowed tokens until the grammar ends; every third choice is of those that end a string, an array, an
/// object or a pattern's endless part.
fn random_walk(grammar: &mut Grammar, tokenizer: &Tokenizer, rng: &mut SplitMix) -> Vec<u32> {
    let mut mask = grammar.empty_mask();
    let mut tokens = Vec::new();
    while !grammar.is_finished() {
        assert!(tokens.len() < MAX_TOKENS, "no end: {:?}", tokenizer.decode(&tokens, true));
        grammar.mask(&mut mask).unwrap();
        let allowed: Vec<u32> = mask.tokens().collect();
        let closes = |token: &&u32| {
            let bytes = tokenizer.token_bytes(**token).unwrap();
            tokenizer.end_of_generation().contains(*token) || bytes.first().is_some_and(|byte| b"\"]}@.".contains(byte))
        };
        let closing: Vec<u32> = allowed.iter().filter(closes).copied().collect();
        let choices = if !closing.is_empty() && rng.chance(0.34) { &closing } else { &allowed };
        let token = *rng.pick(choices);
        grammar.accept(token).unwrap();
        tokens.push(token);
    }
    tokens
}

#[test]
fn whatever_is_chosen_among_the_allowed_tokens_is_a_valid_document() {
    for tokenizer in tokenizers() {
        let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
        for case in schemas(SEED, 200) {
            let validator = jsonschema::validator_for(&case.schema).unwrap();
            let mut rng = SplitMix::named(SEED, &format!("walk {}", case.index));
            for _ in 0..2 {
                let tokens = random_walk(&mut compile(&compiler, &case), &tokenizer, &mut rng);
                let text = tokenizer.decode(&tokens, true);
                let document: Value = serde_json::from_str(&text)
                    .unwrap_or_else(|error| panic!("schema {}: {error} in {text:?}\n{}", case.index, case.schema));
                let errors: Vec<String> = validator.iter_errors(&document).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "schema {}: {errors:?} in {text}\n{}", case.index, case.schema);
            }
        }
    }
}

#[test]
fn every_allowed_document_is_accepted_token_by_token() {
    for tokenizer in tokenizers() {
        let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
        for case in schemas(SEED, 200) {
            let validator = jsonschema::validator_for(&case.schema).unwrap();
            for document in &case.documents {
                assert!(validator.is_valid(document), "the fixture is wrong: {document}\n{}", case.schema);
                let mut grammar = compile(&compiler, &case);
                let text = one_line(document);
                for token in tokenizer.encode(&text, EncodeOptions::default()).unwrap() {
                    let piece = tokenizer.token_text(token);
                    grammar.accept(token).unwrap_or_else(|error| {
                        panic!("schema {}: {error}: {piece:?} of {text}\n{}", case.index, case.schema)
                    });
                }
                assert!(grammar.may_end(), "schema {}: not at its end after {text}\n{}", case.index, case.schema);
            }
        }
    }
}

/// A share of the times, in microseconds.
fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    1e6 * times[((share * times.len() as f64) as usize).min(times.len() - 1)].as_secs_f64()
}

/// What a mask costs in the schemas' documents, as the engine asks for it: forced tokens first, then a mask. With
/// `TAPER_COLD_CACHES` set, the processor's caches are emptied before each, as the weights of a model empty them.
///
///     TAPER_TEST_MODEL=model.gguf cargo test --release -p taper-text --test grammar -- --ignored --nocapture
#[test]
#[ignore = "prints times"]
fn mask_times() {
    let tokenizer = tokenizers().pop().unwrap();
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
    let begin = Instant::now();
    compiler.prepare().unwrap();
    println!("{} tokens; trie {:.0} ms", tokenizer.vocab_size(), 1e3 * begin.elapsed().as_secs_f64());
    let (mut compiled, mut copied, mut masked, mut accepted) = (vec![], vec![], vec![], vec![]);
    let (mut num_tokens, mut num_forced) = (0, 0);
    let mut weights = vec![0u8; if std::env::var_os("TAPER_COLD_CACHES").is_some() { 80 << 20 } else { 0 }];
    let mut empty_caches = || weights.iter_mut().step_by(64).for_each(|line| *line = line.wrapping_add(1));
    for case in schemas(SEED, 200) {
        let begin = Instant::now();
        compile(&compiler, &case);
        compiled.push(begin.elapsed());
        for document in &case.documents {
            let begin = Instant::now();
            let mut grammar = compile(&compiler, &case);
            copied.push(begin.elapsed());
            let mut mask = grammar.empty_mask();
            let text = one_line(document);
            let tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
            let mut at = 0;
            while at < tokens.len() {
                empty_caches();
                let begin = Instant::now();
                let forced = grammar.forced().unwrap();
                // The usual tokens of the document and of what is forced may differ; the document's are taken then.
                let is_usual = tokens[at..].starts_with(&forced);
                let num = if is_usual { forced.len() } else { 0 };
                forced[..num].iter().for_each(|&token| grammar.accept(token).unwrap());
                grammar.mask(&mut mask).unwrap();
                masked.push(begin.elapsed());
                num_forced += num;
                at += num;
                if let Some(&token) = tokens.get(at) {
                    let begin = Instant::now();
                    grammar.accept(token).unwrap();
                    accepted.push(begin.elapsed());
                    at += 1;
                }
            }
            num_tokens += tokens.len();
        }
    }
    println!("{num_tokens} tokens, {num_forced} of them forced, {} masks", masked.len());
    for (what, times) in
        [("compile", &mut compiled), ("copy", &mut copied), ("forced and mask", &mut masked), ("accept", &mut accepted)]
    {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(times, share));
        let mean = 1e6 * times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64;
        println!("{what}: mean {mean:.1} us, p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us");
    }
}
