//! Budgets of thoughts: never more tokens than that between the marks, and otherwise the same answer.

use crate::support::*;
use std::time::Duration;
use taper_engine::stub::StubRunner;
use taper_engine::{EngineConfig, FinishReason, Request, SamplingParams, Speculation, ThinkingBudget};
use taper_text::{AnswerGrammar, Grammar, GrammarCompiler, GrammarSpec, ReasoningMarks, ReasoningStart};

const MARKS: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };
const MARK: &str = "</think>";

fn budget(max_tokens: usize, start: ReasoningStart) -> Option<ThinkingBudget> {
    Some(ThinkingBudget::new(max_tokens, MARKS, start, &tokenizer()).expect("bytes spell it"))
}

fn open(max_tokens: usize) -> Option<ThinkingBudget> {
    budget(max_tokens, ReasoningStart::Open)
}

fn with(thinking: Option<ThinkingBudget>, request: Request) -> Request {
    Request { thinking, ..request }
}

fn sampling(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), max_tokens: Some(40), ..SamplingParams::default() }
}

/// Any text of a model's thoughts, and three letters behind them.
fn three_letters() -> Grammar {
    let content = Some(Box::new(GrammarSpec::Regex("[a-z]{3}".to_owned())));
    let answer = AnswerGrammar { reasoning: Some((MARKS, ReasoningStart::Open)), calls: None, content };
    GrammarCompiler::new(tokenizer()).compile(&GrammarSpec::Answer(answer), &[]).unwrap()
}

#[test]
fn as_many_tokens_are_thought_as_may_be_and_no_more() {
    let engine = start(chaotic(limits()));
    for seed in 0..10 {
        let free = ask(&engine, request("> ", sampling(seed)));
        for max_tokens in [0, 1, 2, 7, 30] {
            let bound = ask(&engine, with(open(max_tokens), request("> ", sampling(seed))));
            // Letters: a token is a character, until the mark.
            let (thoughts, _) = bound.text().split_once(MARK).expect("the mark was forced");
            assert_eq!(thoughts, &free.text()[..max_tokens], "seed {seed}");
            assert_eq!((bound.choices[0].tokens.len(), bound.reason()), (40, FinishReason::Length));
        }
        // The limit of the answer comes first.
        let late = ask(&engine, with(open(40), request("> ", sampling(seed))));
        assert_eq!(late.choices, free.choices);
    }
}

#[test]
fn each_choice_has_the_budget_for_itself_and_log_probabilities_of_every_token() {
    let engine = start(chaotic(limits()));
    let sampling = SamplingParams { n: 4, logprobs: Some(1), ..sampling(3) };
    let answer = ask(&engine, with(open(5), request("> ", sampling)));
    assert_eq!(answer.choices.len(), 4);
    for choice in &answer.choices {
        assert_eq!(choice.text.find(MARK), Some(5), "{}", choice.text);
        assert!(choice.logprobs.iter().map(|found| found.token).eq(choice.tokens.iter().copied()));
    }
    assert_ne!(answer.choices[0].text[..5], answer.choices[1].text[..5]);
}

#[test]
fn answers_are_the_same_with_guesses_and_in_company() {
    // Letters in turn, so that guesses from the text are right, in steps that take time whatever they compute.
    let runner = || {
        let runner = StubRunner::with_logits(limits(), |tokens, logits| {
            let last = tokens[tokens.len() - 1];
            logits[if (97..99).contains(&last) { last as usize + 1 } else { 97 }] = 6.0;
            logits[usize::from(b'<')] = 3.0;
            logits[usize::from(b'z')] = 3.0;
        });
        runner.with_delay(Duration::from_micros(300))
    };
    let allowed = Some(bytes("abc<z"));
    let asked = |seed: u64| {
        let sampling = SamplingParams { max_tokens: Some(60), allowed_token_ids: allowed.clone(), ..sampling(seed) };
        // The prompt has the mark, so that it is guessed as well.
        with(open(seed as usize), request("abcabcab</think>abcabcabc", sampling))
    };
    let answers = |speculation| {
        let engine = start_with(runner(), EngineConfig { speculation, ..EngineConfig::default() });
        let alone: Vec<Answer> = (0..20).map(|seed| ask(&engine, asked(seed))).collect();
        let streams: Vec<_> = (0..20).map(|seed| engine.submit(asked(seed)).unwrap()).collect();
        let together: Vec<Answer> = streams.into_iter().map(read).collect();
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(alone.choices, together.choices);
        }
        (alone, engine.status())
    };
    let (plain, _) = answers(Speculation::Off);
    let (guessed, status) = answers(Speculation::Lookup);
    for (max_tokens, (plain, guessed)) in plain.iter().zip(&guessed).enumerate() {
        assert_eq!(plain.choices, guessed.choices);
        let (thoughts, _) = plain.text().split_once(MARK).expect("the mark was forced");
        assert!(thoughts.len() <= max_tokens, "{max_tokens}: {}", plain.text());
    }
    assert!(status.right_guesses > 0 && status.guessed_tokens > status.right_guesses, "{status:?}");
}

#[test]
fn a_form_begins_behind_thoughts_that_were_cut() {
    let engine = start(chaotic(limits()));
    for (max_tokens, n) in [(0, 1), (4, 1), (9, 3)] {
        let sampling = SamplingParams { n, ..sampling(max_tokens as u64) };
        let asked = with(open(max_tokens), request("> ", sampling));
        let answer = ask(&engine, Request { grammar: Some(three_letters()), ..asked });
        assert_eq!((&answer.error, answer.choices.len()), (&None, n));
        for choice in &answer.choices {
            let (thoughts, text) = choice.text.split_once(MARK).expect("the mark was forced");
            assert_eq!((thoughts.len(), text.len(), choice.reason), (max_tokens, 3, Some(FinishReason::Stop)));
        }
    }
}

#[test]
fn a_grammar_has_a_character_completed_before_the_mark() {
    // Two bytes, which are two tokens.
    let write = |tokens: &[u32], logits: &mut [f32]| {
        let thinks = tokens.len() < 6;
        let next = if thinks { "é".as_bytes()[tokens.len() % 2] } else { b'x' };
        logits[usize::from(next)] = 30.0;
    };
    let engine = start(StubRunner::with_logits(limits(), write));
    let asked = || with(open(1), greedy("> ", 20));
    assert!(ask(&engine, asked()).text().starts_with("\u{fffd}</think>"));
    let formed = ask(&engine, Request { grammar: Some(three_letters()), ..asked() });
    assert_eq!((formed.error.clone(), formed.text()), (None, "é</think>xxx"));
}

#[test]
fn a_budget_does_not_touch_answers_without_thoughts_or_with_short_ones() {
    for reply in ["Just so, and nothing thought of before.", "<think>Hm.</think>And so on, for as long as it takes."] {
        let engine = start(replying(reply));
        let asked = |max_tokens| with(budget(max_tokens, ReasoningStart::Possible), greedy("> ", 100));
        assert_eq!(ask(&engine, asked(12)).text(), reply);
    }
    let engine = start(replying("<think>Hm."));
    let cut = ask(&engine, with(budget(2, ReasoningStart::Possible), greedy("> ", 16)));
    assert_eq!(cut.text(), "<think>Hm</think>");
}
