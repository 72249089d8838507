use super::*;
use crate::{Dry, DynamicTemperature, MirostatVersion, Xtc};
use proptest::prelude::*;
use taper_kernels::{Backend, Reference};
use taper_testkit::rng::SplitMix;

fn params(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), ..SamplingParams::default() }
}

fn sampler(params: &SamplingParams) -> Sampler {
    Sampler::for_choices(params, &[], &[]).remove(0)
}

fn choose(sampler: &Sampler, logits: &[f32]) -> Result<u32, InvalidLogits> {
    sampler.sample(logits, None, &mut Scratch::default()).map(|sampled| sampled.token)
}

/// How often each token is chosen in `draws` draws.
fn histogram(params: &SamplingParams, logits: &[f32], draws: usize) -> Vec<f64> {
    let (mut sampler, mut scratch) = (sampler(params), Scratch::default());
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..draws {
        let token = sampler.sample(logits, None, &mut scratch).unwrap().token;
        counts[token as usize] += 1.0 / draws as f64;
        sampler.accept(token, None);
    }
    counts
}

fn check_shares(params: &SamplingParams, logits: &[f32], expected: &[f64]) {
    // 40,000 draws: the standard deviation of a share is at most 0.0025.
    let shares = histogram(params, logits, 40_000);
    for (token, (share, expected)) in shares.iter().zip(expected).enumerate() {
        let allowed = if *expected == 0.0 { 0.0 } else { 0.0125 };
        assert!((share - expected).abs() <= allowed, "token {token}: {share} instead of {expected}; all: {shares:?}");
    }
}

fn logits_of(shares: &[f32]) -> Vec<f32> {
    shares.iter().map(|share| share.ln() + 3.0).collect()
}

#[test]
fn temperature_zero_takes_the_largest_and_the_lowest_id_among_equals() {
    let sampler = sampler(&SamplingParams::greedy());
    let check = |logits: &[f32], expected| assert_eq!(choose(&sampler, logits), Ok(expected));
    check(&[0.0, 2.0, 1.0, 2.0], 1);
    check(&[f32::NEG_INFINITY, -5.0], 1);
    let mut wide = vec![-1.0; 100];
    for place in [97, 40, 41] {
        wide[place] = 7.0;
        check(&wide, place as u32);
        wide[99] = 7.0;
        check(&wide, place as u32);
        wide[99] = -1.0;
        wide[place] = -1.0;
    }
    check(&[-0.0, 0.0], 0);
}

#[test]
fn unusable_logits_are_named_at_every_place() {
    for place in [0, 7, 16, 31, 32, 35] {
        for temperature in [0.0, 1.0] {
            let sampler = sampler(&SamplingParams { temperature, ..params(1) });
            let mut logits = vec![1.0; 36];
            logits[place] = f32::NAN;
            assert_eq!(choose(&sampler, &logits), Err(InvalidLogits::Nan { token: place }));
            logits[place] = f32::INFINITY;
            let refused = InvalidLogits::Infinite { token: place, value: "inf".into() };
            assert_eq!(choose(&sampler, &logits), Err(refused));
        }
    }
    let nothing_left = choose(&sampler(&params(1)), &[f32::NEG_INFINITY; 3]);
    assert_eq!(nothing_left, Err(InvalidLogits::Infinite { token: 0, value: "-inf".into() }));
}

#[test]
fn shares_follow_the_softmax_and_the_temperature() {
    let logits = logits_of(&[0.1, 0.2, 0.7]);
    check_shares(&params(1), &logits, &[0.1, 0.2, 0.7]);
    // Temperature 1/2 squares the probabilities.
    check_shares(&SamplingParams { temperature: 0.5, ..params(2) }, &logits, &[0.01 / 0.54, 0.04 / 0.54, 0.49 / 0.54]);
    check_shares(&SamplingParams { temperature: 1e-38, ..params(3) }, &logits, &[0.0, 0.0, 1.0]);
    check_shares(&SamplingParams { temperature: 1e30, ..params(4) }, &logits, &[1.0 / 3.0; 3]);
}

#[test]
fn a_ruled_out_token_never_appears() {
    check_shares(&params(5), &[f32::NEG_INFINITY, 0.0, 0.0], &[0.0, 0.5, 0.5]);
}

#[test]
fn top_k_keeps_the_most_probable() {
    let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    check_shares(&SamplingParams { top_k: 2, ..params(6) }, &logits, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    check_shares(&SamplingParams { top_k: 1, ..params(6) }, &logits, &[0.0, 1.0, 0.0, 0.0]);
    check_shares(&SamplingParams { top_k: 1, ..params(6) }, &[1.0, 1.0, 1.0], &[1.0, 0.0, 0.0]);
    check_shares(&SamplingParams { top_k: 9, ..params(6) }, &logits, &[0.1, 0.4, 0.2, 0.3]);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_share() {
    let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    check_shares(&SamplingParams { top_p: 0.5, ..params(7) }, &logits, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    check_shares(&SamplingParams { top_p: 0.75, ..params(7) }, &logits, &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
    check_shares(&SamplingParams { top_p: 0.0, ..params(7) }, &logits, &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn min_p_is_relative_to_the_most_probable() {
    let logits = logits_of(&[0.1, 0.4, 0.21, 0.29]);
    check_shares(&SamplingParams { min_p: 0.5, ..params(8) }, &logits, &[0.0, 4.0 / 9.0, 2.1 / 9.0, 2.9 / 9.0]);
    check_shares(&SamplingParams { min_p: 1.0, ..params(8) }, &logits, &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn typical_p_may_leave_the_most_probable_out() {
    let logits = logits_of(&[0.5, 0.4, 0.06, 0.04]);
    // The entropy is 1.01, and -ln p is 0.69, 0.92, 2.81 and 3.22.
    check_shares(&SamplingParams { typical_p: 0.3, ..params(9) }, &logits, &[0.0, 1.0, 0.0, 0.0]);
    check_shares(&SamplingParams { typical_p: 0.6, ..params(9) }, &logits, &[5.0 / 9.0, 4.0 / 9.0, 0.0, 0.0]);
    check_shares(&SamplingParams { typical_p: 0.0, ..params(9) }, &logits, &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn a_mask_and_a_bias_change_shares_and_choosing_changes_nothing() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let sampler = sampler(&SamplingParams { logit_bias: vec![(0, 2f32.ln())], ..params(3) });
    let mut counts = [0.0; 4];
    for seed in 0..40_000 {
        let sampler = Sampler { stream: Stream::new(seed, 0), ..sampler.clone() };
        let draw = || sampler.sample(&logits, Some(&[0b1011]), &mut Scratch::default()).unwrap().token;
        counts[draw() as usize] += 1.0 / 40_000.0;
        assert_eq!(draw(), draw());
    }
    for (share, expected) in counts.into_iter().zip([0.25f64, 0.25, 0.0, 0.5]) {
        assert!((share - expected).abs() < 0.0125, "{counts:?}");
    }
}

#[test]
fn the_same_seed_draws_the_same_and_choices_draw_apart() {
    let logits = vec![0.0; 1000];
    let draw = |sampler: &mut Sampler| -> Vec<u32> {
        let mut next = || {
            let token = choose(sampler, &logits).unwrap();
            sampler.accept(token, None);
            token
        };
        (0..50).map(|_| next()).collect()
    };
    let three = SamplingParams { n: 3, ..params(42) };
    let all: Vec<_> = Sampler::for_choices(&three, &[], &[]).iter_mut().map(draw).collect();
    let again: Vec<_> = Sampler::for_choices(&three, &[], &[]).iter_mut().map(draw).collect();
    assert_eq!(all, again);
    assert_eq!(all[0], draw(&mut sampler(&params(42))), "choice 0 is what n = 1 gets");
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    assert_ne!(all[0], draw(&mut sampler(&params(43))));
    let unseeded = || draw(&mut sampler(&SamplingParams::default()));
    assert_ne!(unseeded(), unseeded());
}

#[test]
fn draws_are_those_that_they_have_always_been() {
    let logits = vec![0.0; 1000];
    let draws = |params: &SamplingParams, choice: usize| -> Vec<u32> {
        let mut sampler = Sampler::for_choices(params, &[], &[]).remove(choice);
        let next = |_| {
            let token = choose(&sampler, &logits).unwrap();
            sampler.accept(token, None);
            token
        };
        (0..8).map(next).collect()
    };
    let two = SamplingParams { n: 2, ..params(42) };
    // A thousand times SplitMix64's numbers, from another program.
    assert_eq!(draws(&two, 0), [386, 921, 83, 603, 498, 179, 61, 318]);
    assert_eq!(draws(&two, 1), [33, 773, 563, 80, 889, 524, 190, 564]);
    // A coin beside a draw leaves it where it was.
    let tossing = SamplingParams { xtc: Xtc { probability: 0.5, threshold: 0.5 }, ..two };
    assert_eq!(draws(&tossing, 0), [386, 921, 83, 603, 498, 179, 61, 318]);
}

#[test]
fn xtc_leaves_the_top_choices_but_the_last_out_as_often_as_it_shall() {
    let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    let with = |probability, threshold| SamplingParams { xtc: Xtc { probability, threshold }, ..params(21) };
    check_shares(&with(1.0, 0.15), &logits, &[1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
    check_shares(&with(1.0, 0.35), &logits, &[0.1, 0.4, 0.2, 0.3]);
    check_shares(&with(1.0, 0.0), &logits, &[1.0, 0.0, 0.0, 0.0]);
    let half = [0.5 * (0.1 + 1.0 / 3.0), 0.2, 0.5 * (0.2 + 2.0 / 3.0), 0.15];
    check_shares(&with(0.5, 0.15), &logits, &half);
    check_shares(&SamplingParams { min_keep: 3, ..with(1.0, 0.15) }, &logits, &[0.1, 0.4, 0.2, 0.3]);
}

#[test]
fn the_order_of_stages_is_the_requests() {
    let logits = logits_of(&[0.5, 0.3, 0.2]);
    let with = |order: &[Stage]| SamplingParams { order: order.to_vec(), temperature: 0.5, top_p: 0.6, ..params(22) };
    // Squared, the shares are 25, 9 and 4 of 38: the first has 0.6 by itself.
    check_shares(&with(&[Stage::Temperature, Stage::TopP]), &logits, &[1.0, 0.0, 0.0]);
    check_shares(&with(&[Stage::TopP, Stage::Temperature]), &logits, &[25.0 / 34.0, 9.0 / 34.0, 0.0]);
    check_shares(&with(&[Stage::TopP]), &logits, &[5.0 / 8.0, 3.0 / 8.0, 0.0]);
    check_shares(&with(&[Stage::Temperature]), &logits, &[25.0 / 38.0, 9.0 / 38.0, 4.0 / 38.0]);
    check_shares(&with(&[]), &logits, &[0.5, 0.3, 0.2]);
    check_shares(&SamplingParams { min_keep: 2, ..with(&[Stage::TopP]) }, &logits, &[5.0 / 8.0, 3.0 / 8.0, 0.0]);
    let keeping = SamplingParams { min_keep: 3, ..with(&[Stage::TopP]) };
    check_shares(&keeping, &logits, &[0.5, 0.3, 0.2]);
}

#[test]
fn a_dynamic_temperature_is_high_where_the_model_is_unsure() {
    let dynamic = |range| SamplingParams {
        dynamic_temperature: DynamicTemperature { range, exponent: 1.0 },
        temperature: 1.0,
        ..params(23)
    };
    // All are equal, so the entropy is the largest: temperature 2, which changes nothing.
    check_shares(&dynamic(1.0), &[3.0, 3.0], &[0.5, 0.5]);
    // H = 0.5 bits of 1 at the shares 0.89 and 0.11: the temperature is 0.5 + 0.5.
    let logits = logits_of(&[0.889_972, 0.110_028]);
    check_shares(&dynamic(0.5), &logits, &[0.889_972, 0.110_028]);
    // Here it is 0 + 2 * 0.0808: the ratio of the shares has the power 6.19.
    check_shares(&dynamic(1.0), &logits_of(&[0.99, 0.01]), &[1.0, 0.0]);
}

#[test]
fn mirostat_holds_the_surprise_near_its_target() {
    let logits: Vec<f32> = (1..=2000).map(|rank| -(rank as f32).ln()).collect();
    for version in [MirostatVersion::One, MirostatVersion::Two] {
        for tau in [2.0, 4.0] {
            let params = SamplingParams {
                mirostat: Some(crate::Mirostat { tau, ..crate::Mirostat::new(version) }),
                ..params(24)
            };
            let (mut sampler, mut scratch) = (sampler(&params), Scratch::default());
            let mut sum = 0.0;
            for _ in 0..4000 {
                let Sampled { token, surprise, .. } = sampler.sample(&logits, None, &mut scratch).unwrap();
                sum += surprise.unwrap() / 4000.0;
                sampler.accept(token, surprise);
            }
            // mu stays within some bits, so the errors of all tokens add up to those over the rate.
            assert!((sum - tau).abs() < 0.05, "{version:?} {tau}: {sum}");
        }
    }
}

#[test]
fn mirostat_learns_nothing_where_nothing_was_to_choose() {
    let mirostat = Some(crate::Mirostat::new(MirostatVersion::Two));
    let sampler = sampler(&SamplingParams { mirostat, ..params(25) });
    let surprise =
        |mask: u32| sampler.sample(&[1.0, 2.0, 3.0], Some(&[mask]), &mut Scratch::default()).unwrap().surprise;
    assert_eq!(surprise(0b100), None);
    assert!(surprise(0b110).is_some());
    assert_eq!(sampler.forced(1, &[1.0, 2.0, 3.0]).unwrap().surprise, None);
}

#[test]
fn log_probabilities_may_be_those_of_the_draw() {
    let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    let told = |params: SamplingParams| {
        let params = SamplingParams { logprobs: Some(3), logprobs_of_draw: true, ..params };
        assert!(sampler(&params).draw(0).is_none());
        sampler(&params).sample(&logits, None, &mut Scratch::default()).unwrap().logprobs.unwrap()
    };
    let check = |params: SamplingParams, expected: &[(u32, f32)]| {
        let found = told(params);
        let place = expected.iter().position(|top| top.0 == found.token).unwrap();
        assert_eq!((found.rank, found.top.len()), (place + 1, expected.len()), "{found:?}");
        assert_eq!(found.top[place], (found.token, found.logprob));
        for (found, expected) in found.top.iter().zip(expected) {
            assert_eq!(found.0, expected.0);
            assert!((found.1.exp() - expected.1).abs() < 1e-6, "{found:?} instead of {expected:?}");
        }
    };
    for seed in 0..20 {
        let two = SamplingParams { top_k: 2, ..params(seed) };
        check(two.clone(), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        check(SamplingParams { min_keep: 2, ..two }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        check(SamplingParams { temperature: 0.0, ..params(seed) }, &[(1, 1.0)]);
    }
    let all = told(SamplingParams { seed: Some(1), ..SamplingParams::default() });
    assert_eq!(all.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 3, 2]);
    assert!((all.top[2].1.exp() - 0.2).abs() < 1e-6);
    let forced = sampler(&SamplingParams { logprobs: Some(3), logprobs_of_draw: true, ..params(1) }).forced(0, &logits);
    assert_eq!(forced.unwrap().logprobs.unwrap().top, [(0, 0.0)]);
}

/// The filters by their definitions, over a full sort in float64; the set of tokens that may be drawn.
fn allowed(params: &SamplingParams, logits: &[f32]) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from((logit - max) / params.temperature)).exp();
    let mut all: Vec<(u32, f64)> = logits.iter().enumerate().map(|(id, &logit)| (id as u32, weight(logit))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.retain(|&(_, weight)| weight >= f64::from(params.min_p));
    if params.top_k > 0 {
        all.truncate(params.top_k as usize);
    }
    let total: f64 = all.iter().map(|&(_, weight)| weight).sum();
    let entropy: f64 = all.iter().map(|&(_, weight)| -(weight / total) * (weight / total).ln()).sum();
    let distance = |weight: f64| (-(weight / total).ln() - entropy).abs();
    if params.typical_p < 1.0 {
        all.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        truncate_to_share(&mut all, params.typical_p);
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    truncate_to_share(&mut all, params.top_p);
    all
}

/// Keeps the first that have this share of the mass.
fn truncate_to_share(all: &mut Vec<(u32, f64)>, share: f32) {
    let target = f64::from(share) * all.iter().map(|&(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let last = all.iter().position(|&(_, weight)| {
        sum += weight;
        sum >= target
    });
    all.truncate(last.map_or(all.len(), |last| last + 1));
}

proptest! {
    #[test]
    fn filters_agree_with_their_definitions(
        steps in prop::collection::vec(-60i32..60, 1..200),
        top_k in 0u32..20,
        // Odd multiples of 1/1024 and logits in quarters keep sums away from the thresholds.
        top_p in (0u32..512).prop_map(|p| (2 * p + 1) as f32 / 1024.0),
        min_p in (0u32..512).prop_map(|p| (2 * p + 1) as f32 / 1024.0),
        typical_p in (0u32..512).prop_map(|p| (2 * p + 1) as f32 / 1024.0),
        use_min_p in any::<bool>(),
        use_typical_p in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let logits: Vec<f32> = steps.iter().map(|&step| step as f32 / 4.0).collect();
        let min_p = if use_min_p { min_p } else { 0.0 };
        let typical_p = if use_typical_p { typical_p } else { 1.0 };
        let params = SamplingParams { top_k, top_p, min_p, typical_p, ..params(seed) };
        let allowed = allowed(&params, &logits);
        let (mut sampler, mut scratch) = (sampler(&params), Scratch::default());
        for _ in 0..20 {
            let token = sampler.sample(&logits, None, &mut scratch).unwrap().token;
            sampler.accept(token, None);
            prop_assert!(allowed.iter().any(|&(id, _)| id == token), "{} is not among {:?}", token, allowed);
        }
        prop_assert_eq!(scratch.candidates.items.len(), allowed.len());
    }
}

/// A backend that draws where the logits lie has other roundings and no other tokens, but for draws that fall on a border.
#[test]
fn a_draw_is_what_the_sampler_chooses() {
    let mut rng = SplitMix::new(31);
    let mut logits = vec![0.0; 300];
    let backend = Reference::new();
    let mut tokens = Vec::new();
    for seed in 0..2000 {
        // Sixteenths, so that many are equal.
        logits.fill_with(|| (rng.below(240) as f32 - 160.0) / 16.0);
        let params = SamplingParams {
            temperature: *rng.pick(&[0.0, 0.5, 1.0, 1.7]),
            top_k: *rng.pick(&[0, 1, 20]),
            top_p: *rng.pick(&[1.0, 0.9, 0.5]),
            min_p: *rng.pick(&[0.0, 0.02]),
            ..params(seed)
        };
        let mut sampler = sampler(&params);
        let ahead = sampler.draw(2).unwrap();
        assert!(backend.choose(&row(&logits), &[(0, sampler.draw(0).unwrap())], &mut tokens));
        assert_eq!(tokens, [choose(&sampler, &logits).ok()], "{params:?}");
        sampler.accept(5, None);
        sampler.accept(7, None);
        assert_eq!(sampler.draw(0), Some(ahead), "two places further");
    }
}

/// A row of logits as the reference has it.
fn row(logits: &[f32]) -> <Reference as Backend>::Buffer {
    Reference::new().buffer_of(logits.len(), logits).unwrap()
}

#[test]
fn what_needs_more_than_the_row_of_logits_is_not_drawn_elsewhere() {
    let drawn = |params: SamplingParams| sampler(&params).draw(0).is_some();
    assert!(drawn(SamplingParams::greedy()) && drawn(params(1)));
    assert!(
        drawn(SamplingParams { logprobs: Some(3), ..params(1) }),
        "the same token with log-probabilities and without"
    );
    assert!(!drawn(SamplingParams { typical_p: 0.9, ..params(1) }));
    assert!(!drawn(SamplingParams { frequency_penalty: 0.1, ..params(1) }));
    assert!(!drawn(SamplingParams { logit_bias: vec![(3, 1.0)], ..params(1) }));
    assert!(!drawn(SamplingParams { dry: Dry { multiplier: 1.0, ..Dry::default() }, ..params(1) }));
    assert!(!drawn(SamplingParams { top_n_sigma: 1.0, ..params(1) }));
    assert!(!drawn(SamplingParams { mirostat: Some(crate::Mirostat::new(MirostatVersion::One)), ..params(1) }));
    assert!(drawn(SamplingParams { penalty_last_n: Some(0), frequency_penalty: 0.1, ..params(1) }));
    let mut sampler = sampler(&SamplingParams { min_tokens: 2, ..params(1) });
    assert_eq!([0, 1, 2, 3].map(|place| sampler.draw(place).is_some()), [false, false, true, true]);
    sampler.accept(5, None);
    assert_eq!([0, 1, 2].map(|place| sampler.draw(place).is_some()), [false, true, true], "the same places");
}
