//! Stages in any order: what [`super::Sampler`] does where its own order, or its own stages, are not enough.
//!
//! A stage leaves out some of the tokens that are left, or weighs them anew; probabilities are renormalised in between, so that a stage
//! sees what the one before it left. `min_p`, `top_k`, `typical_p` and `top_p` are here what they are there, over a list.
//!
//! | stage | keeps |
//! |---|---|
//! | top_n_sigma, xtc, typical_p, top_p | see the modules of these names |
//! | temperature | all, their logits divided; 0 keeps the most probable one. See `dynamic_temperature` too |
//! | min_p | tokens at least this times as probable as the most probable one |
//! | top_k | the k most probable |
//!
//! `min_keep` is for min_p, typical_p and top_p the number of tokens that they keep at least, the most probable ones (the most typical
//! ones); XTC does nothing where it would leave fewer.

use super::candidates::{Candidate, Candidates, mass};
use super::exp::exp_negative;
use super::mirostat::Mirostat;
use super::{dynamic_temperature, top_n_sigma, top_p, typical_p, xtc};
use crate::{SamplingParams, Stage};
use std::cmp::Ordering;
use std::sync::Arc;

/// A stage with what it goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Filter {
    TopNSigma(f32),
    Temperature(f32),
    DynamicTemperature { bounds: (f32, f32), exponent: f32 },
    MinP(f32),
    TopK(usize),
    TypicalP(f32),
    TopP(f32),
    Xtc { probability: f64, threshold: f32 },
}

impl Filter {
    /// `None` where the stage changes nothing.
    fn of(stage: Stage, params: &SamplingParams) -> Option<Filter> {
        let &SamplingParams { top_n_sigma, temperature, min_p, top_k, typical_p, top_p, xtc, .. } = params;
        let dynamic = params.dynamic_temperature;
        let (is_on, filter) = match stage {
            Stage::TopNSigma => (top_n_sigma > 0.0, Filter::TopNSigma(top_n_sigma)),
            Stage::Temperature if dynamic.range > 0.0 => {
                let bounds = ((temperature - dynamic.range).max(0.0), (temperature + dynamic.range).min(f32::MAX));
                (true, Filter::DynamicTemperature { bounds, exponent: dynamic.exponent })
            }
            Stage::Temperature => (temperature != 1.0, Filter::Temperature(temperature)),
            Stage::MinP => (min_p > 0.0, Filter::MinP(min_p)),
            Stage::TopK => (top_k > 0, Filter::TopK(top_k as usize)),
            Stage::TypicalP => (typical_p < 1.0, Filter::TypicalP(typical_p)),
            Stage::TopP => (top_p < 1.0, Filter::TopP(top_p)),
            Stage::Xtc => {
                let probability = f64::from(xtc.probability);
                (probability > 0.0, Filter::Xtc { probability, threshold: xtc.threshold })
            }
        };
        is_on.then_some(filter)
    }

    /// The place in the order that [`super::Sampler`] has without a chain.
    fn plain_place(self) -> Option<usize> {
        match self {
            Filter::Temperature(_) => Some(0),
            Filter::MinP(_) => Some(1),
            Filter::TopK(_) => Some(2),
            Filter::TypicalP(_) => Some(3),
            Filter::TopP(_) => Some(4),
            Filter::TopNSigma(_) | Filter::DynamicTemperature { .. } | Filter::Xtc { .. } => None,
        }
    }

    /// Whether the most probable token stays.
    fn keeps_best(self) -> bool {
        !matches!(self, Filter::TypicalP(_) | Filter::Xtc { .. })
    }
}

/// The stages of one request.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    filters: Arc<[Filter]>,
    min_keep: usize,
}

impl Chain {
    /// `None` where the order and the stages are those that need no chain.
    pub(super) fn new(params: &SamplingParams) -> Option<Chain> {
        // Mirostat stands in for all others.
        let applies = |stage: &&Stage| params.mirostat.is_none() || **stage == Stage::Temperature;
        let mut filters: Vec<Filter> =
            params.order.iter().filter(applies).filter_map(|&stage| Filter::of(stage, params)).collect();
        if let Some(place) = filters.iter().position(|filter| *filter == Filter::Temperature(0.0)) {
            // One token is left, and all behind it leave it.
            filters.truncate(place + 1);
            if filters.iter().all(|filter| filter.keeps_best()) {
                return None;
            }
        }
        let places: Option<Vec<usize>> = filters.iter().map(|filter| filter.plain_place()).collect();
        let is_plain = places.is_some_and(|places| places.is_sorted());
        let needs_none = is_plain && params.min_keep <= 1 && params.mirostat.is_none();
        (!needs_none).then(|| Chain { filters: filters.into(), min_keep: params.min_keep })
    }

    /// Lists what is left of processed logits, the largest of which is `max`, after all stages. XTC applies where `coin`, which lies in
    /// [0, 1), is less than its probability. Whether there was anything to choose.
    pub(super) fn run(
        &self,
        logits: &[f32],
        max: f32,
        coin: f64,
        mirostat: Option<&Mirostat>,
        candidates: &mut Candidates,
        typical: &mut Vec<(f32, Candidate)>,
    ) -> bool {
        let (mut left, filters) = match &*self.filters {
            [Filter::TopK(k), rest @ ..] if list_heaviest(candidates, logits, max, *k) => {
                (Left { logits, max, temperature: 1.0, items: &mut candidates.items }, rest)
            }
            [Filter::Temperature(temperature), rest @ ..] if *temperature > 0.0 => {
                (Left::all(logits, max, *temperature, &mut candidates.items), rest)
            }
            all => (Left::all(logits, max, 1.0, &mut candidates.items), all),
        };
        let is_choice = left.items.len() > 1;
        for &filter in filters {
            self.apply(filter, &mut left, coin, typical);
        }
        if let Some(mirostat) = mirostat.filter(|_| is_choice) {
            mirostat.keep(&mut left, logits.len());
        }
        is_choice
    }

    fn apply(&self, filter: Filter, left: &mut Left<'_>, coin: f64, typical: &mut Vec<(f32, Candidate)>) {
        let min_keep = self.min_keep;
        match filter {
            Filter::TopNSigma(n) => top_n_sigma::keep(left, n),
            Filter::Temperature(temperature) => left.divide(temperature),
            Filter::DynamicTemperature { bounds, exponent } => {
                left.divide(dynamic_temperature::of(left, bounds, exponent));
            }
            Filter::MinP(p) => left.keep_floor(p, min_keep),
            Filter::TopK(k) => left.keep_heaviest(k),
            Filter::TypicalP(p) => {
                let &mut Left { logits, max, temperature, .. } = left;
                let ln_weight = |item: &Candidate| ln_weight(logits[item.id as usize], max, temperature);
                typical_p::keep(left.items, p, ln_weight, min_keep, typical);
                left.weigh();
            }
            Filter::TopP(p) => {
                let target = f64::from(p) * mass(left.items);
                let rank = left.rank();
                top_p::keep_mass(left.items, (target, min_keep), |item| item.weight, rank);
            }
            Filter::Xtc { probability, threshold } if coin < probability => xtc::leave_out(left, threshold, min_keep),
            Filter::Xtc { .. } => {}
        }
    }
}

/// Lists the `k` tokens with the largest logits, which is cheaper than a list of all; false where fewer than `k` weigh anything.
fn list_heaviest(candidates: &mut Candidates, logits: &[f32], max: f32, k: usize) -> bool {
    candidates.weigh(logits, max, 1.0);
    candidates.list_top_k(k, 0.0);
    candidates.items.len() == k
}

/// The logarithm of a weight, also of one that is too small for a float; a number in any case.
fn ln_weight(logit: f32, max: f32, temperature: f32) -> f32 {
    ((logit - max) / temperature).max(f32::MIN)
}

/// The tokens that are left while stages run. The heaviest weighs 1.
pub(super) struct Left<'a> {
    logits: &'a [f32],
    /// The largest logit of a token that is left.
    max: f32,
    /// What logits were divided by so far.
    temperature: f32,
    pub(super) items: &'a mut Vec<Candidate>,
}

impl<'a> Left<'a> {
    /// All that can be chosen from logits whose largest is `max`, divided by a temperature above 0.
    pub(super) fn all(logits: &'a [f32], max: f32, temperature: f32, items: &'a mut Vec<Candidate>) -> Self {
        items.clear();
        let possible = logits.iter().enumerate().filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        let weight = |logit: f32| exp_negative(ln_weight(logit, max, temperature));
        items.extend(possible.map(|(id, &logit)| Candidate { id: id as u32, weight: weight(logit) }));
        Left { logits, max, temperature, items }
    }

    /// The logarithm of a token's weight.
    pub(super) fn ln_weight(&self, item: &Candidate) -> f32 {
        ln_weight(self.logits[item.id as usize], self.max, self.temperature)
    }

    /// Weighs the tokens anew, after the heaviest have gone or the temperature has changed.
    pub(super) fn weigh(&mut self) {
        let logit = |item: &Candidate| self.logits[item.id as usize];
        self.max = self.items.iter().map(logit).fold(f32::NEG_INFINITY, f32::max);
        for item in self.items.iter_mut() {
            item.weight = exp_negative(ln_weight(self.logits[item.id as usize], self.max, self.temperature));
        }
    }

    /// Keeps what a condition on the logarithm of the weight and the token holds for.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(f32, &Candidate) -> bool) {
        let &mut Left { logits, max, temperature, ref mut items } = self;
        items.retain(|item| is_kept(ln_weight(logits[item.id as usize], max, temperature), item));
    }

    /// The order of tokens: the largest logit first, the lower id among equals. Weights do not tell those apart that a low temperature
    /// leaves none of, and another stage may leave out all that are heavier.
    pub(super) fn rank(&self) -> impl Fn(&Candidate, &Candidate) -> Ordering + use<'a> {
        let logits = self.logits;
        move |a, b| logits[b.id as usize].total_cmp(&logits[a.id as usize]).then(a.id.cmp(&b.id))
    }

    /// Keeps the first `num` by rank, which is at least 1, in id order.
    pub(super) fn keep_heaviest(&mut self, num: usize) {
        if num < self.items.len() {
            let rank = self.rank();
            self.items.select_nth_unstable_by(num - 1, rank);
            self.items.truncate(num);
        }
        self.items.sort_unstable_by_key(|item| item.id);
    }

    /// Keeps the tokens of at least the weight `floor`, and at least `min_keep`.
    fn keep_floor(&mut self, floor: f32, min_keep: usize) {
        if self.items.iter().filter(|item| item.weight >= floor).count() < min_keep {
            self.keep_heaviest(min_keep);
        } else {
            self.items.retain(|item| item.weight >= floor);
        }
    }

    /// Divides the logits.
    fn divide(&mut self, temperature: f32) {
        if temperature == 0.0 {
            self.keep_heaviest(1);
        } else {
            self.temperature = temperature;
            self.weigh();
        }
    }
}

#[cfg(test)]
mod tests;
