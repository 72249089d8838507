use super::*;
use crate::Dry;
use proptest::prelude::*;

/// A vocabulary of 40, of which 39 ends the text.
const NUM_TOKENS: usize = 40;
const END: u32 = 39;

fn processors(params: &SamplingParams, prompt: &[u32], generated: &[u32]) -> Processors {
    params.validate().unwrap();
    let mut processors = Processors::new(params, prompt, &[END]);
    generated.iter().for_each(|&token| processors.accept(token));
    processors
}

/// The processors by their definitions, in float64, from the whole text.
fn expected(
    params: &SamplingParams,
    (prompt, generated): (&[u32], &[u32]),
    mask: Option<&[bool]>,
    logits: &[f32],
) -> Vec<f64> {
    let last_n = params.penalty_last_n.unwrap_or(usize::MAX);
    let seen_generated = &generated[generated.len().saturating_sub(last_n)..];
    let seen_prompt = &prompt[(prompt.len() + seen_generated.len()).saturating_sub(last_n).min(prompt.len())..];
    let penalised = |token: usize| {
        let count = seen_generated.iter().filter(|&&other| other as usize == token).count();
        let biases = params.logit_bias.iter().filter(|&&(other, _)| other as usize == token);
        let mut logit = f64::from(logits[token]) + biases.map(|&(_, bias)| f64::from(bias)).sum::<f64>();
        if count > 0 || seen_prompt.contains(&(token as u32)) {
            let penalty = f64::from(params.repetition_penalty);
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        logit -= count as f64 * f64::from(params.frequency_penalty);
        logit - if count > 0 { f64::from(params.presence_penalty) } else { 0.0 }
    };
    let is_allowed = |token: usize| {
        params.allowed_token_ids.as_ref().is_none_or(|allowed| allowed.contains(&(token as u32)))
            && mask.is_none_or(|mask| mask[token])
    };
    let is_banned = |token: usize| {
        let completes = |word: &Vec<u32>| {
            let (last, before) = word.split_last().unwrap();
            *last as usize == token && generated.ends_with(before)
        };
        let is_end = params.stop_token_ids.contains(&(token as u32)) || (token as u32 == END && !params.ignore_eos);
        params.bad_words.iter().any(completes) || (is_end && generated.len() < params.min_tokens)
    };
    let rows = |bans: bool| -> Vec<f64> {
        let row =
            |token| if is_allowed(token) && !(bans && is_banned(token)) { penalised(token) } else { f64::NEG_INFINITY };
        (0..NUM_TOKENS).map(row).collect()
    };
    let with_bans = rows(true);
    if with_bans.iter().all(|&logit| logit == f64::NEG_INFINITY) { rows(false) } else { with_bans }
}

fn bits(mask: &[bool]) -> Vec<u32> {
    bit_mask::of(&(0..NUM_TOKENS as u32).filter(|&token| mask[token as usize]).collect::<Vec<u32>>())
}

prop_compose! {
    fn any_params()(
        (presence, frequency) in (-20i32..=20, -20i32..=20),
        repetition in prop::sample::select(vec![1.0f32, 0.5, 1.1, 1.3, 2.0]),
        logit_bias in prop::collection::vec((0..NUM_TOKENS as u32, -100i32..=100), 0..4),
        allowed in prop::option::of(prop::collection::vec(0..NUM_TOKENS as u32, 1..30)),
        bad_words in prop::collection::vec(prop::collection::vec(0u32..5, 1..4), 0..4),
        stop_token_ids in prop::collection::vec(0..NUM_TOKENS as u32, 0..4),
        min_tokens in 0usize..12,
        (ignore_eos, has_penalties) in any::<(bool, bool)>(),
        penalty_last_n in prop::option::of(0usize..20),
    ) -> SamplingParams {
        let tenths = |value: i32| if has_penalties { value as f32 / 10.0 } else { 0.0 };
        SamplingParams {
            presence_penalty: tenths(presence),
            frequency_penalty: tenths(frequency),
            repetition_penalty: repetition,
            logit_bias: logit_bias.into_iter().map(|(token, bias)| (token, bias as f32)).collect(),
            allowed_token_ids: allowed,
            bad_words,
            stop_token_ids,
            min_tokens,
            ignore_eos,
            penalty_last_n,
            ..SamplingParams::default()
        }
    }
}

proptest! {
    #[test]
    fn they_agree_with_their_definitions(
        params in any_params(),
        prompt in prop::collection::vec(0u32..10, 0..8),
        generated in prop::collection::vec(0u32..6, 0..14),
        mask in prop::option::of(prop::collection::vec(any::<bool>(), NUM_TOKENS)),
        eighths in prop::collection::vec(-100i32..100, NUM_TOKENS),
    ) {
        let logits: Vec<f32> = eighths.iter().map(|&eighth| eighth as f32 / 8.0).collect();
        let processors = processors(&params, &prompt, &generated);
        let words = mask.as_deref().map(bits);
        let mut row = logits.clone();
        let best = processors.apply(&mut row, words.as_deref(), &mut Vec::new());
        let expected = expected(&params, (&prompt, &generated), mask.as_deref(), &logits);
        for (token, (&found, &expected)) in row.iter().zip(&expected).enumerate() {
            let agrees = f64::from(found) == expected || (f64::from(found) - expected).abs() < 1e-4;
            prop_assert!(agrees, "token {}: {} instead of {}", token, found, expected);
        }
        match best {
            Ok(best) => prop_assert!(row.iter().all(|&logit| logit <= row[best])),
            Err(error) => {
                prop_assert_eq!(error, InvalidLogits::NoneAllowed);
                prop_assert!(expected.iter().all(|&logit| logit == f64::NEG_INFINITY));
            }
        }
        if mask.is_none() && processors.are_off() {
            prop_assert_eq!(row, logits);
        }
    }
}

#[test]
fn nothing_asked_for_is_off_and_min_tokens_is_over_when_reached() {
    assert!(processors(&SamplingParams::default(), &[1], &[2]).are_off());
    let min_tokens = SamplingParams { min_tokens: 2, ..SamplingParams::default() };
    assert!(!processors(&min_tokens, &[], &[5]).are_off());
    assert!(processors(&min_tokens, &[], &[5, 5]).are_off());
}

#[test]
fn bans_give_way_to_a_grammar_that_leaves_nothing_else() {
    let only_end = bit_mask::of(&[END]);
    let min_tokens = SamplingParams { min_tokens: 9, bad_words: vec![vec![END]], ..SamplingParams::default() };
    let mut row = vec![1.0; NUM_TOKENS];
    let best = processors(&min_tokens, &[], &[]).apply(&mut row, Some(&only_end), &mut Vec::new());
    assert_eq!(best, Ok(END as usize));
    assert_eq!(row[END as usize], 1.0);
}

#[test]
fn what_goes_on_with_a_repetition_is_penalised_before_tokens_are_ruled_out() {
    let dry = Dry { multiplier: 8.0, base: 2.0, allowed_length: 2, ..Dry::default() };
    let params = SamplingParams { dry, logit_bias: vec![(3, 2.0)], ..SamplingParams::default() };
    let processors = processors(&params, &[1, 2, 9, 3], &[1, 2, 9]);
    assert!(!processors.are_off());
    let mut row = vec![1.0; NUM_TOKENS];
    let best = processors.apply(&mut row, Some(&bit_mask::of(&[3, 4])), &mut Vec::new());
    assert_eq!((best, row[3], row[4], row[5]), (Ok(4), 1.0 + 2.0 - 16.0, 1.0, f32::NEG_INFINITY));
}
