use super::*;
use crate::sampler::{Sampler, Scratch};
use crate::{DynamicTemperature, Xtc};
use proptest::prelude::*;

/// A chain of all stages that a request asks for, also where none is needed.
fn chain(params: &SamplingParams) -> Chain {
    params.validate().unwrap();
    let filters = params.order.iter().filter_map(|&stage| Filter::of(stage, params)).collect();
    Chain { filters, min_keep: params.min_keep }
}

/// What is left of logits, by id, with probabilities.
fn left(params: &SamplingParams, logits: &[f32], coin: f64) -> Vec<(u32, f64)> {
    let mut candidates = Candidates::default();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    chain(params).run(logits, max, coin, None, &mut candidates, &mut Vec::new());
    let total = mass(&candidates.items);
    let mut left: Vec<(u32, f64)> =
        candidates.items.iter().map(|item| (item.id, f64::from(item.weight) / total)).collect();
    left.sort_unstable_by_key(|&(id, _)| id);
    left
}

/// The stages by their definitions, over all tokens in float64.
fn expected(params: &SamplingParams, logits: &[f32], coin: f64) -> Vec<(u32, f64)> {
    // (id, logit), by rank.
    let mut all: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(id, &logit)| (id as u32, f64::from(logit))).collect();
    all.retain(|&(_, logit)| logit > f64::NEG_INFINITY);
    let rank = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    all.sort_by(rank);
    for &stage in &params.order {
        let best = all[0].1;
        let total: f64 = all.iter().map(|&(_, logit)| (logit - best).exp()).sum();
        let p = |logit: f64| (logit - best).exp() / total;
        let entropy: f64 =
            all.iter().map(|&(_, logit)| if p(logit) > 0.0 { -p(logit) * p(logit).ln() } else { 0.0 }).sum();
        match stage {
            Stage::TopNSigma if params.top_n_sigma > 0.0 => {
                let num = all.len() as f64;
                let mean = all.iter().map(|token| token.1).sum::<f64>() / num;
                let sigma = (all.iter().map(|token| (token.1 - mean).powi(2)).sum::<f64>() / num).sqrt();
                all.retain(|token| token.1 >= best - f64::from(params.top_n_sigma) * sigma);
            }
            Stage::Temperature => {
                let (t, range) = (f64::from(params.temperature), f64::from(params.dynamic_temperature.range));
                let t = if range > 0.0 && all.len() > 1 {
                    let share = (entropy / (all.len() as f64).ln()).clamp(0.0, 1.0);
                    let low = (t - range).max(0.0);
                    low + (t + range - low) * share.powf(f64::from(params.dynamic_temperature.exponent))
                } else {
                    t
                };
                if t == 0.0 {
                    all.truncate(1);
                } else {
                    all.iter_mut().for_each(|token| token.1 = (token.1 - best) / t);
                }
            }
            Stage::MinP => {
                let num = all.iter().filter(|token| (token.1 - best).exp() >= f64::from(params.min_p)).count();
                all.truncate(num.max(params.min_keep));
            }
            Stage::TopK if params.top_k > 0 => all.truncate(params.top_k as usize),
            Stage::TypicalP if params.typical_p < 1.0 => {
                let distance = |token: &(u32, f64)| (-p(token.1).ln() - entropy).abs();
                all.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(rank(a, b)));
                truncate_to_share(&mut all, params.typical_p, params.min_keep, p);
                all.sort_by(rank);
            }
            Stage::TopP if params.top_p < 1.0 => truncate_to_share(&mut all, params.top_p, params.min_keep, p),
            Stage::Xtc if coin < f64::from(params.xtc.probability) => {
                let num_top = all.iter().filter(|token| p(token.1) >= f64::from(params.xtc.threshold)).count();
                if num_top >= 2 && all.len() - (num_top - 1) >= params.min_keep {
                    all.drain(..num_top - 1);
                }
            }
            _ => {}
        }
    }
    let best = all[0].1;
    let total: f64 = all.iter().map(|&(_, logit)| (logit - best).exp()).sum();
    let mut left: Vec<(u32, f64)> = all.into_iter().map(|(id, logit)| (id, (logit - best).exp() / total)).collect();
    left.sort_unstable_by_key(|&(id, _)| id);
    left
}

/// Keeps the first that have this share of the mass, and at least `min_keep`.
fn truncate_to_share(all: &mut Vec<(u32, f64)>, share: f32, min_keep: usize, p: impl Fn(f64) -> f64) {
    let mut sum = 0.0;
    let last = all.iter().position(|token| {
        sum += p(token.1);
        sum >= f64::from(share)
    });
    all.truncate(last.map_or(all.len(), |last| last + 1).max(min_keep));
}

prop_compose! {
    /// Odd multiples of 1/1024 and logits in quarters keep sums away from the thresholds.
    fn any_share()(half in 0u32..512) -> f32 {
        (2 * half + 1) as f32 / 1024.0
    }
}

prop_compose! {
    fn any_params()(
        order in prop::sample::subsequence(Stage::DEFAULT_ORDER.to_vec(), 0..=7).prop_shuffle(),
        temperature in prop::sample::select(vec![0.0f32, 0.3, 0.75, 1.0, 1.7]),
        (range, exponent) in (prop::sample::select(vec![0.0f32, 0.0, 0.5]), prop::sample::select(vec![0.5f32, 1.0, 3.0])),
        (min_p, typical_p, top_p) in (any_share(), any_share(), any_share()),
        (probability, threshold) in (any_share(), any_share()),
        top_n_sigma in any_share().prop_map(|share| 5.0 * share),
        (top_k, min_keep) in (0u32..20, 0usize..5),
    ) -> SamplingParams {
        SamplingParams {
            order,
            temperature,
            dynamic_temperature: DynamicTemperature { range, exponent },
            min_p: min_p / 8.0,
            typical_p,
            top_p,
            top_k,
            top_n_sigma,
            // Small thresholds, so that several tokens reach them.
            xtc: Xtc { probability, threshold: threshold / 4.0 },
            min_keep,
            ..SamplingParams::default()
        }
    }
}

proptest! {
    #[test]
    fn stages_in_any_order_agree_with_their_definitions(
        params in any_params(),
        steps in prop::collection::vec(prop::option::weighted(0.9, -60i32..60), 1..100),
        coin in 0.0f64..1.0,
    ) {
        let mut logits: Vec<f32> = steps.iter().map(|step| step.map_or(f32::NEG_INFINITY, |step| step as f32 / 4.0)).collect();
        logits.push(0.0);
        let (found, expected) = (left(&params, &logits, coin), expected(&params, &logits, coin));
        let ids = |left: &[(u32, f64)]| left.iter().map(|&(id, _)| id).collect::<Vec<u32>>();
        prop_assert_eq!(ids(&found), ids(&expected), "{:?}", params);
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert!((found.1 - expected.1).abs() < 1e-5, "{:?} instead of {:?}", found, expected);
        }
    }

    #[test]
    fn what_needs_no_chain_is_drawn_as_by_one(
        steps in prop::collection::vec(-60i32..60, 1..100),
        (temperature, top_k) in (prop::sample::select(vec![0.0f32, 0.75, 1.0, 1.7]), 0u32..20),
        (min_p, typical_p, top_p) in (any_share(), any_share(), any_share()),
        seed in any::<u64>(),
    ) {
        let logits: Vec<f32> = steps.iter().map(|&step| step as f32 / 4.0).collect();
        let params = SamplingParams { temperature, top_k, min_p, typical_p, top_p, seed: Some(seed), ..SamplingParams::default() };
        let plain = Sampler::for_choices(&params, &[], &[]).remove(0);
        prop_assert!(plain.chain.is_none());
        let chained = Sampler { chain: Some(chain(&params)), ..plain.clone() };
        let mut scratch = Scratch::default();
        let [plain, chained] = [plain, chained].map(|sampler| sampler.sample(&logits, None, &mut scratch).unwrap());
        prop_assert_eq!(plain.token, chained.token);
    }
}

#[test]
fn only_what_is_asked_for_needs_a_chain() {
    let default = SamplingParams::default;
    let needs = |params: SamplingParams| Chain::new(&params).is_some();
    let usual = || SamplingParams { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.1, typical_p: 0.9, ..default() };
    assert!(!needs(default()) && !needs(SamplingParams::greedy()) && !needs(usual()));
    let llama_cpps = || {
        use Stage::{MinP, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc};
        vec![TopNSigma, TopK, TypicalP, TopP, MinP, Xtc, Temperature]
    };
    assert!(needs(SamplingParams { order: llama_cpps(), ..usual() }));
    assert!(!needs(SamplingParams { order: llama_cpps(), temperature: 0.7, ..default() }), "nothing but a temperature");
    assert!(!needs(SamplingParams { order: llama_cpps(), temperature: 0.0, typical_p: 1.0, ..usual() }), "greedy");
    assert!(needs(SamplingParams { order: llama_cpps(), temperature: 0.0, ..usual() }), "typical_p may lose the best");
    assert!(needs(SamplingParams { min_keep: 2, ..usual() }) && !needs(SamplingParams { min_keep: 1, ..usual() }));
    assert!(needs(SamplingParams { top_n_sigma: 1.0, ..default() }));
    assert!(needs(SamplingParams { xtc: Xtc { probability: 0.1, threshold: 0.1 }, ..default() }));
    let dynamic_temperature = DynamicTemperature { range: 0.1, exponent: 1.0 };
    assert!(needs(SamplingParams { dynamic_temperature, temperature: 0.0, ..default() }));
}

#[test]
fn tokens_too_light_for_a_float_keep_their_order() {
    // At this temperature all but the last weigh nothing, and XTC leaves the last out.
    let logits = [1.0, 2.0, 5.0, 4.0, 9.0];
    let params = SamplingParams {
        order: vec![Stage::Temperature, Stage::TopK, Stage::Xtc, Stage::TopP],
        temperature: 0.01,
        top_k: 4,
        xtc: Xtc { probability: 1.0, threshold: 0.0 },
        min_keep: 1,
        ..SamplingParams::default()
    };
    let ids = |params: &SamplingParams| left(params, &logits, 0.5).into_iter().map(|(id, _)| id).collect::<Vec<u32>>();
    assert_eq!(ids(&params), [1], "the last of the four largest logits");
    let xtc = Xtc::default();
    assert_eq!(ids(&SamplingParams { xtc, top_k: 2, ..params.clone() }), [2, 4]);
    assert_eq!(ids(&SamplingParams { xtc, top_k: 0, top_p: 0.5, min_keep: 3, ..params }), [2, 3, 4]);
}

#[test]
fn extreme_logits_leave_something_to_draw() {
    let logits = [f32::MIN, -1e30, 0.0, f32::NEG_INFINITY, 1e-30, f32::MAX / 2.0];
    for temperature in [1e-45, 1e-30, 1.0, f32::MAX] {
        for threshold in [0.0, 0.1] {
            let params = SamplingParams {
                temperature,
                top_n_sigma: 0.5,
                typical_p: 0.01,
                dynamic_temperature: DynamicTemperature { range: f32::MAX, exponent: 2.0 },
                xtc: Xtc { probability: 1.0, threshold },
                min_p: 1.0,
                top_p: 0.0,
                ..SamplingParams::default()
            };
            for first in Stage::DEFAULT_ORDER {
                let mut order = Stage::DEFAULT_ORDER.to_vec();
                order.sort_by_key(|&stage| stage != first);
                let left = left(&SamplingParams { order, ..params.clone() }, &logits, 0.5);
                let total: f64 = left.iter().map(|token| token.1).sum();
                assert!((total - 1.0).abs() < 1e-9 && left.iter().all(|token| token.0 != 3), "{left:?}");
            }
        }
    }
}
