//! Sampling parameters through the engine: that each one reaches the answer, alone and in company.

use crate::support::*;
use std::time::Duration;
use taper_engine::stub::StubRunner;
use taper_engine::{
    Dry, DynamicTemperature, EngineConfig, EngineError, FinishReason, Mirostat, MirostatVersion, Request,
    SamplingParams, Speculation, Stage, SubmitError, TokenLogprobs, Xtc,
};

/// A model that would say "abcabc..." for ever: each letter is followed by the next, with the end of the text as the second
/// best and `z` as the third.
fn alphabet() -> StubRunner {
    let end = end_token() as usize;
    StubRunner::with_logits(limits(), move |tokens, logits| {
        let last = tokens[tokens.len() - 1];
        let next = if (97..99).contains(&last) { last + 1 } else { 97 };
        logits[next as usize] = 6.0;
        logits[end] = 5.0;
        logits[usize::from(b'z')] = 4.0;
    })
}

fn answer(sampling: SamplingParams) -> Answer {
    ask(&start(alphabet()), request("> ", SamplingParams { max_tokens: Some(9), ..sampling }))
}

fn check(sampling: SamplingParams, text: &str, reason: FinishReason) {
    let asked = format!("{sampling:?}");
    let answer = answer(sampling);
    assert_eq!((answer.text(), answer.reason()), (text, reason), "{asked}");
}

#[test]
fn penalties_see_what_was_generated() {
    let greedy = SamplingParams::greedy;
    check(greedy(), "abcabcabc", FinishReason::Length);
    // 6 - 1.5 is less than the end's 5, once a letter was seen.
    check(SamplingParams { presence_penalty: 1.5, ..greedy() }, "abc", FinishReason::Stop);
    // 6 - 2 * 0.6 as well, but only the second time.
    check(SamplingParams { frequency_penalty: 0.6, ..greedy() }, "abcabc", FinishReason::Stop);
    check(SamplingParams { repetition_penalty: 1.3, ..greedy() }, "abc", FinishReason::Stop);
}

#[test]
fn the_repetition_penalty_sees_the_prompt_and_the_others_do_not() {
    let engine = start(alphabet());
    let check = |sampling: SamplingParams, expected| {
        let sampling = SamplingParams { max_tokens: Some(3), ..sampling };
        assert_eq!(ask(&engine, request("abc", sampling)).text(), expected);
    };
    let greedy = SamplingParams::greedy;
    check(SamplingParams { repetition_penalty: 1.3, ..greedy() }, "");
    check(SamplingParams { presence_penalty: 2.0, frequency_penalty: 2.0, ..greedy() }, "abc");
}

#[test]
fn penalties_may_look_at_the_last_tokens_alone() {
    let greedy = |penalty_last_n| SamplingParams { penalty_last_n, ..SamplingParams::greedy() };
    // A letter comes again after three tokens.
    check(SamplingParams { presence_penalty: 1.5, ..greedy(Some(3)) }, "abc", FinishReason::Stop);
    check(SamplingParams { presence_penalty: 1.5, ..greedy(Some(2)) }, "abcabcabc", FinishReason::Length);
    check(SamplingParams { repetition_penalty: 1.3, ..greedy(Some(2)) }, "abcabcabc", FinishReason::Length);
    check(SamplingParams { repetition_penalty: 1.3, ..greedy(Some(0)) }, "abcabcabc", FinishReason::Length);
}

#[test]
fn repetitions_across_prompt_and_answer_are_penalised() {
    let engine = start(alphabet());
    let check = |dry: Dry, expected| {
        let dry = Dry { multiplier: 1.5, base: 1.0, ..dry };
        let sampling = SamplingParams { dry, max_tokens: Some(9), ..SamplingParams::greedy() };
        assert_eq!(ask(&engine, request("zabc", sampling)).text(), expected);
    };
    // After "zabcab" the c would be a third token that is repeated.
    check(Dry::default(), "ab");
    check(Dry { allowed_length: 1, ..Dry::default() }, "a");
    check(Dry { last_n: Some(3), ..Dry::default() }, "abcabcabc");
    check(Dry { sequence_breakers: [bytes("b")].into(), ..Dry::default() }, "abcabcabc");
    check(Dry { sequence_breakers: [bytes("bc")].into(), ..Dry::default() }, "ab");
}

#[test]
fn biases_sets_and_bad_words_change_what_is_chosen() {
    let greedy = SamplingParams::greedy;
    let (a, b, z) = (u32::from(b'a'), u32::from(b'b'), u32::from(b'z'));
    check(SamplingParams { logit_bias: vec![(z, 10.0)], ..greedy() }, "zzzzzzzzz", FinishReason::Length);
    check(SamplingParams { logit_bias: vec![(b, -100.0)], ..greedy() }, "a", FinishReason::Stop);
    check(SamplingParams { allowed_token_ids: Some(vec![a, z]), ..greedy() }, "azazazaza", FinishReason::Length);
    check(SamplingParams { bad_words: vec![vec![a, b]], ..greedy() }, "a", FinishReason::Stop);
    let bans = SamplingParams { bad_words: vec![bytes("ab"), vec![end_token()]], ..greedy() };
    check(bans, "azazazaza", FinishReason::Length);
}

#[test]
fn min_tokens_rules_the_end_out_until_then() {
    let greedy = || SamplingParams { logit_bias: vec![(end_token(), 10.0)], ..SamplingParams::greedy() };
    check(greedy(), "", FinishReason::Stop);
    check(SamplingParams { min_tokens: 4, ..greedy() }, "abca", FinishReason::Stop);
    let ignoring = SamplingParams { min_tokens: 4, ignore_eos: true, ..greedy() };
    check(ignoring, "", FinishReason::Length);
}

#[test]
fn min_tokens_rules_out_stop_tokens_and_stop_strings_too() {
    let greedy = |min_tokens| SamplingParams { min_tokens, ..SamplingParams::greedy() };
    let stop_b = |min_tokens| SamplingParams { stop_token_ids: vec![u32::from(b'b')], ..greedy(min_tokens) };
    check(stop_b(0), "a", FinishReason::Stop);
    // The end is ruled out with it, so the third best comes.
    check(stop_b(3), "aza", FinishReason::Stop);
    let stop_abc = |min_tokens| SamplingParams { stop: vec!["bc".into()], ..greedy(min_tokens) };
    check(stop_abc(0), "a", FinishReason::Stop);
    check(stop_abc(4), "abca", FinishReason::Stop);
}

#[test]
fn a_stop_may_be_part_of_the_text() {
    let shown = |stop: &str, stop_token_ids: Vec<u32>| SamplingParams {
        stop: vec![stop.into()],
        stop_token_ids,
        include_stop_str_in_output: true,
        ..SamplingParams::greedy()
    };
    check(shown("bc", vec![]), "abc", FinishReason::Stop);
    check(shown("nowhere", vec![u32::from(b'c')]), "abc", FinishReason::Stop);
    check(shown("c", vec![u32::from(b'c')]), "abc", FinishReason::Stop);
    check(shown("bx", vec![u32::from(b'b')]), "ab", FinishReason::Stop);
}

#[test]
fn log_probabilities_travel_with_their_tokens() {
    let engine = start(replying("a🦀 stop here"));
    let sampling = SamplingParams { logprobs: Some(2), stop: vec!["stop".into()], ..SamplingParams::greedy() };
    let answer = ask(&engine, request("> ", sampling));
    assert_eq!(answer.text(), "a🦀 ");
    let choice = &answer.choices[0];
    let told: Vec<u32> = choice.logprobs.iter().map(|logprobs| logprobs.token).collect();
    assert_eq!((told.as_slice(), choice.tokens.len()), (choice.tokens.as_slice(), 10), "the stop string's as well");
    for logprobs in &choice.logprobs {
        assert_eq!((logprobs.rank, logprobs.top.len(), logprobs.top[0].0), (1, 2, logprobs.token));
        assert!(logprobs.logprob > -1e-6 && logprobs.top[1].1 < -29.9, "{logprobs:?}");
    }
    assert!(ask(&engine, greedy("> ", 4)).choices[0].logprobs.is_empty(), "nobody asked");
}

#[test]
fn log_probabilities_are_those_of_the_model_and_not_of_the_parameters() {
    let sampling = SamplingParams {
        logprobs: Some(1),
        logit_bias: vec![(u32::from(b'z'), 50.0)],
        temperature: 0.5,
        seed: Some(1),
        ..SamplingParams::default()
    };
    let answer = answer(sampling);
    assert_eq!(answer.text(), "zzzzzzzzz");
    // Logits 6, 5 and 4 above zeros everywhere else.
    let total = 6f64.exp() + 5f64.exp() + 4f64.exp() + (vocab_size() - 3) as f64;
    for logprobs in &answer.choices[0].logprobs {
        assert!((f64::from(logprobs.logprob) - (4.0 - total.ln())).abs() < 1e-5, "{logprobs:?}");
        assert_eq!((logprobs.rank, logprobs.top[0].0), (3, u32::from(b'a')));
    }
}

#[test]
fn log_probabilities_of_a_prompt_are_those_of_each_row() {
    let engine = start(chaotic(limits()));
    // More than one block of the cache, and more rows than a step gives logits for.
    let tokens = bytes("a prompt of more than one block and of more than one step");
    let sampling =
        |prompt_logprobs| SamplingParams { prompt_logprobs, max_tokens: Some(3), ..SamplingParams::greedy() };
    let ask = |sampling| ask(&engine, Request { prompt_tokens: tokens.clone(), sampling, ..Request::default() });
    let plain = ask(sampling(None));
    assert_eq!(plain.prompt_logprobs, None, "nobody asked");
    // The prompt is cached by now, which must not leave a row out.
    for n in [1, 3] {
        let answer = ask(SamplingParams { n, ..sampling(Some(2)) });
        assert_eq!(answer.choices[0], plain.choices[0]);
        let told = answer.prompt_logprobs.expect("they were asked for");
        assert_eq!((told.len(), &told[0]), (tokens.len(), &None));
        for (end, found) in told.iter().enumerate().skip(1) {
            let mut row = vec![0.0; vocab_size()];
            chaotic_logits(&tokens[..end], &mut row);
            assert_eq!(*found, Some(TokenLogprobs::new(&row, tokens[end], 2).unwrap()));
        }
    }
}

#[test]
fn a_prompt_of_one_token_has_nothing_to_tell() {
    let sampling = SamplingParams { prompt_logprobs: Some(0), max_tokens: Some(1), ..SamplingParams::greedy() };
    let answer = ask(&start(alphabet()), request(">", sampling));
    assert_eq!((answer.prompt_logprobs.clone(), answer.text()), (Some(vec![None]), "a"));
}

/// Everything at once, so that state of every processor would show.
fn everything(seed: u64) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        max_tokens: Some(40),
        min_tokens: 5,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.01,
        typical_p: 0.9,
        temperature: 0.8,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        repetition_penalty: 1.2,
        logit_bias: vec![(u32::from(b'e'), 0.5), (u32::from(b'q'), -5.0)],
        bad_words: vec![bytes("ab"), bytes("cde")],
        logprobs: Some(3),
        ..SamplingParams::default()
    }
}

/// What `everything` leaves out: other stages in another order, or mirostat.
fn everything_else(seed: u64) -> SamplingParams {
    let mirostat = [None, Some(MirostatVersion::One), Some(MirostatVersion::Two)][seed as usize % 3];
    SamplingParams {
        seed: Some(seed),
        max_tokens: Some(40),
        penalty_last_n: Some(6),
        presence_penalty: 0.3,
        repetition_penalty: 1.2,
        dry: Dry { multiplier: 0.5, allowed_length: 1, sequence_breakers: [bytes("e")].into(), ..Dry::default() },
        order: vec![Stage::Xtc, Stage::TopK, Stage::TopNSigma, Stage::TopP, Stage::TypicalP, Stage::Temperature],
        top_k: 20,
        top_p: 0.9,
        typical_p: 0.9,
        top_n_sigma: 2.0,
        temperature: 0.9,
        dynamic_temperature: DynamicTemperature { range: 0.5, exponent: 0.7 },
        xtc: Xtc { probability: 0.5, threshold: 0.05 },
        min_keep: 3,
        mirostat: mirostat.map(|version| Mirostat { tau: 3.0, eta: 0.5, ..Mirostat::new(version) }),
        logprobs: Some(3),
        logprobs_of_draw: seed.is_multiple_of(2),
        ..SamplingParams::default()
    }
}

#[test]
fn the_same_seed_gives_the_same_text_alone_and_in_company() {
    let prompts: Vec<String> = (0..10).map(|number| format!("{number} and more")).collect();
    for sampling in [everything, everything_else] {
        let engine = start(chaotic(limits()));
        let alone: Vec<Answer> =
            prompts.iter().zip(0..).map(|(prompt, seed)| ask(&engine, request(prompt, sampling(seed)))).collect();
        // Too few blocks for all at once: some are preempted and computed again.
        let few = taper_engine::RunnerLimits { num_blocks: 14, block_size: 8, max_rows: 24, ..limits() };
        let (runner, gate) = chaotic(few).with_gate();
        let engine = start(runner);
        let submit = |(prompt, seed): (&String, u64)| engine.submit(request(prompt, sampling(seed))).unwrap();
        let streams: Vec<_> = prompts.iter().zip(0..).map(submit).collect();
        gate.open();
        let together: Vec<Answer> = streams.into_iter().map(read).collect();
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(alone.choices, together.choices);
            assert!(alone.choices[0].tokens.len() == 40, "{alone:?}");
            let has_bad_words = alone.choices[0].text.contains("ab") || alone.choices[0].text.contains("cde");
            assert!(sampling(0).bad_words.is_empty() || !has_bad_words);
        }
        assert!(engine.status().preemptions > 0, "{:?}", engine.status());
    }
}

#[test]
fn guessed_answers_are_those_of_one_token_at_a_time() {
    let answers = |speculation| {
        // A step that takes time whatever it computes, so that guesses are expected to pay.
        let runner = alphabet().with_delay(Duration::from_micros(300));
        let engine = start_with(runner, EngineConfig { speculation, ..EngineConfig::default() });
        let sampling = |seed| SamplingParams {
            seed: Some(seed),
            max_tokens: Some(60),
            min_tokens: 40,
            temperature: 0.7,
            frequency_penalty: 0.05,
            repetition_penalty: 1.1,
            bad_words: vec![bytes("zab")],
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        let others = |seed| {
            let mirostat = [None, Some(MirostatVersion::One), Some(MirostatVersion::Two)][seed as usize % 3];
            SamplingParams {
                penalty_last_n: Some(20),
                dry: Dry { multiplier: 0.01, base: 1.1, ..Dry::default() },
                xtc: Xtc { probability: 0.2, threshold: 0.1 },
                top_n_sigma: 8.0,
                dynamic_temperature: DynamicTemperature { range: 0.2, exponent: 1.0 },
                mirostat: mirostat.map(|version| Mirostat { tau: 0.5, ..Mirostat::new(version) }),
                ..sampling(seed)
            }
        };
        let ask = |sampling| ask(&engine, request("abcabcabczabcabc", sampling)).choices;
        let all: Vec<Vec<Choice>> = (0..20).flat_map(|seed| [ask(sampling(seed)), ask(others(seed))]).collect();
        (all, engine.status())
    };
    let (plain, _) = answers(Speculation::Off);
    let (guessed, status) = answers(Speculation::Lookup);
    assert_eq!(guessed, plain);
    assert!(status.right_guesses > 0 && status.guessed_tokens > status.right_guesses, "{status:?}");
    let counts_match =
        |choice: &Choice| choice.logprobs.iter().map(|found| found.token).eq(choice.tokens.iter().copied());
    assert!(guessed.iter().flatten().all(counts_match));
}

#[test]
fn mirostats_state_is_that_of_a_choice() {
    let engine = start(chaotic(limits()));
    let mirostat = Some(Mirostat { tau: 2.0, eta: 1.0, ..Mirostat::new(MirostatVersion::Two) });
    let sampling = |n| SamplingParams { n, mirostat, seed: Some(5), max_tokens: Some(30), ..SamplingParams::default() };
    let three = ask(&engine, request("> ", sampling(3)));
    let one = ask(&engine, request("> ", sampling(1)));
    assert_eq!(three.choices[0].tokens, one.choices[0].tokens);
    assert_ne!(three.choices[0].tokens, three.choices[1].tokens);
}

#[test]
fn sets_without_a_common_token_fail_the_request_and_not_the_engine() {
    let engine = start(StubRunner::with_logits(limits(), |_, logits| {
        logits.fill(f32::NEG_INFINITY);
        logits[97] = 1.0;
    }));
    let sampling = SamplingParams { allowed_token_ids: Some(vec![98]), ..SamplingParams::greedy() };
    let failed = ask(&engine, request("> ", sampling));
    let Some(EngineError::Grammar(reason)) = failed.error else { panic!("{failed:?}") };
    assert!(reason.contains("allowed_token_ids"), "{reason}");
    assert_eq!(ask(&engine, greedy("> ", 2)).text(), "aa");
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_at_the_door() {
    let engine = start(alphabet());
    let sampling = SamplingParams { logit_bias: vec![(vocab_size() as u32, 1.0)], ..SamplingParams::default() };
    let refused = engine.submit(request("> ", sampling)).unwrap_err();
    assert!(matches!(refused, SubmitError::InvalidParam { param: "logit_bias", .. }), "{refused:?}");
}
