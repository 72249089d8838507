//! The mask thread: what it gives back, and what it does with sequences that end or fail.

use crate::support::{Answer, ask as answer, bytes, chaotic, end_token, limits, request, start_with, tokenizer};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use taper_engine::{EngineConfig, MaskError, MaskWorker, Masked, Request, SamplingParams, SequenceId};
use taper_text::{BitMask, Grammar, GrammarCompiler, GrammarSpec};

/// The tokens that end a generation.
const ENDS: &str = "<|endoftext|><|im_end|>";

fn grammar(expression: &str) -> Grammar {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| GrammarCompiler::new(tokenizer()));
    compiler.compile(&GrammarSpec::Regex(expression.to_owned()), &[]).unwrap()
}

fn allowed(mask: &BitMask) -> String {
    mask.tokens().map(|token| tokenizer().token_text(token).unwrap().to_owned()).collect()
}

fn ask(worker: &mut MaskWorker, grammar: Grammar, guesses: &str) -> Masked {
    worker.request(SequenceId(0), grammar, bytes(guesses), Vec::new());
    worker.take(SequenceId(0)).unwrap()
}

#[test]
fn the_mask_is_for_the_place_behind_the_forced_tokens() {
    let mut worker = MaskWorker::start().unwrap();
    let masked = ask(&mut worker, grammar("q(x|z)wv"), "");
    assert_eq!((masked.forced, allowed(&masked.masks[0])), (bytes("q"), "xz".to_owned()));
    let mut grammar = masked.grammar;
    grammar.accept(u32::from(b'z')).unwrap();
    let masked = ask(&mut worker, grammar, "");
    assert_eq!((masked.forced, allowed(&masked.masks[0])), (bytes("wv"), ENDS.to_owned()));
    assert!(masked.grammar.is_finished());
}

#[test]
fn guesses_get_a_mask_each_until_the_grammar_refuses_one() {
    let mut worker = MaskWorker::start().unwrap();
    let masks = |masked: &Masked| masked.masks.iter().map(allowed).collect::<Vec<_>>();
    let masked = ask(&mut worker, grammar("[pq][rs][uv]"), "pr");
    assert_eq!(masks(&masked), ["pq", "rs", "uv"]);
    assert_eq!(masked.grammar.num_accepted(), 0, "guesses are taken back");
    let masked = ask(&mut worker, masked.grammar, "pxu");
    assert_eq!(masks(&masked), ["pq", "rs"]);
    let mut guesses = bytes("qsv");
    guesses.push(end_token());
    worker.request(SequenceId(1), masked.grammar, guesses, masked.masks);
    let masked = worker.take(SequenceId(1)).unwrap();
    assert_eq!(masks(&masked), ["pq", "rs", "uv", ENDS, ENDS]);
    assert!(!masked.grammar.is_finished());
}

#[test]
fn results_are_taken_in_any_order_and_abandoned_ones_leave_nothing() {
    let mut worker = MaskWorker::start().unwrap();
    for id in 0..20 {
        worker.request(SequenceId(id), grammar("[pq]x"), Vec::new(), Vec::new());
    }
    for id in (0..20).rev() {
        if id % 3 == 0 {
            worker.abandon(SequenceId(id));
        } else {
            assert_eq!(allowed(&worker.take(SequenceId(id)).unwrap().masks[0]), "pq");
        }
    }
    // The same name again gets its own result, not the abandoned one.
    worker.request(SequenceId(0), grammar("[rs]x"), Vec::new(), Vec::new());
    assert_eq!(allowed(&worker.take(SequenceId(0)).unwrap().masks[0]), "rs");
    // Also where the abandoned one is still being computed, and abandoning nothing does nothing.
    worker.request(SequenceId(1), grammar("[pq]x"), Vec::new(), Vec::new());
    worker.abandon(SequenceId(1));
    worker.abandon(SequenceId(1));
    worker.request(SequenceId(1), grammar("[uv]x"), Vec::new(), Vec::new());
    assert_eq!(allowed(&worker.take(SequenceId(1)).unwrap().masks[0]), "uv");
}

#[test]
fn a_panic_fails_its_own_request_only() {
    let mut worker = MaskWorker::start().unwrap();
    // A mask of another vocabulary is a mistake of ours, and asserted.
    worker.request(SequenceId(0), grammar("[pq]x"), Vec::new(), vec![BitMask::new(3)]);
    worker.request(SequenceId(1), grammar("[pq]x"), Vec::new(), Vec::new());
    assert_eq!(worker.take(SequenceId(0)).unwrap_err(), MaskError::Panicked);
    assert_eq!(allowed(&worker.take(SequenceId(1)).unwrap().masks[0]), "pq");
}

#[test]
fn a_worker_is_dropped_with_requests_under_way() {
    let mut worker = MaskWorker::start().unwrap();
    for id in 0..50 {
        worker.request(SequenceId(id), grammar("[pq]x"), Vec::new(), Vec::new());
    }
    // Returns: the thread finds its channel closed and ends.
    drop(worker);
}

#[test]
fn masks_are_waited_for_until_a_deadline() {
    let mut worker = MaskWorker::start().unwrap();
    worker.request(SequenceId(0), grammar("[pq]x"), Vec::new(), Vec::new());
    assert!(worker.is_ready(SequenceId(0), Instant::now() + Duration::from_secs(60)));
    assert!(worker.is_ready(SequenceId(0), Instant::now()), "it stays");
    assert_eq!(allowed(&worker.take(SequenceId(0)).unwrap().masks[0]), "pq");
    assert!(!worker.is_ready(SequenceId(0), Instant::now() + Duration::from_millis(1)), "nothing is on its way");
}

#[test]
fn a_token_that_is_put_off_because_its_mask_is_late_is_the_same_token() {
    let answers = |mask_patience: Duration| -> Vec<Answer> {
        let engine = start_with(chaotic(limits()), EngineConfig { mask_patience, ..EngineConfig::default() });
        let ask = |place: usize| {
            let sampling = SamplingParams {
                n: 1 + place % 3,
                seed: Some(place as u64),
                max_tokens: Some(40),
                logprobs: place.is_multiple_of(4).then_some(1),
                prompt_logprobs: place.is_multiple_of(5).then_some(1),
                ..SamplingParams::default()
            };
            let form = ["([ab]{3}|key)+", "[ab]+", "(say)?(x|y|oncemore)+"][place % 3];
            let asked = request(&"p".repeat(1 + 7 * place), sampling);
            answer(&engine, Request { grammar: Some(grammar(form)), ..asked })
        };
        (0..20).map(ask).collect()
    };
    // The stub's steps are shorter than any mask takes.
    let (waiting, putting_off) = (answers(Duration::from_secs(60)), answers(Duration::ZERO));
    assert_eq!(waiting.len(), 20);
    for (waiting, putting_off) in waiting.into_iter().zip(putting_off) {
        assert_eq!((waiting.error, putting_off.error), (None, None));
        assert_eq!(waiting.prompt_logprobs, putting_off.prompt_logprobs);
        assert_eq!(waiting.choices, putting_off.choices);
    }
}
